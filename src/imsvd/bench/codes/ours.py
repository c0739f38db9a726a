"""Our code: heads trained on the shared features as `imsvd discretize` trains them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from lightning_fabric import Fabric
from rich.console import Console
from torch import Tensor, nn

from imsvd.bench.codes.inputs import Inputs
from imsvd.bench.codes.quantizers import Code, one_hot
from imsvd.config import Config, override
from imsvd.datasets.reading import image_key
from imsvd.discretizing.head import HeadTraining
from imsvd.discretizing.held_out import CHUNK
from imsvd.discretizing.run import configure, count_variables, set_length
from imsvd.encoder import Encoder, load, saved_epoch
from imsvd.information import codes as most_probable
from imsvd.information import soft_discretize
from imsvd.runs import RunFolder


class HeadOptions(NamedTuple):
    """How heads are trained; the defaults are those of `imsvd discretize`."""

    units: int = 4
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

    def query(self, features: Tensor) -> Tensor:
        """Return log q of every unit."""
        return self.probabilities(features).clamp_min(torch.finfo(torch.float32).tiny).log()


def configure_head(
    encoder: Encoder, spec: str, data: str, options: HeadOptions, bits: int, seed: int
) -> Config:
    """Return the configuration of a head of `bits`, as `imsvd discretize` would choose it."""
    head = (count_variables(bits, options.units), options.units)
    config = configure(encoder, encoder=spec, data=data, views=options.views, head=head)
    return override(config, [f"seed={seed}", *options.settings])


def head_config(inputs: Inputs, options: HeadOptions, bits: int, seed: int) -> Config:
    """Return the same with the number of epochs."""
    about = (inputs.encoder, inputs.spec, inputs.data)
    config = configure_head(*about, options, bits, seed)
    return set_length(config, len(inputs.source), options.steps, options.settings)


def train_ours(config: Config, inputs: Inputs, folder: Path, fabric: Fabric) -> HeadCode:
    """Train a head, or finish the one in `folder`."""
    run = RunFolder(folder)
    run.begin(config)
    if saved_epoch(run) != config.training.epochs:
        images = image_key(inputs.source)
        training = HeadTraining(config, run, fabric, inputs.encoder, images, inputs.train.features)
        training.fit(Console(quiet=True))
    encoder = load(folder)
    return HeadCode(encoder.projector, encoder.description.units)
