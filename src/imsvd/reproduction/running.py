"""`imsvd reproduce run`: experiments at the CPU budget, on this machine.

STORE/runs/          training runs, shared by all experiments
STORE/data/          drawn scenes that replace VOC 2007 and COCO
STORE/experiments/   results, rewritten after every run
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from imsvd.datasets.drawn.scene_files import write_scenes
from imsvd.errors import InputError
from imsvd.evaluation.protocols import evaluate
from imsvd.explanations import explain
from imsvd.grid.jobs import (
    OUTCOME,
    Job,
    check_data,
    run_folder,
    unique,
)
from imsvd.grid.runner import GridState, run_grid
from imsvd.progress import counted
from imsvd.reproduction.experiment import Experiment, Setup, ValueSource, check_setup
from imsvd.reproduction.plots import draw_picture
from imsvd.reproduction.report import current_facts, show_results, write_result
from imsvd.reproduction.results import Content, drawn_figures, evaluation_data, gather, measured

PLOT_SECONDS = 60
"""Minimum time between two plots of an experiment while its runs finish."""
SCENES = 500
"""Drawn training scenes; half as many are drawn for testing."""


def reproduce(
    experiments: Sequence[Experiment],
    setup: Setup,
    store: Path,
    *,
    parallel: int = 1,
    console: Console | None = None,
) -> list[Content]:
    """Run whatever is missing of the experiments; return the content of each result.json.

    Args:
        experiments: see `find_experiments`.
        setup: at the CPU budget.
        store: folder for all runs and results; nothing it holds is repeated.
        parallel: simultaneous runs; they share the cores.
        console: where to show progress.

    Raises:
        Interrupted: after Ctrl-C; the same call resumes.
    """
    console = console or Console(quiet=True)
    check_setup(setup)
    check_data(setup.data)
    jobs = all_jobs(experiments, setup)
    names = ", ".join(experiment.name for experiment in experiments)
    console.print(
        f"Reproducing {names}: {counted(setup.epochs_per_100, 'epoch')} for every 100 of the paper, "
        f"{counted(len(setup.seeds), 'seed')}, {counted(len(jobs), 'run')}.",
        highlight=False,
        soft_wrap=True,
    )
    reporter = _Reporter(experiments, setup, store)
    state = run_grid(jobs, store, console, parallel=parallel, report=reporter.update)
    failures = measure_all(experiments, setup, store, console)
    contents = [reporter.write(experiment, state, draw=True) for experiment in experiments]
    show_results(contents, failures, console)
    return [{**content, "failures": [*content["failures"], *failures]} for content in contents]


def all_jobs(experiments: Sequence[Experiment], setup: Setup) -> list[Job]:
    """Return the runs of all experiments without duplicates, seed by seed, to fill tables evenly."""
    return unique(
        job
        for seed in setup.seeds
        for experiment in experiments
        for job in experiment.jobs(setup._replace(seeds=(seed,)))
        if seed == setup.seeds[0] or not experiment.part
    )


class _Reporter:
    """Writes the results of experiments as their runs finish."""

    def __init__(self, experiments: Sequence[Experiment], setup: Setup, store: Path) -> None:
        self.experiments, self.setup, self.store = experiments, setup, store
        self.jobs = {experiment.name: experiment.jobs(setup) for experiment in experiments}
        self.facts = current_facts()
        self.written: dict[str, int] = {}
        self.drawn: dict[str, float] = {}

    def update(self, state: GridState) -> None:
        """Rewrite the results that have changed."""
        ended = state.outcomes.keys() | state.failures.keys()
        for experiment in self.experiments:
            done = sum(job in ended for job in self.jobs[experiment.name])
            if self.written.get(experiment.name) != done:
                self.written[experiment.name] = done
                last = self.drawn.get(experiment.name)
                due = last is None or time.monotonic() - last > PLOT_SECONDS
                self.write(experiment, state, draw=due)

    def write(self, experiment: Experiment, state: GridState, *, draw: bool) -> Content:
        """Write the numbers of one experiment and, if `draw`, its picture."""
        facts = {**self.facts, "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")}
        result = gather(experiment, self.setup, self.store, state)
        content = write_result(result, self.store, facts)
        if draw and draw_picture(experiment, self.setup, content, self.store):
            self.drawn[experiment.name] = time.monotonic()
        return content


def measure_all(
    experiments: Sequence[Experiment], setup: Setup, store: Path, console: Console
) -> list[str]:
    """Run the missing transfer protocols and figures of finished runs; return the failures."""
    wanted = {
        (cell.measure.protocol, experiment.part, job)
        for experiment in experiments
        for cell in experiment.cells(setup)
        for job in cell.jobs
        if cell.measure.protocol != "grid"
    }
    missing = [
        one
        for one in sorted(wanted, key=lambda one: (one[2].name, one[0], one[1]))
        if (run_folder(store, one[2]) / OUTCOME).exists() and not is_measured(*one, setup, store)
    ]
    failures = []
    for number, (protocol, part, job) in enumerate(missing, start=1):
        title = f"{part or protocol} of {job.title}"
        console.print(f"[dim]{number}/{len(missing)}[/dim] {escape(title)}", highlight=False)
        try:
            measure(protocol, part, job, setup, store, console)
        except InputError as error:
            failures.append(f"{title}: {error}")
    return failures


def is_measured(protocol: ValueSource, part: str, job: Job, setup: Setup, store: Path) -> bool:
    """Return whether a run has the figure, or a result of the protocol on the chosen data."""
    folder = run_folder(store, job)
    if protocol == "explain":
        return bool(drawn_figures(folder, part))
    data = evaluation_data(protocol, job.config.data.source, setup, store)
    return bool(measured(folder, protocol, data, setup.budget, job.epochs))


def measure(
    protocol: ValueSource, part: str, job: Job, setup: Setup, store: Path, console: Console
) -> None:
    """Run a protocol, which records its result in the run folder, or draw a figure."""
    folder, images = run_folder(store, job), job.config.data.source
    data = evaluation_data(protocol, images, setup, store)
    if protocol == "explain":
        explain(folder, data, only=[part], console=console)
    elif protocol == "places205":
        evaluate(protocol, folder, data, stand_in=setup.places is None, console=console)
    elif protocol == "voc07":
        if setup.voc is None:
            write_scenes(data, images=SCENES, layout="voc", console=console)
        evaluate(protocol, folder, data, console=console)
    else:
        if setup.coco is None:
            write_scenes(data, images=SCENES, layout="coco", console=console)
        evaluate(protocol, folder, data, scale="small", console=console)
