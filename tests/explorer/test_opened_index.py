"""Searches, counts, completions, lists and pictures of an index, over HTTP."""

import io
import json
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

from imsvd.datasets import open_source
from imsvd.errors import InputError
from imsvd.explorer import ExplainedRun, create_app, opened_index
from imsvd.explorer.opened_index import OpenedIndex
from imsvd.index import Index
from imsvd.index.storage import Root, read_manifest, write_manifest
from tests.explorer.conftest import BASE, Api
from tests.explorer.indexed import IMAGES, UNITS


def search(ask: Api, query: str, more: str = "") -> dict[str, Any]:
    return ask(f"indexes/0/search?q={quote(query)}{more}")


def saved(ask: Api, **wanted: Any) -> tuple[int, bytes]:
    answer = ask.client.post("/api/indexes/0/list", json=wanted)
    return answer.status_code, answer.content


def test_indexes_are_listed_with_what_queries_may_speak_of(ask: Api, planted: Index) -> None:
    assert ask("runs") == {"runs": []}
    first, second = ask("indexes")["indexes"]
    assert (first["id"], second["id"]) == (0, 1)
    assert first["name"] == "photos.index"
    assert first["images"] == IMAGES
    assert first["units"] == list(UNITS)
    assert first["names"] == planted.names
    assert first["facets"] == {"label": 2, "split": 2}
    assert first["splits"] == ["train", "test"]


def test_a_page_of_results_is_part_of_what_the_index_finds(ask: Api, planted: Index) -> None:
    query = '0.1 & !label:"polar bear"'
    all_found = planted.search(query, count=0)
    whole = search(ask, query, "&count=200")
    assert whole["total"] == whole["shown"] == all_found.total > 20
    assert [item["image"] for item in whole["items"]] == [m.position for m in all_found.items]
    assert [item["path"] for item in whole["items"]] == [m.path for m in all_found.items]
    assert [tuple(item["reasons"]) for item in whole["items"]] == [
        m.reasons for m in all_found.items
    ]
    assert whole["items"][0]["score"] == pytest.approx(all_found.items[0].score, abs=1e-4)
    assert all(item["state"] == "" for item in whole["items"])
    assert search(ask, query, "&offset=5&count=7")["items"] == whole["items"][5:12]
    assert search(ask, query, "&offset=9000")["items"] == []


def test_without_a_query_all_images_are_listed_as_they_come(ask: Api) -> None:
    page = ask("indexes/0/search?offset=100&count=60")
    assert page["total"] == IMAGES
    assert [item["image"] for item in page["items"]] == list(range(100, IMAGES))
    assert page["items"][0]["score"] is None


def test_results_are_like_and_unlike_images_by_number(ask: Api, planted: Index) -> None:
    paths = planted.paths
    wanted = planted.search("split:train", like=paths[2], unlike=paths[7], count=0)
    found = search(ask, "split:train", "&like=2&unlike=7&count=200")
    assert [item["image"] for item in found["items"]] == [m.position for m in wanted.items]
    assert {found["items"][place]["image"] for place in (0, 1)} == {3, 4}
    assert found["items"][0]["reasons"][-1].startswith("shares 8 of 8 units")
    assert [item["name"] for item in found["like"]] == ["00002.jpg"]
    assert [item["image"] for item in found["unlike"]] == [7]
    assert "no image 120" in ask.error("indexes/0/search?like=120", 404)
    assert "no image -1" in ask.error("indexes/0/search?unlike=-1", 404)
    many = "&".join(f"like={number}" for number in range(17))
    ask.error(f"indexes/0/search?{many}", 422)
    ask.error("indexes/0/search?like=/etc/passwd", 422)


@pytest.mark.parametrize(
    ("query", "position", "sentence"),
    [
        ("0.1 & (stripes", 6, "not closed"),
        ("9.1", 0, "no variable 9"),
        ("0.1 & zebras", 6, "no unit is called"),
        ("0.1 " * 1000, 2000, "at most 2,000 characters"),
        ("!" * 60 + "0.1", 41, "at most 40 nested"),
        ("(" * 60 + "0.1" + ")" * 60, 41, "at most 40 nested"),
        (" | ".join(["0.1"] * 201), 1200, "at most 200"),
    ],
)
def test_mistakes_and_hostile_queries_are_refused_with_their_position(
    ask: Api, query: str, position: int, sentence: str
) -> None:
    for address in ("search", "facets"):
        refused = ask(f"indexes/0/{address}?q={quote(query)}", 400)
        assert sentence in refused["error"]
        assert refused["position"] == position
        assert refused["pointed"].splitlines()[1].endswith("^")
    status, content = saved(ask, query=query)
    assert status == 400
    assert sentence in json.loads(content)["error"]


