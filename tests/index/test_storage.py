"""What is written is read again, changes are whole, and damage is noticed."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from imsvd.errors import InputError
from imsvd.index import Index, storage
from imsvd.index.storage import MANIFEST, read_manifest, verify
from tests.index.made_up import ROOT, UNITS, add, made_up_index, rows


def same_images(index: Index, names: list[str]) -> bool:
    return index.paths[:] == [f"/photos/{name}.jpg" for name in names]


def test_everything_comes_back_from_several_segments(tmp_path: Path) -> None:
    parts = [rows(300, features=8), rows(5, first=300, seed=1, features=8)]
    index = made_up_index(tmp_path / "a.index", *parts)
    assert len(index) == 305
    assert index.units == UNITS
    assert (index.codes() == np.concatenate([part.codes for part in parts])).all()
    levels = np.concatenate([segment.levels() for segment in index.segments])
    assert (levels == np.concatenate([part.levels for part in parts])).all()
    features = index.features()
    wanted = np.concatenate([part.features for part in parts if part.features is not None])
    assert features is not None
    assert (features == wanted).all()
    some = np.array([304, 0, 299, 300])
    assert (index.features_at(some) == wanted[some]).all()
    assert (index.facet("label")[300:] == parts[1].facets["label"]).all()
    assert same_images(index, [f"{number:05d}" for number in range(305)])
    image = index.image(301)
    assert image.size == parts[1].sizes[1]
    assert image.hash == parts[1].hashes[1].tobytes()
    with pytest.raises(IndexError):
        index.image(305)


def test_positions_are_found_by_path_and_name(tmp_path: Path) -> None:
    index = made_up_index(tmp_path / "a.index", rows(300), rows(5, first=300))
    assert index.find("/photos/00302.jpg") == 302
    assert index.find("00007.jpg") == 7
    assert index.find("/elsewhere/00007.jpg") is None
    places = [(1, f"{number:05d}.jpg".encode()) for number in (3, 304, 305)]
    assert index.locate(places).tolist() == [3, 304, -1]
    many = [(1, f"{number:05d}.jpg".encode()) for number in range(400)]
    assert index.locate(many).tolist() == [*range(305), *[-1] * 95]


def test_adding_joins_a_short_tail_and_begins_a_new_one_after_a_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "TAIL_IMAGES", 6)
    index = made_up_index(tmp_path / "a.index", rows(10))
    for number in range(10, 20):
        assert add(index, rows(1, first=number, seed=number)) == (0, 0)
    assert [segment.count for segment in index.segments] == [10, 6, 4]
    assert same_images(index, [f"{number:05d}" for number in range(20)])
    assert (index.codes()[17] == rows(1, seed=17).codes[0]).all()
    files = {path.name for path in index.path.glob("segment-*")}
    assert files == {entry.file for entry in index.manifest.segments}
    verify(index.path)


def test_many_short_segments_are_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("TAIL_IMAGES", 1), ("SMALL_SEGMENTS", 4), ("SEGMENT_IMAGES", 8)):
        monkeypatch.setattr(storage, name, value)
    index = made_up_index(tmp_path / "a.index", rows(8))
    before = index.manifest.segments[0]
    for number in range(8, 11):
        add(index, rows(1, first=number, seed=number))
    assert [segment.count for segment in index.segments] == [8, 1, 1, 1]
    add(index, rows(1, first=11, seed=11))
    assert [segment.count for segment in index.segments] == [8, 4]
    assert index.manifest.segments[0] == before
    assert same_images(index, [f"{number:05d}" for number in range(12)])


def test_changed_images_replace_theirs_and_equal_ones_stay(tmp_path: Path) -> None:
    first = rows(20)
    index = made_up_index(tmp_path / "a.index", first)
    again = rows(4, first=18, seed=5)  # 18 and 19 have other content, 20 and 21 are new
    assert add(index, again) == (2, 0)
    assert len(index) == 22
    position = index.find("/photos/00018.jpg")
    assert position is not None
    assert (index.codes()[position] == again.codes[0]).all()
    assert add(index, again) == (0, 4)
    assert add(index, first.chosen(np.array([3, 3]))) == (0, 2)
    assert len(index) == 22


def test_a_touched_file_gets_its_new_time(tmp_path: Path) -> None:
    first = rows(20)
    index = made_up_index(tmp_path / "a.index", first)
    again = first.chosen(np.array([3, 4]))
    again.modified[:] = [5, first.modified[4]]
    assert add(index, again) == (0, 2)
    assert len(index) == 20
    position = index.find("/photos/00003.jpg")
    assert position is not None
    assert index.image(position).modified == 5
    assert index.find("/photos/00004.jpg") == 3  # was not written again
    before = index.manifest
    assert add(index, again) == (0, 2)
    assert index.manifest == before


def test_values_that_another_process_has_numbered_are_not_mixed_up(tmp_path: Path) -> None:
    index = made_up_index(tmp_path / "a.index", rows(20))
    other = Index(index.path)
    roots, known = index.manifest.roots, index.facets
    other.add_rows(rows(1, first=20), roots, known | {"label": ("cat", "dog", "horse")})
    with pytest.raises(InputError, match="was changed meanwhile"):
        index.add_rows(rows(1, first=21), roots, known | {"label": ("cat", "dog", "ant")})
    assert Index(index.path).facets["label"] == ("cat", "dog", "horse")
    with pytest.raises(InputError, match="was changed meanwhile"):
        index.add_rows(rows(1, first=21), (ROOT.model_copy(update={"folder": "/x"}),), known)


def test_removed_images_are_gone_for_every_question(tmp_path: Path) -> None:
    parts = [rows(30, features=3), rows(10, first=30, seed=1, features=3)]
    index = made_up_index(tmp_path / "a.index", *parts)
    assert index.remove("/photos/00002.jpg", "00031.jpg") == 2
    assert index.remove("/photos/00000.jpg") == 1
    kept = [number for number in range(40) if number not in (0, 2, 31)]
    assert same_images(index, [f"{number:05d}" for number in kept])
    assert (index.codes() == np.concatenate([part.codes for part in parts])[kept]).all()
    features = index.features()
    assert features is not None
    assert (
        features == np.concatenate([p.features for p in parts if p.features is not None])[kept]
    ).all()
    assert (index.column("sizes") == np.concatenate([part.sizes for part in parts])[kept]).all()
    assert index.find("/photos/00002.jpg") is None
    assert index.find("/photos/00003.jpg") == 1
    with pytest.raises(InputError, match=r"00002.jpg is not in .*; nothing was removed"):
        index.remove("/photos/00005.jpg", "/photos/00002.jpg")
    assert index.find("/photos/00005.jpg") == 3
    index.compact()
    assert same_images(index, [f"{number:05d}" for number in kept])
    assert len(index.segments) == 1
    assert not list(index.path.glob("removed-*"))


def test_a_folder_is_removed_with_all_below_and_everything_may_go(tmp_path: Path) -> None:
    index = made_up_index(tmp_path / "a.index", rows(30))
    other = made_up_index(tmp_path / "b.index", rows(30))
    assert index.remove("/photos") == 30
    assert len(index) == 0
    assert index.segments == ()
    assert index.find("00001.jpg") is None
    assert index.codes().shape == index.confidences().shape == (0, len(UNITS))
    assert len(index.known_codes().codes) == len(index.facet("label")) == 0
    assert index.duplicates(within=2, cosine=0.9).groups == ()
    for survey in (index.outliers, index.coverage, lambda: index.select(1)):
        with pytest.raises(InputError, match="has no images; add some"):
            survey()
    for pair in ((index, other), (other, index)):
        with pytest.raises(InputError, match="has no images; add some"):
            pair[0].drift(pair[1])
    assert add(index, rows(2)) == (0, 0)
    assert same_images(index, ["00000", "00001"])


def test_a_reader_keeps_what_it_opened(tmp_path: Path) -> None:
    index = made_up_index(tmp_path / "a.index", rows(30))
    reader = Index(index.path)
    codes = index.codes().copy()
    index.remove("00001.jpg")
    index.compact()
    assert len(reader) == 30
    assert (reader.codes() == codes).all()
    with pytest.raises(InputError, match="was changed meanwhile"):
        reader.remove_positions([5])
    assert reader.remove("00007.jpg") == 1  # by name, it looks again
    assert len(Index(index.path)) == 28


DAMAGE = {
    "truncated": "truncated",
    "missing": "is missing",
    "foreign": "is damaged|is not a segment",
    "other encoder": "another encoder",
    "swapped": "is not the segment that its index names",
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_one_sentence(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "HASHED_ON_OPENING", 0)  # as for large files
    index = made_up_index(tmp_path / "a.index", rows(30), rows(30, first=30, seed=1))
    first, second = (index.path / entry.file for entry in index.manifest.segments)
    content = first.read_bytes()
    if kind == "truncated":
        first.write_bytes(content[:-1])
    elif kind == "missing":
        first.unlink()
    elif kind == "foreign":
        first.write_bytes(bytes(len(content)))
    elif kind == "other encoder":
        first.write_bytes(content.replace(b"0123456789ab", b"ba9876543210"))
    else:
        first.write_bytes(_padded(second.read_bytes(), len(content)))
    with pytest.raises(InputError, match=DAMAGE[kind]) as caught:
        Index(index.path)
    assert str(first) in str(caught.value)
    assert "\n" not in str(caught.value)


def _padded(content: bytes, size: int) -> bytes:
    return content[:size] + bytes(max(0, size - len(content)))


def test_a_changed_byte_is_found_at_once_in_small_files_and_by_verifying_in_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = made_up_index(tmp_path / "a.index", rows(30))
    path = index.path / index.manifest.segments[0].file
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match="is damaged"):
        Index(index.path)
    monkeypatch.setattr(storage, "HASHED_ON_OPENING", 0)
    Index(index.path)
    with pytest.raises(InputError, match="is damaged"):
        verify(index.path)


def test_damaged_lists_of_removed_images_are_noticed(tmp_path: Path) -> None:
    index = made_up_index(tmp_path / "a.index", rows(30))
    index.remove("00001.jpg", "00009.jpg")
    (path,) = index.path.glob("removed-*.roaring")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InputError, match="is damaged"):
        Index(index.path)


def test_damaged_manifests_and_other_folders_are_refused(tmp_path: Path) -> None:
    index = made_up_index(tmp_path / "a.index", rows(30))
    path = index.path / MANIFEST
    content = path.read_text()
    for text in (content[:-40], "", "[]", content.replace('"/photos"', '"/others"')):
        path.write_text(text)
        with pytest.raises(InputError, match=r"manifest.json is damaged; restore"):
            Index(index.path)
    newer = json.loads(content)
    newer.pop("sha256")
    newer["format"] = 2
    path.write_text(json.dumps({**newer, "sha256": storage._checksum(newer)}))
    with pytest.raises(InputError, match="newer imsvd"):
        Index(index.path)
    with pytest.raises(InputError, match="is not an index; make one with"):
        Index(tmp_path)
    with pytest.raises(InputError, match="does not exist; make one with"):
        Index(tmp_path / "none")


def test_leftovers_of_an_interrupted_change_are_deleted_by_the_next(tmp_path: Path) -> None:
    index = made_up_index(tmp_path / "a.index", rows(30))
    entry = index.manifest.segments[0]
    for name in ("segment-000009.safetensors", "removed-000008.roaring", ".manifest.json.1.tmp"):
        shutil.copy(index.path / entry.file, index.path / name)
    assert len(Index(index.path)) == 30
    index.remove("00001.jpg")
    names = {path.name for path in index.path.iterdir()}
    assert names == {MANIFEST, "lock", entry.file, "removed-000001.roaring"}


def test_nothing_changes_while_another_process_changes(tmp_path: Path) -> None:
    index = made_up_index(tmp_path / "a.index", rows(3))
    with (
        storage.locked(index.path),
        pytest.raises(InputError, match="another process is writing"),
        storage.locked(index.path, wait=False),
    ):
        pass


def test_names_are_kept(tmp_path: Path) -> None:
    index = made_up_index(tmp_path / "a.index", rows(3))
    index.name("2.31", "stripes")
    index.name("0.1", "red  dots ")
    assert Index(index.path).names == {"0.1": "red dots", "2.31": "stripes"}
    index.name("0.1", "")
    assert read_manifest(index.path).names == {"2.31": "stripes"}
    index.name("2", "texture")
    assert Index(index.path).variable_names == {"2": "texture"}
    assert Index(index.path).names == {"2.31": "stripes"}  # queries know no variables
    for unit, name, message in (
        ("9.1", "x", "no variable 9"),
        ("0.4", "x", "no unit 4; it has 0 to 3"),
        ("zero", "x", "write a variable as 12, and its unit 3 as 12.3"),
        ("0.1", 'a"b', "must not contain quotes"),
        ("0.1", "1.1", "looks like a unit"),
        ("0.1", "x" * 81, "at most 80 characters"),
    ):
        with pytest.raises(InputError, match=message):
            index.name(unit, name)
    assert ROOT.folder == "/photos"


def test_files_that_stay_open_are_still_missed_and_a_truncated_one_is_refused(
    tmp_path: Path,
) -> None:
    index = made_up_index(tmp_path / "a.index", rows(5000), rows(50, first=5000, seed=1))
    opened = index.segments
    add(index, rows(1, first=6000, seed=2))
    assert index.segments[0] is opened[0]  # opening it again would take longer than adding
    assert len(index) == 5051
    file = opened[0].path
    content = file.read_bytes()
    file.unlink()
    with pytest.raises(InputError, match=f"{file.name} is missing"):
        index.remove("/photos/05001.jpg")
    file.write_bytes(content[:-1])
    with pytest.raises(InputError, match="truncated"):
        index.refresh()
    file.write_bytes(content)
    assert index.remove("/photos/05001.jpg", "/photos/00001.jpg") == 2
    assert len(index.segments[0]) == 4999
