import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from rich.console import Console

from imsvd.config import Config
from imsvd.encoder import untrained_encoder
from imsvd.errors import InputError
from imsvd.evaluation import Features
from imsvd.grid import worker
from imsvd.grid.jobs import Outcome
from imsvd.pretraining import train
from imsvd.pretraining.metrics import largest_peak
from imsvd.runs import RunFolder
from tests.grid import small

QUIET = Console(quiet=True)


def read(folder: Path) -> Outcome:
    return Outcome.model_validate_json((folder / "outcome.json").read_bytes())


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("job")
    run = RunFolder(base / "run")
    run.begin(small.config(small.write_data(base / "data")))
    worker.run_job(run.path, trained=True, parallel=2, console=QUIET)
    return run.path


def test_an_outcome_has_scores_costs_and_curve(done: Path) -> None:
    outcome = read(done)
    records = RunFolder(done).metrics()
    of_codes = {"share_decided", "shared_nats"}
    for name in ("purity", "monosemanticity"):
        of_codes |= {name, f"{name}_above_chance"}
    # 64 images answer no k of 200
    assert set(outcome.metrics) == {"knn_20", "linear_probe_top1", *of_codes}
    assert 0 <= outcome.hold_out <= 100
    assert outcome.training_seconds == records[-1]["total_seconds"]
    assert outcome.seconds_per_epoch == sum(record["seconds"] for record in records) / 2
    assert [point.accuracy for point in outcome.curve] == [r["knn"]["knn_20"] for r in records]
    assert [point.seconds for point in outcome.curve] == [r["total_seconds"] for r in records]
    assert outcome.peak_memory is not None
    assert outcome.peak_memory > 50 * 2**20
    assert outcome.parallel == 2
    # 8 → 16 with bias and norm, then 16 → 16 with neither
    assert outcome.head_parameters == 8 * 16 + 3 * 16 + 16 * 16


def test_evaluating_again_changes_neither_scores_nor_costs(done: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(done, tmp_path / "run"))
    (run / "outcome.json").write_text("damaged")
    weights = (run / "encoder.safetensors").read_bytes()
    worker.run_job(run, trained=True, parallel=2, console=QUIET)
    changes = {"evaluation_seconds", "finished"}
    assert read(run).model_dump(exclude=changes) == read(done).model_dump(exclude=changes)
    assert (run / "encoder.safetensors").read_bytes() == weights


def test_the_largest_peak_of_all_processes_counts() -> None:
    assert largest_peak([{"peak_memory": 30}, {"peak_memory": 20}, {}]) == 30
    assert largest_peak([{"epoch": 1}]) is None


def test_an_untrained_encoder_is_what_training_begins_with(
    done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = RunFolder(done).config()
    begun = first_weights(config, tmp_path, monkeypatch)
    untrained = untrained_encoder(config).backbone.state_dict()
    assert untrained.keys() == begun.keys()
    assert all(torch.equal(untrained[name], value) for name, value in begun.items())


def first_weights(
    config: Config, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, torch.Tensor]:
    """The backbone's weights as training finds them."""
    found: dict[str, torch.Tensor] = {}

    class Seen(Exception):  # noqa: N818
        pass

    def look(trainer: object) -> None:
        method = trainer.method  # type: ignore[attr-defined]
        found.update({k: v.clone() for k, v in method.backbone.state_dict().items()})
        raise Seen

    monkeypatch.setattr("imsvd.pretraining.run.Pretraining.resume", look)
    with pytest.raises(Seen):
        train(config, RunFolder(folder / "run"), QUIET)
    return found


def test_every_tenth_training_image_is_held_out() -> None:
    # Two classes in two directions; images 9 and 19 ask, one of each.
    features = torch.eye(2).repeat_interleave(10, dim=0)
    labels = torch.zeros(20, dtype=torch.int64)
    labels[10:] = 1
    train = Features(features, labels, {})
    assert worker.hold_out_accuracy(train) == 100
    wrong = labels.clone()
    wrong[9] = 1  # a held-out image that its neighbors get wrong
    assert worker.hold_out_accuracy(Features(features, wrong, {})) == 50
    with pytest.raises(InputError, match="too few"):
        worker.hold_out_accuracy(Features(features[:9], labels[:9], {}))


@contextmanager
def command_line(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[None]:
    monkeypatch.setattr("sys.argv", ["worker", str(folder)])
    monkeypatch.setattr(worker, "_end_with_parent", lambda: None)
    yield


@pytest.mark.parametrize(
    ("error", "raised", "sentence"),
    [
        (InputError("lower optimizer.lr."), SystemExit, "lower optimizer.lr."),
        (RuntimeError("a defect"), RuntimeError, "RuntimeError: a defect"),
    ],
)
def test_a_failure_leaves_its_sentence(
    error: Exception,
    raised: type[BaseException],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(worker, "run_job", fail)
    with command_line(monkeypatch, tmp_path), pytest.raises(raised):
        worker.main()
    assert (tmp_path / "failure.txt").read_text() == sentence
