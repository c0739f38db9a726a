"""The codes of a run's test images: measured when the run is evaluated, kept, compared between seeds."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from imsvd.code_measures import contingency, matched_units, monosemanticity, unit_purity
from imsvd.discretizing.held_out import shared_nats
from imsvd.encoder import Encoder
from imsvd.evaluation import Features
from imsvd.explanations.encodings import read_arrays, write_arrays
from imsvd.explanations.subject import evenly_spaced
from imsvd.grid.comparison import ComparedRun
from imsvd.information import codes, max_probabilities, soft_discretize

FILE_NAME = "test_codes.safetensors"
DECIDED = 0.9
"""A variable is decided if its largest probability exceeds this."""
CHUNK = 4096
MATCHED_IMAGES = 20_000
"""Most images on which the units of two runs are matched."""


def measure_codes(encoder: Encoder, test: Features, folder: Path, data: str) -> dict[str, float]:
    """Measure the codes of the test images and keep them in `folder`; empty without variables.

    Args:
        encoder: the run's encoder.
        test: features and labels of the test images.
        folder: the run.
        data: fingerprint of the images.

    Returns:
        share_decided: share of variables whose largest probability exceeds 0.9.
        shared_nats: mean mutual information of two variables, less what chance shows.
        purity, monosemanticity: means over units, see `imsvd.code_measures`; similarity is measured
            under the encoder's own features. `…_above_chance`: less that of random sets.
    """
    units = encoder.description.units
    if not units:
        return {}
    found, decided = _encode(encoder, test.features)
    arrays = {"codes": found, "units": np.array(units)}
    write_arrays(folder / FILE_NAME, data, arrays)
    joint = torch.from_numpy(contingency(found, found, units, units))
    metrics = {"share_decided": decided, "shared_nats": shared_nats(joint, units)}
    scores = {"monosemanticity": monosemanticity(found, test.features, units)}
    if test.labels is not None:
        scores["purity"] = unit_purity(found, test.labels.numpy(), units)
    for name, score in scores.items():
        metrics |= {name: score.mean, f"{name}_above_chance": score.mean - score.mean_by_chance}
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


@torch.no_grad()
def _encode(
    encoder: Encoder, features: torch.Tensor
) -> tuple[NDArray[np.unsignedinteger[Any]], float]:
    """Return the code of every image, (n, M), and the share of decided variables."""
    units = encoder.description.units
    parts, decided = [], 0
    for chunk in torch.split(features, CHUNK):
        q = soft_discretize(encoder.projector(chunk.to(encoder.mean.device)), units)
        parts.append(codes(q, units).cpu().numpy())
        decided += int((max_probabilities(q, units) > DECIDED).sum())
    dtype = np.uint8 if max(units) <= 256 else np.uint16
    return np.concatenate(parts).astype(dtype), decided / (len(features) * len(units))


def with_stability(runs: Sequence[ComparedRun], out: Path) -> tuple[ComparedRun, ...]:
    """Add to every finished run the mean share of units that runs of the other seeds have too.

    The mean over runs is the mean over pairs of seeds. Runs without kept codes are unchanged.
    """
    kept = {
        run.seed: (out / run.folder / FILE_NAME, run.outcome.data)
        for run in runs
        if run.outcome is not None and (out / run.folder / FILE_NAME).exists()
    }
    shares: dict[int, list[float]] = {}
    for first, second in itertools.combinations(kept, 2):
        share = _matched_share(*(_version(*kept[seed]) for seed in (first, second)))
        if share is not None:
            shares.setdefault(first, []).append(share)
            shares.setdefault(second, []).append(share)
    return tuple(_add(run, shares.get(run.seed)) for run in runs)


def _add(run: ComparedRun, shares: Sequence[float] | None) -> ComparedRun:
    if run.outcome is None or shares is None:
        return run
    metrics = run.outcome.metrics | {"stability": statistics.fmean(shares)}
    return run._replace(outcome=run.outcome.model_copy(update={"metrics": metrics}))


_Version = tuple[Path, str, int]
"""A file, the fingerprint of its images, and when it was written."""


def _version(path: Path, data: str) -> _Version:
    return path, data, path.stat().st_mtime_ns


@lru_cache(maxsize=1024)
def _matched_share(first: _Version, second: _Version) -> float | None:
    """Return the share of matched units of two runs; None if a file is damaged or of other images."""
    ours, theirs = (read_arrays(path, data) for path, data, _ in (first, second))
    if ours is None or theirs is None or len(ours["codes"]) != len(theirs["codes"]):
        return None
    rows = evenly_spaced(len(ours["codes"]), MATCHED_IMAGES)
    return matched_units(
        ours["codes"][rows], theirs["codes"][rows], ours["units"].tolist(), theirs["units"].tolist()
    ).share
