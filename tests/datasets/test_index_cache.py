import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from imsvd.datasets import folder as folder_module
from imsvd.datasets import tar_archive
from imsvd.datasets.folder import ImageFolderSource
from imsvd.datasets.index_cache import load_listing, save_listing
from imsvd.datasets.tar_archive import read_tar_index
from tests.datasets.containers import pictures, write_tar
from tests.datasets.test_folder import identities, put

OLD = time.time() - 3600


def settle(root: Path) -> None:
    """Let all folders have changed long ago, to a fraction of a second."""
    for path in (root, *root.rglob("*")):
        if path.is_dir():
            os.utime(path, ns=(1, int(OLD) * 10**9 + 123_456_789))


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small folder, for which the cache is used none the less."""
    monkeypatch.setattr(folder_module, "MIN_ENTRIES", 1)
    put(tmp_path / "data", "cat/1.png", "cat/deep/2.png", "dog/1.png")
    settle(tmp_path / "data")
    return tmp_path / "data"


@pytest.fixture
def walks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The folders that were walked through rather than taken from the cache."""
    walked: list[str] = []
    original: Callable[..., None] = folder_module._Walk.__init__

    def recorded(self: object, base: str) -> None:
        walked.append(base)
        original(self, base)

    monkeypatch.setattr(folder_module._Walk, "__init__", recorded)
    return walked


def test_a_folder_is_walked_once(root: Path, walks: list[str]) -> None:
    first, again = ImageFolderSource(root), ImageFolderSource(root)
    assert len(walks) == 1
    assert identities(again) == identities(first) == ["cat/1.png", "cat/deep/2.png", "dog/1.png"]
    assert again.fingerprint() == first.fingerprint()
    assert again.classes == ("cat", "dog")
    assert again.read(2).shape == (3, 40, 48)


@pytest.mark.parametrize("name", ["new.png", "cat/new.png", "cat/deep/new.png", "eel/new.png"])
def test_an_added_image_is_found_wherever_it_lies(root: Path, walks: list[str], name: str) -> None:
    ImageFolderSource(root)
    put(root, name)
    assert name in identities(ImageFolderSource(root))
    assert len(walks) == 2


def test_removed_and_renamed_images_are_noticed(root: Path) -> None:
    ImageFolderSource(root)
    (root / "cat" / "deep" / "2.png").unlink()
    assert identities(ImageFolderSource(root)) == ["cat/1.png", "dog/1.png"]
    (root / "dog").rename(root / "fox")
    assert identities(ImageFolderSource(root)) == ["cat/1.png", "fox/1.png"]


def test_another_folder_in_its_place_is_noticed(root: Path) -> None:
    ImageFolderSource(root)
    root.rename(root.parent / "old")
    put(root, "a.png")
    settle(root)
    assert identities(ImageFolderSource(root)) == ["a.png"]


def test_a_folder_that_has_just_changed_is_not_kept(root: Path, walks: list[str]) -> None:
    now = time.time_ns() + 10**9
    os.utime(root / "dog", ns=(now, now))
    ImageFolderSource(root)
    ImageFolderSource(root)
    assert len(walks) == 2


def test_names_no_text_can_hold_survive(root: Path) -> None:
    data = (root / "dog" / "1.png").read_bytes()
    Path(os.fsdecode(os.fsencode(root) + b"/dog/\xff.png")).write_bytes(data)
    settle(root)
    first, again = ImageFolderSource(root), ImageFolderSource(root)
    assert identities(again) == identities(first)
    assert again.read(3).shape == (3, 40, 48)


@pytest.mark.parametrize("damage", [b"", b"not an archive", None])
def test_a_damaged_cache_is_made_anew(
    root: Path, walks: list[str], own_cache: Path, damage: bytes | None
) -> None:
    first = identities(ImageFolderSource(root))
    (path,) = (own_cache / "index").iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] if damage is None else damage)
    assert identities(ImageFolderSource(root)) == first
    assert len(walks) == 2
    assert path.read_bytes() == whole


def test_flipped_bytes_never_crash(root: Path, own_cache: Path) -> None:
    first = identities(ImageFolderSource(root))
    (path,) = (own_cache / "index").iterdir()
    whole = path.read_bytes()
    for place in range(0, len(whole), 29):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        assert identities(ImageFolderSource(root)) == first


def test_a_cache_that_cannot_be_written_does_no_harm(
    root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("IMSVD_DATA", str(tmp_path / "file"))
    assert len(ImageFolderSource(root)) == len(ImageFolderSource(root)) == 3


def test_small_folders_are_not_kept(tmp_path: Path, own_cache: Path) -> None:
    ImageFolderSource(put(tmp_path, "a.png"))
    assert not (own_cache / "index").exists()


def test_listings_of_different_keys_do_not_meet(own_cache: Path) -> None:
    save_listing("a", {"x": np.arange(3)})
    loaded = load_listing("a")
    assert loaded is not None
    assert loaded["x"].tolist() == [0, 1, 2]
    assert load_listing("b") is None
    assert [path.suffix for path in (own_cache / "index").iterdir()] == [".npz"]


def test_an_archive_is_scanned_again_only_when_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tar_archive, "MIN_ENTRIES", 1)
    files = pictures("a.png", "b.png")
    path = write_tar(tmp_path / "x.tar", {**files, "a.cls": b"1", "b.cls": b"0"})
    first = read_tar_index([path])
    with monkeypatch.context() as scope:
        scope.setattr(tar_archive, "scan_tar", None)  # would fail if it were called
        again = read_tar_index([path])
    assert (
        (again.names, again.labels)
        == (first.names, first.labels)
        == (["a.png", "b.png"], ["1", "0"])
    )
    assert again.table.tolist() == first.table.tolist()
    write_tar(path, pictures("c.png"))
    assert read_tar_index([path]).names == ["c.png"]
