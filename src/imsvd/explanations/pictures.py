"""Draws what the other modules measured; every figure is written complete or not at all."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from imsvd.figures import CURVE, PALETTE, STYLE
from imsvd.files import write_atomically

AGREES, DIFFERS = PALETTE[0], PALETTE[1]
GRAY = "#999999"
_CLIP = 0.1
_HEATMAP_VARIABLES = 24


def _save(figure: Figure, path: Path, dpi: int = 150) -> Path:
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=dpi)
    write_atomically(path, picture.getvalue())
    return path


@mpl.rc_context(STYLE)
def draw_joint(matrix: NDArray[np.float64], sizes: Sequence[int], images: int, path: Path) -> Path:
    """Draw P^c of the first variables, clipped at a tenth of its maximum as in the paper.

    Variables of fewer than 20 units are clipped at twice the even share 1 / D² instead, which the
    paper's rule would not tell from larger values.
    """
    figure = Figure(figsize=(6.2, 5.4), layout="constrained")
    axis = figure.subplots()
    tenth, even = _CLIP * float(matrix.max()), 2 / min(sizes) ** 2
    rule = "0.1 × its maximum" if tenth >= even else "twice the even share"
    top = max(tenth, even)
    shown = axis.imshow(matrix, vmin=0, vmax=top, cmap="viridis", interpolation="nearest")
    edges = np.cumsum((0, *sizes))
    for edge in edges[1:-1]:
        axis.axhline(edge - 0.5, color="white", linewidth=0.5)
        axis.axvline(edge - 0.5, color="white", linewidth=0.5)
    centers = (edges[:-1] + edges[1:] - 1) / 2
    axis.set_xticks(centers, [str(number) for number in range(len(sizes))])
    axis.set_yticks(centers, [str(number) for number in range(len(sizes))])
    axis.tick_params(length=0)
    axis.set(xlabel="variable, second view", ylabel="variable, first view")
    axis.set_title(f"joint probability of the units of {len(sizes)} variables ({images:,} images)")
    figure.colorbar(shown, ax=axis, extend="max", label=f"P, clipped at {rule}")
    return _save(figure, path)


@mpl.rc_context(STYLE)
def draw_mutual_information(information: NDArray[np.float64], floor: float, path: Path) -> Path:
    """Draw the information shared by every two variables, and how it is distributed."""
    figure = Figure(figsize=(10, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.15, 1))
    count = len(information)
    off = information[~np.eye(count, dtype=bool)]
    masked = np.where(np.eye(count, dtype=bool), np.nan, information)
    colors = mpl.colormaps["viridis"].with_extremes(bad="#dddddd")
    top = float(off.max()) if off.size else 1.0
    shown = left.imshow(masked, cmap=colors, vmin=0, vmax=top, interpolation="nearest")
    for axis in (left.xaxis, left.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    left.set(xlabel="variable, second view", ylabel="variable, first view")
    left.set_title("mutual information of two variables")
    figure.colorbar(shown, ax=left, label="nats")
    if off.size:
        right.hist(off, bins=40, color=CURVE)
        right.axvline(float(off.mean()), color=DIFFERS, label=f"mean {off.mean():.3g}")
    right.axvline(
        floor, color="black", linestyle="--", label=f"independent, so few images: {floor:.2g}"
    )
    right.set(xlabel="mutual information, nats", ylabel="pairs of variables", xlim=(0, None))
    own = float(np.diagonal(information).mean())
    right.set_title(f"a variable with itself in the other view: {own:.3g} nats")
    right.legend(framealpha=1, edgecolor="none")
    return _save(figure, path)


class PairPicture(NamedTuple):
    """Two views of an image, (height, width, 3) each in [0, 1], and their q of some variables."""

    views: tuple[NDArray[np.float64], NDArray[np.float64]]
    probabilities: tuple[list[NDArray[np.float64]], list[NDArray[np.float64]]]


@mpl.rc_context(STYLE)
def draw_embeddings(pairs: Sequence[PairPicture], path: Path) -> Path:
    """Draw two views of each image, and which units the first variables take in them."""
    figure = Figure(figsize=(10, 2.75 * len(pairs) + 0.5), layout="constrained")
    axes = figure.subplots(len(pairs), 4, squeeze=False, width_ratios=(1, 1, 2.2, 2.2))
    shown: Any = None
    for row, pair in zip(axes, pairs, strict=True):
        for axis, view, title in zip(
            row[:2], pair.views, ("first view", "second view"), strict=True
        ):
            axis.imshow(view, interpolation="nearest")
            axis.set_title(title)
            axis.set_axis_off()
        for axis, parts, title in zip(
            row[2:],
            pair.probabilities,
            ("q of the first view", "q of the second view"),
            strict=True,
        ):
            shown = axis.imshow(
                _stack_padded(parts),
                vmin=0,
                vmax=1,
                cmap="viridis",
                aspect="auto",
                interpolation="nearest",
            )
            axis.set_title(title)
            axis.set_yticks(range(len(parts)))
            axis.set_xlabel("unit")
            axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        row[2].set_ylabel("variable")
        _mark_agreement(row[3], pair)
    figure.colorbar(shown, ax=axes[:, 3], label="q")
    figure.suptitle("one row per variable; = where both views take the same unit, ≠ where not")
    return _save(figure, path)


def _stack_padded(parts: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Variables as rows; those with fewer units end in nothing."""
    stacked = np.full((len(parts), max(len(part) for part in parts)), np.nan)
    for row, part in zip(stacked, parts, strict=True):
        row[: len(part)] = part
    return stacked


