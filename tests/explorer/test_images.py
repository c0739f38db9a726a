"""Images and their neighbors, against searching by hand."""

from pathlib import Path

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient

from imsvd.encoder import load
from imsvd.evaluation.features import center_crop
from imsvd.explorer import ExplainedRun, create_app
from tests.explorer.conftest import BASE, Ask
from tests.oracles import explorer as oracle


def test_images_are_listed_in_their_order(ask: Ask, opened: ExplainedRun) -> None:
    answer = ask("runs/0/images?offset=10&count=5")
    assert [item["image"] for item in answer["images"]] == [10, 11, 12, 13, 14]
    assert answer["total"] == 128
    assert opened.source.labels is not None
    expected = [opened.source.classes[int(label)] for label in opened.source.labels[10:15]]
    assert [item["label"] for item in answer["images"]] == expected


def test_images_of_one_class_are_listed(ask: Ask) -> None:
    every = ask("runs/0/images?count=200")["images"]
    answer = ask("runs/0/images?count=200&label=circle")
    expected = [item for item in every if item["label"] == "circle"]
    assert answer["images"] == expected
    assert answer["total"] == len(expected) > 0


def test_an_image_has_its_code_and_what_is_known_of_it(ask: Ask, opened: ExplainedRun) -> None:
    answer = ask("runs/0/images/7")
    assert answer["name"] == opened.source.identity(7)
    assert [item["unit"] for item in answer["code"]] == opened.encodings.codes[7].tolist()
    assert answer["code"][1]["confidence"] == pytest.approx(
        float(opened.encodings.confidence[7, 1]), abs=1e-4
    )
    assert answer["attributes"]["shape"] == answer["label"]
    assert len(answer["attributes"]) == 8


def test_an_image_that_could_not_be_read_is_said_so(ask: Ask) -> None:
    assert "could not be read" in ask.error("runs/1/images/0", 404)
    assert "could not be read" in ask.error("runs/1/images/0/thumbnail", 404)
    assert [item["image"] for item in ask("runs/1/images")["images"]] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("image", [0, 7, 64, 127])
def test_neighbors_by_code_are_those_of_a_search_by_hand(
    ask: Ask, opened: ExplainedRun, image: int
) -> None:
    answer = ask(f"runs/0/images/{image}/neighbors?by=code&count=30")
    found = [(item["image"], item["shared_count"]) for item in answer["neighbors"]]
    assert found == oracle.neighbors_by_code(opened.encodings, image, 30)
    assert answer["searched"] == 128
    own = opened.encodings.codes[image]
    for item in answer["neighbors"]:
        assert item["score"] == item["shared_count"] / 4
        other = opened.encodings.codes[item["image"]]
        assert item["shared"] == [[m, int(own[m])] for m in range(4) if own[m] == other[m]]


@pytest.mark.parametrize("image", [0, 7, 127])
def test_neighbors_by_features_are_those_of_a_search_by_hand(
    ask: Ask, opened: ExplainedRun, image: int
) -> None:
    answer = ask(f"runs/0/images/{image}/neighbors?by=features&count=20")
    query = opened.encodings.features[image].astype(np.float64).tolist()
    expected = oracle.neighbors_by_features(opened.encodings, image, query, 20)
    assert [item["image"] for item in answer["neighbors"]] == [other for other, _ in expected]
    scores = [item["score"] for item in answer["neighbors"]]
    assert scores == pytest.approx([cosine for _, cosine in expected], abs=2e-4)


def test_more_neighbors_than_images_are_all_of_them(ask: Ask) -> None:
    for by in ("code", "features"):
        answer = ask(f"runs/1/images/3/neighbors?by={by}&count=100")
        assert sorted(item["image"] for item in answer["neighbors"]) == [1, 2, 4, 5]


def test_features_that_were_not_kept_are_made_again(explained: Path, opened: ExplainedRun) -> None:
    image, encodings = 9, opened.encodings
    others = np.flatnonzero(encodings.feature_rows != image)
    fewer = encodings._replace(
        feature_rows=encodings.feature_rows[others], features=encodings.features[others]
    )
    run = ExplainedRun(opened.run, opened.summary, opened.description, opened.source, fewer)
    with TestClient(create_app([run]), base_url=BASE) as client:
        found = client.get(f"/api/runs/0/images/{image}/neighbors?by=features&count=5").json()
    encoder = load(explained)
    picture = center_crop(opened.source.read(image), encoder.description.size)
    with torch.no_grad():
        features = encoder.features(picture[None])[0].double().tolist()
    expected = oracle.neighbors_by_features(encodings, image, features, 5)
    assert [item["image"] for item in found["neighbors"]] == [other for other, _ in expected]
    assert found["searched"] == 127