def test_units_and_labels_are_counted_among_the_images_found(ask: Api, planted: Index) -> None:
    codes, label = planted.codes(), planted.facet("label")
    inside = (codes[:, 0] == 1) & (codes[:, 5] == 0)
    found = ask(f"indexes/0/facets?q={quote('0.1 & 5.0')}&count=200")
    assert found["total"] == inside.sum()
    assert found["all"] == IMAGES
    shares = [
        np.abs(
            np.bincount(codes[inside, m], minlength=UNITS[m]) / inside.sum()
            - np.bincount(codes[:, m], minlength=UNITS[m]) / IMAGES
        ).sum()
        for m in range(len(UNITS))
    ]
    order = [group["variable"] for group in found["variables"]]
    assert order == np.argsort(-np.array(shares), kind="stable").tolist()
    assert set(order[:2]) == {0, 5}
    for group in found["variables"]:
        variable = group["variable"]
        assert group["more"] == max(0, UNITS[variable] - 12)
        for value in group["values"]:
            unit = int(value["query"].split(".")[1])
            assert value["query"] == f"{variable}.{unit}"
            assert value["count"] == (codes[inside, variable] == unit).sum()
            assert value["all"] == (codes[:, variable] == unit).sum()
        counts = [value["count"] for value in group["values"]]
        assert counts == sorted(counts, reverse=True)
    by_name = {value["text"]: value for value in found["labels"][0]["values"]}
    assert by_name["polar bear"]["count"] == (label[inside] == 2).sum()
    # What a count offers can be asked for, and finds as many images as it says.
    more = f"0.1 & 5.0 & {by_name['polar bear']['query']}"
    assert search(ask, more)["total"] == by_name["polar bear"]["count"]
    some = ask(f"indexes/0/facets?q={quote('0.1 & 5.0')}&offset=2&count=3")
    assert some["variables"] == found["variables"][2:5]


@pytest.mark.parametrize(
    ("start", "wanted"),
    [
        ("5", ["5.0", "5.1"]),
        ("2.7", ["2.7"]),
        ("2.", [f"2.{unit}" for unit in range(12)]),
        ("str", ["stripes"]),
        ("RED", ['"red dots"']),
        ('"red d', ['"red dots"']),
        ("label:p", ['label:"polar bear"']),
        ('label:"polar b', ['label:"polar bear"']),
        ("bear", ['label:"polar bear"']),
        ("spl", ["split:"]),
        ("split:", ["split:train", "split:test"]),
        ("", ["stripes", '"red dots"', "label:", "split:"]),
        ("nothing like this", []),
    ],
)
def test_terms_are_completed_as_queries_have_them(ask: Api, start: str, wanted: list[str]) -> None:
    found = ask(f"indexes/0/completions?start={quote(start)}")["completions"]
    assert [item["text"] for item in found] == wanted
    for item in found:
        if not item["text"].endswith(":"):
            search(ask, item["text"])
    ask.error(f"indexes/0/completions?start={'a' * 101}", 422)


def test_a_saved_list_is_read_as_data(ask: Api, planted: Index, tmp_path: Path) -> None:
    status, content = saved(ask, query="0.2 & label:cat")
    assert status == 200
    (tmp_path / "list.txt").write_bytes(content)
    wanted = planted.search("0.2 & label:cat", count=0)
    assert content.decode().splitlines() == [item.path for item in wanted.items]
    assert len(open_source(tmp_path / "list.txt")) == wanted.total
    assert saved(ask, images=[7, 3]) == (200, f"{planted.paths[7]}\n{planted.paths[3]}\n".encode())
    like = saved(ask, query="split:test", like=[2])[1].decode().splitlines()
    assert like == [
        item.path for item in planted.search("split:test", like=planted.paths[2], count=0).items
    ]


