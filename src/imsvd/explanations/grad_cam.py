"""Grad-CAM (https://arxiv.org/abs/1610.02391) of a single unit: where in the image its evidence is.

The gradient of the unit's score with respect to the last spatial features weights their channels;
the positive part of the weighted sum is the map. In a convolutional network these are the features
before pooling. In a vision transformer they are the patch tokens that enter the last block: after it,
only the class token reaches the output.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import matplotlib as mpl
import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor, nn

from imsvd.datasets import UnreadableImage
from imsvd.encoder import Encoder
from imsvd.errors import InputError
from imsvd.explanations.encodings import Encodings, EncodingsCollector, Pictures
from imsvd.explanations.sections import Findings, Part, Section, paragraph
from imsvd.explanations.subject import Progress, Subject
from imsvd.figures import STYLE, save_figure

UNITS_DRAWN = 6
IMAGES_DRAWN = 8

Target = Literal["log_probability", "logit"]


def grad_cam(
    encoder: Encoder, images: Tensor, places: Tensor, target: Target = "log_probability"
) -> Tensor:
    """Return maps of the evidence for one unit per image, (batch, height, width) in [0, 1].

    Each map is scaled to a maximum of 1 before it is enlarged to the image's size; a map without
    positive evidence is 0 everywhere.

    Args:
        encoder: in evaluation mode, so that images do not influence one another.
        images: (batch, 3, height, width), normalized.
        places: (batch,) the unit of each image, counted over all variables.
        target: the score to differentiate. Unlike a logit, the log-probability does not change when
            a constant is added to all logits of a variable. It is differentiated through the
            log-odds: ∇ log q = (1 − q) ∇ log (q / (1 − q)) gives the same map after scaling, while
            1 − q loses all digits for a confident unit.
    """
    if target not in get_args(Target):
        raise InputError(f"target = {target!r}: choose one of {get_args(Target)}.")
    with torch.enable_grad():
        maps, features = _maps_and_features(encoder.backbone, images.detach().requires_grad_())
        scores = encoder.projector(features)
        chosen = scores.gather(1, places[:, None])[:, 0]
        if target == "log_probability":
            chosen = chosen - _log_sum_of_others(scores, places, encoder.description.units)
        (gradient,) = torch.autograd.grad(chosen.sum(), maps)
    grid_maps = _as_grid(encoder.backbone, maps.detach())
    weights = _as_grid(encoder.backbone, gradient).mean((2, 3), keepdim=True)
    evidence = (weights * grid_maps).sum(1, keepdim=True).relu()
    largest = evidence.amax((2, 3), keepdim=True)
    scaled = evidence / largest.clamp_min(torch.finfo(evidence.dtype).tiny)
    size = images.shape[-2:]
    return F.interpolate(scaled, size=size, mode="bilinear", align_corners=False)[:, 0]


def _log_sum_of_others(scores: Tensor, places: Tensor, units: Sequence[int]) -> Tensor:
    """Return log Σ exp over the other units of each place's variable, (batch,)."""
    sizes = torch.tensor(units, device=scores.device)
    variables = torch.arange(len(units), device=scores.device).repeat_interleave(sizes)
    others = variables[places][:, None] == variables[None]
    others.scatter_(1, places[:, None], False)
    return scores.masked_fill(~others, -torch.inf).logsumexp(1)


def _is_transformer(backbone: nn.Module) -> bool:
    return hasattr(backbone, "num_prefix_tokens") and hasattr(backbone, "blocks")


def _maps_and_features(backbone: nn.Module, images: Tensor) -> tuple[Tensor, Tensor]:
    """Return the last spatial features and the pooled features computed from them."""
    network: Any = backbone
    if not _is_transformer(backbone):
        if not hasattr(network, "forward_features"):
            return _last_maps(backbone, images)
        # Below the maps, a graph would only hold the memory of every layer.
        with torch.no_grad():
            maps = network.forward_features(images)
        maps.requires_grad_()
        return maps, network.forward_head(maps)
    caught: list[Tensor] = []
    handle = network.blocks[-1].register_forward_pre_hook(
        lambda _, inputs: caught.append(inputs[0])
    )
    try:
        features = network(images)
    finally:
        handle.remove()
    return caught[0], features


def _last_maps(backbone: nn.Module, images: Tensor) -> tuple[Tensor, Tensor]:
    """Return the last spatial output of any layer of a network that does not name one, and the features."""
    caught: list[Tensor] = []

    def catch(_: nn.Module, __: Any, output: Any) -> None:
        if isinstance(output, Tensor) and output.ndim == 4 and min(output.shape[2:]) > 1:
            caught.append(output)

    handles = [module.register_forward_hook(catch) for module in backbone.modules()]
    try:
        features = backbone(images)
    finally:
        for handle in handles:
            handle.remove()
    if not caught or not features.requires_grad:
        raise InputError(
            f"Grad-CAM needs a network with spatial features and gradients, which {type(backbone).__name__} "
            "does not have; leave out `grad_cam` and `faithfulness` with --only."
        )
    return caught[-1], features


