"""Training beside busy processes: who waits how, what is compared, and that nothing stays busy."""

import os
import subprocess
import time
from typing import Any

import pytest
import torch
from rich.console import Console

from imsvd.bench import beside, comparison, step
from imsvd.bench.beside import BENCHMARK, BesideCase, busy_processes
from imsvd.bench.comparison import Numbers
from tests.bench.test_step import tiny
from tests.pretraining.tiny import CommandLine

QUIET = Console(quiet=True)
SPEED = {("sleeping", 0): 100.0, ("sleeping", 2): 60.0, ("spinning", 0): 102.0, ("spinning", 2): 15}


def measured(benchmark: Any, case: BesideCase) -> Numbers:
    return {"images_per_second": float(SPEED[case.contender, case.busy])}


def test_speeds_are_compared_with_those_alone_and_of_spinning_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(comparison, "measure_in_child", measured)
    rows = beside.run(2, ["small"], 1.0, 1, QUIET)
    found = {(row["contender"], row["busy"]): row for row in rows}
    assert found["sleeping", 2]["share"] == pytest.approx(0.6)
    assert found["spinning", 2]["share"] == pytest.approx(15 / 102)
    assert found["sleeping", 2]["gain"] == pytest.approx(4)
    assert found["sleeping", 0]["gain"] == pytest.approx(100 / 102)
    assert found["sleeping", 2]["label"].endswith("beside 2 busy")


def test_a_measurement_has_its_busy_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []
    whole = subprocess.Popen

    def start(command: Any) -> Any:
        started.append(whole(command))
        return started[-1]

    monkeypatch.setattr("imsvd.bench.beside.subprocess.Popen", start)
    monkeypatch.setitem(step.NETWORKS, "small", step.Network("tiny", tiny))
    monkeypatch.setattr(step, "IMAGES", 16)
    case = BesideCase("sleeping", "small", 0.01, 1)
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)  # other tests need one
    assert BENCHMARK.measure(case)["images_per_second"] > 0
    assert [child.poll() is not None for child in started] == [True]


def test_processes_are_busy_and_gone_afterwards() -> None:
    before = os.times().children_user
    with busy_processes(1):
        time.sleep(0.5)
    assert os.times().children_user > before


def test_threads_wait_as_the_case_says() -> None:
    sleeping, spinning = (
        BENCHMARK.variables(BesideCase(name, "small", 1.0, 0)) for name in beside.CONTENDERS
    )
    assert sleeping["OMP_WAIT_POLICY"] == "PASSIVE"
    assert "GOMP_SPINCOUNT" not in sleeping
    assert int(spinning["GOMP_SPINCOUNT"]) > 0


def test_no_busy_process_is_refused(command: CommandLine) -> None:
    command.refuses(["bench", "step", "--beside", "0"], "--beside 0", "at least 1")
