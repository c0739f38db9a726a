"""Figures of the theory pages, drawn from the package's own loss: python -m website.theory docs/images."""

import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from imsvd.information import cross_joint, pairwise_mutual_information, soft_discretize
from imsvd.losses.imsvd import IMSVDLoss

BLUE, RED, GREEN, GRAY = "#1f5faa", "#c0392b", "#2e9e4f", "#8a8f98"
SHARP = 200.0
"""A logit that leaves no doubt."""


def draw_all(folder: Path) -> list[Path]:
    """Draw every figure into `folder` and return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    mpl.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    figures = {
        "theory-states": _states(),
        "theory-sharpness": _sharpness(),
        "theory-batches": _batches(),
    }
    files = []
    for name, figure in figures.items():
        files.append(folder / f"{name}.png")
        figure.savefig(files[-1], dpi=160, facecolor="white", metadata={"Software": None})
    return files


def logits_of(codes: Tensor, units: int, scale: float = SHARP) -> Tensor:
    """Return logits `(batch, variables x units)` in which the unit of each code is ahead by `scale`."""
    hot = torch.nn.functional.one_hot(codes, units).double()
    return (scale * hot).flatten(1)


def all_combinations(variables: int, units: int) -> Tensor:
    """Return one code for every combination of units: even and independent variables."""
    axes = torch.meshgrid(*[torch.arange(units)] * variables, indexing="ij")
    return torch.stack([axis.flatten() for axis in axes], 1)


def _states() -> Figure:
    """The joint matrix of three variables of four units in five states, with the terms of the loss."""
    units = 4
    ideal = all_combinations(3, units)
    copies = ideal[:, :1].expand(-1, 3)
    shuffled = ideal[torch.randperm(len(ideal), generator=torch.Generator().manual_seed(0))]
    states = {
        "collapsed": (logits_of(ideal * 0, units),) * 2,
        "uniform": (torch.zeros(64, 12, dtype=torch.float64),) * 2,
        "copies": (logits_of(copies, units),) * 2,
        "views disagree": (logits_of(ideal, units, 4.0), logits_of(shuffled, units, 4.0)),
        "ideal": (logits_of(ideal, units),) * 2,
    }
    figure = Figure(figsize=(9.6, 2.75), layout="constrained")
    for axes, (name, views) in zip(figure.subplots(1, 5), states.items(), strict=True):
        matrix = cross_joint(*(soft_discretize(view, units) for view in views))
        axes.imshow(matrix.sqrt(), cmap="Blues", vmin=0, vmax=0.6)
        _outline(axes, units, 3)
        output = IMSVDLoss(units)(*views)
        terms = [round(float(value), 2) + 0.0 for value in output.terms.values()]
        axes.set_title(name, fontweight="bold")
        axes.set_xlabel(
            "TI {:.2f}  DE {:.2f}\nOE {:.2f}  loss {:.2f}".format(*terms, sum(terms)), fontsize=8
        )
    return figure


def _outline(axes: Axes, units: int, variables: int) -> None:
    """Draw the blocks; hatch the cells that take no part in the loss."""
    axes.set_xticks([])
    axes.set_yticks([])
    for cell in range(variables * units):
        for other in range(cell // units * units, cell // units * units + units):
            if other != cell:
                place = (other - 0.5, cell - 0.5)
                unused = Rectangle(place, 1, 1, fill=False, hatch="////", ec="#c9ccd1", lw=0)
                axes.add_patch(unused)
    for edge in range(variables + 1):
        axes.axhline(edge * units - 0.5, color=GRAY, linewidth=0.8)
        axes.axvline(edge * units - 0.5, color=GRAY, linewidth=0.8)
    axes.spines[:].set_visible(False)


def _sharpness() -> Figure:
    """The terms while independent variables, or copies of one, become decided."""
    units, scales = 8, np.linspace(0, 12, 61)
    ideal = all_combinations(2, units)
    figure = Figure(figsize=(9.6, 2.7), layout="constrained")
    bounds = IMSVDLoss(units).bounds(batch_size=len(ideal), width=2 * units)
    titles = {
        "invariance": "invariance (TI)",
        "diagonal_entropy": "diagonal entropy (DE)",
        "off_diagonal_entropy": "off-diagonal entropy (OE)",
    }
    curves = {"independent variables": (ideal, BLUE), "copies": (ideal[:, :1].expand(-1, 2), RED)}
    for axes, (term, title) in zip(figure.subplots(1, 3), titles.items(), strict=True):
        for label, (codes, color) in curves.items():
            views = (logits_of(codes, units, scale) for scale in scales)
            values = [float(IMSVDLoss(units)(view, view).terms[term]) for view in views]
            style = {"linestyle": "-" if color == BLUE else "--", "linewidth": 2}
            axes.plot(scales, values, color=color, label=label, **style)
        axes.axhline(getattr(bounds.ideal, term), color=GREEN, linewidth=1, label="ideal")
        axes.set_title(title)
        axes.set_xlabel("lead of the chosen unit's logit")
        axes.set_ylabel("nats")
    figure.axes[0].legend(frameon=False)
    return figure


def _batches() -> Figure:
    """What N images can show of variables that are even and independent."""
    sizes = np.unique(np.logspace(1.5, 4.5, 25).astype(int))
    figure = Figure(figsize=(9.6, 3.0), layout="constrained")
    left, right = figure.subplots(1, 2)
    for units, color in ((8, GREEN), (32, BLUE), (80, RED)):
        entropies, shared = zip(*(_seen(units, int(size)) for size in sizes), strict=True)
        left.plot(sizes, entropies, color=color, linewidth=2, label=f"{units} units")
        left.axhline(2 * np.log(units), color=color, linewidth=0.8, linestyle=":")
        right.loglog(sizes, shared, color=color, linewidth=2, label=f"{units} units")
        right.loglog(sizes, (units - 1) ** 2 / (2 * sizes), color=color, linewidth=0.8, ls=":")
    left.semilogx(sizes, np.log(sizes), color="black", linewidth=1, linestyle="--")
    left.annotate("ln N", (9000, 9.35), fontsize=9)
    left.set(xlabel="images in the batch, N", ylabel="nats", ylim=(2, 10))
    left.set_title("joint entropy of two variables; dotted: the truth, 2 ln D")
    right.set(xlabel="images in the batch, N", ylabel="nats", ylim=(1e-3, 10))
    right.set_title("information they seem to share; dotted: (D − 1)² / 2N")
    left.legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 0.27))
    return figure


def _seen(units: int, images: int, draws: int = 20) -> tuple[float, float]:
    """Return mean joint entropy and mutual information of two independent variables in `images`."""
    generator = torch.Generator().manual_seed(images)
    entropies, shared = [], []
    for _ in range(draws):
        codes = torch.randint(units, (images, 2), generator=generator)
        q = torch.nn.functional.one_hot(codes, units).double().flatten(1)
        information = pairwise_mutual_information(q, units)
        shared.append(float(information[0, 1]))
        entropies.append(float(information.diagonal().sum()) - shared[-1])
    return float(np.mean(entropies)), float(np.mean(shared))


if __name__ == "__main__":
    for file in draw_all(Path(sys.argv[1])):
        sys.stdout.write(f"{file}\n")
