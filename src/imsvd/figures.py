"""Figures of runs: loss terms with their bounds, the page of the demo, methods side by side."""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from imsvd.files import write_atomically

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
# Okabe and Ito's color-blind safe palette without yellow, which is too pale for lines.
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
LINES = ("-", "--", ":")
STYLE: dict[Any, Any] = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "font.size": 9,
    "axes.titlesize": 10,
}


def save_figure(figure: Figure, path: Path, dpi: int = 150) -> Path:
    """Write a figure as PNG, complete or not at all, and return its path."""
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=dpi)
    write_atomically(path, content.getvalue())
    return path


@mpl.rc_context(STYLE)
def draw_capacity(trials: Sequence[Mapping[str, Any]], path: Path) -> Path:
    """Draw what codes of several sizes say that lasts, and mark the one that says most.

    Args:
        trials: rows of `capacity.json`.
        path: PNG file to write.
    """
    figure = Figure(figsize=(4.6, 2.9), layout="constrained")
    axis = figure.subplots()
    for color, units in zip(PALETTE, sorted({trial["units"] for trial in trials}), strict=False):
        rows = [trial for trial in trials if trial["units"] == units]
        bits, nats = [row["bits"] for row in rows], [row["lasting_nats"] for row in rows]
        axis.plot(bits, nats, "o-", color=color, label=f"{units} units", markersize=4)
    best = next(trial for trial in trials if trial["best"])
    axis.plot(best["bits"], best["lasting_nats"], "o", mfc="none", mec="black", markersize=11)
    axis.set_xscale("log", base=2)
    ticks = sorted({2 ** round(math.log2(trial["bits"])) for trial in trials})
    axis.set_xticks(ticks, [str(tick) for tick in ticks])
    axis.set_xlabel("bits of the code")
    axis.set_ylabel("lasting information (nats)")
    axis.legend(frameon=False, title="per variable")
    return save_figure(figure, path)


@mpl.rc_context(STYLE)
def draw_training(records: Sequence[Mapping[str, Any]], path: Path) -> Path:
    """Draw the loss and its terms over the epochs, each with its bounds."""
    terms = _terms(records)
    figure = Figure(figsize=(3.1 * len(terms), 2.8), layout="constrained")
    _draw_terms(figure.subplots(1, len(terms), squeeze=False)[0], terms, records)
    return save_figure(figure, path)


@mpl.rc_context(STYLE)
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
    figure = Figure(figsize=(11, 9), layout="constrained")
    parts: Any = figure.subfigures(3, 1, height_ratios=(2.6, 2.4, 0.78 * len(galleries)))
    top, middle, bottom = parts
    _draw_terms(top.subplots(1, len(terms), squeeze=False)[0], terms, records)
    _draw_accuracies(middle.subplots(), accuracies)
    _draw_galleries(bottom, galleries)
    return save_figure(figure, path)


