"""What experiments consist of at full scale: every run once, what is measured of it, the commands."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from imsvd.errors import InputError
from imsvd.grid.jobs import run_folder
from imsvd.reproduction.experiment import Cell, Experiment
from imsvd.reproduction.variants import Run, Setup

SINGLE_PROCESS = ("voc07", "explain")
"""Protocols that one process carries out; the others take as many as there are."""


class Evaluation(NamedTuple):
    """One protocol on one encoder.

    Attributes:
        encoder: a run's folder, or a backbone such as "torchvision:resnet50".
        published: whether it is such a backbone.
        protocol: of `imsvd evaluate`, or "explain".
        label: a name that no other evaluation of the encoder has.
        command: the words of the command line.
    """

    encoder: str
    published: bool
    protocol: str
    label: str
    command: tuple[str, ...]

    @property
    def single_process(self) -> bool:
        """Whether it is not to be started on several processes at once."""
        return self.protocol in SINGLE_PROCESS


class FullPlan(NamedTuple):
    """Every run of some experiments once, and what is measured of it."""

    out: Path
    runs: tuple[Run, ...]
    evaluations: tuple[Evaluation, ...]
    entries: int
    """Numbers and figures that the experiments consist of."""

    def folder(self, run: Run) -> Path:
        """Return where a run is trained."""
        return run_folder(self.out, run.job)

    def training_command(self, run: Run) -> tuple[str, ...]:
        """Return the words of the command line that trains `run`."""
        return (
            *("imsvd", "pretrain", run.job.config.data.source),
            *("--recipe", run.recipe, "--method", run.method),
            *("--out", str(self.folder(run))),
            *(part for setting in run.settings for part in ("--set", setting)),
        )

    def commands(self) -> list[str]:
        """Return every command line, ready for a shell: trainings first, then evaluations."""
        training = [shlex.join(self.training_command(run)) for run in self.runs]
        return training + [shlex.join(evaluation.command) for evaluation in self.evaluations]


def plan_full(experiments: Sequence[Experiment], setup: Setup, out: Path) -> FullPlan:
    """Return what `experiments` consist of at full scale, without repetitions."""
    if setup.scale != "full":
        raise InputError(f"--scale {setup.scale} has no commands for a cluster; use --scale full.")
    runs: dict[str, Run] = {}
    evaluations: dict[tuple[str, str], Evaluation] = {}
    entries = 0
    for experiment in experiments:
        for run in experiment.runs(setup):
            # Of two ways to say the same, the shorter one is shown.
            known = runs.get(run.job.key, run)
            runs[run.job.key] = min(known, run, key=lambda one: len(one.settings))
        for cell in experiment.cells(setup):
            entries += 1
            for evaluation in _evaluations(experiment, cell, setup, out):
                evaluations[evaluation.encoder, evaluation.label] = evaluation
    return FullPlan(out, tuple(runs.values()), tuple(evaluations.values()), entries)


def _evaluations(experiment: Experiment, cell: Cell, setup: Setup, out: Path) -> list[Evaluation]:
    """Return how a cell is measured; nothing where training itself tells."""
    protocol = cell.measure.protocol
    encoders = [(str(run_folder(out, run.job)), run.job.config.data.source) for run in cell.runs]
    if cell.pretrained:
        encoders = [(cell.pretrained, setup.data)]
    found = []
    for encoder, data in encoders:
        words = _words(protocol, encoder, data, setup, experiment.parts)
        if words:
            label = "-".join([protocol, *experiment.parts])
            command = ("imsvd", *words)
            found.append(Evaluation(encoder, bool(cell.pretrained), protocol, label, command))
    return found


def tested_on(protocol: str, images: str, setup: Setup) -> str:
    """Return the data that a protocol is carried out on, for an encoder that was trained on `images`."""
    own = {
        "voc07": setup.voc or "voc2007",
        "places205": setup.places or "places205",
        "coco": setup.coco or "coco",
    }
    return own.get(protocol, images)


def _words(
    protocol: str, encoder: str, images: str, setup: Setup, parts: Sequence[str]
) -> list[str]:
    """Return a command line without its first word; nothing for what needs no command."""
    data = tested_on(protocol, images, setup)
    if protocol == "explain":
        # The paper's joint matrix is of the images trained on. A run's summary and report are
        # then those of the figure that was made last; pictures stay.
        split = "train" if "joint" in parts else "test"
        return ["explain", encoder, data, "--split", split, "--only", ",".join(parts)]
    options = {
        "linear": ["--recipe", "imagenet"],
        "knn": ["--k", "20", "--k", "200"],
        "voc07": [],
        "places205": [],
        "coco": ["--scale", "full"],
    }
    return ["evaluate", protocol, encoder, data, *options[protocol]] if protocol in options else []
