"""Groups of duplicates, the copy to keep, and thresholds that nobody had to choose."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from imsvd.datasets import open_source
from imsvd.errors import InputError
from imsvd.index import Index, duplicates, storage
from imsvd.index.calibration import (
    candidate_distance,
    cosine_threshold,
    distance_threshold,
    edit,
)
from imsvd.index.segments import Rows
from tests.index.made_up import made_up_index, rows
from tests.pretraining.test_pretrain import write_images
from tests.pretraining.tiny import CommandLine

UNITS = (8,) * 20


def planted() -> Rows:
    """Sixty images: 1 is a near copy of 0, 2 of 1; 10 and 11 are equal; 20 has the code of 21 only."""
    made = rows(60, units=UNITS, features=6)
    codes, hashes, sizes = made.codes.copy(), made.hashes.copy(), made.sizes.copy()
    features = made.features
    assert features is not None
    codes[1], codes[2] = codes[0], codes[0]
    codes[1, 3] ^= 1
    codes[2, 3] ^= 1
    codes[2, [4, 5]] ^= 1
    features[1], features[2] = features[0] * 2, features[0]
    codes[11], hashes[11], features[11] = codes[10], hashes[10], features[10]
    codes[20], features[20] = codes[21], -features[21]
    sizes[[0, 1, 2]] = 5000, 9000, 5000
    sizes[[10, 11]] = 4000
    return replace(made, codes=codes, hashes=hashes, sizes=sizes, features=features)


def names(found: duplicates.Duplicates) -> list[list[str]]:
    return [[Path(copy.path).stem for copy in group] for group in found.groups]


def test_groups_are_joined_and_the_largest_is_kept(tmp_path: Path) -> None:
    index = made_up_index(tmp_path / "a.index", planted(), units=UNITS)
    found = index.duplicates(within=2, cosine=0.99)
    assert names(found) == [["00001", "00000", "00002"], ["00010", "00011"]]
    first, second = found.groups
    assert [copy.keep for copy in first] == [True, False, False]
    assert {copy.kind for copy in first[1:]} == {"near"}
    assert second[1].kind == "exact"
    assert first[0].likeness == pytest.approx(1, abs=1e-3)
    assert (found.distance, found.wanted_distance, found.cosine) == (2, 2, 0.99)
    # Features do not confirm what only shares a code; codes too far apart are no candidates.
    assert ["00020", "00021"] in [sorted(g) for g in names(index.duplicates(within=2, cosine=-2))]
    assert ["00000", "00001"] in [sorted(g) for g in names(index.duplicates(within=1, cosine=0.99))]


def test_only_pairs_between_two_sets_count(tmp_path: Path) -> None:
    made = planted()
    labels = np.ones(60, dtype=np.uint32)
    labels[[0, 11]] = 2
    made = replace(made, facets={**made.facets, "label": labels})
    index = made_up_index(tmp_path / "a.index", made, units=UNITS)
    found = index.duplicates(between=("label:cat", "label:dog"), within=2, cosine=0.99)
    assert [sorted(group) for group in names(found)] == [["00000", "00001"], ["00010", "00011"]]
    assert {copy.side for group in found.groups for copy in group} == {0, 1}
    with pytest.raises(InputError, match="have images in common"):
        index.duplicates(between=("label:cat", "label:cat"), within=2, cosine=0.9)
    one = made_up_index(tmp_path / "one.index", made.chosen(np.arange(1, 11)), units=UNITS)
    two = made_up_index(tmp_path / "two.index", made.chosen(np.array([0, 11, 30])), units=UNITS)
    found = one.duplicates(two, within=2, cosine=0.99)
    assert [sorted(group) for group in names(found)] == [["00000", "00001"], ["00010", "00011"]]
    other = made_up_index(tmp_path / "other.index", rows(5))
    other.manifest = other.manifest.model_copy(update={"encoder": "x"})
    with pytest.raises(InputError, match="different encoders"):
        one.duplicates(other)


def test_many_images_of_one_code_are_connected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duplicates, "MOST_PAIRS", 4)
    made = rows(9, units=UNITS)
    codes = made.codes.copy()
    codes[:7] = codes[0]
    codes[7:] = codes[0]
    codes[7:, 0] ^= 1
    index = made_up_index(tmp_path / "a.index", replace(made, codes=codes), units=UNITS)
    assert [len(group) for group in index.duplicates(within=1).groups] == [9]
    assert [len(group) for group in index.duplicates(within=0).groups] == [7, 2]


NEAR: dict[str, Any] = {
    "copy_distances": [0, 0, 1, 1, 2, 2, 3, 3, 4, 12],
    "copy_cosines": [0.3, 0.8, 0.85, 0.9, 0.9, 0.92, 0.95, 0.95, 0.97, 0.99],
    "chance_distances": [14.0, 2.0],
    "chance_cosines": [0.2, 0.1],
}


def test_thresholds_balance_missed_copies_and_strangers() -> None:
    # Nine of ten copies are far above chance; to find the tenth would mean many strangers.
    assert cosine_threshold(NEAR, 1000) == 0.8
    assert distance_threshold(NEAR, 1000) == 4
    assert candidate_distance(NEAR) == 11
    near_chance = {**NEAR, "chance_cosines": [0.5, 0.12]}
    assert cosine_threshold(near_chance, 10) < cosine_threshold(near_chance, 1_000_000)


@pytest.mark.parametrize("number", range(5))
def test_edits_are_visible_but_small(number: int) -> None:
    image = open_source("shapes:4").read(2)
    edited = edit(image, number)
    assert edited.dtype == torch.uint8
    assert edited.shape[0] == 3
    assert edited.shape != image.shape or (edited != image).any()
    assert (edit(image, number) == edited).all()


def test_duplicates_of_real_files(command: CommandLine, trained: Path, tmp_path: Path) -> None:
    data, out = write_images(tmp_path / "data", 20), tmp_path / "a.index"
    shutil.copy(data / "0003.png", data / "copy.png")
    os.utime(data / "copy.png", (1, 1))
    ImageOps.mirror(Image.open(data / "0004.png")).save(data / "mirrored.png")
    assert command(["index", str(trained), str(data), "--out", str(out), "--features"]) == 0
    near = Index(out).manifest.near
    assert len(near["copy_distances"]) == len(near["copy_cosines"]) == 22
    listed, sheet = tmp_path / "rest.txt", tmp_path / "sheet.png"
    arguments = ["duplicates", str(out), "--within", "0", "--cosine", "0.99999"]
    assert command([*arguments, "--paths", str(listed), "--sheet", str(sheet), "--json"]) == 0
    groups = json.loads(command.out)["groups"]
    assert [copy["path"] for copy in groups[0]] == [str(data / "copy.png"), str(data / "0003.png")]
    assert listed.read_text() == f"{data / '0003.png'}\n"
    assert sheet.exists()
    assert command(["duplicates", str(out)]) == 0
    assert "codes within" in command.out
    bare = tmp_path / "b.index"
    assert command(["index", str(trained), str(data), "--out", str(bare)]) == 0
    assert command(["duplicates", str(bare), "--confirm", "--cosine", "0.99999", "--json"]) == 0
    again = json.loads(command.out)["groups"]
    assert str(data / "copy.png") in [copy["path"] for copy in again[0]]
    command.refuses(["duplicates", str(out), str(bare), "--paths", "x.txt"], "for one index")


def test_without_measured_thresholds_they_must_be_given(tmp_path: Path) -> None:
    index = made_up_index(tmp_path / "a.index", rows(5))
    with pytest.raises(InputError, match="give --within and --cosine"):
        index.duplicates()
    assert index.duplicates(within=0).cosine is None
    storage.apply(index.path, lambda before: before.changing(near=NEAR))
    index.refresh()
    assert index.duplicates().wanted_distance == distance_threshold(NEAR, 5)


def test_data_frames_have_one_row_a_copy(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    index = made_up_index(tmp_path / "a.index", planted(), units=UNITS)
    frame = index.duplicates(within=2, cosine=0.99).to_pandas()
    assert frame["keep"].tolist() == [True, False, False, True, False]