@mpl.rc_context(STYLE)
def draw_comparison(
    curves: Mapping[str, Sequence[Sequence[tuple[int, float, float]]]], path: Path
) -> Path:
    """Draw accuracy over epochs and over time: a line per method, with a band over its seeds.

    `curves` maps a method to its runs, each a list of (epoch, seconds, accuracy in percent).
    """
    means = {method: _mean_curve(runs) for method, runs in curves.items()}
    looks = {
        method: (PALETTE[number % len(PALETTE)], LINES[number // len(PALETTE) % len(LINES)])
        for number, method in enumerate(curves)
    }
    unit, seconds = _time_unit(max(points[-1].seconds for points in means.values()))
    figure = Figure(figsize=(9.5, 3.4), layout="constrained")
    by_epoch, by_time = figure.subplots(1, 2, sharey=True)
    # The legend lists the methods in the order in which their lines end, from top to bottom.
    for method in sorted(means, key=lambda method: -means[method][-1].accuracy):
        points, look = means[method], looks[method]
        _draw_curve(by_epoch, [point.epoch for point in points], points, look, method)
        times = [point.seconds / seconds for point in points]
        _draw_curve(by_time, times, points, look, method)
    by_epoch.xaxis.set_major_locator(MaxNLocator(integer=True))
    by_epoch.set(xlabel="epoch", ylabel="online kNN-20 accuracy, %", xlim=(0, None))
    by_time.set(xlabel=f"training time, {unit}", xlim=(0, None))
    handles, labels = by_epoch.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False)
    return save_figure(figure, path, dpi=200)


def _time_unit(longest: float) -> tuple[str, int]:
    """Choose a readable unit for `longest` seconds; return its name and length in seconds."""
    if longest >= 2 * 3600:
        return "hours", 3600
    return ("minutes", 60) if longest >= 2 * 60 else ("seconds", 1)


class _MeanPoint(NamedTuple):
    """The mean over the runs of a method at one epoch."""

    epoch: int
    seconds: float
    accuracy: float
    deviation: float


def _mean_curve(runs: Sequence[Sequence[tuple[int, float, float]]]) -> list[_MeanPoint]:
    """Average the runs at every epoch that any of them recorded."""
    points = sorted(point for run in runs for point in run)
    curve = []
    for epoch, same_epoch in itertools.groupby(points, key=lambda point: point[0]):
        _, seconds, accuracies = zip(*same_epoch, strict=True)
        deviation = stdev(accuracies) if len(accuracies) > 1 else 0.0
        curve.append(_MeanPoint(epoch, fmean(seconds), fmean(accuracies), deviation))
    return curve


def _draw_curve(
    axis: Axes,
    places: Sequence[float],
    points: Sequence[_MeanPoint],
    look: tuple[str, str],
    label: str,
) -> None:
    color, line = look
    marker = "o" if len(points) < 30 else None
    accuracies = [point.accuracy for point in points]
    axis.plot(places, accuracies, line, color=color, label=label, marker=marker, markersize=3)
    low = [point.accuracy - point.deviation for point in points]
    high = [point.accuracy + point.deviation for point in points]
    axis.fill_between(places, low, high, color=color, alpha=0.15, linewidth=0)
    axis.grid(visible=True, axis="y", color="#e5e5e5", linewidth=0.8)


def _terms(records: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Return every term over the epochs, NaN where a method did not use it."""
    names = dict.fromkeys(name for record in records for name in record["terms"])
    return {
        "loss": [record["loss"] for record in records],
        **{name: [record["terms"].get(name, math.nan) for record in records] for name in names},
    }


def _draw_terms(
    axes: Sequence[Axes], terms: Mapping[str, Sequence[float]], records: Sequence[Mapping[str, Any]]
) -> None:
    epochs = [record["epoch"] for record in records]
    bounds = records[0].get("bounds", {})
    for axis, (name, values) in zip(axes, terms.items(), strict=True):
        key = "total" if name == "loss" else name
        _draw_bounds(axis, {bound: row[key] for bound, row in bounds.items() if key in row})
        marker = "o" if len(epochs) < 30 else None
        axis.plot(epochs, values, color=CURVE, marker=marker, markersize=3)
        axis.set_title(TERM_TITLES.get(name, name.replace("_", " ")))
        axis.set_xlabel("epoch")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.margins(y=0.12)


def _draw_bounds(axis: Axes, levels: Mapping[str, float]) -> None:
    """Draw a line for each level; coinciding bounds share a line and a label."""
    names: dict[float, list[str]] = {}
    for bound, level in levels.items():
        names.setdefault(round(level, 6), []).append(bound)
    lowest = min(names, default=0.0)
    for level, bounds in names.items():
        color, line = BOUND_STYLES.get(bounds[0], ("#999999", "--"))
        axis.axhline(level, color=color, linestyle=line, linewidth=1)
        axis.annotate(
            " = ".join(bound.replace("_", " ") for bound in bounds),
            (1, level),
            xycoords=("axes fraction", "data"),
            xytext=(-2, -2 if level == lowest else 2),
            textcoords="offset points",
            ha="right",
            va="top" if level == lowest else "bottom",
            fontsize=7,
            color=color,
        )


def _draw_accuracies(axis: Axes, accuracies: Mapping[str, Mapping[str, float]]) -> None:
    attributes = list(accuracies["trained"])
    width = 0.8 / len(accuracies)
    for place, (series, values) in enumerate(accuracies.items()):
        positions = [number + (place - 1) * width for number in range(len(attributes))]
        heights = [values[name] for name in attributes]
        bars = axis.bar(positions, heights, width * 0.94, label=series, color=BARS[series])
        axis.bar_label(bars, fmt="%.0f", fontsize=7, padding=1)
    axis.set_xticks(range(len(attributes)), [name.replace("_", " ") for name in attributes])
    axis.set_ylabel("kNN-20 accuracy, %")
    axis.set_ylim(0, 108)
    axis.legend(frameon=False, ncols=3, loc="lower right", bbox_to_anchor=(1, 1))


def _draw_galleries(figure: Any, galleries: Mapping[str, Any]) -> None:
    """Draw a row of images per unit, with its title on the left."""
    columns = max(len(images) for images in galleries.values())
    axes = figure.subplots(len(galleries), 1, squeeze=False)[:, 0]
    for axis, (title, images) in zip(axes, galleries.items(), strict=True):
        axis.set_axis_off()
        for column, image in enumerate(images):
            axis.imshow(image, extent=(column, column + 0.92, 0, 0.92), interpolation="lanczos")
        axis.set(xlim=(0, columns), ylim=(0, 0.92))
        axis.text(-0.12, 0.46, title.replace(": ", "\n"), ha="right", va="center", fontsize=8)


@mpl.rc_context(STYLE)
def draw_gaps(rows: Sequence[Mapping[str, Any]], path: Path, most: int = 15) -> Path:
    """Draw units and pairs of units with the most images missing and in surplus."""
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    axes = figure.subplots(1, 2)
    for axis, title, sign in zip(axes, ("missing", "crowded"), (-1, 1), strict=True):
        surplus = [(sign * (row["images"] - row["expected"]), row["units"]) for row in rows]
        shown = sorted((pair for pair in surplus if pair[0] > 0), reverse=True)[:most]
        color = PALETTE[0] if sign < 0 else PALETTE[1]
        axis.barh(range(len(shown)), [value for value, _ in shown], color=color)
        # Names of units come from users and may hold dollar signs, which would start a formula.
        axis.set_yticks(range(len(shown)), [units.replace("$", r"\$") for _, units in shown])
        axis.invert_yaxis()
        axis.set(xlabel=f"images {'below' if sign < 0 else 'above'} the expected number")
        axis.set_title(title)
    return save_figure(figure, path)