def _mark_agreement(axis: Axes, pair: PairPicture) -> None:
    first, second = pair.probabilities
    agree = [int(a.argmax()) == int(b.argmax()) for a, b in zip(first, second, strict=True)]
    axis.set_yticks(range(len(agree)), ["=" if same else "≠" for same in agree])
    axis.tick_params(axis="y", length=0, labelsize=11)
    for label, same in zip(axis.get_yticklabels(), agree, strict=True):
        label.set_color(AGREES if same else DIFFERS)
        label.set_fontweight("bold")


@mpl.rc_context(STYLE)
def draw_discreteness(record: Mapping[str, Any], shares: NDArray[np.float64], path: Path) -> Path:
    """Draw how sure the codes are, how evenly units are used, and the bits they hold."""
    figure = Figure(figsize=(12, 3.4), layout="constrained")
    sure, use, bits = figure.subplots(1, 3, width_ratios=(1.2, 1.2, 1))
    counts = np.array(record["histogram"], dtype=np.float64)
    places = (np.arange(len(counts)) + 0.5) / len(counts)
    sure.bar(places, 100 * counts / counts.sum(), width=1 / len(counts), color=CURVE)
    sure.set(xlabel="largest q of a variable", ylabel="share of sub-vectors, %", xlim=(0, 1))
    above = [100 * record[f"share_above_{level}"] for level in ("0.9", "0.99")]
    paper = [100 * record[f"paper_share_above_{level}"] for level in ("0.9", "0.99")]
    sure.set_title(
        f"above 0.9: {above[0]:.1f} %, above 0.99: {above[1]:.1f} %\n"
        f"(the paper's ImageNet model: {paper[0]:.2f} %, {paper[1]:.2f} %)"
    )
    use.hist(shares, bins=50, color=CURVE)
    use.axvline(1, color="black", linestyle="--", label="even use")
    use.set(xlabel="mean q of a unit / even share", ylabel="units", xlim=(0, None))
    use.set_title(
        f"{record['dead_units']} dead and {record['overused_units']} over-used\n"
        f"of {record['units']:,} units"
    )
    use.legend(frameon=False)
    _draw_bits(bits, record)
    return _save(figure, path)


def _draw_bits(axis: Axes, record: Mapping[str, Any]) -> None:
    names = {
        "capacity": "capacity",
        "sum_of_variables": "variables alone",
        "upper": "at most",
        "lower": "at least",
    }
    values = [record["bits"][name] for name in names]
    bars = axis.barh(range(len(names)), values, color=[GRAY, PALETTE[5], CURVE, CURVE])
    axis.bar_label(bars, fmt="%.1f", padding=2, fontsize=8)
    axis.set_yticks(range(len(names)), list(names.values()))
    axis.invert_yaxis()
    axis.margins(x=0.18)
    axis.set(xlabel="bits per code")
    axis.set_title(f"{record['distinct_codes']:,} distinct codes\nof {record['images']:,} images")


class UnitMaps(NamedTuple):
    """A unit's best images, (height, width, 3) uint8 each, and their maps (height, width)."""

    title: str
    images: list[NDArray[np.uint8]]
    maps: list[NDArray[np.float64]]


