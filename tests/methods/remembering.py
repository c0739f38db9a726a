"""What tests of methods that remember images share: a network without norms, views and training."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from imsvd import distributed
from imsvd.methods import Method

BATCH, IMAGES = 8, 24


def views(step: int, count: int = 2) -> list[Tensor]:
    generator = torch.Generator().manual_seed(step)
    return [torch.randn(BATCH, 3, 2, 2, generator=generator).double() for _ in range(count)]


def samples(step: int) -> Tensor:
    return torch.randperm(IMAGES, generator=torch.Generator().manual_seed(step))[:BATCH]


def train(method: Method, epochs: Sequence[int], steps_per_epoch: int = 3) -> list[Tensor]:
    """Train on this rank's part of the batches; return the losses of the global batch."""
    ranks = distributed.world_size()
    model: nn.Module = DistributedDataParallel(method) if ranks > 1 else method
    optimizer = torch.optim.SGD([p for p in method.parameters() if p.requires_grad], lr=0.1)
    own = distributed.own_slice(BATCH)
    losses = []
    for epoch in epochs:
        method.begin_epoch(epoch)
        for step in range(epoch * steps_per_epoch, (epoch + 1) * steps_per_epoch):
            optimizer.zero_grad()
            output = model([view[own] for view in views(step)], samples(step)[own])
            output.loss.backward()
            optimizer.step()
            method.after_step(0.0)
            losses.append(distributed.all_reduce_sum(output.loss) / ranks)
    return losses


def trained(build: Callable[[], Method], epochs: Sequence[int]) -> dict[str, Any]:
    """Losses and state after training what `build` gives."""
    method = build()
    losses = train(method, epochs)
    return {"losses": losses, "state": dict(method.state_dict())}


def assert_equal_training(result: dict[str, Any], expected: dict[str, Any]) -> None:
    torch.testing.assert_close(result["losses"], expected["losses"], rtol=1e-9, atol=1e-9)
    assert result["state"].keys() == expected["state"].keys()
    for name, value in expected["state"].items():
        torch.testing.assert_close(
            result["state"][name], value, rtol=1e-9, atol=1e-9, msg=f"{name} differs"
        )
