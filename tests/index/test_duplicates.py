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
from numpy.typing import NDArray
from PIL import Image, ImageOps

from imsvd.datasets import open_source
from imsvd.errors import InputError
from imsvd.index import Index, calibration, duplicates, storage
from imsvd.index.calibration import (
    cosine_threshold,
    distance_threshold,
    edit,
    intrinsic_dimension,
    of_length_one,
)
from imsvd.index.close_codes import PackedCodes
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


def test_a_chain_is_cut_where_images_are_not_copies_of_the_one_to_keep(tmp_path: Path) -> None:
    made = rows(6, units=UNITS, features=2)
    codes, features = made.codes.copy(), made.features
    assert features is not None
    codes[:4] = codes[0]
    angles = np.radians([0, 20, 40, 60, 150, 230])
    features[:] = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    sizes = np.array([9000, 5000, 6000, 4000, 100, 100], dtype=np.uint32)
    labels = np.array([1, 2, 1, 2, 0, 0], dtype=np.uint32)
    made = replace(
        made,
        codes=codes,
        features=features,
        sizes=sizes,
        facets={**made.facets, "label": labels},
    )
    index = made_up_index(tmp_path / "a.index", made, units=UNITS)
    found = index.duplicates(within=0, cosine=0.9)
    assert names(found) == [["00000", "00001"], ["00002", "00003"]]
    assert found.groups[0][1].likeness == pytest.approx(np.cos(np.radians(20)), abs=1e-3)
    # Between two sets, no image that has a copy in the other is left out.
    between = index.duplicates(between=("label:cat", "label:dog"), within=0, cosine=0.9)
    assert names(between) == names(found)
    sizes[3] = 10_000
    index = made_up_index(tmp_path / "b.index", replace(made, sizes=sizes), units=UNITS)
    assert names(index.duplicates(within=0, cosine=0.9)) == [["00000", "00001"], ["00003", "00002"]]
    sizes[[1, 3]] = 9500, 4000
    index = made_up_index(tmp_path / "c.index", replace(made, sizes=sizes), units=UNITS)
    assert names(index.duplicates(within=0, cosine=0.9)) == [["00001", "00000", "00002"]]
    between = index.duplicates(between=("label:cat", "label:dog"), within=0, cosine=0.9)
    assert names(between) == [["00001", "00000", "00002", "00003"]]


def test_equal_files_are_found_between_sets_whatever_their_codes(tmp_path: Path) -> None:
    made = rows(6, units=UNITS)
    hashes, labels = made.hashes.copy(), np.array([2, 2, 1, 0, 1, 2], dtype=np.uint32)
    hashes[:4] = hashes[0]
    made = replace(made, hashes=hashes, facets={**made.facets, "label": labels})
    index = made_up_index(tmp_path / "a.index", made, units=UNITS)
    found = index.duplicates(between=("label:cat", "label:dog"), within=0)
    assert [sorted(group) for group in names(found)] == [["00000", "00001", "00002"]]
    assert [copy.kind for copy in found.groups[0]] == ["exact"] * 3


NEAR: dict[str, Any] = {
    "copy_distances": [0, 0, 1, 1, 2, 2, 3, 3, 4, 12],
    "copy_cosines": [0.9, 0.93, 0.95, 0.98, 0.98, 0.985, 0.99, 0.99, 0.999, 0.999],
}


def patch(images: int, dimension: int, spread: float = 1.5, seed: int = 0) -> NDArray[np.float32]:
    """Features on a patch of a sphere that has `dimension` dimensions."""
    random = np.random.default_rng(seed)
    flat = (
        spread
        * random.uniform(-1, 1, size=(images, dimension))
        @ np.linalg.qr(random.normal(size=(24, 24)))[0][:dimension]
    )
    return of_length_one(
        np.concatenate([np.full((images, 1), 2.0), flat], axis=1).astype(np.float32)
    )


@pytest.mark.parametrize("dimension", [4, 9])
def test_strangers_are_as_many_as_allowed(dimension: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "STRANGERS", 0.05)
    features = patch(3000, dimension)
    far = {**NEAR, "copy_cosines": [*[0.0] * 5, *[0.999999] * 6]}
    limit = cosine_threshold(far, features[:1000], 3000)
    pairs = int((np.triu(features @ features.T, 1) >= limit).sum())
    assert 0.5 < pairs / (0.05 * 3000 / 2) < 2
    assert cosine_threshold(far, features[:1000], 1_000_000) > limit


def test_dimensions_are_those_of_the_patch() -> None:
    for dimension in (2, 5):
        distances = calibration._neighbor_distances(patch(2000, dimension, 0.5), 10)
        assert intrinsic_dimension(distances, 3) == pytest.approx(dimension, rel=0.12)


def test_copies_among_the_images_do_not_move_the_threshold() -> None:
    features = patch(600, 8)
    limit = cosine_threshold(NEAR, features, 600)
    noise = 0.02 * np.random.default_rng(1).normal(size=(700, 25)).astype(np.float32)
    crowd = of_length_one(np.concatenate([features, features[:1].repeat(40, 0) + noise[:40]]))
    twice = of_length_one(np.concatenate([features, features + noise[:600]]))
    assert cosine_threshold(NEAR, crowd, 640) == pytest.approx(limit, abs=0.01)
    assert cosine_threshold(NEAR, twice, 1200) == pytest.approx(limit, abs=0.02)


