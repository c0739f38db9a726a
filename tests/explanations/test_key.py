"""The key tells encoders and images apart, whatever they are called."""

from pathlib import Path

import pytest

from imsvd.datasets import open_source
from imsvd.encoder import load
from imsvd.explanations.subject import explanation_key, is_of_encoder
from tests.test_api import write_images


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_images(tmp_path / "images", 5)


def key(run: Path, images: Path) -> str:
    encoder = load(run)
    return explanation_key(encoder.description, encoder.state_dict(), open_source(images))


def test_other_images_of_the_same_names_have_another_key(
    trained: Path, folder: Path, tmp_path: Path
) -> None:
    before = key(trained, folder)
    moved = folder.rename(tmp_path / "moved")
    assert key(trained, moved) == before
    first, *_, last = sorted(moved.iterdir())
    last.write_bytes(first.read_bytes())
    assert key(trained, moved) != before


def test_the_encoder_is_known_without_the_images(trained: Path, folder: Path) -> None:
    encoder = load(trained)
    made = key(trained, folder)
    weights = encoder.state_dict()
    assert is_of_encoder(made, encoder.description, weights)
    changed = {name: value + 1 for name, value in weights.items()}
    assert not is_of_encoder(made, encoder.description, changed)
