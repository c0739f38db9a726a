import re
from pathlib import Path

import pytest

from imsvd.grid.jobs import Job, read_outcome, unique, write_outcome
from imsvd.recipes import recipe
from tests.grid import made_up
from tests.pretraining import tiny


def job(*settings: str, trained: bool = True) -> Job:
    return Job(tiny.config(*settings), trained)


def test_names_say_what_a_job_is() -> None:
    assert re.fullmatch(r"imsvd-lr0\.003-seed7-[0-9a-f]{8}", job("seed=7").name)
    assert re.fullmatch(r"untrained-seed7-[0-9a-f]{8}", job("seed=7", trained=False).name)
    assert job("seed=7").title == "imsvd, lr 0.003, seed 7"


def test_where_a_job_runs_is_no_part_of_it() -> None:
    elsewhere = job("compute.workers=3", "compute.checkpoint_minutes=1")
    assert elsewhere == job()
    assert hash(elsewhere) == hash(job())


@pytest.mark.parametrize(
    "setting",
    ["seed=1", "optimizer.lr=0.1", "data.source=shapes:129", "method.units=8", "training.epochs=9"],
)
def test_everything_else_is(setting: str) -> None:
    assert job(setting) != job()
    assert job(setting).name != job().name


def test_an_untrained_encoder_does_not_depend_on_the_training() -> None:
    same = job("optimizer.lr=0.1", "training.epochs=9", "method.units=8", trained=False)
    assert same == job(trained=False)
    assert job(trained=False) != job()
    assert job("seed=1", trained=False) != job(trained=False)
    assert job("views.evaluation_size=40", trained=False) != job(trained=False)


def test_jobs_are_kept_once_in_their_order() -> None:
    jobs = [job("seed=2"), job("seed=1"), job("seed=2", "compute.workers=1"), job("seed=0")]
    assert unique(jobs) == [jobs[0], jobs[1], jobs[3]]


def test_seed_rate_and_length_do_not_change_the_kind() -> None:
    assert job("seed=1", "optimizer.lr=0.1", "training.epochs=9").kind == job().kind
    assert job("training.batch_size=16").kind != job().kind
    assert job(trained=False).kind == job("seed=1", trained=False).kind != job().kind


def test_finished_runs_of_earlier_versions_are_known_again() -> None:
    """A change here makes every store train its runs again: make it knowingly."""
    assert Job(recipe("cifar10-cpu")).key.startswith("76a7371c")
    assert Job(recipe("imagenet", "swav")).key.startswith("3e6fd83a")


def test_an_outcome_is_read_as_it_was_written(tmp_path: Path) -> None:
    outcome = made_up.outcome(peak_memory=None)
    write_outcome(tmp_path, outcome)
    assert read_outcome(tmp_path, made_up.DATA) == outcome


def test_other_images_have_no_outcome(tmp_path: Path) -> None:
    write_outcome(tmp_path, made_up.outcome())
    assert read_outcome(tmp_path, "others") is None


@pytest.mark.parametrize("content", [None, b"", b"{", b"[]", b'{"hold_out": 1}', b"\xff"])
def test_a_damaged_outcome_is_none(content: bytes | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "outcome.json").write_bytes(content)
    assert read_outcome(tmp_path, made_up.DATA) is None
