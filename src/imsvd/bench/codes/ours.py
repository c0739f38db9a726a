"""Our code: heads trained on the shared features as `imsvd discretize` trains them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console
from torch import Tensor, nn

from imsvd.bench.codes.inputs import Inputs
from imsvd.bench.codes.quantizers import Code, one_hot
from imsvd.config import Config, override
from imsvd.discretizing.capacity import CodeSize
from imsvd.discretizing.held_out import CHUNK
from imsvd.discretizing.run import (
    SharedFeatures,
    choose_by_trials,
    configure,
    possible_sizes,
    set_length,
    train_head,
)
from imsvd.encoder import Encoder, load
from imsvd.engine.fabric import Fabric
from imsvd.information import codes as most_probable
from imsvd.information import soft_discretize
from imsvd.runs import RunFolder


class HeadOptions(NamedTuple):
    """How heads are trained; the defaults are those of `imsvd discretize`."""

    units: int | None = None
    """None: chosen as `imsvd discretize` does, without labels."""
    views: int = 4
    steps: int = 400
    settings: Sequence[str] = ()


class HeadCode(Code):
    """The code of a trained head. A float query is compared by the log-probability of a code."""

    units: tuple[int, ...]

    def __init__(self, head: nn.Module, units: tuple[int, ...]) -> None:
        self.head, self.units = head.eval(), units

    @torch.no_grad()
    def probabilities(self, features: Tensor) -> Tensor:
        """Return q of every unit, (n, units)."""
        parts = [
            soft_discretize(self.head(part), self.units) for part in torch.split(features, CHUNK)
        ]
        return torch.cat(parts)

    def codes(self, features: Tensor) -> Tensor:
        """Return the most probable units."""
        return most_probable(self.probabilities(features), self.units)

    def vectors(self, codes: Tensor) -> Tensor:
        """Return one-hot codes: inner products count the variables that agree."""
        return one_hot(codes, self.units)

    @torch.no_grad()
    def query(self, features: Tensor) -> Tensor:
        """Return log q of every unit, from logits because q of sharp codes rounds to 0 and 1."""
        logits = torch.cat([self.head(part) for part in torch.split(features, CHUNK)])
        variables = torch.split(logits, list(self.units), dim=1)
        return torch.cat([each.log_softmax(1) for each in variables], 1)


def configure_head(
    encoder: Encoder, spec: str, data: str, options: HeadOptions, size: CodeSize, seed: int
) -> Config:
    """Return the configuration of a head of the size `size`, as `imsvd discretize` would have it."""
    config = configure(encoder, encoder=spec, data=data, views=options.views, head=size)
    return override(config, [f"seed={seed}", *options.settings])


def head_config(inputs: Inputs, options: HeadOptions, size: CodeSize, seed: int) -> Config:
    """Return the same with the number of epochs."""
    about = (inputs.encoder, inputs.spec, inputs.data)
    config = configure_head(*about, options, size, seed)
    return set_length(config, len(inputs.source), options.steps, options.settings)


def train_ours(
    inputs: Inputs, options: HeadOptions, bits: int, seed: int, folder: Path, fabric: Fabric
) -> HeadCode:
    """Train a head of `bits`, or finish the one in `folder`."""
    run, quiet = RunFolder(folder), Console(quiet=True)
    shared = SharedFeatures(
        inputs.encoder, inputs.source, fabric, quiet, lambda: inputs.train.features
    )
    sizes = possible_sizes(run, bits, options.units, len(inputs.source), options.settings)
    config = head_config(inputs, options, sizes[0], seed)
    if len(sizes) > 1:
        run.begin(config)
        configured = partial(head_config, inputs, options, seed=seed)
        config = configured(choose_by_trials(shared, run, sizes, configured, options.settings))
    train_head(config, shared, run)
    encoder = load(folder)
    return HeadCode(encoder.projector, encoder.description.units)
