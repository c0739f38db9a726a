import json
import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from imsvd.datasets import reading
from imsvd.datasets.decoding import UnreadableImage
from imsvd.datasets.drawn.shapes import ShapesSource
from imsvd.datasets.folders import ImageFolderSource
from imsvd.datasets.reading import (
    READER_SECONDS,
    BadImage,
    Quarantine,
    load_batches,
    load_into_memory,
    read_or_replace,
    small_image_size,
)
from imsvd.datasets.sources import ArraySource, ImageSource
from imsvd.errors import InputError
from tests.datasets.malformed import picture, write_malformed
from tests.datasets.test_folders import put


class PartlyBad(ImageSource):
    """Picture i is filled with i, unless i is bad."""

    def __init__(self, count: int, bad: set[int]) -> None:
        self.count, self.bad = count, bad

    def __len__(self) -> int:
        return self.count

    def read(self, index: int) -> Tensor:
        if index in self.bad:
            raise UnreadableImage(self.identity(index), "truncated JPEG")
        return torch.full((3, 2, 2), index, dtype=torch.uint8)

    def identity(self, index: int) -> str:
        return f"{index}.jpg"

    def fingerprint(self) -> str:
        return "0" * 16


def bad_images(*indices: int) -> list[BadImage]:
    return [BadImage(index, f"{index}.jpg", "truncated JPEG") for index in indices]


@pytest.mark.parametrize(
    ("index", "read", "met"), [(0, 0, []), (3, 5, [3, 4]), (4, 5, [4]), (9, 0, [9])]
)
def test_the_next_readable_picture_replaces(index: int, read: int, met: list[int]) -> None:
    picture, actual, bad = read_or_replace(PartlyBad(10, {3, 4, 9}), index)
    assert actual == read
    assert int(picture[0, 0, 0]) == read
    assert bad == bad_images(*met)


def test_nothing_readable_is_an_input_error() -> None:
    with pytest.raises(InputError, match=r"none of the 3 .* 1\.jpg \(truncated JPEG\)"):
        read_or_replace(PartlyBad(3, {0, 1, 2}), 1)


@given(st.sets(st.integers(0, 19), max_size=19))
def test_replacements_agree_with_read_or_replace(bad: set[int]) -> None:
    source = PartlyBad(20, bad)
    quarantine = Quarantine(source, limit=1.0)
    quarantine.report(bad_images(*bad))
    expected = [read_or_replace(source, index)[1] for index in range(20)]
    assert quarantine.replacements().tolist() == expected


def test_each_is_listed_once_and_at_once(tmp_path: Path) -> None:
    path = tmp_path / "bad_images.jsonl"
    quarantine = Quarantine(PartlyBad(1000, {3, 4}), path=path)
    quarantine.report([])
    assert not path.exists()
    quarantine.report(bad_images(3, 3))
    quarantine.report(bad_images(3, 4))
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    assert entries == [
        {"index": index, "identity": f"{index}.jpg", "reason": "truncated JPEG"} for index in (3, 4)
    ]
    assert quarantine.count == 2


def test_exactly_the_limit_is_allowed_and_one_more_is_not(tmp_path: Path) -> None:
    path = tmp_path / "bad_images.jsonl"
    quarantine = Quarantine(PartlyBad(200, {7, 8, 9}), path=path)
    quarantine.report(bad_images(7, 8))
    with pytest.raises(InputError) as caught:
        quarantine.report(bad_images(9))
    message = str(caught.value)
    for part in ("3 of 200", "1.5%", "1.0%", "7.jpg", "truncated JPEG", str(path)):
        assert part in message
    assert len(path.read_text().splitlines()) == 3


def test_without_a_path_nothing_is_written_and_the_limit_holds() -> None:
    quarantine = Quarantine(PartlyBad(10, {1}), limit=0.0)
    with pytest.raises(InputError, match="1 of 10 images"):
        quarantine.report(bad_images(1))


def test_a_resumed_run_does_not_repeat_entries(tmp_path: Path) -> None:
    path = tmp_path / "bad_images.jsonl"
    source = PartlyBad(1000, {3, 4, 5})
    Quarantine(source, path=path).report(bad_images(3, 4))
    resumed = Quarantine(source, path=path)
    assert resumed.count == 2
    resumed.report(bad_images(4, 5))
    assert [json.loads(line)["index"] for line in path.read_text().splitlines()] == [3, 4, 5]


def test_a_line_torn_by_a_kill_is_survived(tmp_path: Path) -> None:
    path = tmp_path / "bad_images.jsonl"
    source = PartlyBad(1000, {3, 4})
    Quarantine(source, path=path).report(bad_images(3))
    with path.open("a") as file:
        file.write('{"index": 4, "iden')
    Quarantine(source, path=path).report(bad_images(4))
    assert Quarantine(source, path=path).count == 2


