"""The results of a comparison as files: comparison.md, .csv and .json, and accuracy.png."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from imsvd.config import Config
from imsvd.explanations.meaning import BINS, RECOVERED
from imsvd.figures import draw_comparison
from imsvd.files import write_atomically
from imsvd.grid.outcome import Outcome
from imsvd.grid.table import Entry, Row, csv_text, entry_values, markdown, row_values
from imsvd.grid.variant import Variant
from imsvd.progress import counted
from imsvd.provenance import environment

EQUAL = ("data", "backbone", "views", "training")
"""The settings in which the methods of a comparison do not differ."""


class Comparison(NamedTuple):
    """What a comparison has found so far."""

    config: Config
    """Of any of its runs; in the settings named by `EQUAL` all are the same."""
    every: list[Row]
    """One row per method (or variant) and learning rate."""
    variants: tuple[Variant, ...] = ()
    """The methods with other settings than their recipe's."""

    @property
    def rows(self) -> list[Row]:
        """One row per method, with the learning rate that was chosen."""
        methods = dict.fromkeys(row.method for row in self.every)
        return [choose([row for row in self.every if row.method == name]) for name in methods]

    @property
    def entries(self) -> list[Entry]:
        """All runs."""
        return [entry for row in self.every for entry in row.entries]

    @property
    def failures(self) -> list[Entry]:
        """The runs that have failed."""
        return [entry for entry in self.entries if entry.failure]

    @property
    def outcomes(self) -> list[Outcome]:
        """The results of the runs that are finished."""
        return [outcome for row in self.every for outcome in row.outcomes]

    def rates(self, method: str) -> list[float]:
        """The learning rates that a method was tried with; none for the untrained encoder."""
        return [row.lr for row in self.every if row.method == method and row.lr is not None]

    @property
    def chose_lr(self) -> bool:
        """Whether there were several learning rates to choose from."""
        return len(self.rows) < len(self.every)


def choose(rows: Sequence[Row]) -> Row:
    """Return the row to show of one method: the best on held-out training images.

    A learning rate that failed more often than others gives way to them. While runs are missing,
    only the seeds count that all learning rates have behind them.
    """
    begun = [row for row in rows if row.outcomes]
    if not begun:
        return rows[0]
    fewest = min(len(row.failures) for row in begun)
    sound = [row for row in begun if len(row.failures) == fewest]
    common = set.intersection(*(row.finished_seeds for row in sound))
    return max(sound, key=lambda row: row.mean_hold_out(common or row.finished_seeds))


def write_comparison(comparison: Comparison, out: Path) -> None:
    """Write the results as they stand; every file is replaced in one go."""
    facts = {"version": version("imsvd"), **environment()}
    facts["command"] = facts["command"].replace("__main__.py", "imsvd", 1)
    chosen = comparison.rows
    runs = [
        entry_values(entry) | {"chosen": row in chosen}
        for row in comparison.every
        for entry in row.entries
    ]
    content = {
        "environment": facts,
        "equal": comparison.config.model_dump(mode="json", include=set(EQUAL)),
        "variants": {v.name: [v.method, *v.settings] for v in comparison.variants},
        "table": [row_values(row) for row in chosen],
        "runs": [
            values | {"curve": _curve(entry)}
            for values, entry in zip(runs, comparison.entries, strict=True)
        ],
    }
    write_atomically(out / "comparison.json", (json.dumps(content, indent=2) + "\n").encode())
    write_atomically(out / "comparison.csv", csv_text(runs).encode())
    write_atomically(out / "comparison.md", _page(comparison, facts).encode())
    curves = {
        row.method: [
            [(point.epoch, point.seconds, point.accuracy) for point in outcome.curve]
            for outcome in row.outcomes
            if outcome.curve
        ]
        for row in chosen
    }
    drawable = {method: runs for method, runs in curves.items() if runs}
    if drawable:
        draw_comparison(drawable, out / "accuracy.png")
    else:  # a plot of what was compared here before is not one of this comparison
        (out / "accuracy.png").unlink(missing_ok=True)


