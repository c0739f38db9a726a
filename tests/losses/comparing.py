"""What tests of losses share: data, gradients, and several ranks against one process."""

import copy
from functools import partial

import torch
from torch import Tensor

from tests.losses.parity import (
    Loss,
    assert_ranks_equal_one_process,
    gradients,
    relative_error,
)


def embeddings(batch: int, width: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    values = 2 * torch.randn(batch, width, generator=generator, dtype=torch.float64)
    return values.to(dtype).requires_grad_()


def assert_equals_oracle(loss: Loss, expected: Tensor, *inputs: Tensor) -> None:
    """Compare value and gradients with those of a literal equation of the same inputs."""
    output = loss(*inputs)
    assert relative_error(output.loss, expected) <= 1e-10
    wanted = gradients(expected, inputs)
    assert relative_error(gradients(output.loss, inputs), wanted) <= 1e-10


def assert_half_precision_is_computed_in_single(loss: Loss, batch: int, width: int) -> None:
    """Under autocast, half-precision inputs give what single-precision inputs give without it."""
    halves = [embeddings(batch, width, seed, torch.bfloat16) for seed in (0, 1)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = loss(*halves)
    assert output.loss.dtype == torch.float32
    expected = loss(*(value.float() for value in halves)).loss
    assert relative_error(output.loss, expected) <= 1e-6
    assert torch.autograd.grad(output.loss, halves[0])[0].isfinite().all()


def assert_two_ranks_equal_one_process(loss: Loss, batch: int, width: int) -> None:
    """Compare loss, terms and gradients of two ranks with those of the joined batch.

    `loss` takes two `(batch, width)` tensors and can be pickled.
    """
    views = [embeddings(2 * batch, width, seed) for seed in (0, 1)]
    half = loss(*(view[:batch] for view in views)).loss
    assert relative_error(half, loss(*views).loss) > 1e-4  # or the test could not fail
    assert_ranks_equal_one_process(partial(copy.deepcopy, loss), [views])