def test_a_wide_gap_is_shared_between_copies_and_strangers() -> None:
    apart = np.eye(12, dtype=np.float32)  # all at a distance of √2
    limit = cosine_threshold(NEAR, apart, 12)
    reach = np.sqrt(2 - 2 * np.quantile(NEAR["copy_cosines"], 0.02))
    assert np.sqrt(2 - 2 * limit) == pytest.approx((reach + np.sqrt(2)) / 2, abs=1e-3)
    # Two images have no neighbors to measure; half of the edited copies are a safe guess.
    assert cosine_threshold(NEAR, apart[:2], 2) == pytest.approx(0.9825)


@pytest.mark.parametrize("hidden", [8, 64])
@pytest.mark.parametrize(("variables", "units"), [(16, 2), (16, 4), (32, 4), (64, 4)])
def test_strangers_by_codes_alone_are_as_many_as_allowed(
    variables: int, units: int, hidden: int
) -> None:
    random = np.random.default_rng(0)
    values = random.normal(size=(2000, hidden)) @ random.normal(size=(hidden, variables * units))
    codes = values.reshape(2000, variables, units).argmax(2).astype(np.uint8)
    near = {"copy_distances": [9]}
    every = (units,) * variables
    reach = distance_threshold(near, PackedCodes(codes, every), 2000)
    apart = (codes[:500, None] != codes[None]).sum(2)
    strangers = [(apart <= distance).sum() / 500 - 1 for distance in (reach, reach + 1)]
    assert reach < 0 or strangers[0] <= 0.02
    assert reach == 9 or strangers[1] > 0.002
    # Among images that all have a copy, the threshold is hardly lower, and never higher.
    codes[1::2] = codes[::2]
    codes[1::2, 0] = (codes[1::2, 0] + 1) % units
    among_copies = distance_threshold(near, PackedCodes(codes, every), 2000)
    assert among_copies <= reach
    assert hidden == 8 or among_copies >= reach - 1


def test_codes_alone_must_tell_copies_from_strangers(tmp_path: Path) -> None:
    codes = rows(400, units=UNITS).codes.copy()
    codes[:] = codes[np.arange(400) % 40]
    assert distance_threshold(NEAR, PackedCodes(codes, UNITS), 400) == -1
    index = made_up_index(tmp_path / "a.index", rows(400, units=UNITS, codes=codes), units=UNITS)
    storage.apply(index.path, lambda before: before.changing(near=NEAR))
    index.refresh()
    found = index.duplicates()
    assert (found.groups, found.distance, found.wanted_distance) == ((), -1, -1)


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
    moved = shutil.copytree(trained, tmp_path / "moved")
    assert command(["duplicates", str(bare), "--confirm", "--run", str(moved)]) == 0
    assert str(data / "copy.png") in [copy["path"] for copy in again[0]]
    command.refuses(["duplicates", str(out), str(bare), "--paths", "x.txt"], "for one index")


def test_deleted_files_are_not_kept_and_changed_ones_are_left_out(
    command: CommandLine, trained: Path, tmp_path: Path
) -> None:
    data, out = write_images(tmp_path / "data", 6), tmp_path / "a.index"
    for name in ("one", "two", "three"):
        shutil.copy(data / "0003.png", data / f"{name}.png")
    os.utime(data / "one.png", (1, 1))
    os.utime(data / "two.png", (2, 2))
    assert command(["index", str(trained), str(data), "--out", str(out)]) == 0
    (data / "one.png").unlink()
    shutil.copy(data / "0001.png", data / "three.png")
    listed = tmp_path / "rest.txt"
    for options in ([], ["--confirm", "--cosine", "0.99999"]):
        arguments = ["duplicates", str(out), "--within", "0", *options, "--paths", str(listed)]
        assert command([*arguments, "--json"]) == 0
        found = json.loads(command.out)
        group = next(group for group in found["groups"] if group[0]["path"].endswith("two.png"))
        paths = {Path(copy["path"]).name: copy["state"] for copy in group}
        assert paths == {"two.png": "", "0003.png": "", "one.png": "deleted"}
        assert found["changed"] == 1
        assert str(data / "two.png") not in listed.read_text()
    assert command(["duplicates", str(out), "--within", "0"]) == 0
    assert "(deleted since)" in command.out
    assert "Left out 1 image changed since" in command.out


def test_without_measured_thresholds_they_must_be_given(tmp_path: Path) -> None:
    index = made_up_index(tmp_path / "a.index", rows(5))
    with pytest.raises(InputError, match="give --within and --cosine"):
        index.duplicates()
    assert index.duplicates(within=0).cosine is None
    storage.apply(index.path, lambda before: before.changing(near=NEAR))
    index.refresh()
    packed = PackedCodes(index.codes(), index.units)
    assert index.duplicates().wanted_distance == distance_threshold(NEAR, packed, 5)


def test_data_frames_have_one_row_a_copy(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    index = made_up_index(tmp_path / "a.index", planted(), units=UNITS)
    frame = index.duplicates(within=2, cosine=0.99).to_pandas()
    assert frame["keep"].tolist() == [True, False, False, True, False]
