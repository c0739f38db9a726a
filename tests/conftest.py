import os

os.environ["CUDA_VISIBLE_DEVICES"] = ""  # before torch loads: no test is written for a real GPU

import pytest
import torch

from tests.pretraining.tiny import CommandLine
from tests.trained import trained

__all__ = ["trained"]


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(monkeypatch, capsys)
