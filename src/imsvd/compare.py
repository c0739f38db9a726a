"""`imsvd compare`: several methods on the same data, backbone, budget and seeds; one table, one plot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from imsvd.api import configure
from imsvd.config import Config, parse_config, require_every_phase
from imsvd.datasets import open_source
from imsvd.errors import InputError
from imsvd.grid.choices import check_seeds, check_settings
from imsvd.grid.plan import Job, unique
from imsvd.grid.report import EQUAL, Comparison, notes, write_comparison
from imsvd.grid.runner import Standing, run_folder, run_grid
from imsvd.grid.table import Entry, Row, cells, header, measures_of
from imsvd.grid.variant import Variant, choose_variants
from imsvd.progress import counted
from imsvd.recipes.phases import override_in_proportion

LR_FACTORS = (0.33, 1.0, 3.0)
"""Every method is tried with its recipe's learning rate times each of these."""

DECIDED_ELSEWHERE = {"seed": "--seeds", "method.name": "--methods", "data.source": "DATA"}
"""Settings that differ between the runs, and where they are given."""


class Candidate(NamedTuple):
    """A method or variant with one learning rate, and its jobs, one per seed."""

    method: str
    lr: float | None
    jobs: tuple[Job, ...]


def compare_methods(  # noqa: PLR0913 - one call that says all there is to say, by keyword
    data: str | Path,
    out: str | Path,
    *,
    methods: Sequence[str] = (),
    variants: Sequence[str] = (),
    recipe: str | None = None,
    seeds: int | Sequence[int] = 3,
    lr_factors: Sequence[float] = LR_FACTORS,
    epochs: int | None = None,
    knn_every: int | None = None,
    settings: Sequence[str] = (),
    parallel: int = 1,
    console: Console | None = None,
) -> Comparison:
    """Train and evaluate methods alike; write comparison.md, .csv, .json and accuracy.png to `out`.

    Runs that `out` already holds are not repeated. Of several learning rates, each method shows the
    one that is best on held-out training images.

    Args:
        data: labeled images with a training and a test split.
        out: folder for the runs and the results.
        methods: names of methods; all if neither these nor variants are given.
        variants: methods with other settings under names of their own, such as
            "soft=imsvd,method.standardize=true".
        recipe: a name that `imsvd recipes` lists; chosen from the images and hardware if left out.
        seeds: how many seeds, or which.
        lr_factors: what each method's own learning rate is multiplied by, in turn.
        epochs: epochs of every run, if not the recipe's.
        knn_every: epochs between the checks while training that make the plot.
        settings: overrides for every method, such as "training.batch_size=64".
        parallel: runs at a time, each with its share of the cores.
        console: where to show progress; `Console(quiet=True)` shows nothing.
    """
    console, out = console or Console(), Path(out)
    check_data(data)
    compared = choose_variants(methods, variants)
    lengths = {"training.epochs": epochs, "training.knn_every": knn_every}
    candidates = plan(
        data,
        recipe,
        variants=compared,
        seeds=range(seeds) if isinstance(seeds, int) else seeds,
        lr_factors=lr_factors,
        settings=[
            *(f"{key}={value}" for key, value in lengths.items() if value is not None),
            *settings,
        ],
    )
    # Seed by seed, so that a table of all methods is there as early as possible.
    jobs = unique(job for jobs in zip(*(c.jobs for c in candidates), strict=True) for job in jobs)
    console.print(_summary(candidates, len(jobs)), highlight=False, soft_wrap=True)

    def gathered(standing: Standing) -> Comparison:
        return gather(candidates, standing, out, [v for v in compared if v.settings])

    standing = run_grid(
        jobs,
        out,
        console,
        parallel=parallel,
        report=lambda standing: write_comparison(gathered(standing), out),
    )
    comparison = gathered(standing)
    _show(comparison, console)
    return comparison


