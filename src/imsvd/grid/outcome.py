"""What one run of a grid has brought: `outcome.json`, written when everything of the run is done."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from imsvd.datasets import open_source
from imsvd.files import write_atomically
from imsvd.settings import Settings

FAILURE = "failure.txt"
"""The sentence that says why a run has no outcome."""

NOT_RECORDED = "not recorded"
"""What an outcome says of things that those who wrote it did not yet ask for."""

_FILE_NAME = "outcome.json"


class CurvePoint(Settings):
    """One check while training: when it was, and the accuracy of the online kNN in percent."""

    epoch: int
    seconds: float
    accuracy: float


class Outcome(Settings):
    """The result of a run and what it cost.

    Attributes:
        data: fingerprint of the images it was trained and tested on.
        metrics: test accuracies in percent, such as {"knn_20": 51.2}.
        hold_out: kNN accuracy in percent of a tenth of the training images against the others;
            choices are made by it, so that the test images take no part in them.
        seconds_per_epoch: median over the epochs; None without training.
        training_seconds: all epochs together, evaluation excluded.
        evaluation_seconds: features and evaluators.
        peak_memory: bytes, of the training process or of its GPU; None if unknown.
        head_parameters: trainable parameters outside the backbone.
        backbone_parameters: parameters of the backbone.
        curve: accuracy while training, by epochs and seconds.
        parallel: how many runs shared the machine.
        threads: processor threads of the run.
        device: "cpu" or the name of the GPU.
        cpu: name of the processor, and its cores.
        version: the package that wrote this.
        commit: of its source, if that is a repository.
        finished: when, in UTC.
    """

    data: str
    metrics: dict[str, float]
    hold_out: float
    seconds_per_epoch: float | None
    training_seconds: float
    evaluation_seconds: float
    peak_memory: int | None
    head_parameters: int
    backbone_parameters: int
    curve: tuple[CurvePoint, ...]
    parallel: int
    threads: int
    device: str
    cpu: str = NOT_RECORDED
    version: str
    commit: str = NOT_RECORDED
    finished: str


def write_outcome(folder: Path, outcome: Outcome) -> None:
    """Declare the run in `folder` done."""
    write_atomically(folder / _FILE_NAME, (outcome.model_dump_json(indent=2) + "\n").encode())


def read_outcome(folder: Path, data: str) -> Outcome | None:
    """Return what the run in `folder` has brought on the images with fingerprint `data`.

    None if it is not done, or if its outcome is damaged or about other images: it is then to be
    evaluated again.
    """
    try:
        outcome = Outcome.model_validate_json((folder / _FILE_NAME).read_bytes())
    except (OSError, ValidationError):
        return None
    return outcome if outcome.data == data else None


def data_fingerprint(data: str) -> str:
    """Return a hash of the training and test images called `data`."""
    return "-".join(open_source(data, split).fingerprint() for split in ("train", "test"))