def test_repaired_and_changed_pictures_no_longer_count(tmp_path: Path) -> None:
    path = tmp_path / "bad_images.jsonl"
    Quarantine(PartlyBad(1000, {3, 4}), path=path).report(bad_images(3, 4))
    assert Quarantine(PartlyBad(1000, {4}), path=path).count == 1
    assert Quarantine(PartlyBad(4, {3}), limit=1.0, path=path).count == 1


def test_resuming_with_too_many_still_bad_stops_at_once(tmp_path: Path) -> None:
    path = tmp_path / "bad_images.jsonl"
    Quarantine(PartlyBad(100, {3, 4}), limit=0.5, path=path).report(bad_images(3, 4))
    with pytest.raises(InputError, match="2 of 100"):
        Quarantine(PartlyBad(100, {3, 4}), path=path)


def test_every_malformed_file_of_a_folder_is_reported_once(tmp_path: Path) -> None:
    names = write_malformed(tmp_path / "data")
    put(tmp_path / "data", "zz-good.png")
    source = ImageFolderSource(tmp_path / "data")
    quarantine = Quarantine(source, limit=1.0, path=tmp_path / "bad.jsonl")
    for index in range(len(source)):
        _, actual, bad = read_or_replace(source, index)
        assert source.identity(actual) == "zz-good.png"
        quarantine.report(bad)
    lines = (tmp_path / "bad.jsonl").read_text().splitlines()
    assert sorted(json.loads(line)["identity"] for line in lines) == names


def squares(folder: Path, count: int, size: int = 32) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for seed in range(count):
        picture(size, size, seed).save(folder / f"{seed:04}.png")
    return folder


def blank(count: int, height: int, width: int) -> ImageSource:
    return ArraySource("blank", torch.zeros(count, 3, height, width, dtype=torch.uint8))


@pytest.mark.parametrize(
    ("height", "width", "expected"), [(32, 32, 32), (96, 96, 96), (97, 97, None), (32, 31, None)]
)
def test_small_square_pictures_qualify(height: int, width: int, expected: int | None) -> None:
    assert small_image_size(blank(100, height, width)) == expected