def plan(
    data: str | Path,
    recipe: str | None,
    *,
    variants: Sequence[Variant],
    seeds: Sequence[int],
    lr_factors: Sequence[float],
    settings: Sequence[str],
) -> list[Candidate]:
    """Return what is to be run: the untrained encoder, then every method with every learning rate."""
    _check_choices(seeds, lr_factors, settings)
    common = configure(data, recipe_name=recipe)
    candidates = []
    for name, method, differences in variants:
        own = configure(data, recipe_name=recipe, method=method)
        # A method's recipe may ask for more epochs or another batch; here all get the same.
        alike = own.model_copy(update={group: getattr(common, group) for group in EQUAL})
        alike = override_in_proportion(alike, [*settings, *differences])
        require_every_phase(alike)
        label = name if differences else ""
        for factor in dict.fromkeys(lr_factors):
            jobs = tuple(
                Job(_vary(alike, factor, seed), label=label) for seed in dict.fromkeys(seeds)
            )
            candidates.append(Candidate(name, jobs[0].config.optimizer.lr, jobs))
    untrained = tuple(Job(job.config, trained=False) for job in candidates[0].jobs)
    return [Candidate("untrained", None, untrained), *candidates]


def gather(
    candidates: Sequence[Candidate], standing: Standing, out: Path, variants: Sequence[Variant]
) -> Comparison:
    """Return the results as far as the runs have come."""

    def entry(candidate: Candidate, job: Job) -> Entry:
        return Entry(
            candidate.method,
            candidate.lr,
            job.config.seed,
            str(run_folder(out, job).relative_to(out)),
            standing.outcomes.get(job),
            standing.failures.get(job, ""),
        )

    return Comparison(
        candidates[0].jobs[0].config,
        [
            Row(candidate.method, candidate.lr, tuple(entry(candidate, j) for j in candidate.jobs))
            for candidate in candidates
        ],
        tuple(variants),
    )


def _vary(config: Config, lr_factor: float, seed: int) -> Config:
    values = config.model_dump(mode="json")
    values["seed"] = seed
    # Six digits: 0.33 × 0.003 is meant to be 0.00099.
    values["optimizer"]["lr"] = float(f"{config.optimizer.lr * lr_factor:.6g}")
    return parse_config(values)


def check_data(data: str | Path) -> None:
    """Refuse data without labels or test images before anything is trained."""
    for split in ("train", "test"):
        if open_source(data, split).labels is None:
            raise InputError(
                f"{data} has no labels in its {split} split, and a comparison is made by them; "
                "use one sub-folder per class."
            )


def _check_choices(
    seeds: Sequence[int], lr_factors: Sequence[float], settings: Sequence[str]
) -> None:
    check_seeds(seeds)
    if not lr_factors or min(lr_factors) <= 0:
        raise InputError("--lr-factors must be positive numbers such as 0.33,1,3.")
    check_settings(settings, DECIDED_ELSEWHERE)


def _summary(candidates: Sequence[Candidate], runs: int) -> str:
    trained = candidates[1:]
    names = list(dict.fromkeys(candidate.method for candidate in trained))
    rates = len(trained) // len(names)
    seeds = len(trained[0].jobs)
    return (
        f"Comparing {', '.join(names)}: {counted(rates, 'learning rate')} × {counted(seeds, 'seed')} "
        f"each, and the untrained encoder; {counted(runs, 'run')}."
    )


def _show(comparison: Comparison, console: Console) -> None:
    """Print the table without the columns that a terminal has no room for."""
    measures = measures_of(comparison.rows)
    titles = [title.removesuffix(", %").removesuffix(" parameters") for title in header(measures)]
    left_out = (titles.index("seeds"), titles.index("hold-out"))
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, title="Test accuracies in %")
    for number, title in enumerate(titles):
        if number not in left_out:
            table.add_column(title, justify="right" if number else "left", overflow="fold")
    for row in comparison.rows:
        table.add_row(*(cell for n, cell in enumerate(cells(row, measures)) if n not in left_out))
    console.print(table)
    for note in notes(comparison):
        console.print(escape(note), style="dim", highlight=False, soft_wrap=True)
