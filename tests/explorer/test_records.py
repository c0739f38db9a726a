"""Records about variables, units and images, against plain loops."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient

from imsvd.encoder import load
from imsvd.evaluation.features import center_crop
from imsvd.explanations.encodings import Encodings
from imsvd.explanations.joint import leading_variables
from imsvd.explorer import ExplainedRun, create_app, records
from imsvd.explorer.explained_run import NotFoundError
from imsvd.explorer.records import joint
from tests.explorer.conftest import BASE, Api
from tests.oracles import explorer as oracle


@pytest.fixture(scope="module")
def encodings(opened: ExplainedRun) -> Encodings:
    return opened.encodings


def test_runs_are_listed_with_their_description(api: Api) -> None:
    shapes, photographs = api("runs")["runs"]
    assert (shapes["id"], shapes["images"], shapes["units"]) == (0, 128, [4, 4, 4, 4])
    assert (shapes["data"], shapes["split"], shapes["method"]) == ("shapes:128", "train", "imsvd")
    assert shapes["epochs"] == 2
    assert shapes["leading"] == 4
    assert "circle" in shapes["labels"]
    assert len(shapes["attributes"]) == 8
    assert shapes["properties"][0]["name"] == "one_hot"
    assert (photographs["images"], photographs["labels"]) == (5, ["left", "right"])
    assert (photographs["properties"], photographs["leading"]) == (None, 0)


def test_every_unit_lists_its_images_most_confident_first(api: Api, encodings: Encodings) -> None:
    seen: list[int] = []
    for variable in range(4):
        for unit in range(4):
            answer = api(f"runs/0/units/{variable}/{unit}?count=200")
            images = [item["image"] for item in answer["images"]]
            assert images == oracle.images_of_unit(encodings, variable, unit)
            assert answer["total"] == len(images)
            assert sum(item["count"] for item in answer["labels"]) == len(images)
            seen += images
    assert sorted(seen) == sorted(list(range(128)) * 4)


def test_a_page_of_a_unit_is_a_slice_of_its_list(api: Api) -> None:
    whole = api("runs/0/units/0/0?count=200")
    unit = 0 if whole["total"] > 3 else 1
    whole = api(f"runs/0/units/0/{unit}?count=200")
    part = api(f"runs/0/units/0/{unit}?offset=1&count=2")
    assert part["images"] == whole["images"][1:3]
    assert part["total"] == whole["total"]
    assert api(f"runs/0/units/0/{unit}?offset=100000")["images"] == []


def test_labels_of_a_unit_are_counted(api: Api) -> None:
    answer = api("runs/0/units/1/2?count=200")
    names = [item["label"] for item in answer["images"]]
    assert {item["label"]: item["count"] for item in answer["labels"]} == {
        name: names.count(name) for name in set(names)
    }
    counts = [item["count"] for item in answer["labels"]]
    assert counts == sorted(counts, reverse=True)


def test_variables_are_summarized(api: Api, encodings: Encodings) -> None:
    listed = api("runs/0/variables")["variables"]
    assert [item["variable"] for item in listed] == [0, 1, 2, 3]
    for item in listed:
        variable = item["variable"]
        counts = np.bincount(encodings.codes[:, variable], minlength=4)
        shares = counts[counts > 0] / counts.sum()
        plug_in = -sum(share * math.log2(share) for share in shares)
        assert plug_in - 1e-3 <= item["entropy_bits"] <= min(2, plug_in + 0.05)
        expected = encodings.confidence[:, variable].astype(np.float64).mean()
        assert item["mean_confidence"] == pytest.approx(expected, abs=1e-4)
        even = encodings.marginals[4 * variable : 4 * variable + 4] * 4
        assert item["dead_units"] == int((even < 0.01).sum())
        order = sorted(range(4), key=lambda unit: (-counts[unit], unit))
        best = [int(encodings.top_images[4 * variable + unit, 0]) for unit in order]
        assert item["preview"] == best


def test_a_variable_lists_its_units_and_dependent_variables(
    api: Api, encodings: Encodings, opened: ExplainedRun
) -> None:
    answer = api("runs/0/variables/2")
    assert [unit["unit"] for unit in answer["units"]] == [0, 1, 2, 3]
    assert sum(unit["images"] for unit in answer["units"]) == 128
    assert sum(unit["share"] for unit in answer["units"]) == pytest.approx(1, abs=1e-3)
    top = [item["image"] for item in answer["units"][1]["top"]]
    assert top == encodings.top_images[9].tolist()
    information = opened.mutual_information
    assert information is not None
    both = {m: (information[2, m] + information[m, 2]) / 2 for m in (0, 1, 3)}
    expected = sorted(both, key=lambda m: -both[m])
    assert [item["variable"] for item in answer["dependent"]] == expected
    values = [item["nmi"] - item["baseline"] for item in answer["meaning"]]
    assert len(values) == 8
    assert values == sorted(values, reverse=True)


def test_units_have_the_coherence_that_explain_measured(api: Api, opened: ExplainedRun) -> None:
    record = opened.coherence
    assert record is not None
    place = max(range(4, 16), key=lambda place: record["units"][place]["images"])
    expected, (variable, unit) = record["units"][place], divmod(place, 4)
    assert (expected["variable"], expected["unit"]) == (variable, unit)
    found = api(f"runs/0/units/{variable}/{unit}")["coherence"]
    assert found == api(f"runs/0/variables/{variable}")["units"][unit]["coherence"]
    assert found.pop("judge") is None
    assert set(found) == {"monosemanticity", "purity"}
    for name, numbers in found.items():
        assert numbers == {"value": expected[name], "by_chance": expected[f"{name}_by_chance"]}
    # Explained without this part.
    assert api("runs/1/units/0/0")["coherence"] is None
    assert api("runs/1/variables/0")["units"][0]["coherence"] is None


def test_a_unit_with_too_few_images_has_no_similarity(
    opened: ExplainedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert opened.coherence is not None
    units = [*opened.coherence["units"]]
    units[0] = units[0] | {"monosemanticity": None, "monosemanticity_by_chance": None}
    monkeypatch.setitem(opened.__dict__, "coherence", {**opened.coherence, "units": units})
    found = records.unit(opened, 0, 0, 0, 1)["coherence"]
    assert set(found) == {"purity", "judge"}


def test_the_joint_matrix_is_returned_block_by_block(api: Api, opened: ExplainedRun) -> None:
    blocks = [
        [np.array(api(f"runs/0/joint/{m}/{n}")["values"]) for n in range(4)] for m in range(4)
    ]
    whole = np.block(blocks)
    assert whole.shape == (16, 16)
    assert opened.joint is not None
    np.testing.assert_allclose(whole, opened.joint, atol=1e-6)
    # Every block is a distribution with the mutual information that was measured.
    np.testing.assert_allclose([[block.sum() for block in row] for row in blocks], 1, atol=1e-5)
    answer = api("runs/0/mutual-information")
    block = torch.tensor(blocks[1][3]).clamp_min(1e-12)
    shared = (block * (block / (block.sum(1, keepdim=True) * block.sum(0))).log()).sum()
    assert answer["values"][1][3] == pytest.approx(float(shared), abs=1e-3)
    assert answer["size"] == 4


def test_missing_measurements_name_the_command_that_makes_them(api: Api) -> None:
    command = api("runs")["runs"][1]["command"]
    assert command.startswith("imsvd explain ")
    assert f"`{command} --only joint`" in api.error("runs/1/joint/0/1", 404)
    assert "--only joint" in api.error("runs/1/mutual-information", 404)
    assert api("runs/1/variables/0")["dependent"] == []
    assert api("runs/1/variables")["variables"][0]["meaning"] is None


def test_only_leading_variables_that_fit_are_saved() -> None:
    assert leading_variables((4, 4, 4), 8) == 2
    assert leading_variables((4, 4, 4), 11) == 2
    assert leading_variables((4, 4, 4), 12) == 3
    assert leading_variables((4, 4, 4), 3) == 0
    assert leading_variables((32,) * 102) == 32


def test_a_variable_beyond_the_saved_matrix_is_refused(
    opened: ExplainedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert opened.joint is not None
    monkeypatch.setattr(opened, "joint", opened.joint[:9, :9])
    assert opened.leading == 2
    assert joint(opened, 1, 0)["rows"] == 1
    with pytest.raises(NotFoundError, match="first 2 variables"):
        joint(opened, 0, 2)


def test_images_are_listed_in_their_order(api: Api, opened: ExplainedRun) -> None:
    answer = api("runs/0/images?offset=10&count=5")
    assert [item["image"] for item in answer["images"]] == [10, 11, 12, 13, 14]
    assert answer["total"] == 128
    assert opened.source.labels is not None
    expected = [opened.source.classes[int(label)] for label in opened.source.labels[10:15]]
    assert [item["label"] for item in answer["images"]] == expected


def test_images_of_one_class_are_listed(api: Api) -> None:
    every = api("runs/0/images?count=200")["images"]
    answer = api("runs/0/images?count=200&label=circle")
    expected = [item for item in every if item["label"] == "circle"]
    assert answer["images"] == expected
    assert answer["total"] == len(expected) > 0


def test_an_image_has_its_code_label_and_attributes(api: Api, opened: ExplainedRun) -> None:
    answer = api("runs/0/images/7")
    assert answer["name"] == opened.source.identity(7)
    assert [item["unit"] for item in answer["code"]] == opened.encodings.codes[7].tolist()
    assert answer["code"][1]["confidence"] == pytest.approx(
        float(opened.encodings.confidence[7, 1]), abs=1e-4
    )
    assert answer["attributes"]["shape"] == answer["label"]
    assert len(answer["attributes"]) == 8


def test_an_unreadable_image_is_reported(api: Api) -> None:
    assert "could not be read" in api.error("runs/1/images/0", 404)
    assert "could not be read" in api.error("runs/1/images/0/thumbnail", 404)
    assert [item["image"] for item in api("runs/1/images")["images"]] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("image", [0, 7, 64, 127])
def test_neighbors_by_code_match_a_plain_search(api: Api, opened: ExplainedRun, image: int) -> None:
    answer = api(f"runs/0/images/{image}/neighbors?by=code&count=30")
    found = [(item["image"], item["shared_count"]) for item in answer["neighbors"]]
    assert found == oracle.neighbors_by_code(opened.encodings, image, 30)
    assert answer["searched"] == 128
    own = opened.encodings.codes[image]
    for item in answer["neighbors"]:
        assert item["score"] == item["shared_count"] / 4
        other = opened.encodings.codes[item["image"]]
        assert item["shared"] == [[m, int(own[m])] for m in range(4) if own[m] == other[m]]


@pytest.mark.parametrize("image", [0, 7, 127])
def test_neighbors_by_features_match_a_plain_search(
    api: Api, opened: ExplainedRun, image: int
) -> None:
    answer = api(f"runs/0/images/{image}/neighbors?by=features&count=20")
    query = opened.encodings.features[image].astype(np.float64).tolist()
    expected = oracle.neighbors_by_features(opened.encodings, image, query, 20)
    assert [item["image"] for item in answer["neighbors"]] == [other for other, _ in expected]
    scores = [item["score"] for item in answer["neighbors"]]
    assert scores == pytest.approx([cosine for _, cosine in expected], abs=2e-4)


def test_a_count_above_the_number_of_images_returns_all(api: Api) -> None:
    for by in ("code", "features"):
        answer = api(f"runs/1/images/3/neighbors?by={by}&count=100")
        assert sorted(item["image"] for item in answer["neighbors"]) == [1, 2, 4, 5]


def test_features_that_were_not_saved_are_computed(explained: Path, opened: ExplainedRun) -> None:
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


@pytest.mark.parametrize(
    "path",
    [
        "runs/2/variables",
        "runs/-1/variables",
        "runs/0/variables/4",
        "runs/0/variables/-1",
        "runs/0/units/0/4",
        "runs/0/units/4/0",
        "runs/0/units/0/-1",
        "runs/0/joint/0/4",
        "runs/0/images/128",
        "runs/0/images/-1",
        f"runs/0/images/{10**30}",
        "runs/0/images/128/thumbnail",
        "runs/0/images/128/map/0/0",
        "runs/0/images/0/map/4/0",
        "runs/0/images/0/map/0/4",
        "runs/0/images?label=unknown",
        "compare?first=0&second=2",
    ],
)
def test_numbers_out_of_range_are_not_found(api: Api, path: str) -> None:
    assert "here is no" in (sentence := api.error(path, 404)) or "has no" in sentence


@pytest.mark.parametrize(
    "path",
    [
        "runs/a/variables",
        "runs/0/units/0/0?count=0",
        "runs/0/units/0/0?count=201",
        "runs/0/units/0/0?offset=-1",
        "runs/0/images/1.5",
        "runs/0/images/0/thumbnail?size=65",
        "runs/0/images/0/map/0/0?size=64",
        "runs/0/images/0/neighbors?by=taste",
        "compare?first=0",
        "runs/0/uploads/abc",
        f"uploads/{'g' * 32}/thumbnail",
    ],
)
def test_invalid_parameters_are_refused_in_a_sentence(api: Api, path: str) -> None:
    api.error(path, 422)
