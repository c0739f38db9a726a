"""The jobs of a grid and their outcomes.

A job is one complete configuration, identified by what it computes. Its outcome is stored as
`outcome.json` in the run folder once training and evaluation are complete.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from imsvd.config import Config
from imsvd.datasets import open_source
from imsvd.errors import InputError
from imsvd.files import write_atomically
from imsvd.settings import Settings

OUTCOME = "outcome.json"
FAILURE = "failure.txt"
"""Holds one sentence on why a run has no outcome."""
NOT_RECORDED = "not recorded"
"""Placeholder for facts that older outcomes lack."""


@dataclass(frozen=True, eq=False)
class Job:
    """One run of a grid: training and evaluation, or the evaluation of an untrained encoder.

    `label` describes the run to people and has no effect on it.
    """

    config: Config
    trained: bool = True
    label: str = ""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    @cached_property
    def key(self) -> str:
        """Hash of everything that affects the result; jobs with equal keys are the same job."""
        return _digest(self._content())

    @property
    def name(self) -> str:
        """Readable and unique folder name."""
        config = self.config
        words = (
            [config.method.name, f"lr{config.optimizer.lr:g}"] if self.trained else ["untrained"]
        )
        return "-".join([*words, f"seed{config.seed}", self.key[:8]])

    @property
    def title(self) -> str:
        """Short description for people."""
        config = self.config
        what = f"{config.method.name}, lr {config.optimizer.lr:g}" if self.trained else "untrained"
        return ", ".join([what, *([self.label] if self.label else []), f"seed {config.seed}"])

    @property
    def epochs(self) -> int:
        """Number of epochs; an untrained job counts as one epoch of its own kind."""
        return self.config.training.epochs if self.trained else 1

    @cached_property
    def kind(self) -> str:
        """Hash of what affects the time per epoch: not the seed, learning rate or length."""
        content = self._content()
        del content["seed"]
        if self.trained:
            del content["optimizer"]["lr"], content["training"]["epochs"]
        return _digest(content)

    def _content(self) -> dict[str, Any]:
        content = self.config.model_dump(mode="json", exclude={"compute"})
        if not self.trained:
            content = {name: content[name] for name in ("seed", "data", "backbone", "views")}
        return content


class CurvePoint(Settings):
    """Online kNN accuracy, in percent, at one point of training."""

    epoch: int
    seconds: float
    accuracy: float


class Outcome(Settings):
    """The results and costs of a run.

    Attributes:
        data: fingerprint of the training and test images.
        metrics: test metrics, accuracies in percent, such as {"knn_20": 51.2}; those of codes are
            shares, nats and similarities (see `imsvd.grid.codes`).
        hold_out: kNN accuracy in percent of a held-out tenth of the training images; selections
            use it so that test images never influence them.
        seconds_per_epoch: median over epochs; None without training.
        training_seconds: total over all epochs, without evaluation.
        peak_memory: bytes, of the training process or its GPU; None if unknown.
        head_parameters: trainable parameters outside the backbone.
        curve: online kNN accuracy during training.
        parallel: number of runs that shared the machine.
        device: "cpu" or the name of the GPU.
        finished: UTC time.
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

    @property
    def peak_mebibytes(self) -> float | None:
        """Peak memory in MiB."""
        return None if self.peak_memory is None else self.peak_memory / 2**20


def unique(jobs: Iterable[Job]) -> list[Job]:
    """Return the jobs without duplicates, in order of first appearance."""
    return list(dict.fromkeys(jobs))


def run_folder(out: Path, job: Job) -> Path:
    """Return the folder of a job in the grid at `out`."""
    return out / "runs" / job.name


def write_outcome(folder: Path, outcome: Outcome) -> None:
    """Mark the run in `folder` as complete."""
    write_atomically(folder / OUTCOME, (outcome.model_dump_json(indent=2) + "\n").encode())


def read_outcome(folder: Path, data: str) -> Outcome | None:
    """Return the outcome of the run in `folder`, if it is complete.

    Returns None if the outcome is missing, damaged, or was measured on images with another
    fingerprint than `data`; the run must then be evaluated again.
    """
    try:
        outcome = Outcome.model_validate_json((folder / OUTCOME).read_bytes())
    except (OSError, ValidationError):
        return None
    return outcome if outcome.data == data else None


def data_fingerprint(data: str) -> str:
    """Return a hash of the training and test images of `data`."""
    return "-".join(open_source(data, split).fingerprint() for split in ("train", "test"))


def check_data(data: str | Path) -> None:
    """Reject data without labels or test images."""
    for split in ("train", "test"):
        if open_source(data, split).labels is None:
            raise InputError(
                f"{data} has no labels in its {split} split, which evaluation needs; "
                "use one sub-folder per class."
            )


def check_seeds(seeds: Sequence[int]) -> None:
    """Reject an empty list of seeds and negative seeds."""
    if not seeds or min(seeds) < 0:
        raise InputError("--seeds must be a number of seeds such as 3, or seeds such as 0,1,2.")


def check_settings(settings: Sequence[str], varied: Mapping[str, str]) -> None:
    """Reject overrides of settings that vary between runs.

    Args:
        settings: overrides such as "optimizer.lr=0.3".
        varied: the settings that vary, each with the option that controls it.
    """
    for setting in settings:
        key = setting.partition("=")[0].strip()
        if key in varied:
            raise InputError(
                f"--set {key} would apply to all runs, which must differ in it; "
                f"use {varied[key]} instead."
            )


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]