def notes(comparison: Comparison) -> list[str]:
    """Return what a reader of the table has to know, a sentence or two each."""
    config = comparison.config
    finished, total = len(comparison.outcomes), len(comparison.entries)
    lines = [
        f"Every method: {_backbone(comparison)}, {counted(config.training.epochs, 'epoch')}, "
        f"batches of {config.training.batch_size}, the same images, views and seeds. "
        "Accuracies on test images, mean ± sample deviation over seeds.",
        *(f"{variant}." for variant in comparison.variants),
        *([_choice(comparison)] if comparison.chose_lr else []),
        *_ends_of_the_grid(comparison),
        "s/epoch: median over the epochs of a run, without evaluation. Peak memory: of the training "
        f"process{' on its GPU' if _on_gpu(comparison) else ''}. Head parameters: trained beside the backbone.",
        *_explainability(comparison.outcomes),
        *_parallel(comparison.outcomes),
    ]
    if finished < total:
        lines.append(f"{finished} of {total} runs are finished.")
    lines += [
        f"Failed: {entry.method}, lr {entry.lr:g}, seed {entry.seed}: {entry.failure}"
        if entry.lr is not None
        else f"Failed: {entry.method}, seed {entry.seed}: {entry.failure}"
        for entry in comparison.failures
    ]
    return lines


def _backbone(comparison: Comparison) -> str:
    """Its name and size: a name alone does not tell what a recipe's options have made of it."""
    name = comparison.config.backbone.name
    sizes = {outcome.backbone_parameters for outcome in comparison.outcomes}
    return f"{name} of {max(sizes) / 1e6:.1f} million parameters" if sizes else name


def _choice(comparison: Comparison) -> str:
    rates = max(len(comparison.rates(row.method)) for row in comparison.rows)
    return (
        f"Of {rates} learning rates per method, the one with the best hold-out accuracy is shown: kNN-20 of "
        "a tenth of the training images, which the encoder has seen without their labels, against the others. "
        "Test images took no part in the choice."
        + (" Learning rates that failed give way to others." if comparison.failures else "")
    )


def _ends_of_the_grid(comparison: Comparison) -> list[str]:
    """Name the methods whose best learning rate has none beyond it to be compared with."""
    if any(entry.status == "missing" for entry in comparison.entries):
        return []
    chosen = [(row, comparison.rates(row.method)) for row in comparison.rows]
    lines = []
    for end, which, beyond in ((max, "largest", "larger"), (min, "smallest", "smaller")):
        # One of two is always at an end.
        names = [row.method for row, rates in chosen if len(rates) > 2 and row.lr == end(rates)]
        if names:
            lines.append(
                f"Best with the {which} learning rate that was tried: {', '.join(names)}. A {beyond} "
                "one may be better: add a factor to --lr-factors, and only its runs are trained."
            )
    return lines


def _on_gpu(comparison: Comparison) -> bool:
    return any(outcome.device != "cpu" for outcome in comparison.outcomes)


def _explainability(outcomes: Sequence[Outcome]) -> list[str]:
    if not any("attributes_recovered" in outcome.metrics for outcome in outcomes):
        return []
    return [
        "Attributes recovered: those of which a single variable tells clearly more than luck "
        f"(normalized mutual information {RECOVERED} above that of shuffled values). Best NMI: of the best "
        "variable, mean over attributes. Methods without variables: each feature, cut into "
        f"{BINS} equally frequent bins."
    ]


def _parallel(outcomes: Sequence[Outcome]) -> list[str]:
    most = max((outcome.parallel for outcome in outcomes), default=1)
    if most == 1:
        return []
    shared = sum(outcome.parallel > 1 for outcome in outcomes)
    which = "Times" if shared == len(outcomes) else f"Times of {counted(shared, 'run')}"
    return [f"{which} were measured with up to {most} runs at a time on this machine."]


def _page(comparison: Comparison, facts: Mapping[str, str]) -> str:
    outcomes = comparison.outcomes
    devices = {outcome.device for outcome in outcomes} - {"cpu"}
    processors = {outcome.cpu for outcome in outcomes} or {facts["cpu"]}
    hardware = "; ".join([*sorted(processors), *sorted(devices)])
    # The runs may be older than this page, and of other code.
    commits = {outcome.commit for outcome in outcomes} or {facts["commit"]}
    lines = [
        f"# Comparison on {comparison.config.data.source}",
        "",
        markdown(comparison.rows),
        *(f"{note}\n" for note in notes(comparison)),
        *(
            ["## Every learning rate", "", markdown(comparison.every)]
            if comparison.chose_lr
            else []
        ),
        f"- command: `{facts['command']}`",
        f"- date: {facts['date']}",
        f"- hardware: {hardware}",
        f"- software: imsvd {facts['version']} (commit {', '.join(sorted(commits))}), torch {facts['torch']}, "
        f"Python {facts['python']}",
    ]
    return "\n".join(lines) + "\n"


def _curve(entry: Entry) -> list[dict[str, Any]]:
    return [] if entry.outcome is None else [p.model_dump() for p in entry.outcome.curve]
