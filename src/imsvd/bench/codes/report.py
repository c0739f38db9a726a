"""Tables and plot of `imsvd bench codes`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
from rich.console import Console
from rich.table import Table

from imsvd.bench.codes.rivals import RIVALS
from imsvd.figures import PALETTE, STYLE, save_figure
from imsvd.files import write_atomically
from imsvd.provenance import environment

OURS, COSINE = "imsvd", "cosine"
LABELS = {OURS: "IMSVD", COSINE: "cosine of floats", **{k: r.label for k, r in RIVALS.items()}}
SYMMETRIC, ASYMMETRIC = "symmetric_p10", "asymmetric_p10"
LEADS = {
    SYMMETRIC: "P@10, code against code",
    "symmetric_knn20": "kNN-20, code against code",
    ASYMMETRIC: "P@10, float against code",
    "asymmetric_knn20": "kNN-20, float against code",
}
"""Measures in which we say who leads."""
CHANCE = 0.1
"""Largest share of the entropy of a variable that may be chance in what two of them share."""
ENOUGH = 2
"""Standard deviations by which a lead counts."""


class Column(NamedTuple):
    """A column of a table."""

    title: str
    measure: str
    form: str = ".1f"
    best: int = 1
    """1 if the largest value is marked, -1 if the smallest, 0 if none."""
    chance: str = ""
    """Measure shown in brackets: the value expected by chance."""


NEIGHBORS = (
    *(
        Column(f"{title}, {kind}", f"{name}_{measure}")
        for name, kind in (("symmetric", "code"), ("asymmetric", "float"))
        for title, measure in (
            ("P@1", "p1"),
            ("P@10", "p10"),
            ("kNN-20", "knn20"),
            ("recall", "recall"),
        )
    ),
)
UNITS = (
    Column("decided %", "decided", best=0),
    Column("same in two views %", "agreeing", best=0),
    Column("shared nats", "shared_nats", ".3f", best=0),
    Column("of entropy %", "shared_share", best=-1),
    Column("properties of 5", "properties", ".1f", best=0),
    Column("purity %", "purity", best=0, chance="purity_by_chance"),
    Column("similarity", "similarity", ".3f", best=0, chance="similarity_by_chance"),
    Column("same in two seeds %", "stability", best=1),
)
NOTES = (
    "Test images search training images. P@1, P@10: share of images of the query's class among the "
    "nearest. kNN-20: accuracy of the majority of the 20 nearest. Recall: share of the 10 nearest by "
    "cosine among the 10 nearest by code. All in percent.",
    "Code: query and database are codes. Float: the query is not quantized.",
    "Equally similar images are in random order: precision and recall are expected values over all "
    "orders, and the 20 that vote are drawn at random.",
    "Every code has at most the stated number of bits. Mean ± standard deviation over seeds; bold: best.",
    "The options of an alternative are chosen by its P@10 on held-out training images, with labels. "
    "Our code never sees a label.",
    "Our directions, PCA + ITQ: an ablation, the coordinates that our head reads with signs in the place "
    "of the head. The alternatives get the features as the encoder gives them.",
    "Decided: largest probability above 0.9. Shared: mean mutual information of two variables, less "
    "what independent ones show by chance, in nats and relative to the entropy of a variable; left out "
    "where the test images are too few for so many pairs of units. Latents of the autoencoder count as "
    "variables of two units.",
    "Properties of the theorem that hold on two views of test images; hard codes are decided by "
    "construction.",
    "Purity: share of the most frequent class among a unit's images. Similarity: mean cosine of two "
    "of them. Both in brackets for random sets of the same size; units with few images are purer.",
    "Same in two seeds: share of units matched one to one with a Jaccard overlap of at least 0.5.",
)


class Report(NamedTuple):
    """All results."""

    records: list[dict[str, Any]]
    stability: dict[tuple[str, int], list[float]]
    """Percent of units that two seeds have in common, for every two seeds."""
    encoder: str
    judge: str
    images: int
    """Number of test images."""

    @property
    def sizes(self) -> list[int]:
        """Numbers of bits, ascending."""
        return sorted({r["bits"] for r in self.records if r["method"] != COSINE})

    def methods(self, bits: int) -> list[str]:
        """Return the codes of that size, ours first."""
        return list(dict.fromkeys(r["method"] for r in self.records if r["bits"] == bits))

    def values(self, method: str, bits: int, measure: str) -> list[float]:
        """Return a measure of every seed."""
        if measure == "stability":
            return self.stability.get((method, bits), [])
        return [
            r["measures"][measure]
            for r in self.records
            if (r["method"], r["bits"]) == (method, bits) and measure in r["measures"]
            if not measure.startswith("shared") or dependence_is_measurable(r["units"], self.images)
        ]


def dependence_is_measurable(units: Sequence[int] | None, images: int) -> bool:
    """Return whether chance shows little between two independent variables, and can be subtracted.

    N images show (D - 1)² / 2N nats. Of 256 units, 10,000 images show 3.3 nats, more than half of ln D,
    and the formula is no longer right.
    """
    most = max(units or (2,))
    return (most - 1) ** 2 / (2 * images) <= CHANCE * math.log(most)


class Lead(NamedTuple):
    """Ours against the best alternative."""

    bits: int
    measure: str
    rival: str
    difference: float
    deviation: float | None
    """Standard deviation of the difference; None with one seed."""

    @property
    def enough(self) -> bool:
        """Whether ours leads by more than two standard deviations."""
        return self.deviation is not None and self.difference > ENOUGH * self.deviation

    def sentence(self) -> str:
        """Say who leads."""
        name = LABELS[self.rival]
        verb = "ahead of" if self.difference >= 0 else "behind"
        text = f"{LEADS[self.measure]}: IMSVD is {abs(self.difference):.1f} points {verb} {name}"
        if self.deviation is None:
            return f"{text} (one seed)."
        by = f"standard deviation of the difference {self.deviation:.2f}"
        return f"{text} ({by}; {'' if self.enough else 'not '}more than 2 ahead)."


def leads(report: Report, bits: int) -> list[Lead]:
    """Compare ours with the best alternative of the same size, then with a part of itself."""
    methods = report.methods(bits)
    rivals = [method for method in methods if method != OURS]
    parts = [method for method in rivals if RIVALS[method].directed]
    groups = [[method for method in rivals if method not in parts], parts]
    if OURS not in methods:
        return []
    return [_lead(report, bits, measure, group) for group in groups if group for measure in LEADS]


def _lead(report: Report, bits: int, measure: str, rivals: Sequence[str]) -> Lead:
    """Compare ours with the best of `rivals`."""
    ours = report.values(OURS, bits, measure)
    best = max(rivals, key=lambda rival: fmean(report.values(rival, bits, measure)))
    theirs = report.values(best, bits, measure)
    deviation = None
    if len(ours) > 1 and len(theirs) > 1:
        deviation = math.hypot(stdev(ours), stdev(theirs))
    return Lead(bits, measure, best, fmean(ours) - fmean(theirs), deviation)


class Cell(NamedTuple):
    """A formatted value."""

    text: str
    best: bool


def table(report: Report, bits: int, columns: Sequence[Column]) -> dict[str, list[Cell]]:
    """Return the cells of each code of that size; the floats come last where they have a value."""
    rows: dict[str, list[Cell]] = {method: [] for method in report.methods(bits)}
    floats: list[Cell] = []
    for column in columns:
        values = {method: report.values(method, bits, column.measure) for method in rows}
        means = {method: fmean(found) for method, found in values.items() if found}
        best = max(means.values(), key=lambda value: column.best * value, default=None)
        for method, row in rows.items():
            text = _text(values[method], column.form)
            chance = report.values(method, bits, column.chance) if column.chance else []
            text += f" ({fmean(chance):{column.form}})" if chance else ""
            row.append(Cell(text, bool(column.best) and method in means and means[method] == best))
        floats.append(Cell(_text(report.values(COSINE, 0, column.measure), column.form), False))
    if any(cell.text for cell in floats):
        rows[COSINE] = floats
    return rows


def _text(values: Sequence[float], form: str) -> str:
    if not values:
        return ""
    spread = f" ± {stdev(values):{form}}" if len(values) > 1 else ""
    return f"{fmean(values):{form}}{spread}"


def show(report: Report, console: Console) -> None:
    """Print the tables."""
    for bits in report.sizes:
        for title, columns in (("neighbors", NEIGHBORS), ("units", UNITS)):
            printed = Table(title=f"{bits} bits: {title}")
            printed.add_column("code")
            for column in columns:
                printed.add_column(column.title, justify="right")
            for method, cells in table(report, bits, columns).items():
                texts = [f"[bold]{c.text}[/bold]" if c.best else c.text for c in cells]
                printed.add_row(LABELS[method], *texts)
            console.print(printed)
        for lead in leads(report, bits):
            console.print(lead.sentence(), highlight=False)


def write_report(report: Report, out: Path) -> None:
    """Write codes.json, codes.md and codes.png."""
    facts = environment() | {"encoder": report.encoder, "judge of similarity": report.judge}
    found = [lead._asdict() for bits in report.sizes for lead in leads(report, bits)]
    stability = [
        {"method": method, "bits": bits, "percent": values}
        for (method, bits), values in report.stability.items()
    ]
    content = {
        "environment": facts,
        "results": report.records,
        "stability": stability,
        "leads": found,
    }
    write_atomically(out / "codes.json", (json.dumps(content, indent=2) + "\n").encode())
    write_atomically(out / "codes.md", "\n".join(page(report, facts)).encode())
    draw(report, out / "codes.png")


def page(report: Report, facts: Mapping[str, str]) -> list[str]:
    """Return the lines of the page."""
    lines = ["# Codes at equal bits", "", *(f"- {name}: {value}" for name, value in facts.items())]
    lines += ["", *(f"- {note}" for note in NOTES), "", "![P@10 by bits](codes.png)"]
    for bits in report.sizes:
        for title, columns in (("neighbors", NEIGHBORS), ("units", UNITS)):
            lines += ["", f"## {bits} bits: {title}", ""]
            lines += [f"| code | {' | '.join(column.title for column in columns)} |"]
            lines += ["|" + "---|" * (len(columns) + 1)]
            for method, cells in table(report, bits, columns).items():
                texts = [f"**{c.text}**" if c.best else c.text for c in cells]
                lines.append(f"| {LABELS[method]} | {' | '.join(texts)} |")
        lines += ["", *(f"- {lead.sentence()}" for lead in leads(report, bits))]
    sizes = _sizes(report)
    lines += ["", "## Sizes of our code, one per seed", "", *sizes] if sizes else []
    return [*lines, "", "## Options of the alternatives", "", *_options(report), ""]


def _sizes(report: Report) -> list[str]:
    """Return the sizes of our heads: seeds that chose different ones differ by more than training."""
    found = {
        bits: [r["units"] for r in report.records if (r["method"], r["bits"]) == (OURS, bits)]
        for bits in report.sizes
    }
    return [
        f"- {bits} bits: {', '.join(f'{len(units)} × {units[0]}' for units in seeds)}"
        for bits, seeds in found.items()
        if seeds
    ]


def _options(report: Report) -> list[str]:
    chosen = {
        (r["method"], r["bits"]): r["settings"] for r in report.records if r["method"] in RIVALS
    }
    return [
        f"- {LABELS[method]}, {bits} bits: "
        + ", ".join(f"{name} = {value}" for name, value in options.items())
        for (method, bits), options in sorted(chosen.items())
    ]


@mpl.rc_context(STYLE)
def draw(report: Report, path: Path) -> Path:
    """Draw P@10 by bits, code against code and float against code."""
    figure = Figure(figsize=(9.5, 3.6), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    methods = dict.fromkeys(method for bits in report.sizes for method in report.methods(bits))
    for axis, measure in zip(axes, (SYMMETRIC, ASYMMETRIC), strict=True):
        for color, method in zip(PALETTE * 2, methods, strict=False):
            sizes = [bits for bits in report.sizes if report.values(method, bits, measure)]
            found = [report.values(method, bits, measure) for bits in sizes]
            spread = [stdev(values) if len(values) > 1 else 0.0 for values in found]
            axis.errorbar(
                sizes,
                [fmean(values) for values in found],
                spread,
                label=LABELS[method],
                color=color,
                marker="o",
                markersize=3,
                linewidth=2 if method == OURS else 1,
            )
        for value in report.values(COSINE, 0, SYMMETRIC):
            axis.axhline(value, color="black", linestyle="--", linewidth=1, label=LABELS[COSINE])
        axis.set_xscale("log", base=2)
        axis.set_xticks(report.sizes, [str(bits) for bits in report.sizes])
        axis.xaxis.set_minor_locator(NullLocator())
        axis.set(xlabel="bits", title=LEADS[measure])
    axes[0].set_ylabel("precision at 10, %")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False)
    return save_figure(figure, path)
