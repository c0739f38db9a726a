"""A grid whose processes are replaced by functions; `tests/test_compare.py` has real ones."""

import io
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from imsvd.errors import InputError, Interrupted
from imsvd.grid import runner
from imsvd.grid.jobs import Job, data_fingerprint, read_outcome, run_folder, write_outcome
from imsvd.grid.runner import (
    GridState,
    explain_failure,
    gpus_of_run,
    run_grid,
    threads_per_run,
)
from tests.grid import made_up, small
from tests.pretraining import tiny

DATA = data_fingerprint("shapes:128")
JOBS = [Job(tiny.config(f"seed={seed}")) for seed in range(3)]


class Ended:
    """A process that has ended."""

    def __init__(self, code: int) -> None:
        self.code = code
        self.signals: list[int] = []

    def poll(self) -> int | None:
        return self.code

    def send_signal(self, number: int) -> None:
        self.signals.append(number)

    def wait(self) -> int:
        return self.code


class Working(Ended):
    """A process that goes on until it is told to stop."""

    def poll(self) -> int | None:
        return self.code if self.signals else None


class Children:
    """Stands in for `start_child`; remembers what was started."""

    def __init__(self) -> None:
        self.started: list[Job] = []
        self.codes: dict[Job, int] = {}

    def __call__(self, job: Job, folder: Path, parallel: int, lock: int, place: int) -> Ended:
        self.started.append(job)
        code = self.codes.get(job, 0)
        if code == 0:
            write_outcome(folder, made_up.outcome(data=DATA, hold_out=float(job.config.seed)))
        return Ended(code)


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> Children:
    children = Children()
    monkeypatch.setattr(runner, "start_child", children)
    monkeypatch.setattr(runner, "POLL_SECONDS", 0.01)
    return children


def run(
    out: Path, jobs: list[Job] = JOBS, report: Callable[[GridState], None] = lambda _: None
) -> tuple[GridState, str]:
    text = io.StringIO()
    state = run_grid(jobs, out, Console(file=text, width=200), report=report)
    return state, text.getvalue()


def test_what_is_finished_is_not_repeated(children: Children, tmp_path: Path) -> None:
    run(tmp_path, JOBS[:2])
    state, said = run(tmp_path)
    assert children.started == JOBS
    assert [state.outcomes[job].hold_out for job in JOBS] == [0, 1, 2]
    assert "[3/3] imsvd, lr 0.003, seed 2: started" in said
    assert "[3/3] imsvd, lr 0.003, seed 2: kNN-20 50.0" in said
    assert "seed 0" not in said


def test_half_written_files_of_a_killed_grid_are_cleared_away(
    children: Children, tmp_path: Path
) -> None:
    (tmp_path / ".accuracy.png.123.tmp").touch()
    run(tmp_path)
    assert not list(tmp_path.glob("*.tmp"))


def test_the_same_job_runs_once(children: Children, tmp_path: Path) -> None:
    again = Job(tiny.config("seed=0", "compute.workers=1"))
    run(tmp_path, [JOBS[0], again, JOBS[1], JOBS[0]])
    assert children.started == JOBS[:2]


def test_a_damaged_outcome_is_made_again(children: Children, tmp_path: Path) -> None:
    run(tmp_path)
    (run_folder(tmp_path, JOBS[1]) / "outcome.json").write_text('{"hold_out": 3')
    run(tmp_path)
    assert children.started == [*JOBS, JOBS[1]]


def test_an_outcome_on_other_images_is_made_again(children: Children, tmp_path: Path) -> None:
    run(tmp_path)
    write_outcome(run_folder(tmp_path, JOBS[2]), made_up.outcome(data="other images"))
    run(tmp_path)
    assert children.started == [*JOBS, JOBS[2]]


def test_a_failure_stops_nothing_and_is_tried_again(children: Children, tmp_path: Path) -> None:
    children.codes[JOBS[1]] = -signal.SIGKILL
    state, said = run(tmp_path)
    assert set(state.outcomes) == {JOBS[0], JOBS[2]}
    assert "SIGKILL" in state.failures[JOBS[1]]
    assert "imsvd, lr 0.003, seed 1 failed: its process was killed by SIGKILL" in said
    children.codes.clear()
    state, _ = run(tmp_path)
    assert state.failures == {}
    assert children.started == [*JOBS, JOBS[1]]


def test_an_end_without_outcome_is_a_failure(
    children: Children, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "start_child", lambda *_: Ended(0))
    state, _ = run(tmp_path, JOBS[:1])
    assert "exit code 0" in state.failures[JOBS[0]]


def test_a_folder_in_the_way_is_a_failure_of_that_run(children: Children, tmp_path: Path) -> None:
    folder = run_folder(tmp_path, JOBS[0])
    folder.mkdir(parents=True)
    (folder / "notes.txt").write_text("mine")
    state, _ = run(tmp_path)
    assert "not a run" in state.failures[JOBS[0]]
    assert children.started == JOBS[1:]


def test_the_standing_is_reported_at_first_and_after_every_run(
    children: Children, tmp_path: Path
) -> None:
    children.codes[JOBS[1]] = 1
    seen: list[tuple[int, int]] = []
    run(tmp_path, report=lambda now: seen.append((len(now.outcomes), len(now.failures))))
    assert seen == [(0, 0), (1, 0), (1, 1), (2, 1)]


