"""Pictures of a run: its loss terms against their bounds, and what the demo found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

TERM_TITLES = {
    "loss": "loss",
    "invariance": "invariance (TI)",
    "diagonal_entropy": "diagonal entropy (DE)",
    "off_diagonal_entropy": "off-diagonal entropy (OE)",
}
BOUND_STYLES = {
    "ideal": ("#2a9d4e", "-"),
    "batch_limit": ("#2a9d4e", ":"),
    "uniform": ("#999999", "--"),
    "collapsed": ("#c0392b", "--"),
}
CURVE = "#1f5fa8"
BARS = {"chance": "#d0d0d0", "untrained": "#9db8d6", "trained": CURVE}
STYLE: dict[Any, Any] = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "font.size": 9,
    "axes.titlesize": 10,
}


def draw_training(records: Sequence[Mapping[str, Any]], path: Path) -> Path:
    """Draw the loss and its terms over the epochs, each beside its bounds."""
    terms = _terms(records)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(3.1 * len(terms), 2.8), layout="constrained")
        axes = figure.subplots(1, len(terms), squeeze=False)[0]
        _draw_terms(axes, terms, records)
        figure.savefig(path, dpi=150)
    return path


def draw_demo(
    records: Sequence[Mapping[str, Any]],
    accuracies: Mapping[str, Mapping[str, float]],
    galleries: Mapping[str, Any],
    path: Path,
) -> Path:
    """Draw training, kNN accuracy per attribute, and images that share a unit, on one page.

    `accuracies` maps "chance", "untrained" and "trained" to an accuracy per attribute; `galleries`
    maps a unit's title to its images, (height, width, 3) each.
    """
    terms = _terms(records)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(11, 8), layout="constrained")
        parts: Any = figure.subfigures(3, 1, height_ratios=(2.6, 2.4, 0.55 * len(galleries)))
        top, middle, bottom = parts
        _draw_terms(top.subplots(1, len(terms), squeeze=False)[0], terms, records)
        _draw_accuracies(middle.subplots(), accuracies)
        _draw_galleries(bottom, galleries)
        figure.savefig(path, dpi=150)
    return path


def _terms(records: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    terms = {"loss": [record["loss"] for record in records]}
    for name in records[0]["terms"]:
        terms[name] = [record["terms"][name] for record in records]
    return terms


def _draw_terms(
    axes: Sequence[Axes], terms: Mapping[str, Sequence[float]], records: Sequence[Mapping[str, Any]]
) -> None:
    epochs = [record["epoch"] for record in records]
    bounds = records[0].get("bounds", {})
    for axis, (name, values) in zip(axes, terms.items(), strict=True):
        _draw_bounds(
            axis, {bound: row["total" if name == "loss" else name] for bound, row in bounds.items()}
        )
        axis.plot(
            epochs, values, color=CURVE, marker="o" if len(epochs) < 30 else None, markersize=3
        )
        axis.set_title(TERM_TITLES.get(name, name.replace("_", " ")))
        axis.set_xlabel("epoch")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.margins(y=0.12)


def _draw_bounds(axis: Axes, levels: Mapping[str, float]) -> None:
    """Draw a line for each level; bounds that coincide share a line and a label."""
    names: dict[float, list[str]] = {}
    for bound, level in levels.items():
        names.setdefault(round(level, 6), []).append(bound)
    for level, bounds in names.items():
        colour, line = BOUND_STYLES.get(bounds[0], ("#999999", "--"))
        axis.axhline(level, color=colour, linestyle=line, linewidth=1)
        axis.annotate(
            " = ".join(bound.replace("_", " ") for bound in bounds),
            (1, level),
            xycoords=("axes fraction", "data"),
            xytext=(-2, 2),
            textcoords="offset points",
            ha="right",
            fontsize=7,
            color=colour,
        )


def _draw_accuracies(axis: Axes, accuracies: Mapping[str, Mapping[str, float]]) -> None:
    attributes = list(accuracies["trained"])
    width = 0.8 / len(accuracies)
    for place, (series, values) in enumerate(accuracies.items()):
        positions = [number + (place - 1) * width for number in range(len(attributes))]
        bars = axis.bar(
            positions,
            [values[name] for name in attributes],
            width * 0.94,
            label=series,
            color=BARS[series],
        )
        axis.bar_label(bars, fmt="%.0f", fontsize=7, padding=1)
    axis.set_xticks(range(len(attributes)), [name.replace("_", " ") for name in attributes])
    axis.set_ylabel("kNN-20 accuracy, %")
    axis.set_ylim(0, 108)
    axis.legend(frameon=False, ncols=3, loc="lower right", bbox_to_anchor=(1, 1))


def _draw_galleries(figure: Any, galleries: Mapping[str, Any]) -> None:
    columns = max(len(images) for images in galleries.values())
    axes = figure.subplots(len(galleries), columns, squeeze=False)
    for row, (title, images) in zip(axes, galleries.items(), strict=True):
        for axis in row:
            axis.set_axis_off()
        for axis, image in zip(row, images, strict=False):
            axis.imshow(image, interpolation="lanczos")
        row[0].set_title(title, loc="left", fontsize=8, pad=2)
