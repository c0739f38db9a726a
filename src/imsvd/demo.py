"""`imsvd demo`: train, evaluate and explain on built-in images, in minutes on a CPU."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

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
SPLIT: Literal["test"] = "test"
"""Everything that the demo says is measured on images that training has not seen."""


def run_demo(out: Path, console: Console, settings: list[str]) -> None:
    """Train on `shapes`, compare with chance and the untrained encoder, draw, and explain."""
    config = override(recipe("shapes"), settings)
    data, run = config.data.source, RunFolder(out)
    images = len(open_source(data))
    console.print(
        f"Training IMSVD on {images:,} drawn images without any labels, which takes a few minutes; "
        f"then looking at what it learned, on images it has not seen. Results go to {out}.",
        highlight=False,
        soft_wrap=True,
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
    with console.status("explaining the code on the test images"):
        summary = explain(out, data, split=SPLIT)
    galleries = unit_galleries(out, open_source(data, SPLIT))
    picture = draw_demo(run.metrics(), accuracies, galleries, out / "demo.png")
    console.print()
    for sentence in conclusions(accuracies, summary):
        console.print(sentence, highlight=False)
    console.print(
        f"\nTo see it: {picture}, or open {report_path(out)} in a browser.\n"
        f"To explore it: {program()} explore {out}\n"
        f"On your own images: {program()} discretize timm:tf_efficientnet_lite0 YOUR_FOLDER "
        "--out runs/mine",
        highlight=False,
        soft_wrap=True,
    )


def program() -> str:
    """Return what to type before a command: after `make demo`, `imsvd` is not on the path."""
    started = Path(sys.argv[0])
    reachable = shutil.which("imsvd") or started.name != "imsvd"
    return "imsvd" if reachable else str(started)


def conclusions(
    accuracies: Mapping[str, Mapping[str, float]], summary: Mapping[str, Any]
) -> list[str]:
    """Return what the demo has shown, in four sentences for people who have never seen a code."""
    guessing, untrained, trained = (
        float(np.mean(list(accuracies[series].values())))
        for series in ("chance", "untrained", "trained")
    )
    parts, units = summary["parts"], summary["units"]
    decided, meaning = parts["discreteness"]["share_above_0.9"], parts["meaning"]
    kept = [row["verdict"] == "holds" for row in parts["joint"]["properties"]]
    names = _listed([name.replace("_", " ") for name in meaning["recovered"]])
    known = meaning["attributes_known"]
    return [
        "Nobody told the network what is in the images, yet it learned to see it: asked for the "
        "shape, color or another property of a new image, the images it finds most similar give the "
        f"right answer {trained:.0f} % of the time (before training: {untrained:.0f} %, guessing: "
        f"{guessing:.0f} %).",
        f"It describes every image by a short code: {len(units)} questions with {max(units)} possible "
        f"answers each, of which it answers {100 * decided:.0f} % clearly (more than 90 % sure).",
        f"Nobody chose these questions; single ones largely reveal {len(meaning['recovered'])} of the "
        f"{known} properties that the images were drawn with" + (f": {names}." if names else "."),
        "The theory promises five things of such a code (clear answers, the same answers for two "
        "views of an image, all answers used, all pairs of answers used, no question repeating "
        f"another), and {sum(kept)} of the {len(kept)} hold on new images.",
    ]


def _listed(names: list[str]) -> str:
    """Return "a, b and c"."""
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


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
    """Return the best images of units whose variable reveals an attribute, then of confident ones."""
    folder = report_path(out).parent
    units = listed_units(json.loads((folder / "galleries.json").read_text()))
    attributes = json.loads((folder / "meaning.json").read_text())["attributes"]
    revealed = {
        row["most_specialized"][0]["variable"]: f"{name.replace('_', ' ')}: "
        for name, row in attributes.items()
        if row["recovered"]
    }
    telling = {unit.variable: unit for unit in reversed(units) if unit.variable in revealed}
    others = choose_units([unit for unit in units if unit.variable not in telling], GALLERY_UNITS)
    chosen = [*(telling[variable] for variable in revealed if variable in telling), *others]
    return {
        f"{revealed.get(unit.variable, '')}variable {unit.variable}, unit {unit.unit}": [
            source.read(item["index"]).permute(1, 2, 0).numpy() for item in unit.top
        ]
        for unit in chosen[:GALLERY_UNITS]
    }
