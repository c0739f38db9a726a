"""Whether a loss on several real processes equals the loss of one process with all their samples."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from imsvd import distributed
from imsvd.losses.base import LossOutput
from tests import gloo

Loss = Callable[..., LossOutput]


def embeddings(batch: int, width: int, seed: int, views: int = 2) -> list[Tensor]:
    """Correlated views with means and scales of their own, in float64, that want gradients."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    common, scale, shift = draw(batch, width), 1 + draw(width).abs(), draw(width)
    return [
        (scale * (common + 0.5 * draw(batch, width)) + shift).requires_grad_() for _ in range(views)
    ]


def gradients(loss: Tensor, inputs: Sequence[Tensor]) -> Tensor:
    """Stacked gradients of equally shaped inputs; zeros for those behind a stop-gradient."""
    return torch.stack(torch.autograd.grad(loss, list(inputs), materialize_grads=True))


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """Largest difference relative to the largest value, or as it is if that is below 1."""
    difference = (actual.detach().double() - expected.detach().double()).abs().max()
    return float(difference / expected.detach().abs().max().clamp_min(1))


def evaluate(loss: Loss, views: Sequence[Tensor]) -> dict[str, Any]:
    inputs = [view.detach().requires_grad_() for view in views]
    output = loss(*inputs)
    return {
        "loss": output.loss.detach(),
        "terms": output.terms,
        "gradients": gradients(output.loss, inputs),
    }


def on_one_rank(build: Callable[[], Loss], cases: list[list[Tensor]]) -> list[dict[str, Any]]:
    results = []
    for views in cases:
        own = distributed.own_slice(len(views[0]))
        results.append(evaluate(build(), [view[own] for view in views]))
    return results


def assert_ranks_equal_one_process(
    build: Callable[[], Loss], cases: list[list[Tensor]], world_size: int = 2
) -> None:
    """Compare loss, terms and gradients; each rank holds other samples of the batch."""
    cases = [[view.detach() for view in views] for views in cases]
    ranks = gloo.run(world_size, on_one_rank, build, cases)
    for case, views in enumerate(cases):
        expected = evaluate(build(), views)
        assert float(expected["gradients"].abs().max()) > 1e-6  # or the comparison says nothing
        share = len(views[0]) // world_size
        for rank, results in enumerate(ranks):
            result = results[case]
            own = expected["gradients"][:, rank * share : (rank + 1) * share]
            assert relative_error(result["loss"], expected["loss"]) <= 1e-10
            # DDP divides by the number of ranks: each hands it that many times its share.
            assert relative_error(result["gradients"], world_size * own) <= 1e-10
            assert result["terms"].keys() == expected["terms"].keys()
            for name, term in result["terms"].items():
                assert relative_error(term, expected["terms"][name]) <= 1e-10
