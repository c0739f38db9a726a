"""Pictures of experiments: a plot of the paper's numbers above ours, or a copied figure."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from imsvd.figures import LINES, PALETTE, STYLE
from imsvd.files import write_atomically
from imsvd.grid.jobs import run_folder
from imsvd.reproduction.experiment import Experiment, Setup
from imsvd.reproduction.results import Content, drawn_figures, experiment_folder

PANELS_PER_LINE = 4
INK = "#404040"
MAX_FIGURE_WIDTH = 1000
"""Pixels; wider figures are scaled down."""


def picture_name(experiment: Experiment) -> str:
    """Return the picture's file name: JPEG for photographs, which PNG makes five times as large."""
    photographs = experiment.part in ("embeddings", "galleries", "grad_cam")
    return "result.jpg" if photographs else "result.png"


def draw_picture(experiment: Experiment, setup: Setup, content: Content, store: Path) -> bool:
    """Draw an experiment's plot, or copy its figure, beside its results; return whether it exists."""
    folder = experiment_folder(store, experiment.name, setup.budget)
    path = folder / picture_name(experiment)
    if experiment.part:
        runs = [run_folder(store, job) for job in experiment.jobs(setup)]
        figures = [figure for run in runs for figure in drawn_figures(run, experiment.part)]
        if figures:
            _copy_figure(figures[0], path)
        return bool(figures)
    has_values = any(cell["mean"] is not None for cell in content["cells"])
    if has_values:
        draw_result(content["cells"], experiment.axis, path)
    return has_values


def _copy_figure(source: Path, target: Path) -> None:
    with Image.open(source) as image:
        image.thumbnail((MAX_FIGURE_WIDTH, 2 * MAX_FIGURE_WIDTH))
        data = io.BytesIO()
        if target.suffix == ".jpg":
            image.convert("RGB").save(data, "JPEG", quality=85)
        else:
            image.save(data, "PNG", optimize=True)
    write_atomically(target, data.getvalue())


def in_order(names: Iterable[str]) -> list[str]:
    """Return distinct names: numbers by size, words in order of appearance."""
    found = list(dict.fromkeys(names))
    return sorted(found, key=int) if all(name.isdigit() for name in found) else found


class Panel(NamedTuple):
    """The cells of one measure, with either columns or rows along the horizontal axis."""

    cells: list[Content]
    across: Literal["column", "row"]

    @property
    def places(self) -> list[str]:
        """Names along the horizontal axis."""
        return in_order(cell[self.across] for cell in self.cells)

    @property
    def series(self) -> dict[str, list[Content]]:
        """The cells of every line, from left to right, by its name."""
        along = "row" if self.across == "column" else "column"
        series: dict[str, list[Content]] = {}
        for cell in sorted(self.cells, key=lambda cell: self.places.index(cell[self.across])):
            series.setdefault(cell[along], []).append(cell)
        return {name: series[name] for name in dict.fromkeys(cell[along] for cell in self.cells)}


def make_panels(cells: Sequence[Content]) -> list[Panel]:
    """Group cells by measure; a measure in a single column is drawn over rows."""
    by_measure: dict[str, list[Content]] = {}
    for cell in cells:
        by_measure.setdefault(cell["measure"], []).append(cell)
    return [
        Panel(members, "column" if len({cell["column"] for cell in members}) > 1 else "row")
        for members in by_measure.values()
    ]


def draw_result(cells: Sequence[Content], axis_title: str, path: Path) -> None:
    """Draw the available cells of a result."""
    panels = make_panels(cells)
    longest = max(panels, key=lambda panel: len(panel.series))
    lines = math.ceil(len(panels) / PANELS_PER_LINE)
    across = min(len(panels), PANELS_PER_LINE)
    places = max(len(panel.places) for panel in panels)
    width = max(2.8 if across > 1 else 4.0, 0.55 * places + 0.8)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(across * width + 0.8, 5.0 * lines), layout="constrained")
        axes = figure.subplots(2 * lines, across, squeeze=False)
        for axis in axes.flat:
            axis.set_axis_off()
        for number, panel in enumerate(panels):
            line, column = divmod(number, across)
            for paper, axis in (
                (True, axes[2 * line][column]),
                (False, axes[2 * line + 1][column]),
            ):
                axis.set_axis_on()
                # A single series must not have the color of another panel's legend entry.
                alone = len(panel.series) == 1 < len(longest.series)
                _draw_panel(axis, panel, axis_title, INK if alone else "", paper=paper)
            if panel is longest and len(panel.series) > 1:
                handles, labels = axes[2 * line][column].get_legend_handles_labels()
                figure.legend(handles, labels, loc="outside right center", frameon=False)
        picture = io.BytesIO()
        figure.savefig(picture, format="png", dpi=120)
    write_atomically(path, picture.getvalue())


def _draw_panel(axis: Axes, panel: Panel, axis_title: str, ink: str, *, paper: bool) -> None:
    key, places = "paper" if paper else "mean", panel.places
    for number, (name, cells) in enumerate(panel.series.items()):
        known = [cell for cell in cells if cell[key] is not None]
        deviations = [0.0 if paper else cell["sd"] or 0.0 for cell in known]
        color = ink or PALETTE[number % len(PALETTE)]
        style = LINES[number // len(PALETTE) % len(LINES)]
        axis.errorbar(
            [places.index(cell[panel.across]) for cell in known],
            [cell[key] for cell in known],
            yerr=deviations if any(deviations) else None,
            color=color,
            # Rows such as methods have no order, so no line connects them.
            linestyle=style if panel.across == "column" else "none",
            marker="o",
            markersize=4,
            capsize=2,
            label=name,
        )
        for cell in known if not paper else ():
            values = [run["value"] for run in cell["runs"] if run["value"] is not None]
            if len(values) > 1:  # the single seeds, beside their mean
                beside = [places.index(cell[panel.across]) + 0.12] * len(values)
                axis.plot(beside, values, ".", color=color, alpha=0.5, markersize=4)
    settings = {cell[panel.across]: cell["setting"] for cell in panel.cells}
    labels = [place if paper else settings[place] or place for place in places]
    crowded = max(map(len, labels)) > 6
    turn: Any = {"rotation": 40, "ha": "right"} if crowded else {"rotation": 0, "ha": "center"}
    axis.set_xticks(range(len(labels)), labels, rotation_mode="anchor", **turn)
    axis.set_xlim(-0.5, len(labels) - 0.5)
    axis.grid(visible=True, axis="y", color="#e5e5e5", linewidth=0.8)
    first = panel.cells[0]
    axis.set_title(f"paper: {first['paper_measure']}" if paper else f"here: {first['measure']}")
    if panel.across == "column" and paper:
        axis.set_xlabel(axis_title)
