"""Data so small that a whole grid takes seconds."""

from pathlib import Path

from imsvd.config import Config
from tests.pretraining import tiny
from tests.pretraining.test_pretrain import write_images

SETTINGS = (*tiny.SETTINGS, "compute.workers=0")


def write_data(folder: Path) -> Path:
    write_images(folder / "train", 64, classes=2)
    write_images(folder / "test", 20, classes=2)
    return folder


def config(data: Path, *settings: str) -> Config:
    return tiny.config("compute.workers=0", *settings, data=data)
