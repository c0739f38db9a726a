"""`imsvd reproduce NAME --scale cpu`: experiments of the paper, run here and put beside its numbers.

STORE/runs/                  the runs, each once, whichever experiments need it
STORE/data/                  scenes that stand for VOC 2007 and COCO
STORE/experiments/NAME/      result.json, .md, .csv and .png, or .jpg of photographs, as asked for last;
                             rewritten as runs end
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from imsvd.errors import InputError
from imsvd.grid.jobs import Job, check_data, check_seeds, check_settings, unique
from imsvd.grid.runner import GridState, run_grid
from imsvd.progress import counted
from imsvd.reproduction.experiment import Experiment
from imsvd.reproduction.markdown import Content
from imsvd.reproduction.measuring import measure_all, measurements
from imsvd.reproduction.report import current_facts, write_result
from imsvd.reproduction.results import gather
from imsvd.reproduction.showing import draw, show
from imsvd.reproduction.variants import Setup

DECIDED_ELSEWHERE = {"seed": "--seeds", "data.source": "--data", "training.epochs": "--epochs"}
"""Settings that an experiment decides run by run, and where they are given."""

PLOT_SECONDS = 60
"""Least time between two plots of an experiment while its runs come in; numbers are written at once."""


def reproduce(
    experiments: Sequence[Experiment],
    setup: Setup,
    store: Path,
    *,
    parallel: int = 1,
    console: Console | None = None,
) -> list[Content]:
    """Run what is missing of the experiments and return what result.json of each holds.

    Args:
        experiments: see `find_experiments`.
        setup: at CPU scale.
        store: folder for all runs and results; what it holds is not repeated.
        parallel: runs at a time, each with its share of the cores.
        console: where to show progress.

    Raises:
        Interrupted: after Ctrl-C; the same call goes on where it was.
    """
    console = console or Console(quiet=True)
    check_setup(setup)
    check_data(setup.data)
    jobs = all_jobs(experiments, setup)
    console.print(_summary(experiments, setup, len(jobs)), highlight=False, soft_wrap=True)
    reporter = _Reporter(experiments, setup, store)
    standing = run_grid(jobs, store, console, parallel=parallel, report=reporter.update)
    wanted = [
        measurement for experiment in experiments for measurement in measurements(experiment, setup)
    ]
    failures = measure_all(wanted, store, console)
    contents = reporter.finish(standing)
    show(contents, failures, console)
    if failures:
        contents = [
            {**content, "failures": [*content["failures"], *failures]} for content in contents
        ]
    return contents


def all_jobs(experiments: Sequence[Experiment], setup: Setup) -> list[Job]:
    """Return the runs of all experiments, each once, seed by seed, so that tables fill evenly."""
    return unique(
        job
        for seed in setup.seeds
        for experiment in experiments
        for job in experiment.jobs(setup._replace(seeds=(seed,)))
        if seed == setup.seeds[0] or not experiment.parts
    )


def check_setup(setup: Setup) -> None:
    """Refuse what cannot be run."""
    check_seeds(setup.seeds)
    if setup.epochs is not None and setup.epochs < 1:
        raise InputError(f"--epochs {setup.epochs} is too few; give 1 or more.")
    check_settings(setup.settings, DECIDED_ELSEWHERE)


class _Reporter:
    """Writes the results of those experiments of which a run has ended."""

    def __init__(self, experiments: Sequence[Experiment], setup: Setup, store: Path) -> None:
        self.experiments, self.setup, self.store = experiments, setup, store
        self.jobs = {experiment.name: experiment.jobs(setup) for experiment in experiments}
        self.facts = current_facts()
        self.written: dict[str, int] = {}
        self.drawn: dict[str, float] = {}

    def update(self, standing: GridState) -> None:
        """Rewrite what has changed."""
        for experiment in self.experiments:
            over = standing.outcomes.keys() | standing.failures.keys()
            done = sum(job in over for job in self.jobs[experiment.name])
            if self.written.get(experiment.name) != done:
                self.written[experiment.name] = done
                content = self.write(experiment, standing)
                last = self.drawn.get(experiment.name)
                if last is None or time.monotonic() - last > PLOT_SECONDS:
                    self.draw(experiment, content)

    def finish(self, standing: GridState) -> list[Content]:
        """Write everything once more, now with what was measured after the grid."""
        contents = [self.write(experiment, standing) for experiment in self.experiments]
        for experiment, content in zip(self.experiments, contents, strict=True):
            self.draw(experiment, content)
        return contents

    def write(self, experiment: Experiment, standing: GridState) -> Content:
        """Write the numbers of one experiment."""
        facts = {**self.facts, "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")}
        result = gather(experiment, self.setup, standing, self.store)
        return write_result(result, self.store, facts)

    def draw(self, experiment: Experiment, content: Content) -> None:
        """Draw the plot of one experiment, or copy its figure, if there is something to see."""
        if draw(experiment, self.jobs[experiment.name], content, self.store):
            self.drawn[experiment.name] = time.monotonic()


def _summary(experiments: Sequence[Experiment], setup: Setup, runs: int) -> str:
    names = ", ".join(experiment.name for experiment in experiments)
    return (
        f"Reproducing {names} with {counted(setup.hundred, 'epoch')} for the paper's 100, "
        f"{counted(len(setup.seeds), 'seed')}: {counted(runs, 'run')} in all."
    )
