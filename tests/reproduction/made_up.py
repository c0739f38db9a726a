"""Experiments that nobody has run: outcomes written where a run would leave them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from imsvd.grid import runner
from imsvd.grid.jobs import Job, data_fingerprint, write_outcome
from imsvd.reproduction import plots
from tests.grid import made_up
from tests.grid.test_runner import Ended

DATA = "shapes:160"
"""Has labels and a test split."""


class Children:
    """Stands in for `start_child`: every run ends at once, with the accuracy that `score` gives it."""

    def __init__(self) -> None:
        self.started: list[Job] = []
        self.codes: dict[Job, int] = {}
        self.score: Callable[[Job], float] = lambda job: 50.0 + job.config.seed
        self.data = data_fingerprint(DATA)

    def __call__(self, job: Job, folder: Path, parallel: int, lock: int, place: int) -> Ended:
        self.started.append(job)
        code = self.codes.get(job, 0)
        if code == 0:
            top1 = self.score(job)
            metrics = {
                "linear_probe_top1": top1,
                "linear_probe_top5": 90.0,
                "knn_20": top1 - 5,
                "knn_200": top1 - 6,
            }
            write_outcome(
                folder, made_up.outcome(data=self.data, metrics=metrics, parallel=parallel)
            )
        return Ended(code)


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> Children:
    children = Children()
    monkeypatch.setattr(runner, "start_child", children)
    monkeypatch.setattr(runner, "POLL_SECONDS", 0.001)
    return children


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the plots out, which take longer than everything else here."""
    monkeypatch.setattr(plots, "draw_result", lambda *_: None)
