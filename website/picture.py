"""The picture of README.md, from an index of labeled images: python -m website.picture INDEX FILE.png.

The labels choose which units to show; the codes were made without them.
"""

import sys
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

from imsvd import Index

COLORS = ListedColormap(["#e3e9f6", "#9fb4e0", "#4f73bd", "#1d3a7a"])
"""One for each unit of a variable."""
KINDS, IMAGES, FEWEST = 5, 9, 150


def draw(index: Index, file: Path) -> None:
    """Draw images, their codes, and what three units together find."""
    random = np.random.default_rng(3)
    codes, paths = np.asarray(index.codes()), np.array([str(path) for path in index.paths])
    labels = np.array([Path(path).parent.name for path in paths])
    figure = Figure(figsize=(10, 3.9))
    figure.text(0.012, 0.93, "1   Images, no labels", weight="bold", fontsize=11)
    _show(figure, random.choice(paths, 24, replace=False), (0.012, 0.03, 0.205, 0.86), columns=4)
    figure.text(0.255, 0.93, "2   A discrete code for each", weight="bold", fontsize=11)
    figure.text(0.60, 0.93, "3   Three units together find …", weight="bold", fontsize=11)
    kinds = random.choice(np.unique(labels), KINDS, replace=False)
    for row, kind in enumerate(kinds):
        bottom = 0.03 + (KINDS - 1 - row) * 0.178
        units, found = _find(codes, labels == kind)
        example = random.choice(np.flatnonzero(found & (labels == kind)))
        _show(figure, paths[[example]], (0.255, bottom, 0.055, 0.141), columns=1)
        _code(figure.add_axes((0.318, bottom, 0.235, 0.141)), codes[example], units)
        shown = random.choice(paths[found], IMAGES, replace=False)
        _show(figure, shown, (0.60, bottom, 0.395, 0.112), columns=IMAGES)
        query = " & ".join(f"{variable}.{unit}" for variable, unit in units)
        share = np.mean(labels[found] == kind)
        figure.text(0.60, bottom + 0.121, query, fontsize=7.5, family="monospace")
        text = f"{np.count_nonzero(found)} images, {share:.0%} {kind}"
        figure.text(0.995, bottom + 0.121, text, fontsize=7.5, ha="right", color="#555")
    figure.savefig(file, dpi=150, facecolor="white", metadata={"Software": None})


def _find(
    codes: NDArray[np.uint8], wanted: NDArray[np.bool_]
) -> tuple[list[tuple[int, int]], NDArray[np.bool_]]:
    """Return three units that together have the largest share of wanted images, and who takes them."""
    found, units = np.ones(len(codes), bool), []
    for _ in range(3):
        choices = {}
        for variable in range(codes.shape[1]):
            for unit in np.unique(codes[:, variable]):
                taken = found & (codes[:, variable] == unit)
                if taken.sum() >= FEWEST:
                    share = np.mean(wanted[taken]) * np.log(taken.sum())
                    choices[variable, int(unit)] = float(share)
        best = max(choices, key=choices.__getitem__)
        found = found & (codes[:, best[0]] == best[1])
        units.append(best)
    return units, found


def _show(
    figure: Figure, paths: NDArray[np.str_], place: tuple[float, float, float, float], columns: int
) -> None:
    """Show images in rows within `place`: left, bottom, width, height."""
    left, bottom, width, height = place
    rows = -(-len(paths) // columns)
    for position, path in enumerate(paths):
        row, column = divmod(position, columns)
        corner = left + column * width / columns, bottom + (rows - 1 - row) * height / rows
        axes = figure.add_axes((*corner, 0.93 * width / columns, 0.95 * height / rows))
        axes.imshow(Image.open(path).convert("RGB").resize((96, 96), Image.Resampling.LANCZOS))
        axes.axis("off")


def _code(axes: Axes, code: NDArray[np.uint8], units: list[tuple[int, int]]) -> None:
    """Draw a code as two rows of cells; frame the units that are searched for."""
    half = len(code) // 2
    axes.pcolormesh(code.reshape(2, half), cmap=COLORS, vmin=0, vmax=3, edgecolors="white", lw=1)
    axes.invert_yaxis()
    axes.axis("off")
    for variable, _ in units:
        row, column = divmod(variable, half)
        axes.plot(
            np.array([0, 1, 1, 0, 0]) * 1.0 + column,
            np.array([0, 0, 1, 1, 0]) * 1.0 + row,
            color="#d9822b",
            linewidth=1.6,
            clip_on=False,
            zorder=3,
        )


if __name__ == "__main__":
    draw(Index(sys.argv[1]), Path(sys.argv[2]))