def test_several_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_work: list[Working] = []
    most = 0

    def start(job: Job, folder: Path, parallel: int, lock: int, place: int) -> Ended:
        nonlocal most
        write_outcome(folder, made_up.outcome(data=DATA))
        at_work.append(Working(0))
        most = max(most, sum(child.poll() is None for child in at_work))
        if len(at_work) > 1:
            at_work[len(at_work) - 2].signals.append(0)  # the one before ends
        if len(at_work) == 3:
            at_work[-1].signals.append(0)
        return at_work[-1]

    monkeypatch.setattr(runner, "start_child", start)
    state = run_grid(JOBS, tmp_path, Console(quiet=True), parallel=2, report=lambda _: None)
    assert len(state.outcomes) == 3
    assert most == 2
    with pytest.raises(InputError, match="parallel=0"):
        run_grid(JOBS, tmp_path, Console(quiet=True), parallel=0, report=lambda _: None)


def test_a_signal_is_passed_on_and_ends_the_grid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = Working(143)

    def start(*_: object) -> Ended:
        os.kill(os.getpid(), signal.SIGINT)
        return child

    monkeypatch.setattr(runner, "start_child", start)
    text = io.StringIO()
    with pytest.raises(Interrupted) as stopped:
        run_grid(JOBS, tmp_path, Console(file=text), report=lambda _: None)
    assert stopped.value.exit_code == 130
    assert child.signals == [signal.SIGTERM]
    assert "run the same command to resume" in text.getvalue()


def test_a_run_that_ends_as_the_grid_is_stopped_is_taken_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(job: Job, folder: Path, parallel: int, lock: int, place: int) -> Ended:
        os.kill(os.getpid(), signal.SIGINT)
        write_outcome(folder, made_up.outcome(data=DATA))
        return Working(0)

    monkeypatch.setattr(runner, "start_child", start)
    monkeypatch.setattr(runner, "POLL_SECONDS", 0)
    seen: list[int] = []
    with pytest.raises(Interrupted):
        run(tmp_path, JOBS[:1], report=lambda now: seen.append(len(now.outcomes)))
    assert seen == [0, 1]


def test_a_defect_leaves_no_child_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child = Working(-9)
    monkeypatch.setattr(runner, "start_child", lambda *_: child)
    monkeypatch.setattr(runner, "remaining_seconds", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run(tmp_path)
    assert child.signals == [signal.SIGKILL]


def test_two_grids_do_not_share_a_folder(
    children: Children, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "LOCK_SECONDS", 0.05)

    def second(_: GridState) -> None:
        with pytest.raises(InputError, match="another process is using"):
            run(tmp_path)

    run(tmp_path, JOBS[:1], report=second)
    run(tmp_path, JOBS[:1])


def test_failures_are_explained(tmp_path: Path) -> None:
    assert "possibly out of memory" in explain_failure(tmp_path, -signal.SIGKILL)
    assert "SIGTERM; run the same command" in explain_failure(tmp_path, -signal.SIGTERM)
    assert f"exit code 3; see {tmp_path / 'output.txt'}" in explain_failure(tmp_path, 3)
    (tmp_path / "failure.txt").write_text("lower optimizer.lr.")
    assert explain_failure(tmp_path, 2) == "lower optimizer.lr."


def test_cores_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr("imsvd.processors.cgroup_quota", lambda: None)
    assert [threads_per_run(parallel) for parallel in (1, 3, 8, 9)] == [8, 2, 1, 1]
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert [threads_per_run(parallel) for parallel in (1, 4)] == [4, 2]


def test_a_real_process_measures_its_own_memory(tmp_path: Path) -> None:
    held = np.ones(1600 * 2**20, dtype=np.uint8)  # more than a run of this size takes
    job = Job(small.config(small.write_data(tmp_path / "data")))
    state, said = run(tmp_path, [job])
    assert state.failures == {}, said
    outcome = state.outcomes[job]
    assert read_outcome(run_folder(tmp_path, job), outcome.data) == outcome
    assert outcome.peak_memory is not None
    assert 100 * 2**20 < outcome.peak_memory < len(held)


@pytest.mark.parametrize(
    ("parallel", "visible", "expected"),
    [
        (1, "", [None]),
        (2, "", ["0,1", "2,3"]),
        (3, "", ["0", "1", "2,3"]),
        (6, "", ["0", "0", "1", "1", "2", "3"]),
        (2, "4,5,GPU-a,7", ["4,5", "GPU-a,7"]),
    ],
)
def test_gpus_are_shared(
    parallel: int, visible: str, expected: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    found = [gpus_of_run(place, parallel).get("CUDA_VISIBLE_DEVICES") for place in range(parallel)]
    if parallel > 4:  # every GPU is used, and none by more runs than needed
        assert sorted(set(found), key=str) == ["0", "1", "2", "3"]
        assert max(found.count(gpu) for gpu in found) == 2
    else:
        assert found == expected
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    assert gpus_of_run(0, 2) == {}


def test_a_run_takes_the_place_of_the_one_that_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places: list[int] = []

    def start(job: Job, folder: Path, parallel: int, lock: int, place: int) -> Ended:
        places.append(place)
        write_outcome(folder, made_up.outcome(data=DATA))
        return Ended(0) if place else Working(0)

    monkeypatch.setattr(runner, "start_child", start)
    whole = runner._Runner._collect

    def collect(self: Any) -> None:
        if len(places) == 3:
            for child in self.active.values():
                if isinstance(child, Working):
                    child.signals.append(0)
        whole(self)

    monkeypatch.setattr(runner._Runner, "_collect", collect)
    run_grid(JOBS, tmp_path, Console(quiet=True), parallel=2, report=lambda _: None)
    assert places == [0, 1, 1]
