"""`imsvd compare`: methods on the same data, backbone, budget and seeds, in one table and plot."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from imsvd.config import Config, method_settings_class, parse_config
from imsvd.errors import InputError
from imsvd.grid.codes import with_stability
from imsvd.grid.comparison import (
    EQUAL,
    ComparedRun,
    Comparison,
    ComparisonColumn,
    ComparisonRow,
    columns_of,
    header,
    notes,
    write_comparison,
)
from imsvd.grid.jobs import Job, check_data, check_seeds, check_settings, run_folder, unique
from imsvd.grid.runner import GridState, run_grid
from imsvd.methods import METHODS
from imsvd.pretraining.pretrain import configure
from imsvd.progress import counted
from imsvd.recipes import override_in_proportion

LR_FACTORS = (0.33, 1.0, 3.0)
"""Factors of the recipe's learning rate that every method is trained with."""

VARIED = {"seed": "--seeds", "method.name": "--methods", "data.source": "DATA"}
"""Settings that vary between runs, and the options that control them."""

VARIANT_SETTINGS = ("method.", "optimizer.")
"""Settings that a variant may change; all others are the same for the whole comparison."""
VARIANT_NAME = r"[A-Za-z0-9][A-Za-z0-9_.+-]*"
"""Free of characters that a terminal, Markdown or a plot would interpret."""


class Variant(NamedTuple):
    """A method under its own name, or with changed settings under another name."""

    name: str
    method: str
    settings: tuple[str, ...] = ()


class Candidate(NamedTuple):
    """A variant with one learning rate: one job per seed."""

    method: str
    lr: float | None
    jobs: tuple[Job, ...]


