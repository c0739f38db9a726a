"""Cached features: complete and equal however they were made, and never those of something else."""

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning_fabric import Fabric
from rich.console import Console

from imsvd.config import ComputeSettings
from imsvd.datasets import Quarantine, open_source
from imsvd.discretizing import cache
from imsvd.discretizing.cache import CacheFile, FeatureRequest, Half, cached_features
from imsvd.encoder import load
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


def test_a_truncated_file_is_made_anew(trained: Path, whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    (file,) = tmp_path.glob("*.npy")
    file.write_bytes(content(whole)[:1000])
    features(request(trained), tmp_path)
    assert content(tmp_path) == content(whole)


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


def test_an_encoder_that_cannot_take_the_size_is_one_sentence(
    trained: Path, tmp_path: Path
) -> None:
    asked = request(trained)

    def refuse(_: Any) -> None:
        raise AssertionError

    asked.encoder.backbone.forward = refuse
    with pytest.raises(InputError, match="cannot take images of 32 pixels"):
        features(asked, tmp_path)


def test_what_was_read_is_released_and_can_be_read_again(trained: Path, whole: Path) -> None:
    found = features(request(trained), whole)
    before = np.array(found)
    cache.release(found)
    cache.release(before)
    assert np.array_equal(found, before)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_released_pages_leave_the_process(tmp_path: Path) -> None:
    def resident() -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("RssFile:"))

    np.save(tmp_path / "features.npy", np.ones((64, 5, 50_000), np.float16))
    found: Half = np.load(tmp_path / "features.npy", mmap_mode="r")
    assert float(found.max()) == 1
    full_of_pages = resident()
    cache.release(found)
    assert full_of_pages - resident() > 25_000  # of 31,250 KiB
