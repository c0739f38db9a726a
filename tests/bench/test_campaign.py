"""A campaign of bad days: a tiny one here, a small one among the slow tests."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from imsvd.bench.campaign import damage, kills, run
from imsvd.bench.campaign.digests import differences, digest_folder
from imsvd.bench.campaign.processes import ForkServer
from imsvd.bench.campaign.run import KINDS, run_campaign
from imsvd.bench.campaign.stage import Ended, Stage
from imsvd.bench.campaign.tries import LOSSES, WELL, Outcome, Record, Try, judge, rows
from imsvd.errors import InputError

QUIET = Console(quiet=True)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with ForkServer() as server:
        stage = Stage(tmp_path_factory.mktemp("world"), server)
        stage.prepare()
        yield stage


def test_a_kill_and_a_damaged_checkpoint_cost_nothing(stage: Stage) -> None:
    for number in range(2):
        found = kills.attempt(stage, "pretrain", random.Random(number))
        assert found.verdict == "same", found.detail
    found = damage.attempt(stage, "pretrain", random.Random(0))
    assert found.verdict in ("same", "refused"), found.detail


def test_other_bits_are_named_and_a_refusal_is_seen(stage: Stage) -> None:
    stage.reference("pretrain")
    stage.reset("pretrain")
    assert stage.start("pretrain", more=("--set", "optimizer.lr=0.77")).wait().code == 0
    assert "run/encoder.safetensors" in stage.differences("pretrain")
    found = judge(stage, "pretrain", WELL, "another learning rate")
    assert found.verdict == "wrong"
    ended = stage.start("pretrain").wait()
    assert ended.code == 2
    assert "optimizer.lr=0.77" in ended.sentence


def test_a_refusal_is_one_sentence() -> None:
    assert Ended(2, "imsvd: no.\n").sentence == "no."
    assert Ended(2, "imsvd: no.\nimsvd: no.\n").sentence == "no."  # once per rank
    assert not Ended(1, "imsvd: no.\n").sentence
    assert not Ended(2, "imsvd: no.\nimsvd: and no.\n").sentence
    assert not Ended(2, "Traceback (most recent call last)\nimsvd: no.\n").sentence


def test_digests_leave_out_costs_alone(tmp_path: Path) -> None:
    for name, loss, seconds in (("a", 1, 2.0), ("b", 1, 3.0), ("c", 2, 2.0)):
        (tmp_path / name).mkdir()
        record = {"loss": loss, "seconds": seconds}
        (tmp_path / name / "metrics.jsonl").write_text(json.dumps(record) + "\n")
    one, same, other = (digest_folder(tmp_path / name) for name in "abc")
    assert not differences(one, same)
    assert differences(one, other) == "different: metrics.jsonl"
    assert differences({}, other) == "missing: metrics.jsonl"


def test_the_record_resumes_after_a_line_that_was_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "tries.jsonl"
    first = Try("kills", "pretrain", 0, "same", "", 1.0, "c")
    Record(path).add(first)
    with path.open("a") as file:
        file.write('{"kind": "ki')
    again = Record(path)
    assert again.tries == [first]
    again.add(first._replace(number=1, verdict="wrong", detail="bits"))
    assert [one.number for one in Record(path).tries] == [0, 1]
    (row,) = rows(Record(path).tries, {"kills": "SIGKILL"})
    assert (row["tries"], row["same"], row["wrong"], row["first loss"]) == (2, 1, 1, "bits")


def test_a_campaign_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def attempt(stage: Stage, subject: str, draw: random.Random) -> Outcome:
        del stage, draw
        made.append(subject)
        if len(made) == 2:
            raise KeyboardInterrupt
        return Outcome("same", "")

    kind = KINDS["kills"]._replace(subjects=("a", "b"), attempt=attempt)
    skipped = kind._replace(title="other", obstacle=lambda: "not here")
    monkeypatch.setattr(run, "KINDS", {"kills": kind, "disk": skipped})
    monkeypatch.setattr(run, "ForkServer", lambda: open("/dev/null"))  # noqa: PTH123, SIM115
    monkeypatch.setattr(Stage, "prepare", lambda _: None)
    with pytest.raises(KeyboardInterrupt):
        run_campaign(tmp_path, tries=2, console=QUIET)
    found = run_campaign(tmp_path, tries=2, console=QUIET)
    assert made == ["a", "b", "b", "a", "b"]
    assert [row["tries"] for row in found] == [2, 2]
    page = (tmp_path / "campaign.md").read_text()
    assert "| other | skipped: not here |" in page
    assert "| SIGKILL at a random moment | b | 2 | 2 | 0 | 0 | 0 |" in page


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"tries": 0}, "--tries 0"),
        ({"only": ["rain"]}, "--only 'rain'"),
        ({"commands": ["sing"]}, "--commands 'sing'"),
    ],
)
def test_unknown_choices_are_refused(
    tmp_path: Path, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        run_campaign(tmp_path, **options, console=QUIET)


@pytest.mark.slow
def test_a_small_campaign_has_no_losses(tmp_path: Path) -> None:
    for row in run_campaign(tmp_path, tries=2, console=QUIET):
        assert not any(row[verdict] for verdict in LOSSES), row
