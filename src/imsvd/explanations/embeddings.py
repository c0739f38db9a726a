"""Two augmented views of a few images, and the units that the first variables take in them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from imsvd.errors import InputError
from imsvd.explanations.sections import (
    Findings,
    Part,
    Section,
    join,
    named,
    paragraph,
    percent,
)
from imsvd.explanations.subject import Collector, Progress, ReadBatch, Subject
from imsvd.figures import PALETTE, STYLE, save_figure
from imsvd.information import split_variables

VARIABLES = 10
IMAGES = 3


class PairSample(Collector):
    """The first readable images of a small, evenly spaced sample, each in two views."""

    name = "pairs"
    sample = 4 * IMAGES  # more than needed, as some may be unreadable
    uses_views = True

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        size, width = subject.views.views[0].size, sum(subject.units)
        self.rows = {
            "images": [np.empty(0, dtype=np.int64)],
            "views": [np.empty((0, 2, size, size, 3), dtype=np.float32)],
            "q": [np.empty((0, 2, width), dtype=np.float32)],
        }

    def take(self, batch: ReadBatch) -> None:
        """Take pairs until there are enough."""
        rows = self.wanted_rows(batch)[: IMAGES - len(self.joined("images"))]
        encoder = self.subject.encoder
        shown = [(view[rows] * encoder.std + encoder.mean).clamp(0, 1) for view in batch.views]
        self.rows["images"].append(np.array(batch.indices, dtype=np.int64)[rows])
        self.rows["views"].append(torch.stack(shown, 1).permute(0, 1, 3, 4, 2).cpu().numpy())
        self.rows["q"].append(torch.stack(batch.view_q, 1)[rows].cpu().numpy())


def _make(subject: Subject, sample: PairSample, _: Progress) -> dict[str, Any]:
    images = sample.joined("images").tolist()
    if not images:
        raise InputError(
            f"none of {PairSample.sample} sampled images can be read; leave out `embeddings` with --only."
        )
    q = torch.from_numpy(sample.joined("q"))
    variables = split_variables(q, subject.units)[:VARIABLES]
    taken = torch.stack([part.argmax(-1) for part in variables], -1)
    agree = (taken[:, 0] == taken[:, 1]).numpy()
    path = subject.folder / "embeddings.png"
    draw_embeddings(sample.joined("views"), _padded(variables), agree, path)
    paths = [subject.source.identity(index) for index in images]
    return {"paths": paths, "agreement_of_those_drawn": float(agree.mean())}


def _padded(variables: Sequence[Tensor]) -> NDArray[np.float32]:
    """Stack the variables' q, (images, views, variables, units), NaN beyond a variable's units."""
    most = max(part.shape[-1] for part in variables)
    padded = [pad(part, (0, most - part.shape[-1]), value=torch.nan) for part in variables]
    stacked: NDArray[np.float32] = torch.stack(padded, 2).numpy()
    return stacked


@mpl.rc_context(STYLE)
def draw_embeddings(
    views: NDArray[np.float32], q: NDArray[np.float32], agree: NDArray[np.bool_], path: Path
) -> Path:
    """Draw two views of each image and the probabilities of the first variables, one per row."""
    figure = Figure(figsize=(10, 2.75 * len(views) + 0.5), layout="constrained")
    axes = figure.subplots(len(views), 4, squeeze=False, width_ratios=(1, 1, 2.2, 2.2))
    shown: Any = None
    for row, pair, heats, same in zip(axes, views, q, agree, strict=True):
        for number, which in enumerate(("first view", "second view")):
            row[number].imshow(pair[number], interpolation="nearest")
            row[number].set_title(which)
            row[number].set_axis_off()
            heat = row[2 + number]
            shown = heat.imshow(
                heats[number],
                vmin=0,
                vmax=1,
                cmap="viridis",
                aspect="auto",
                interpolation="nearest",
            )
            heat.set_title(f"q of the {which}")
            heat.set_yticks(range(len(same)))
            heat.set_xlabel("unit")
            heat.xaxis.set_major_locator(MaxNLocator(integer=True))
        row[2].set_ylabel("variable")
        _mark_agreement(row[3], same)
    figure.colorbar(shown, ax=axes[:, 3], label="q")
    figure.suptitle("one row per variable; = if both views take the same unit, ≠ if not")
    return save_figure(figure, path)


def _mark_agreement(axis: Axes, agree: NDArray[np.bool_]) -> None:
    axis.set_yticks(range(len(agree)), ["=" if same else "≠" for same in agree])
    axis.tick_params(axis="y", length=0, labelsize=11)
    for label, same in zip(axis.get_yticklabels(), agree, strict=True):
        label.set_color(PALETTE[0] if same else PALETTE[1])
        label.set_fontweight("bold")


def _section(findings: Findings) -> Section | None:
    headline = findings.summary["parts"].get("embeddings")
    if headline is None:
        return None
    agreement = percent(headline["agreement_of_those_drawn"], 0)
    drawn = findings.figure(
        "embeddings",
        f"Images and heat maps: two augmented views of {len(headline['paths'])} images and the "
        "probability of every unit of the first variables in both views; "
        f"{agreement} of the variables take the same unit.",
        "Images: ",
        join([named(path) for path in headline["paths"]], ", "),
        ".",
    )
    lead = (
        "Each row of a heat map is a variable; the bright cell is the unit it takes. Ideally, both "
        f"maps of an image are the same. Here {agreement} of the variables shown agree."
    )
    return None if drawn is None else [paragraph(lead), drawn]


PART = Part(
    title="Two views of an image",
    files=("embeddings.png",),
    reads=PairSample,
    make=_make,
    section=_section,
    method=(
        "Two views",
        "A few images, evenly spaced over the data, each in two views made by the training's "
        "augmentation. q is the probability of each unit.",
    ),
)
