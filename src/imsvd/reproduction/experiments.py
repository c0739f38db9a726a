"""The paper's tables and figures as experiments. `EXPERIMENTS` is the whole table."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from imsvd.errors import InputError
from imsvd.reproduction.ablations import batch_size, loss_terms, projector_depth, units, width
from imsvd.reproduction.comparisons import cost, longest, methods, nearest_neighbors, transfer
from imsvd.reproduction.experiment import DRAWN, Cell, Entry, Experiment, Measure
from imsvd.reproduction.variants import Run, Scale, Setup


def _figure(name: str, source: str, shows: str, part: str) -> Experiment:
    return Experiment(
        name, source, shows, (Entry("IMSVD", part, DRAWN, longest("IMSVD")),), parts=(part,)
    )


EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        methods(),
        nearest_neighbors(),
        transfer(),
        cost(),
        batch_size(),
        projector_depth(),
        width(),
        loss_terms(),
        units(),
        _figure(
            "joint-matrix",
            "Figure 3a",
            "The joint matrix of trained variables: a diagonal in each diagonal block, even elsewhere.",
            "joint",
        ),
        _figure(
            "embeddings",
            "Figure 3b, c",
            "Two views of an image have nearly the same, nearly one-hot embedding.",
            "embeddings",
        ),
        _figure(
            "galleries",
            "Figure 4",
            "The images that take a unit have something in common.",
            "galleries",
        ),
        _figure(
            "grad-cam",
            "Figure 5",
            "Units look at parts of images.",
            "grad_cam",
        ),
    )
}

ABLATIONS = ("batch-size", "projector-depth", "width", "loss-terms", "units")


def find_experiments(names: Sequence[str]) -> list[Experiment]:
    """Return the experiments called so; "all" means all of them."""
    if "all" in names:
        return list(EXPERIMENTS.values())
    for name in names:
        if name not in EXPERIMENTS:
            close = difflib.get_close_matches(name, EXPERIMENTS, n=1)
            hint = f"did you mean {close[0]!r}? " if close else ""
            raise InputError(
                f"there is no experiment {name!r}; {hint}Experiments: {', '.join(EXPERIMENTS)}, all."
            )
    return [EXPERIMENTS[name] for name in dict.fromkeys(names)]


__all__ = [
    "ABLATIONS",
    "EXPERIMENTS",
    "Cell",
    "Experiment",
    "Measure",
    "Run",
    "Scale",
    "Setup",
    "find_experiments",
]
