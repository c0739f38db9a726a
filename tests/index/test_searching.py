"""Searches give the right images in the right order, with reasons, in every form."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from imsvd.datasets import open_source
from imsvd.errors import InputError
from imsvd.index import Index
from imsvd.index.likeness import SharedUnits
from tests.index.made_up import add, made_up_index, rows
from tests.pretraining.test_pretrain import write_images
from tests.pretraining.tiny import CommandLine


def likeness(codes: NDArray[Any], example: NDArray[Any]) -> NDArray[Any]:
    """The definition: shared units count with -log of their share, over what all would count."""
    shares = np.array([[(codes[:, m] == example[m]).sum() for m in range(codes.shape[1])]])
    weights = -np.log((shares + 1) / (len(codes) + 1))
    return np.asarray(((codes == example) * weights).sum(1) / weights.sum())


def test_queries_find_all_images_in_all_segments_and_no_removed_ones(tmp_path: Path) -> None:
    index = made_up_index(tmp_path / "a.index", rows(500), rows(77, first=500, seed=1))
    index.remove(*(f"/photos/{number:05d}.jpg" for number in range(0, 577, 5)))
    codes, label = index.codes(), index.facet("label")
    wanted = (codes[:, 0] == 1) & ~((codes[:, 1] == 2) | (codes[:, 3] == 4)) & (label == 2)
    found = index.search("0.1 & !(1.2 | 3.4) & label:dog", count=0)
    assert found.total == wanted.sum() == len(found) > 5
    assert sorted(item.position for item in found.items) == np.flatnonzero(wanted).tolist()
    confidence = index.confidences()[:, 0]
    scores = [item.score for item in found.items]
    assert scores == sorted(scores, reverse=True)
    for item in found.items:
        assert item.score == pytest.approx(confidence[item.position])
        assert item.path == index.paths[item.position]
        assert item.reasons == ("0.1", "not 1.2", "not 3.4", "label:dog")
        assert item.state == "deleted"  # there is no /photos
    few = index.search("0.1 & !(1.2 | 3.4) & label:dog", count=3)
    assert few.items == found.items[:3]
    assert few.total == found.total
    sure = index.search("0.1>0.9", count=0)
    assert {item.position for item in sure.items} == {
        *np.flatnonzero((codes[:, 0] == 1) & (confidence > 0.9)).tolist()
    }
    assert index.search("0.1 & 0.2").items == ()


def test_likeness_weighs_shared_units_by_rarity(tmp_path: Path) -> None:
    index = made_up_index(tmp_path / "a.index", rows(300), rows(50, first=300, seed=1))
    index.remove("00001.jpg", "00310.jpg")
    codes = index.codes()
    wanted = likeness(codes, codes[7])
    found = index.like(index.paths[7], count=10)
    assert found.total == len(index) - 1
    order = [number for number in np.argsort(-wanted, kind="stable") if number != 7][:10]
    assert [item.position for item in found.items] == order
    np.testing.assert_allclose([item.score for item in found.items], wanted[order], rtol=1e-4)
    shared = int((codes[order[0]] == codes[7]).sum())
    assert found.items[0].reasons[0].startswith(f"shares {shared} of 6 units: ")
    both = index.search(
        "0.1", like=index.paths[7], unlike=[index.paths[8], index.paths[9]], count=5
    )
    mixed = wanted - (likeness(codes, codes[8]) + likeness(codes, codes[9])) / 2
    allowed = [n for n in np.flatnonzero(codes[:, 0] == 1) if n not in (7, 8, 9)]
    best = sorted(allowed, key=lambda number: (-round(mixed[number], 6), number))[:5]
    assert [item.position for item in both.items] == best


@pytest.mark.parametrize("last", [1, 7, 8, 9, 63, 64, 65])
def test_the_weight_of_a_unit_counts_images_that_are_there_and_no_bits_after_the_last(
    tmp_path: Path, last: int
) -> None:
    index = made_up_index(tmp_path / "a.index", rows(70), rows(last, first=70, seed=1))
    index.remove("00003.jpg", "00064.jpg")
    codes = index.codes()
    shared = SharedUnits(index, codes[5], 0.5)
    counts = (codes == codes[5]).sum(0)
    np.testing.assert_allclose(shared.weights, -np.log((counts + 1) / (len(index) + 1)), rtol=1e-5)
    scores = np.zeros(last, dtype=np.float32)
    shared.add_scores(1, scores)
    np.testing.assert_allclose(scores, 0.5 * likeness(codes, codes[5])[-last:], rtol=1e-4)


def test_ties_go_to_earlier_images_whatever_the_segments_and_the_number_of_results(
    tmp_path: Path,
) -> None:
    random = np.random.default_rng(0)
    codes = random.integers(0, 2, (90, 3)).astype(np.uint8)
    parts = [rows(30, first=first, codes=codes[first : first + 30]) for first in (0, 30, 60)]
    index = made_up_index(tmp_path / "a.index", *parts, units=(2, 2, 2))
    wanted = likeness(codes, codes[40]).round(5)
    order = [number for number in np.argsort(-wanted, kind="stable") if number != 40]
    for count in (1, 4, 20, 59, 60, 89, 0):
        found = index.like(index.paths[40], count)
        assert [item.position for item in found.items] == order[: count or None]
        assert found.total == 89


def test_kept_features_put_the_best_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imsvd.index.likeness.REORDERED", 30)
    index = made_up_index(tmp_path / "a.index", rows(200, features=16))
    features = index.features()
    assert features is not None
    unit = features.astype(np.float32)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    wanted = likeness(index.codes(), index.codes()[3])
    wanted[3] = -1
    best = np.argsort(-wanted, kind="stable")[:30]
    cosines = unit @ unit[3]
    order = best[np.argsort(-cosines[best])][:8]
    found = index.like("00003.jpg", count=8)
    assert [item.position for item in found.items] == order.tolist()
    np.testing.assert_allclose([item.score for item in found.items], cosines[order], atol=1e-3)


def test_results_are_tables_json_sheets_and_data(
    command: CommandLine, trained: Path, tmp_path: Path
) -> None:
    data, out = write_images(tmp_path / "data", 8, classes=2), tmp_path / "a.index"
    index = Index.build(trained, data, out)
    index.name("0.1", "stripes")
    unit = f"0.{index.codes()[0, 0]}"
    listed, sheet = tmp_path / "found.txt", tmp_path / "found.png"
    arguments = ["search", str(out), f"{unit} & label:class0", "--count", "0"]
    assert command([*arguments, "--paths", str(listed), "--sheet", str(sheet)]) == 0
    assert "because" in command.out
    wanted = index.search(f"{unit} & label:class0", count=0)
    assert len(wanted) >= 1
    source = open_source(listed)
    assert len(source) == len(wanted)
    read = [source.read(number) for number in range(len(source))]
    assert all(
        (image == index.read(item.position)).all()
        for image, item in zip(read, wanted.items, strict=True)
    )
    with Image.open(sheet) as opened:
        assert opened.width > 160
    assert command([*arguments, "--json"]) == 0
    found = json.loads(command.out)
    assert [item["path"] for item in found["items"]] == [item.path for item in wanted.items]
    assert found["total"] == wanted.total
    assert command(["search", str(out), "--like", str(data / "class0" / "0000.png")]) == 0
    assert "7 of 7 images" in command.out
    new = write_images(tmp_path / "new", 1)
    assert command(["search", str(out), "--like", str(new / "0000.png"), "--json"]) == 0
    assert json.loads(command.out)["items"][0]["score"] == pytest.approx(1)  # it is the first image
    (data / "class0" / "0000.png").unlink()
    position = wanted.items[0].position
    assert command([*arguments, "--sheet", str(sheet)]) == 0
    assert "deleted since" in " ".join(command.out.split()) or index.image(position).path.endswith(
        "2.png"
    )


def test_refusals(command: CommandLine, tmp_path: Path) -> None:
    index = made_up_index(tmp_path / "a.index", rows(20))
    base = ["search", str(index.path)]
    assert command([*base, "0.1 & & 1.2"]) == 2
    query, caret, sentence = command.err.splitlines()
    assert query == "0.1 & & 1.2"
    assert caret == "      ^"
    assert sentence.startswith("imsvd: the query cannot be understood at character 7")
    command.refuses(base, "give a query such as")
    command.refuses([*base, "--like", "none.png"], "neither an image of")
    command.refuses([*base, "0.1", "--paths", str(tmp_path / "x.csv")], "must end in .txt")
    command.refuses(["search", str(tmp_path), "0.1"], "is not an index")
    with pytest.raises(InputError, match="choose 1 or more"):
        index.search("0.1", count=-1)


def test_lists_name_files_only(command: CommandLine, trained: Path, tmp_path: Path) -> None:
    index = Index.build(trained, "shapes:20", tmp_path / "a.index", split="train")
    command.refuses(
        ["search", str(index.path), "shape:circle", "--paths", str(tmp_path / "x.txt")],
        "is not a file",
    )


def test_a_changed_file_is_encoded_again_to_compare_with(trained: Path, tmp_path: Path) -> None:
    data = write_images(tmp_path / "data", 6)
    index = Index.build(trained, data, tmp_path / "a.index", features=True)
    (data / "0000.png").write_bytes((data / "0005.png").read_bytes())
    found = index.like(data / "0000.png", count=1)
    assert found.items[0].path == str(data / "0005.png")
    assert found.items[0].score == pytest.approx(1, abs=1e-3)


def test_data_frames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = made_up_index(tmp_path / "a.index", rows(50))
    found = index.search("0.1")
    pandas = pytest.importorskip("pandas")
    frame = found.to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame["path"]) == [item.path for item in found.items]
    assert list(frame.columns) == ["position", "path", "score", "reasons", "state"]
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match="pip install pandas"):
        found.to_pandas()


def test_an_emptied_index_finds_nothing(tmp_path: Path) -> None:
    index = made_up_index(tmp_path / "a.index", rows(5))
    index.remove("/photos")
    assert index.search("0.1").total == 0
    add(index, rows(1))
    assert index.search("label:cat | label:dog | 0.0 | 0.1 | 0.2 | 0.3").total == 1
