"""`imsvd bench select`: a linear probe trained on few labels, chosen by `imsvd select` or otherwise.

Every way to choose picks the same number of training images; a linear probe on the features of these
images is tested on all test images. Seeds draw nine tenths of the training images to choose from, so
that all ways, also those without chance, have a spread.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console

from imsvd.bench.comparison import Row, show_tables, write_tables
from imsvd.encoder import open_encoder
from imsvd.errors import InputError
from imsvd.evaluation.features import FeatureSplits, encode_splits
from imsvd.evaluation.linear_probe import linear_probe
from imsvd.information import codes
from imsvd.population import select_images
from imsvd.progress import progress_bar
from imsvd.provenance import environment


class Pool(NamedTuple):
    """Images to choose from: codes (n, M), features (n, width) of length 1, and units per variable."""

    codes: NDArray[np.uint16]
    features: NDArray[np.float32]
    units: tuple[int, ...]


Choose = Callable[[Pool, int, int], NDArray[np.int64]]
"""Takes the images, how many to choose, and a seed; returns their positions."""


def _ours(pool: Pool, count: int, seed: int) -> NDArray[np.int64]:
    return np.array(select_images(pool.codes, pool.units, count, seed=seed).images)


def _random(pool: Pool, count: int, seed: int) -> NDArray[np.int64]:
    return np.random.default_rng(seed).choice(len(pool.codes), count, replace=False)


def _centers(
    distances: Callable[[int], NDArray[np.floating[Any]]], images: int, count: int, seed: int
) -> NDArray[np.int64]:
    """Choose the image farthest from those chosen before (Gonzalez, 1985; Sener and Savarese, 2018)."""
    chosen = [int(np.random.default_rng(seed).integers(images))]
    nearest = distances(chosen[0])
    while len(chosen) < count:
        chosen.append(int(nearest.argmax()))
        nearest = np.minimum(nearest, distances(chosen[-1]))
    return np.array(chosen)


def _feature_centers(pool: Pool, count: int, seed: int) -> NDArray[np.int64]:
    features = pool.features
    return _centers(lambda image: 1 - features @ features[image], len(features), count, seed)


def _code_centers(pool: Pool, count: int, seed: int) -> NDArray[np.int64]:
    def different(image: int) -> NDArray[np.floating[Any]]:
        other: NDArray[np.float32] = (
            (pool.codes != pool.codes[image]).sum(axis=1).astype(np.float32)
        )
        return other

    return _centers(different, len(pool.codes), count, seed)


RULES: dict[str, tuple[str, Choose]] = {
    "random": ("random draw", _random),
    "ours": ("imsvd select", _ours),
    "feature-centers": ("k-center on features", _feature_centers),
    "code-centers": ("k-center on codes", _code_centers),
}


def run(
    run: Path,
    data: str,
    counts: tuple[int, ...] = (100,),
    seeds: int = 10,
    console: Console | None = None,
    output: Path | None = None,
) -> list[Row]:
    """Compare ways to choose `counts` training images of `data`, encoded by `run`."""
    console = console or Console()
    encoder = open_encoder(run)
    units = encoder.description.units
    if not units:
        raise InputError(f"{run} has no codes; use a run of IMSVD or of `imsvd discretize`.")
    if seeds < 2:
        raise InputError(f"seeds = {seeds}: choose at least 2.")
    splits = encode_splits(encoder, data, console)
    with torch.no_grad():
        q = encoder.projector(splits.train.features.to(encoder.mean.device))
    hard = codes(q, units).cpu().numpy().astype(np.uint16)
    rows = compare_rules(splits, hard, units, counts, seeds, console)
    tables = {_title(count): _table(rows, count) for count in counts}
    show_tables(tables, console)
    if output is not None:
        facts = environment() | {"run": str(run), "images": data, "seeds": str(seeds)}
        write_tables(output, "Images to label", facts, rows, tables)
    return rows


def compare_rules(
    splits: FeatureSplits,
    hard: NDArray[np.uint16],
    units: tuple[int, ...],
    counts: tuple[int, ...],
    seeds: int,
    console: Console,
) -> list[Row]:
    """Return the accuracy of every rule, number of labels and seed."""
    train, test = splits
    assert train.labels is not None
    assert test.labels is not None
    features = torch.nn.functional.normalize(train.features).numpy()
    rows = []
    with progress_bar(console) as bar:
        task = bar.add_task("probes", total=len(counts) * len(RULES) * seeds)
        for count in counts:
            for key, (label, choose) in RULES.items():
                found = []
                for seed in range(seeds):
                    kept = np.random.default_rng(seed).permutation(len(hard))[: -len(hard) // 10]
                    pool = Pool(hard[kept], features[kept], units)
                    chosen = torch.from_numpy(kept[choose(pool, count, seed)])
                    metrics = linear_probe(
                        train.features[chosen], train.labels[chosen], test.features, test.labels
                    )
                    found.append(metrics["linear_probe_top1"])
                    bar.advance(task)
                rows.append({"rule": key, "label": label, "count": count, "top1": found})
    return rows


def _title(count: int) -> str:
    return f"Linear probe on {count:,} labels"


def _table(rows: list[Row], count: int) -> list[list[str]]:
    names = ["chosen by", "top-1, %", "sd over seeds", "above random, in its sd"]
    at = [row for row in rows if row["count"] == count]
    drawn = next(row["top1"] for row in at if row["rule"] == "random")
    mean, deviation = float(np.mean(drawn)), float(np.std(drawn, ddof=1))
    lines = []
    for row in at:
        own = float(np.mean(row["top1"]))
        spread = f"{np.std(row['top1'], ddof=1):.2f}"
        above = (
            "" if row["rule"] == "random" or not deviation else f"{(own - mean) / deviation:+.1f}"
        )
        lines.append([row["label"], f"{own:.2f}", spread, above])
    return [names, *lines]
