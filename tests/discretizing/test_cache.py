"""Cached features: complete and equal however they were made, and never those of something else."""

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from imsvd.config import ComputeSettings
from imsvd.datasets import Quarantine, open_source
from imsvd.discretizing import cache, feature_file
from imsvd.discretizing.cache import FeatureRequest, cached_features
from imsvd.discretizing.feature_file import (
    CacheFile,
    Half,
    expect_any_order,
    open_features,
    prefetch,
    read_features,
    release,
)
from imsvd.encoder import load, weights_key
from imsvd.engine.fabric import Fabric
from imsvd.errors import InputError, Interrupted
from imsvd.views import cifar_views
from tests import gloo
from tests.pretraining.test_pretrain import write_images

QUIET = Console(quiet=True)
IMAGES = 3 * cache.BATCH + 5


def request(run: Path, data: str = f"shapes:{IMAGES}", seed: int = 0) -> FeatureRequest:
    return FeatureRequest(load(run), open_source(data, "train"), cifar_views(), seed)


def features(
    asked: FeatureRequest, folder: Path, limit: float = 0.1, console: Console = QUIET
) -> Half:
    return cached_features(
        asked,
        folder,
        ComputeSettings(workers=0),
        Fabric(accelerator="cpu", devices=1),
        Quarantine(asked.source, limit),
        console,
    )


def content(folder: Path) -> bytes:
    (file,) = folder.glob("*.npy")
    return file.read_bytes()