def test_too_many_pictures_do_not_qualify(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_MAX_BYTES", 100 * 3 * 32 * 32)
    assert small_image_size(blank(100, 32, 32)) == 32
    assert small_image_size(blank(101, 32, 32)) is None


def test_a_different_picture_in_the_sample_disqualifies(tmp_path: Path) -> None:
    squares(tmp_path, 10)
    picture(40, 40).save(tmp_path / "0004.png")
    assert small_image_size(ImageFolderSource(tmp_path)) is None


@pytest.mark.parametrize("kind", ["folder", "shapes", "array"])
def test_what_is_loaded_equals_what_is_read(tmp_path: Path, kind: str) -> None:
    sources: dict[str, ImageSource] = {
        "folder": ImageFolderSource(squares(tmp_path, 150)),
        "shapes": ShapesSource(count=150),
        "array": ArraySource("a", torch.randint(0, 256, (150, 3, 20, 20)).to(torch.uint8)),
    }
    source = sources[kind]
    seen: list[tuple[int, int]] = []
    images = load_into_memory(
        source, Quarantine(source), progress=lambda done, total: seen.append((done, total))
    )
    assert images is not None
    assert torch.equal(images, torch.stack([source.read(index) for index in range(150)]))
    assert seen == [(64, 150), (128, 150), (150, 150)]


def test_bad_pictures_are_replaced_and_reported(tmp_path: Path) -> None:
    squares(tmp_path, 200)
    for number in (63, 64, 199):
        (tmp_path / f"{number:04}.png").write_bytes(b"")
    source = ImageFolderSource(tmp_path)
    quarantine = Quarantine(source, limit=0.02)
    images = load_into_memory(source, quarantine)
    assert images is not None
    assert quarantine.count == 3
    for index in (62, 63, 64, 65, 199):
        expected, actual, _ = read_or_replace(source, index)
        assert torch.equal(images[index], expected)
        assert quarantine.replacements()[index] == actual
    with pytest.raises(InputError, match="of 200 images"):
        load_into_memory(source, Quarantine(source, limit=0.0))


def test_a_different_picture_outside_the_sample_gives_none(tmp_path: Path) -> None:
    squares(tmp_path, 200)
    picture(40, 40).save(tmp_path / "0100.png")
    source = ImageFolderSource(tmp_path)
    assert small_image_size(source) == 32
    assert load_into_memory(source, Quarantine(source)) is None


def test_large_pictures_give_none() -> None:
    source = blank(3, 100, 100)
    assert load_into_memory(source, Quarantine(source)) is None


def read(keys: list[int]) -> list[tuple[int, bool, bool]]:
    """Each key, and whether Ctrl-C and SIGTERM are ignored where it is read; -7 is refused."""
    if -7 in keys:
        raise InputError("-7 cannot be read.")
    numbers = signal.SIGINT, signal.SIGTERM
    first, second = (signal.getsignal(number) == signal.SIG_IGN for number in numbers)
    return [(key, first, second) for key in keys]


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_come_in_order_and_only_workers_ignore_signals(workers: int) -> None:
    # A shell starts its background jobs with Ctrl-C ignored, these tests among them.
    here = (
        signal.getsignal(number) == signal.SIG_IGN for number in (signal.SIGINT, signal.SIGTERM)
    )
    ignored = (True, True) if workers else tuple(here)
    expected = [[(key, *ignored) for key in keys] for keys in ([0, 1], [2], [3, 4])]
    assert list(load_batches(read, [[0, 1], [2], [3, 4]], workers)) == expected


@pytest.mark.parametrize("workers", [0, 1])
def test_the_error_of_a_worker_is_its_sentence_alone(workers: int) -> None:
    batches = load_batches(read, [[0], [-7]], workers)
    next(batches)
    with pytest.raises(InputError) as caught:
        next(batches)
    assert str(caught.value) == "-7 cannot be read."


def die(keys: list[int]) -> list[int]:
    if keys[0] == 1:
        os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does when memory is short
    if keys[0] == 2:
        raise MemoryError
    return keys


@pytest.mark.parametrize("last", [1, 2], ids=["killed", "MemoryError"])
def test_a_worker_without_memory_is_one_sentence(last: int) -> None:
    with pytest.raises(
        InputError, match=r"ran out of memory or hangs; free .* lower compute.workers=1"
    ):
        list(load_batches(die, [[0], [last]], 1))


class Undeliverable:
    """A batch for whose transfer memory is lacking."""

    def __reduce__(self) -> str:
        raise RuntimeError("unable to mmap 49152 bytes: Cannot allocate memory (12)")


def undeliverable(key: int) -> Undeliverable:
    del key
    return Undeliverable()


def test_a_batch_that_cannot_be_delivered_is_one_sentence_at_once(
    capfd: pytest.CaptureFixture[str],
) -> None:
    before = time.monotonic()
    with pytest.raises(InputError, match="ran out of memory"):
        next(load_batches(undeliverable, [0], 1))
    assert time.monotonic() - before < READER_SECONDS / 10
    assert "Traceback" not in capfd.readouterr().err


def test_a_worker_that_hangs_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("imsvd.datasets.reading.READER_SECONDS", 0.2)
    with pytest.raises(InputError, match="or hangs"):
        next(load_batches(time.sleep, [5.0], 1))


def test_workers_end_with_the_batches() -> None:
    before = set(multiprocessing.active_children())
    batches = load_batches(read, [[key] for key in range(100)], 2)
    next(batches)
    started = set(multiprocessing.active_children()) - before
    assert len(started) == 2
    batches.close()
    assert not any(worker.is_alive() for worker in started)


class Starved(reading._Reading[int, Tensor]):
    """Its process starts no thread any more: without memory, Python waits for it forever."""

    def __getitem__(self, key: Any) -> Tensor | None:
        threading.Thread.start = lambda _: time.sleep(1000)  # type: ignore[method-assign,assignment]
        return super().__getitem__(key)


def test_a_worker_whose_thread_cannot_begin_ends_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "GREETING_SECONDS", 1)
    monkeypatch.setattr(reading, "_Reading", Starved)
    began = time.monotonic()
    with pytest.raises(InputError, match="ran out of memory or hangs"):
        list(load_batches(torch.tensor, [1, 2, 3], workers=1))
    assert time.monotonic() - began < reading.READER_SECONDS / 10


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (EOFError(), True),
        (ConnectionResetError(104, "Connection reset by peer"), True),
        (FileNotFoundError(2, "No such file or directory"), True),
        (ImportError("failed to map segment from shared object"), True),
        (RuntimeError("DataLoader worker (pid 1) is killed by signal: Killed."), True),
        (RuntimeError("shapes do not fit"), False),
        (ConnectionError("Caught ConnectionError in DataLoader worker process 0."), False),
        (PermissionError(13, "Permission denied"), False),
    ],
)
def test_errors_of_a_lost_worker_are_told_from_errors_of_reading(
    error: Exception, lost: bool
) -> None:
    assert reading._is_lost_worker(error) is lost
