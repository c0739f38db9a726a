"""`imsvd demo`: the whole idea on built-in images, in minutes on a CPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from imsvd.config import override
from imsvd.datasets import ImageSource, open_source
from imsvd.distributed import rank
from imsvd.encoder import Encoder, load, untrained_encoder
from imsvd.evaluation import FeatureSplits, KNNSettings, chance, encode_splits, knn_attributes
from imsvd.evaluation.results import append_result
from imsvd.explanations import explain, report_path
from imsvd.explanations.galleries import TellingUnit, choose_units
from imsvd.explanations.subject import unit_starts
from imsvd.figures import draw_demo
from imsvd.information import codes
from imsvd.recipes import recipe
from imsvd.runs import RunFolder
from imsvd.training import train

GALLERY_UNITS = 5
GALLERY_IMAGES = 16
NEIGHBORS = 20
EXPLAINED = "shapes:512"
"""The images of the report: few, so that it is there in seconds."""


def run_demo(out: Path, console: Console, settings: list[str]) -> None:
    """Train on `shapes`, compare with the untrained encoder and with chance, draw and explain."""
    config = override(recipe("shapes"), settings)
    console.print(
        f"Training IMSVD on {len(open_source(config.data.source)):,} drawn images; nobody tells it "
        "what a shape, a texture or a color is.",
        highlight=False,
    )
    run = RunFolder(out)
    train(config, run, console)
    if rank() != 0:
        return
    data = config.data.source
    untrained = attribute_accuracies(encode_splits(untrained_encoder(config), data, console))
    encoder = load(out)
    split = encode_splits(encoder, data, console)
    trained = attribute_accuracies(split)
    accuracies = {
        "chance": {name: chance(labels) for name, labels in split.test.attributes.items()},
        "untrained": untrained,
        "trained": trained,
    }
    console.print(accuracy_table(accuracies))
    append_result(
        out,
        "knn",
        {f"knn_20/{name}": value for name, value in trained.items()},
        data=data,
        details=accuracies,
    )
    galleries = unit_galleries(encoder, open_source(data, "test"))
    picture = draw_demo(run.metrics(), accuracies, galleries, out / "demo.png")
    console.print(f"What do its variables see? Looking at {EXPLAINED}.", highlight=False)
    explain(out, EXPLAINED, console=console)
    console.print(
        f"Picture: {picture}   Report: {report_path(out)}   Encoder: {run.encoder_weights}",
        highlight=False,
        soft_wrap=True,
    )
    console.print("Next: imsvd pretrain YOUR_FOLDER --out runs/mine", highlight=False)


def attribute_accuracies(split: FeatureSplits) -> dict[str, float]:
    """Return kNN-20 accuracy per attribute."""
    metrics = knn_attributes(split.train, split.test, KNNSettings(neighbors=(NEIGHBORS,)))
    return {name.split("/")[1]: value for name, value in metrics.items()}


def accuracy_table(accuracies: Mapping[str, Mapping[str, float]]) -> Table:
    """Return the table of accuracies, an attribute a row."""
    table = Table("attribute", title=f"kNN-{NEIGHBORS} accuracy on test images, %")
    for series in accuracies:
        table.add_column(series, justify="right")
    for name in accuracies["trained"]:
        table.add_row(name, *(f"{values[name]:.1f}" for values in accuracies.values()))
    return table


def unit_galleries(encoder: Encoder, source: ImageSource) -> dict[str, list[np.ndarray]]:
    """Return the images that excite some units most: decided ones that do not repeat each other."""
    images = torch.stack([source.read(index) for index in range(min(len(source), 2000))])
    with torch.inference_mode():
        probabilities = torch.cat(
            [encoder.probabilities(part) for part in torch.split(images, 256)]
        )
    chosen = choose_units(_units(probabilities, encoder.description.units), GALLERY_UNITS)
    return {
        f"variable {unit.variable}, unit {unit.unit}": [
            images[item["index"]].permute(1, 2, 0).numpy() for item in unit.top
        ]
        for unit in chosen
    }


def _units(probabilities: Tensor, units: tuple[int, ...]) -> Iterator[TellingUnit]:
    """Every unit that some of the images take, with its best images."""
    scores, images = (found.T.tolist() for found in probabilities.topk(GALLERY_IMAGES, dim=0))
    taken = codes(probabilities, units)
    for variable, (start, count) in enumerate(zip(unit_starts(units), units, strict=True)):
        for unit in range(count):
            best = zip(images[start + unit], scores[start + unit], strict=True)
            top = [{"index": index, "score": score} for index, score in best]
            taking = int((taken[:, variable] == unit).sum())
            if taking:
                yield TellingUnit(variable, unit, taking, top)
