"""The plot of an experiment: the paper's numbers above, ours below, one column per measure."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from imsvd.figures import LINES, PALETTE, STYLE
from imsvd.files import write_atomically
from imsvd.reproduction.markdown import in_order

MOST_ACROSS = 4
"""Panels side by side."""

INK = "#404040"

Cell = Mapping[str, Any]
"""As in result.json."""
Look = tuple[str, str]
"""Color and style of a line."""


class Panel(NamedTuple):
    """The cells of one measure, and whether its columns or its rows lie side by side."""

    cells: list[Cell]
    across: Literal["column", "row"]

    @property
    def along(self) -> str:
        """What has a line of its own: the other of the two."""
        return "row" if self.across == "column" else "column"

    @property
    def places(self) -> list[str]:
        """What lies side by side, from left to right."""
        return in_order(cell[self.across] for cell in self.cells)

    @property
    def series(self) -> list[str]:
        """The names of the lines."""
        return list(dict.fromkeys(cell[self.along] for cell in self.cells))

    def line(self, name: str) -> list[Cell]:
        """The cells of a series, from left to right."""
        cells = [cell for cell in self.cells if cell[self.along] == name]
        return sorted(cells, key=lambda cell: self.places.index(cell[self.across]))


def draw_result(content: Mapping[str, Any], path: Path) -> None:
    """Draw the cells of a result, as far as they are there."""
    panels = make_panels(content["cells"])
    longest = max(panels, key=lambda panel: len(panel.series))
    lines = math.ceil(len(panels) / MOST_ACROSS)
    across = min(len(panels), MOST_ACROSS)
    places = max(len(panel.places) for panel in panels)
    width = max(2.8 if across > 1 else 4.0, 0.55 * places + 0.8)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(across * width + 0.8, 5.0 * lines), layout="constrained")
        axes = figure.subplots(2 * lines, across, squeeze=False)
        for number in range(lines * across):
            above, below = (axes[2 * (number // across) + k][number % across] for k in (0, 1))
            if number < len(panels):
                panel = panels[number]
                # A color of the legend would name a line that stands alone after another panel's.
                alone = len(panel.series) == 1 < len(longest.series)
                looks = [(INK, "-")] if alone else [_look(k) for k in range(len(panel.series))]
                _draw(above, panel, content["axis"], looks, paper=True)
                _draw(below, panel, content["axis"], looks, paper=False)
            else:
                above.set_axis_off()
                below.set_axis_off()
        if len(longest.series) > 1:
            place = panels.index(longest)
            axis = axes[2 * (place // across)][place % across]
            handles, labels = axis.get_legend_handles_labels()
            figure.legend(handles, labels, loc="outside right center", frameon=False)
        picture = io.BytesIO()
        figure.savefig(picture, format="png", dpi=120)
    write_atomically(path, picture.getvalue())


def make_panels(cells: Sequence[Cell]) -> list[Panel]:
    """Sort cells by measure; one that spans several columns is drawn over them, else over rows."""
    by_measure: dict[str, list[Cell]] = {}
    for cell in cells:
        by_measure.setdefault(cell["measure"], []).append(cell)
    return [
        Panel(members, "column" if len({cell["column"] for cell in members}) > 1 else "row")
        for members in by_measure.values()
    ]


def _draw(axis: Axes, panel: Panel, unit: str, looks: Sequence[Look], *, paper: bool) -> None:
    places = panel.places
    for look, name in zip(looks, panel.series, strict=True):
        cells = [
            cell for cell in panel.line(name) if cell["paper" if paper else "mean"] is not None
        ]
        _draw_series(axis, panel, cells, look, name, paper=paper)
    settings = {cell[panel.across]: cell["setting"] for cell in panel.cells}
    labels = [place if paper else settings[place] or place for place in places]
    crowded = max(map(len, labels)) > 6
    axis.set_xticks(
        range(len(places)),
        labels,
        rotation=40 if crowded else 0,
        ha="right" if crowded else "center",
        rotation_mode="anchor",
    )
    axis.set_xlim(-0.5, len(places) - 0.5)
    axis.grid(visible=True, axis="y", color="#e5e5e5", linewidth=0.8)
    first = panel.cells[0]
    axis.set_title(f"paper: {first['paper_measure']}" if paper else f"here: {first['measure']}")
    if panel.across == "column" and paper:
        axis.set_xlabel(unit)


def _draw_series(
    axis: Axes,
    panel: Panel,
    cells: Sequence[Cell],
    look: Look,
    name: str,
    *,
    paper: bool,
) -> None:
    color, line = look
    places = [panel.places.index(cell[panel.across]) for cell in cells]
    values = [cell["paper" if paper else "mean"] for cell in cells]
    deviations = [0.0 if paper else cell["sd"] or 0.0 for cell in cells]
    axis.errorbar(
        places,
        values,
        yerr=deviations if any(deviations) else None,
        color=color,
        # Methods side by side have no order, and a line between them would claim one.
        linestyle=line if panel.across == "column" else "none",
        marker="o",
        markersize=4,
        capsize=2,
        label=name,
    )
    if not paper:
        for cell, place in zip(cells, places, strict=True):
            _draw_runs(axis, cell, place, color)


def _draw_runs(axis: Axes, cell: Cell, place: int, color: str) -> None:
    """Every seed as a small pale dot beside the mean."""
    values = [run["value"] for run in cell["runs"] if run["value"] is not None]
    if len(values) > 1:
        axis.plot([place + 0.12] * len(values), values, ".", color=color, alpha=0.5, markersize=4)


def _look(number: int) -> Look:
    return PALETTE[number % len(PALETTE)], LINES[number // len(PALETTE) % len(LINES)]