def compare_methods(  # noqa: PLR0913 - the public interface, by keyword
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

    Runs that `out` already holds are not repeated. The learning rate of each method is selected on
    held-out training images.

    Args:
        data: labeled images with a training and a test split.
        out: folder for the runs and the results.
        methods: method names; all methods if neither methods nor variants are given.
        variants: methods with changed settings, such as "soft=imsvd,method.standardize=true".
        recipe: a name listed by `imsvd recipes`; by default chosen from images and hardware.
        seeds: number of seeds, or the seeds themselves.
        lr_factors: factors of each method's own learning rate.
        epochs: epochs of every run; by default the recipe's.
        knn_every: epochs between the online kNN checks shown in the plot.
        settings: overrides for every method, such as "training.batch_size=64".
        parallel: simultaneous runs; they share the cores.
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
    # Seed by seed, so that all methods appear in the table early.
    jobs = unique(job for jobs in zip(*(c.jobs for c in candidates), strict=True) for job in jobs)
    console.print(_summary(candidates, len(jobs)), highlight=False, soft_wrap=True)

    def report(state: GridState) -> None:
        write_comparison(gather(candidates, state, out, compared), out)

    state = run_grid(jobs, out, console, parallel=parallel, report=report)
    comparison = gather(candidates, state, out, compared)
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
    """Return all candidates: the untrained encoder, then every variant with every learning rate."""
    check_seeds(seeds)
    if not lr_factors or min(lr_factors) <= 0:
        raise InputError("--lr-factors must be positive numbers such as 0.33,1,3.")
    check_settings(settings, VARIED)
    common = configure(data, recipe_name=recipe)
    candidates = []
    for name, method, differences in variants:
        own = configure(data, recipe_name=recipe, method=method)
        # A method's recipe may have other epochs or batches; a comparison equalizes them.
        alike = own.model_copy(update={group: getattr(common, group) for group in EQUAL})
        alike = override_in_proportion(alike, [*settings, *differences])
        alike.method.require_epochs(alike.training.epochs)
        label = name if differences else ""
        for factor in dict.fromkeys(lr_factors):
            jobs = tuple(
                Job(_vary(alike, factor, seed), label=label) for seed in dict.fromkeys(seeds)
            )
            candidates.append(Candidate(name, jobs[0].config.optimizer.lr, jobs))
    untrained = tuple(Job(job.config, trained=False) for job in candidates[0].jobs)
    return [Candidate("untrained", None, untrained), *candidates]


def gather(
    candidates: Sequence[Candidate], state: GridState, out: Path, variants: Sequence[Variant]
) -> Comparison:
    """Return the results so far."""

    def compared_run(candidate: Candidate, job: Job) -> ComparedRun:
        return ComparedRun(
            candidate.method,
            candidate.lr,
            job.config.seed,
            str(run_folder(out, job).relative_to(out)),
            state.outcomes.get(job),
            state.failures.get(job, ""),
        )

    rows = [
        ComparisonRow(
            one.method, one.lr, with_stability([compared_run(one, job) for job in one.jobs], out)
        )
        for one in candidates
    ]
    changed = {one.name: (one.method, *one.settings) for one in variants if one.settings}
    return Comparison(candidates[0].jobs[0].config, rows, changed)


def choose_variants(methods: Sequence[str], texts: Sequence[str]) -> list[Variant]:
    """Return the named methods, then the variants; all methods if neither are given.

    Args:
        methods: method names.
        texts: variants such as "soft=imsvd,method.standardize=true,method.joint=within".
    """
    names = methods if methods or texts else tuple(METHODS)
    for method in names:
        method_settings_class(method)  # rejects an unknown name
    variants = [read_variant(text) for text in texts]
    taken = {"untrained", *METHODS}
    for variant in variants:
        if variant.name in taken:
            raise InputError(
                f"--variant {variant.name}=… uses a name that is taken; choose another."
            )
        taken.add(variant.name)
    return [*(Variant(name, name) for name in dict.fromkeys(names)), *variants]


def read_variant(text: str) -> Variant:
    """Parse NAME=METHOD,KEY=VALUE,…; values such as lists may contain commas."""
    name, _, rest = text.partition("=")
    method, *settings = (part.strip() for part in re.split(r",(?=\s*[a-z_.]+=)", rest))
    name = name.strip()
    if not name or not method or not settings:
        raise InputError(
            f"--variant {text!r} is not NAME=METHOD,KEY=VALUE,… such as "
            "soft=imsvd,method.standardize=true,method.off_diagonal_weight=10."
        )
    if not re.fullmatch(VARIANT_NAME, name):
        raise InputError(
            f"--variant {name!r} is not a valid name; use letters, digits, '_', '-', '.' and '+'."
        )
    method_settings_class(method)
    for setting in settings:
        if not setting.startswith(VARIANT_SETTINGS):
            raise InputError(
                f"--variant {name} cannot change {setting.partition('=')[0]}, only method.* and "
                "optimizer.*; use --set to change other settings for the whole comparison."
            )
    return Variant(name, method, tuple(settings))


def _vary(config: Config, lr_factor: float, seed: int) -> Config:
    values = config.model_dump(mode="json")
    values["seed"] = seed
    # Rounded to six digits, so that 0.33 × 0.003 is 0.00099.
    values["optimizer"]["lr"] = float(f"{config.optimizer.lr * lr_factor:.6g}")
    return parse_config(values)


def _summary(candidates: Sequence[Candidate], runs: int) -> str:
    trained = candidates[1:]
    names = list(dict.fromkeys(candidate.method for candidate in trained))
    rates = len(trained) // len(names)
    seeds = len(trained[0].jobs)
    return (
        f"Comparing {', '.join(names)}: {counted(rates, 'learning rate')} × {counted(seeds, 'seed')} "
        f"each, plus the untrained encoder: {counted(runs, 'run')}."
    )


def _show(comparison: Comparison, console: Console) -> None:
    """Print the table without the columns for which a terminal has no room, and one of the codes."""
    columns = columns_of(comparison.rows)
    scores = [column for column in columns if not column.of_codes and column.name != "hold_out"]
    console.print(_table("Test accuracies in %", comparison.rows, scores))
    of_codes = [column for column in columns if column.of_codes]
    if of_codes:
        with_codes = [row for row in comparison.rows if any(map(row.spread, of_codes))]
        console.print(_table("Codes of test images", with_codes, of_codes))
    for note in notes(comparison):
        console.print(escape(note), style="dim", highlight=False, soft_wrap=True)


def _table(title: str, rows: Sequence[ComparisonRow], columns: Sequence[ComparisonColumn]) -> Table:
    titles = [each.removesuffix(" parameters") for each in header(columns)]
    if title.endswith("%"):
        titles = [each.removesuffix(", %") for each in titles]
    hidden = titles.index("seeds")
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, title=title)
    for number, each in enumerate(titles):
        if number != hidden:
            table.add_column(each, justify="right" if number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(cell for n, cell in enumerate(row.cells(columns)) if n != hidden))
    return table