def _as_grid(backbone: nn.Module, values: Tensor) -> Tensor:
    """Return spatial features of any layout as (batch, channels, rows, columns)."""
    network: Any = backbone
    if _is_transformer(backbone):
        patches = values[:, network.num_prefix_tokens :]
        rows, columns = network.patch_embed.grid_size
        if rows * columns != patches.shape[1]:
            rows = columns = math.isqrt(patches.shape[1])
        return patches.transpose(1, 2).reshape(len(patches), -1, rows, columns)
    if values.ndim != 4:
        raise InputError(
            f"Grad-CAM needs spatial features, but those of {type(backbone).__name__} are "
            f"{values.ndim}-dimensional; leave out `grad_cam` and `faithfulness` with --only."
        )
    channels = network.num_features
    last = values.shape[-1] == channels and values.shape[1] != channels
    return values.permute(0, 3, 1, 2) if last else values


def _make(subject: Subject, encodings: Encodings, progress: Progress) -> dict[str, Any]:
    chosen = most_confident_units(encodings, subject.units, UNITS_DRAWN)
    pictures, drawn = Pictures(subject), []
    progress(0, len(chosen))
    for number, (variable, unit, place) in enumerate(chosen, start=1):
        images = []
        for index in encodings.top_images[place, :IMAGES_DRAWN].tolist():
            try:
                images += [pictures.crop(index)] if index >= 0 else []
            except UnreadableImage:  # it was readable before
                continue
        if not images:
            continue
        stacked = torch.stack(images)
        places = torch.full((len(images),), place, device=subject.device)
        maps = grad_cam(subject.encoder, subject.encoder.normalize(stacked), places)
        shown = list(stacked.permute(0, 2, 3, 1).numpy())
        title = f"variable {variable}, unit {unit}"
        drawn.append(UnitMaps(title, shown, list(maps.cpu().double().numpy())))
        progress(number, len(chosen))
    if not drawn:
        raise InputError(
            "none of the images chosen for Grad-CAM can be read any more; "
            "leave out `grad_cam` with --only."
        )
    draw_grad_cam(drawn, subject.folder / "grad_cam.png")
    units = [[variable, unit] for variable, unit, _ in chosen]
    return {"units_drawn": len(chosen), "units": units}


def most_confident_units(
    encodings: Encodings, units: tuple[int, ...], count: int
) -> list[tuple[int, int, int]]:
    """Return (variable, unit, place among all units) of the most confident units, one per variable.

    Units that repeat images of a more confident unit come last: dependent variables often have a
    unit for the same images.
    """
    confidence = encodings.top_scores[:, :IMAGES_DRAWN].mean(1)
    every = [(variable, unit) for variable, size in enumerate(units) for unit in range(size)]
    chosen: dict[int, int] = {}
    repeating, shown = [], set[int]()
    for place in np.argsort(-confidence, kind="stable").tolist():
        variable, _ = every[place]
        images = set(encodings.top_images[place, :IMAGES_DRAWN].tolist()) - {-1}
        if images & shown:
            repeating.append(place)
        elif variable not in chosen:
            chosen[variable] = place
            shown |= images
    for place in repeating:
        chosen.setdefault(every[place][0], place)
    return [(*every[place], place) for place in list(chosen.values())[:count]]


class UnitMaps(NamedTuple):
    """A unit's best images, (height, width, 3) uint8 each, and their maps (height, width)."""

    title: str
    images: list[NDArray[np.uint8]]
    maps: list[NDArray[np.float64]]


@mpl.rc_context(STYLE)
def draw_grad_cam(units: Sequence[UnitMaps], path: Path) -> Path:
    """Draw each unit's best images, with the map of each below it."""
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
            # In gray, so that all color belongs to the map.
            axes[1, number].imshow(image.mean(2), cmap="gray", vmin=0, vmax=255)
            axes[1, number].imshow(evidence, cmap="inferno", vmin=0, vmax=1, alpha=0.6)
    return save_figure(figure, path)


def _section(findings: Findings) -> Section | None:
    headline = findings.summary["parts"].get("grad_cam")
    if headline is None:
        return None
    units = "; ".join(f"variable {m}, unit {d}" for m, d in headline["units"])
    drawn = findings.figure(
        "grad_cam",
        f"Images in pairs of rows: the best images of {headline['units_drawn']} units and, below "
        "each, the same image in gray under a map that is brightest where the evidence is.",
        "The most confident unit of each variable, preferring units that do not repeat images: "
        f"{units}.",
    )
    lead = "Bright regions are evidence for the unit. The next section tests whether that is true."
    return None if drawn is None else [paragraph(lead), drawn]


PART = Part(
    title="Where the evidence is",
    files=("grad_cam.png",),
    reads=EncodingsCollector,
    make=_make,
    section=_section,
    method=(
        "Grad-CAM",
        "The gradient of the unit's log-probability with respect to the last spatial features "
        "weights their channels; the positive part of the weighted sum is the map.",
    ),
)
