"""One tiny run, trained once, that tests of what comes after training share."""

from pathlib import Path

import pytest
from rich.console import Console

from imsvd.pretraining import train
from imsvd.runs import RunFolder
from tests.pretraining import tiny


def train_tiny(folder: Path, *settings: str) -> Path:
    run = RunFolder(folder)
    train(tiny.config(*settings), run, Console(quiet=True))
    return run.path


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run; copy it before changing anything in it."""
    return train_tiny(tmp_path_factory.mktemp("trained") / "run")
