import os
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from imsvd.config import Config, override
from imsvd.training.hardware import worker_count


@pytest.mark.parametrize(
    ("device", "cores", "ranks", "cheap", "expected"),
    [
        ("cpu", 2, 1, False, 1),
        ("cpu", 2, 1, True, 1),
        ("cpu", 12, 1, False, 6),
        ("cpu", 12, 1, True, 2),
        ("cpu", 12, 6, True, 1),
        ("cuda", 4, 1, True, 4),
        ("cuda", 64, 1, False, 16),
        ("cuda", 64, 1, True, 8),
        ("cuda", 64, 8, False, 8),
    ],
)
def test_workers_leave_the_cores_to_those_who_need_them(
    device: str, cores: int, ranks: int, cheap: bool, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(cores), raising=False)
    fabric: Any = SimpleNamespace(device=torch.device(device), world_size=ranks)
    assert worker_count(Config(), fabric, cheap=cheap) == expected


def test_a_number_that_is_asked_for_is_taken() -> None:
    fabric: Any = SimpleNamespace(device=torch.device("cpu"), world_size=1)
    config = override(Config(), ["compute.workers=5"])
    assert worker_count(config, fabric, cheap=True) == 5
