from pathlib import Path

import pytest

from imsvd.errors import InputError
from imsvd.evaluation.places205 import PLACES205_SETTINGS, places205_splits
from tests.datasets.places import write_places


def test_the_papers_settings() -> None:
    settings = PLACES205_SETTINGS
    assert settings.frozen
    assert (settings.epochs, settings.batch_size, settings.momentum) == (14, 256, 0.9)
    assert (settings.head_lr, settings.milestones, settings.weight_decay) == (0.01, (5, 10), 5e-4)
    factors = [settings.rate_factor(epoch) for epoch in (0, 4, 5, 9, 10, 13)]
    assert factors == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01])


def test_an_empty_class_is_named(tmp_path: Path) -> None:
    base = write_places(tmp_path)
    path = base / "train_places205.csv"
    lines = [line for line in path.read_text().splitlines() if not line.endswith(" 1")]
    path.write_text("\n".join(lines))
    with pytest.raises(InputError, match="no training image of the class '1'"):
        places205_splits(base)


def test_a_validation_label_beyond_the_trained_ones_is_named(tmp_path: Path) -> None:
    base = write_places(tmp_path)
    path = base / "val_places205.csv"
    path.write_text(path.read_text().replace(" 2\n", " 3\n"))
    with pytest.raises(InputError, match="label 3 among its test images, outside 0 to 2"):
        places205_splits(base)