@mpl.rc_context(STYLE)
def draw_grad_cam(units: Sequence[UnitMaps], path: Path) -> Path:
    """Draw each unit's best images, and below each of them where its evidence is."""
    columns = max(len(unit.images) for unit in units)
    figure = Figure(figsize=(1.1 * columns + 0.6, 2.5 * len(units) + 0.3), layout="constrained")
    panels: Any = figure.subfigures(len(units), 1, squeeze=False)
    for panel, unit in zip(panels[:, 0], units, strict=True):
        panel.suptitle(unit.title, fontsize=9, x=0.01, ha="left")
        axes = panel.subplots(2, columns, squeeze=False)
        for axis in axes.flat:
            axis.set_axis_off()
        for number, (image, evidence) in enumerate(zip(unit.images, unit.maps, strict=True)):
            axes[0, number].imshow(image, interpolation="lanczos")
            # Gray below the map, so that its colors are the map's alone.
            axes[1, number].imshow(image.mean(2), cmap="gray", vmin=0, vmax=255)
            axes[1, number].imshow(evidence, cmap="inferno", vmin=0, vmax=1, alpha=0.6)
    return _save(figure, path)


@mpl.rc_context(STYLE)
def draw_faithfulness(
    falls: Mapping[str, tuple[NDArray[np.float64], NDArray[np.float64]]],
    records: Mapping[str, Mapping[str, Any]],
    path: Path,
) -> Path:
    """Draw for each way of removing how far q falls for highlighted and for random regions."""
    figure = Figure(figsize=(4.6 * len(falls), 3.5), layout="constrained")
    axes = figure.subplots(1, len(falls), squeeze=False, sharey=True)[0]
    for axis, (fill, (highlighted, moved)) in zip(axes, falls.items(), strict=True):
        record = records[fill]
        axis.set_title(f"replaced by {'mean color' if fill == 'mean' else 'a blur'}")
        if not len(highlighted):
            axis.set_axis_off()
            continue
        levels = np.linspace(0, 100, 101)
        for values, color, label in (
            (highlighted, DIFFERS, "highlighted region"),
            (moved, GRAY, "the same region elsewhere"),
        ):
            axis.plot(levels, np.percentile(values, levels), color=color, linewidth=2, label=label)
        low, high = record["difference_95"]
        axis.set_xlabel(
            f"percentile of {record['images']} images\n"
            f"mean difference {record['difference']:.3f}, 95 % [{low:.3f}, {high:.3f}]"
        )
        axis.axhline(0, color="black", linewidth=0.6)
        axis.legend(frameon=False, loc="upper left")
    axes[0].set_ylabel("fall of the unit's q")
    return _save(figure, path)


@mpl.rc_context(STYLE)
def draw_meaning(record: Mapping[str, Any], path: Path) -> Path:
    """Draw the best variable of every attribute against luck, and the most specialized variables."""
    attributes: Mapping[str, Any] = record["attributes"]
    table = np.array([attribute["nmi"] for attribute in attributes.values()])
    names = [name.replace("_", " ") for name in attributes]
    height = 1.4 + 0.38 * len(names)
    figure = Figure(figsize=(11, max(2.6, height)), layout="constrained")
    bars, heat = figure.subplots(1, 2, width_ratios=(1, 1.9))
    places = range(len(names))
    drawn = bars.barh(places, table.max(1), color=CURVE, label="best variable")
    bars.bar_label(drawn, fmt="%.2f", padding=2, fontsize=7)
    baselines = [attribute["baseline"] for attribute in attributes.values()]
    bars.plot(baselines, places, "|", color="black", markersize=12, label="by luck")
    bars.set_yticks(places, names)
    bars.invert_yaxis()
    bars.set(xlabel="normalized mutual information", xlim=(0, 1.1))
    bars.legend(frameon=False, ncols=2, loc="lower left", bbox_to_anchor=(0, 1))
    order = np.argsort(-table.max(0), kind="stable")[:_HEATMAP_VARIABLES]
    order = order[np.argsort(table[:, order].argmax(0), kind="stable")]
    top = max(0.1, math.ceil(10 * float(table.max())) / 10)
    shown = heat.imshow(table[:, order], cmap="viridis", vmin=0, vmax=top, aspect="auto")
    heat.set_yticks(places, names)
    heat.set_xticks(range(len(order)), [str(number) for number in order], fontsize=7)
    heat.set(xlabel="variable")
    heat.set_title(f"the {len(order)} most specialized variables")
    figure.colorbar(shown, ax=heat, label="NMI")
    return _save(figure, path)
