"""`imsvd replay`: the step at which a run's loss stopped being finite, repeated and looked at.

The run folder keeps the step (`imsvd.engine.divergence`): the images are not needed, so a folder can be
sent to someone else.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from imsvd.config import Config, override
from imsvd.datasets import ImageSource
from imsvd.discretizing.directions import FeatureDirections
from imsvd.discretizing.head import HeadTraining
from imsvd.distributed import gather_lists
from imsvd.encoder import Encoder, describe_encoder
from imsvd.engine.divergence import (
    Repeated,
    first_rank_of,
    from_json,
    read_record,
    read_step,
    repeat,
    surroundings,
)
from imsvd.engine.fabric import Fabric
from imsvd.engine.hardware import launch
from imsvd.engine.tracing import Seen
from imsvd.errors import InputError
from imsvd.pretrained import Backbone
from imsvd.pretraining.code import GivenFeatures
from imsvd.pretraining.run import MethodTraining, Pretraining
from imsvd.runs import RunFolder
from imsvd.views import Batch

_SHOWN = 4
"""How many bad tensors of a rank are printed; step.json has more."""


class Replay(NamedTuple):
    """A step that was repeated.

    Attributes:
        step: its number, counted from 1.
        differing: results whose bits differ from those of the run, such as "loss"; empty if none do.
        surroundings: what the bits depend on and is not as it was, such as {"torch": ("2.6", "2.7")}.
        first_rank: the rank on which it went wrong first.
        ranks: what each rank computed.
    """

    step: int
    differing: list[str]
    surroundings: dict[str, tuple[Any, Any]]
    first_rank: int
    ranks: list[Repeated]


class AbsentImages(ImageSource):
    """Images of which only the number is known; a kept step does not read any."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def read(self, index: int) -> Tensor:
        """Raise."""
        raise InputError(f"image {index} is not part of a kept step.")

    def identity(self, index: int) -> str:
        """Return the number of the image."""
        return str(index)

    def fingerprint(self) -> str:
        """Return nothing: nobody compares it."""
        return ""


def replay(run: str | Path) -> Replay:
    """Repeat the step at which the loss of `run` stopped being finite; nothing in it changes.

    With several processes, every one must call this, and all return the same.
    """
    place = Path(run)
    record = read_record(place)
    if not RunFolder(place).exists():
        raise InputError(
            f"{place} is no run folder, so its step cannot be repeated; {place / 'divergence/step.json'} "
            "names the tensors that were not finite."
        )
    config = RunFolder(place).config()
    threads = torch.get_num_threads()
    torch.set_num_threads(record["made_by"]["threads"])  # sums are split among them
    try:
        training = _rebuild(config, RunFolder(place), launch(config.compute), record["facts"])
        before, leaves, own = read_step(place, record)
        device = training.fabric.device
        tensors = [leaf.to(device) for leaf in leaves if isinstance(leaf, Tensor)]
        repeated = repeat(training, Batch(tensors[:-1], tensors[-1], []), before, own)
        now = surroundings(training)
    finally:
        torch.set_num_threads(threads)
    ranks = gather_lists([repeated])
    expected = [from_json(part) for part in record["ranks"]]
    return Replay(
        step=record["step"] + 1,
        differing=[
            name
            for name in expected[0].bits
            if any(
                ours.bits[name] != then.bits[name]
                for ours, then in zip(ranks, expected, strict=True)
            )
        ],
        surroundings={
            name: (then, now[name]) for name, then in record["made_by"].items() if then != now[name]
        },
        first_rank=first_rank_of({"ranks": [part._asdict() for part in ranks]}),
        ranks=ranks,
    )


def _rebuild(
    config: Config, run: RunFolder, fabric: Fabric, facts: dict[str, Any]
) -> MethodTraining[Any]:
    """Build the training of a run without its images."""
    if config.frozen is None:
        # Without kNN checks, no images are held out: `facts` counts those that were trained on.
        config = override(config, ["training.knn_every=0"])
        return Pretraining(config, run, fabric, AbsentImages(facts["images"]))
    description = describe_encoder(config)
    width = facts["width"]
    backbone = Backbone(
        GivenFeatures(width), width, (), description.size, description.mean, description.std
    )
    features = np.empty((facts["images"], 0, 0), np.float16)
    reader: GivenFeatures | FeatureDirections = GivenFeatures(width)
    if count := facts["directions"]:  # their values are part of the state
        reader = FeatureDirections(torch.zeros(width), torch.zeros(width, count))
    encoder = Encoder(description, backbone)
    return HeadTraining(config, run, fabric, encoder, "", features, reader)


def print_replay(found: Replay, run: str | Path, console: Console) -> None:
    """Say whether the bits are the same, and where the step went wrong."""

    def say(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True, markup=False)

    say(f"Step {found.step:,} of {run}, repeated.")
    if found.differing:
        changed = ", ".join(f"{name} {a} → {b}" for name, (a, b) in found.surroundings.items())
        say(f"Other bits than in the run: {', '.join(found.differing)}.")
        say(
            f"What differs: {changed}."
            if changed
            else "The device does not repeat its sums exactly."
        )
    else:
        say("Same bits as in the run: loss, gradients, weights.")
    for number, part in enumerate(found.ranks):
        if len(found.ranks) > 1:
            say(f"\nRank {number}" + (", where it began" if number == found.first_rank else ""))
        for label, seen in _lines(part):
            say(f"{label:>7}  {seen.sentence()}")
        if not part.bad:
            say("Every tensor was finite.")


def _lines(part: Repeated) -> Iterator[tuple[str, Seen]]:
    if part.bad and part.last_good is not None:
        yield "before", part.last_good
    for place, seen in enumerate(part.bad[:_SHOWN]):
        yield ("then" if place else "first"), seen
        if not place:
            yield from (("given", given) for given in seen.inputs)