@pytest.fixture(scope="module")
def whole(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    features(request(trained), folder)
    return folder


def test_views_and_plain_image_of_every_picture(trained: Path, whole: Path) -> None:
    asked = request(trained)
    found = features(asked, whole)
    assert found.shape == asked.shape == (IMAGES, 3, asked.encoder.num_features)
    assert found.dtype == np.float16
    images = torch.stack([asked.source.read(index) for index in range(4)])
    with torch.no_grad():
        plain = asked.encoder.features(images)
    torch.testing.assert_close(
        torch.from_numpy(found[:4, -1].astype(np.float32)), plain, atol=5e-3, rtol=5e-3
    )
    assert not np.allclose(found[:, 0], found[:, 1])


def test_a_finished_cache_is_reused(
    trained: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "_fill", lambda *_: pytest.fail("encoded again"))
    assert len(features(request(trained), whole)) == IMAGES


def test_size_and_time_are_printed_beforehand(trained: Path, tmp_path: Path) -> None:
    with (tmp_path / "said").open("w") as file:
        features(request(trained), tmp_path / "cache", console=Console(file=file, width=200))
    said = (tmp_path / "said").read_text()
    assert f"{IMAGES} images, 3 each; 0.0 MB" in said or f"{IMAGES} images, 3 each; 0.1 MB" in said
    assert "images per second" in said


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_a_killed_cache_is_completed_to_the_same_bytes(
    trained: Path,
    whole: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: type[BaseException],
) -> None:
    monkeypatch.setattr(cache, "FLUSH_SECONDS", -1.0)
    written: list[int] = []
    write = CacheFile.write

    def failing(self: CacheFile, first: int, rows: Half) -> None:
        if len(written) == 2:
            raise error
        written.append(first)
        write(self, first, rows)

    with monkeypatch.context() as patch:
        patch.setattr(CacheFile, "write", failing)
        with pytest.raises(error):
            features(request(trained), tmp_path)
    (description,) = tmp_path.glob("*.json")
    assert json.loads(description.read_text())["done"] == 2 * cache.BATCH
    assert content(tmp_path) != content(whole)
    features(request(trained), tmp_path)
    assert content(tmp_path) == content(whole)


def test_a_stop_signal_saves_and_ends(
    trained: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = CacheFile.write

    def interrupted(self: CacheFile, first: int, rows: Half) -> None:
        write(self, first, rows)
        os.kill(os.getpid(), 15)

    with monkeypatch.context() as patch:
        patch.setattr(CacheFile, "write", interrupted)
        with pytest.raises(Interrupted):
            features(request(trained), tmp_path)
    features(request(trained), tmp_path)
    assert content(tmp_path) == content(whole)


def _on_a_rank(run: Path, folder: Path) -> int:
    return len(features(request(run), folder))


def test_two_processes_make_the_bytes_of_one(trained: Path, whole: Path, tmp_path: Path) -> None:
    assert gloo.run(2, _on_a_rank, trained, tmp_path) == [IMAGES, IMAGES]
    assert content(tmp_path) == content(whole)


def test_another_encoder_seed_or_changed_images_have_a_cache_of_their_own(
    trained: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "cache"
    images = write_images(tmp_path / "images", 12)
    other = load(trained)
    with torch.no_grad():
        next(other.backbone.parameters()).mul_(1.5)
    features(request(trained, str(images)), folder)
    features(request(trained, str(images))._replace(encoder=other), folder)
    features(request(trained, str(images), seed=1), folder)
    assert len(list(folder.glob("*.npy"))) == 3
    write_images(tmp_path / "others", 1, side=40)
    shutil.copy(tmp_path / "others" / "0000.png", images / "0007.png")
    features(request(trained, str(images)), folder)
    assert len(list(folder.glob("*.npy"))) == 4


def of_other_seed(folder: Path, trained: Path, elsewhere: Path) -> None:
    features(request(trained, seed=1), elsewhere)
    (other,), (file,) = elsewhere.glob("*.npy"), folder.glob("*.npy")
    shutil.copy(other, file)


def described_by_other(folder: Path, trained: Path, elsewhere: Path) -> None:
    features(request(trained, seed=1), elsewhere)
    (other,), (file,) = elsewhere.glob("*.json"), folder.glob("*.json")
    shutil.copy(other, file)


def cut(folder: Path, *_: Path) -> None:
    (file,) = folder.glob("*.npy")
    file.write_bytes(file.read_bytes()[:1000])


def one_number(folder: Path, *_: Path) -> None:
    (file,) = folder.glob("*.npy")
    found = np.load(file, mmap_mode="r+")
    found[17, 1, 3] += 1
    found.flush()
    os.utime(file)  # a map does not always note the time of a change


def other_header(folder: Path, *_: Path) -> None:
    (file,) = folder.glob("*.npy")
    file.write_bytes(file.read_bytes().replace(b"'<f2'", b"'<i2'", 1))


def damaged_description(folder: Path, *_: Path) -> None:
    (file,) = folder.glob("*.json")
    file.write_text("{")


def missing_features(folder: Path, *_: Path) -> None:
    (file,) = folder.glob("*.npy")
    file.unlink()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (of_other_seed, "its content was changed"),
        (described_by_other, "its description is of other seed"),
        (cut, "it has 1,000 bytes instead of"),
        (one_number, "its content was changed"),
        (other_header, "its header was changed"),
        (damaged_description, "json is damaged"),
        (missing_features, "it is missing"),
    ],
)
def test_a_cache_that_is_not_what_was_written_is_refused_and_left_alone(
    trained: Path, whole: Path, tmp_path: Path, change: Callable[..., None], reason: str
) -> None:
    folder = tmp_path / "cache"
    shutil.copytree(whole, folder)
    change(folder, trained, tmp_path / "elsewhere")
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    with pytest.raises(InputError, match=reason) as caught:
        features(request(trained), folder)
    assert "name another folder with --cache" in str(caught.value)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


def test_a_copied_cache_is_checked_once_and_reused(
    trained: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file in whole.iterdir():
        shutil.copyfile(file, tmp_path / file.name)  # with times of its own
    monkeypatch.setattr(cache, "_fill", lambda *_: pytest.fail("encoded again"))
    features(request(trained), tmp_path)
    monkeypatch.setattr(CacheFile, "_hash", lambda *_: pytest.fail("checked again"))
    assert np.array_equal(features(request(trained), tmp_path), features(request(trained), whole))


def test_a_begun_cache_that_was_edited_is_not_continued(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = CacheFile.write

    def interrupted(self: CacheFile, first: int, rows: Half) -> None:
        write(self, first, rows)
        os.kill(os.getpid(), 15)

    with monkeypatch.context() as patch:
        patch.setattr(CacheFile, "write", interrupted)
        with pytest.raises(Interrupted):
            features(request(trained), tmp_path)
    one_number(tmp_path)
    with pytest.raises(InputError, match="its content was changed"):
        features(request(trained), tmp_path)


def test_a_second_run_does_not_empty_what_the_first_is_writing(
    trained: Path, tmp_path: Path
) -> None:
    asked = request(trained)
    first, second = (CacheFile(asked.identity(), asked.shape, tmp_path) for _ in range(2))
    first.prepare(QUIET)
    first.write(0, np.ones((4, *asked.shape[1:]), np.float16))
    second.prepare(QUIET)
    assert (np.load(first.path)[:4] == 1).all()


def test_images_that_change_meanwhile_are_refused(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = write_images(tmp_path / "images", 12)
    folder = tmp_path / "cache"
    write = CacheFile.write

    def changing(self: CacheFile, first: int, rows: Half) -> None:
        write(self, first, rows)
        shutil.copy(images / "0003.png", images / "0007.png")

    with monkeypatch.context() as patch:
        patch.setattr(CacheFile, "write", changing)
        with pytest.raises(InputError, match="the images changed while"):
            features(request(trained, str(images)), folder)
    assert not list(folder.iterdir())


def test_the_weights_are_hashed_once(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = weights_key(load(trained))
    monkeypatch.setattr(cache, "weights_key", lambda _: pytest.fail("hashed again"))
    features(request(trained)._replace(weights=known), tmp_path)


def full(*_: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_found_before_the_work(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(InputError, match=r"^the disk is full: features need .* to resume\.$"):
        features(request(trained), tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_disk_that_fills_up_loses_nothing(
    trained: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "FLUSH_SECONDS", -1.0)
    calls: list[int] = []
    pwrite = os.pwrite

    def filling(*arguments: Any) -> int:
        calls.append(0)
        if len(calls) > 2:
            full()
        return pwrite(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", filling)
        with pytest.raises(InputError, match="the disk is full"):
            features(request(trained), tmp_path)
    (description,) = tmp_path.glob("*.json")
    assert json.loads(description.read_text())["done"] == 2 * cache.BATCH
    features(request(trained), tmp_path)
    assert content(tmp_path) == content(whole)


def test_an_unreadable_image_is_replaced_by_the_next(trained: Path, tmp_path: Path) -> None:
    images = write_images(tmp_path / "images", 12)
    (images / "0003.png").write_bytes(b"not an image")
    asked = request(trained, str(images))
    with pytest.raises(InputError, match="cannot be read"):
        features(asked, tmp_path / "strict", limit=0.0)
    found = features(asked, tmp_path / "cache")
    assert (found[3, -1] == found[4, -1]).all()
    assert not np.array_equal(found[2, -1], found[3, -1])


def test_features_beyond_half_floats_are_refused(trained: Path, tmp_path: Path) -> None:
    asked = request(trained)
    forward = asked.encoder.backbone.forward
    asked.encoder.backbone.forward = lambda images: 1e9 + forward(images)
    with pytest.raises(InputError, match="half floats cannot hold"):
        features(asked, tmp_path)
    asked.encoder.backbone.forward = lambda images: float("nan") * forward(images)
    with pytest.raises(InputError, match="features that are not numbers"):
        features(asked, tmp_path)


def test_features_that_are_not_pooled_are_refused(trained: Path, tmp_path: Path) -> None:
    asked = request(trained)
    asked.encoder.backbone.forward = lambda images: images
    with pytest.raises(InputError, match=r"of shape \(3, 32, 32\) for an image instead of 8"):
        features(asked, tmp_path)


def test_an_encoder_that_cannot_take_the_size_is_one_sentence(
    trained: Path, tmp_path: Path
) -> None:
    asked = request(trained)

    def refuse(_: Any) -> None:
        raise AssertionError

    asked.encoder.backbone.forward = refuse
    with pytest.raises(InputError, match="cannot take images of 32 pixels"):
        features(asked, tmp_path)


def test_rows_are_read_as_they_are_and_released(trained: Path, whole: Path) -> None:
    found = features(request(trained), whole)
    rows = np.array([70, 3, 90, 3, *range(69)])
    views = np.arange(len(rows)) % 3
    expected = np.array(found)[rows, views].astype(np.float32)
    for source in (found, np.array(found)):
        expect_any_order(source)
        prefetch(source, rows)
        assert np.array_equal(read_features(source, rows, views), expected)
        release(source)
    assert np.array_equal(read_features(found, rows, views), expected)


def resident() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssFile:"))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_what_is_read_at_a_time_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "features.npy", np.ones((4000, 5, 1000), np.float16))  # 39,062 KiB
    found = open_features(tmp_path / "features.npy")
    before, most = resident(), 0

    def watched(features: Half) -> None:
        nonlocal most
        most = max(most, resident() - before)
        release(features)

    monkeypatch.setattr(feature_file, "release", watched)
    read_features(found, np.arange(4000), np.zeros(4000, np.int64))
    assert 0 < most < 10_000
    assert resident() - before < 2_000
