"""`imsvd demo`: train, evaluate and explain on built-in images, in minutes on a CPU."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from imsvd.config import override
from imsvd.datasets import ImageSource, open_source
from imsvd.distributed import rank
from imsvd.encoder import load, untrained_encoder
from imsvd.evaluation import FeatureSplits, KNNSettings, chance, encode_splits, knn_attributes
from imsvd.evaluation.results import append_result
from imsvd.explanations import explain, report_path
from imsvd.explanations.galleries import choose_units, listed_units
from imsvd.figures import draw_demo
from imsvd.pretraining import train
from imsvd.recipes import recipe
from imsvd.runs import RunFolder

GALLERY_UNITS = 5
NEIGHBORS = 20
EXPLAINED = "shapes:512"
"""The images of the report: few, so that it takes seconds."""


def run_demo(out: Path, console: Console, settings: list[str]) -> None:
    """Train on `shapes`, compare with chance and the untrained encoder, draw, and explain."""
    config = override(recipe("shapes"), settings)
    data, run = config.data.source, RunFolder(out)
    images = len(open_source(data))
    console.print(
        f"Training IMSVD on {images:,} drawn images, without any labels.", highlight=False
    )
    train(config, run, console)
    if rank() != 0:
        return
    untrained = attribute_accuracies(encode_splits(untrained_encoder(config), data, console))
    split = encode_splits(load(out), data, console)
    trained = attribute_accuracies(split)
    accuracies = {
        "chance": {name: chance(labels) for name, labels in split.test.attributes.items()},
        "untrained": untrained,
        "trained": trained,
    }
    console.print(accuracy_table(accuracies))
    metrics = {f"knn_20/{name}": value for name, value in trained.items()}
    append_result(out, "knn", metrics, data=data, details=accuracies)
    with console.status(f"explaining the encoder on {EXPLAINED}"):
        summary = explain(out, EXPLAINED)
    galleries = unit_galleries(out, open_source(EXPLAINED))
    picture = draw_demo(run.metrics(), accuracies, galleries, out / "demo.png")
    for sentence in conclusions(accuracies, summary):
        console.print(sentence, highlight=False, soft_wrap=True)
    console.print(
        f"Open {report_path(out)} in a browser to see what each variable responds to; "
        f"{picture} sums up the training.",
        highlight=False,
        soft_wrap=True,
    )
    console.print("Next: imsvd pretrain YOUR_FOLDER --out runs/mine", highlight=False)


def conclusions(
    accuracies: Mapping[str, Mapping[str, float]], summary: Mapping[str, Any]
) -> list[str]:
    """Return what the demo has shown, one sentence per finding."""
    chance_level, untrained, trained = (
        float(np.mean(list(accuracies[series].values())))
        for series in ("chance", "untrained", "trained")
    )
    parts, units = summary["parts"], summary["units"]
    decided, meaning = parts["discreteness"]["share_above_0.9"], parts["meaning"]
    names = ", ".join(name.replace("_", " ") for name in meaning["recovered"])
    return [
        f"Without labels, the encoder learned features from which the {NEIGHBORS} most similar "
        f"images predict an attribute correctly in {trained:.0f} % of cases (untrained: "
        f"{untrained:.0f} %, chance: {chance_level:.0f} %).",
        f"It describes every image by a code of {len(units)} variables; each takes one of "
        f"{max(units)} units, and {100 * decided:.0f} % of these choices are decided "
        "(probability above 0.9).",
        f"Single variables recover {meaning['attributes_recovered']} of "
        f"{meaning['attributes_known']} attributes of the images"
        + (f": {names}." if names else "."),
    ]


def attribute_accuracies(split: FeatureSplits) -> dict[str, float]:
    """Return kNN-20 accuracy per attribute."""
    metrics = knn_attributes(split.train, split.test, KNNSettings(neighbors=(NEIGHBORS,)))
    return {name.split("/")[1]: value for name, value in metrics.items()}


def accuracy_table(accuracies: Mapping[str, Mapping[str, float]]) -> Table:
    """Return the accuracies as a table with one row per attribute."""
    table = Table("attribute", title=f"kNN-{NEIGHBORS} accuracy on test images, %")
    for series in accuracies:
        table.add_column(series, justify="right")
    for name in accuracies["trained"]:
        table.add_row(name, *(f"{values[name]:.1f}" for values in accuracies.values()))
    return table


def unit_galleries(out: Path, source: ImageSource) -> dict[str, list[np.ndarray]]:
    """Return the best images of the most confident units that do not repeat each other."""
    listing = json.loads((report_path(out).parent / "galleries.json").read_text())
    return {
        f"variable {unit.variable}, unit {unit.unit}": [
            source.read(item["index"]).permute(1, 2, 0).numpy() for item in unit.top
        ]
        for unit in choose_units(listed_units(listing), GALLERY_UNITS)
    }
