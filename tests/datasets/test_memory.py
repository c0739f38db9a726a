from pathlib import Path

import pytest
import torch

from imsvd.datasets import memory
from imsvd.datasets.arrays import ArraySource
from imsvd.datasets.drawn.shapes import ShapesSource
from imsvd.datasets.folder import ImageFolderSource
from imsvd.datasets.memory import load_into_memory, small_image_size
from imsvd.datasets.quarantine import Quarantine, read_or_replace
from imsvd.datasets.source import ImageSource
from imsvd.errors import InputError
from tests.datasets.malformed import picture


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
    monkeypatch.setattr(memory, "MAX_BYTES", 100 * 3 * 32 * 32)
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