def test_a_list_is_sent_and_never_written(ask: Api) -> None:
    answer = ask.client.post("/api/indexes/0/list", json={"images": [1]})
    assert answer.headers["content-disposition"] == 'attachment; filename="images.txt"'
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    for wrong in (
        {"images": ["../../etc/passwd"]},
        {"path": "/tmp/x"},
        {"images": [1.5]},
        {"query": 3},
    ):
        assert saved(ask, **wrong)[0] == 422
    assert saved(ask, images=[IMAGES])[0] == 404
    status, content = saved(ask, images=[])
    assert status == 409
    assert b"nothing to save" in content
    post = ask.client.post
    assert post("/api/indexes/0/list", content=b"{}").status_code == 415
    kind = {"Content-Type": "application/json"}
    assert post("/api/indexes/0/list", content=b"{", headers=kind).status_code == 422
    large = post("/api/indexes/0/list", content=b" " * (2 * 1024**2 + 1), headers=kind)
    assert large.status_code == 413
    other = {"Origin": "http://evil.example"}
    assert post("/api/indexes/0/list", json={"images": [1]}, headers=other).status_code == 403


def test_a_list_that_would_be_too_long_names_the_command(
    planted: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opened_index, "MOST_SAVED", 50)
    monkeypatch.setattr(opened_index, "MOST_RANKED", 20)
    opened = OpenedIndex(planted.path)
    with pytest.raises(InputError, match=r"at most 50 images, and this search finds 60.*--paths"):
        opened.found(opened_index.Search("split:train"))
    found = opened.search(opened_index.Search("split:train"), 0, 60)
    assert (found["total"], found["shown"], len(found["items"])) == (60, 20, 20)


def test_pictures_show_the_whole_image_without_metadata(ask: Api, planted: Index) -> None:
    key = ask("indexes")["indexes"][0]["key"]
    answer = ask.client.get(f"/api/indexes/0/images/1/thumbnail?size=64&v={key}")
    picture = Image.open(io.BytesIO(answer.content))
    assert (picture.format, picture.size) == (
        "JPEG",
        (64, 64),
    )  # a copy of image 0, which is square
    assert not picture.getexif()
    assert b"secret" not in answer.content
    assert "immutable" in answer.headers["cache-control"]
    wide = ask.client.get("/api/indexes/0/images/3/thumbnail?size=128")
    assert Image.open(io.BytesIO(wide.content)).size == (128, 64)
    again = ask.client.get(
        "/api/indexes/0/images/3/thumbnail?size=128",
        headers={"If-None-Match": wide.headers["etag"]},
    )
    assert again.status_code == 304
    ask.error("indexes/0/images/3/thumbnail?size=100", 422)
    assert "no image 120" in ask.error("indexes/0/images/120/thumbnail", 404)
    assert "no index 2; this explorer has indexes 0 to 1" in ask.error("indexes/2/search", 404)


def test_files_deleted_since_are_marked_and_named(planted: Index, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(planted.path.parent, tmp_path / "copy"))
    photos = str(copy / "photos")
    moved = read_manifest(copy / "photos.index").model_copy(
        update={"roots": (Root(data=photos, split="", folder=photos),)}
    )
    write_manifest(copy / "photos.index", moved)
    (copy / "photos" / "00003.jpg").unlink()
    with TestClient(create_app([copy / "photos.index"]), base_url=BASE) as client:
        api = Api(client)
        items = api("indexes/0/search?count=5")["items"]
        assert [item["state"] for item in items][3] == "deleted"
        assert "can no longer be read" in api.error("indexes/0/images/3/thumbnail", 404)


def test_no_name_in_a_request_for_an_index_becomes_a_path(ask: Api) -> None:
    for name in (
        "..%2f..%2fetc%2fpasswd",
        "0x0",
        "-1",
        "1e3",
        "99999999999999999999999999",
        "~root",
    ):
        for place in (
            f"indexes/{name}/search",
            f"indexes/{name}/facets",
            f"indexes/0/images/{name}/thumbnail",
        ):
            assert ask.client.get(f"/api/{place}").status_code in (404, 422), place


def test_runs_and_indexes_are_shown_together(opened: ExplainedRun, planted: Index) -> None:
    with TestClient(create_app([planted.path, opened]), base_url=BASE) as client:
        api = Api(client)
        assert [run["id"] for run in api("runs")["runs"]] == [0]
        assert [index["name"] for index in api("indexes")["indexes"]] == ["photos.index"]
        assert api("runs/0/images?count=1")["total"] == 128
        assert "this explorer has indexes 0 to 0" in api.error("indexes/1/facets", 404)
    with TestClient(create_app([opened]), base_url=BASE) as client:
        assert "this explorer has no indexes" in Api(client).error("indexes/0/facets", 404)
