import math

import pytest
import torch
from torch import Tensor, nn

from imsvd.losses.imsvd import IMSVDLoss, Normalization

KEYS = ("invariance", "diagonal_entropy", "off_diagonal_entropy")


def closed_form(state: str, units: int) -> tuple[Tensor, int]:
    """Logits of a state of REFERENCE's table for three variables."""
    if state == "uniform":
        return torch.zeros(4, 3 * units, dtype=torch.float64), units
    # All pairs (a, b) and the variables (a, b, a + b): one-hot, even, pairwise independent.
    a, b = torch.meshgrid(torch.arange(units), torch.arange(units), indexing="ij")
    codes = torch.stack([a, b, (a + b) % units], -1).flatten(0, 1)
    if state == "collapsed":
        codes = torch.zeros_like(codes)
    hot = nn.functional.one_hot(codes, units).flatten(1).double()
    return 1000 * hot, units


@pytest.mark.parametrize("units", [80, 32])
@pytest.mark.parametrize("state", ["uniform", "ideal", "collapsed"])
@pytest.mark.parametrize("normalization", ["averaged", "paper"])
def test_closed_form_values(state: str, units: int, normalization: Normalization) -> None:
    values, _ = closed_form(state, units)
    loss = IMSVDLoss(units, normalization=normalization)
    output = loss(values, values)
    row = getattr(loss.bounds(len(values), values.shape[1]), state)
    assert float(output.loss) == pytest.approx(row.total, abs=1e-9)
    for name in KEYS:
        assert float(output.terms[name]) == pytest.approx(getattr(row, name), abs=1e-9)


def test_bounds_hold_the_published_numbers() -> None:
    large, small = IMSVDLoss(80).bounds(2048, 8160), IMSVDLoss(32).bounds(512, 1024)
    assert [row.total for row in large[:3]] == pytest.approx([-13.1461, -4.4916, 0], abs=1e-4)
    assert [row.total for row in small[:3]] == pytest.approx([-10.3972, -3.6824, 0], abs=1e-4)
    assert large.batch_limit.off_diagonal_entropy == pytest.approx(-math.log(2048))
    assert large.batch_limit.diagonal_entropy == pytest.approx(-math.log(80))
    paper = IMSVDLoss(80, normalization="paper").bounds(2048, 8160)
    assert paper.ideal.total == pytest.approx(-math.log(80) * (2 * 102 - 1) / 102)


def test_bounds_of_unequal_units_and_weights() -> None:
    loss = IMSVDLoss([2, 4, 8], diagonal_weight=3.0, off_diagonal_weight=0.5)
    bounds = loss.bounds(16, 14)
    log2 = math.log(2)
    assert bounds.ideal.diagonal_entropy == pytest.approx(-log2 * (1 + 2 + 3) / 3)
    assert bounds.ideal.off_diagonal_entropy == pytest.approx(-log2 * (3 + 4 + 5) / 3)
    assert bounds.batch_limit.off_diagonal_entropy == pytest.approx(-log2 * (3 + 4 + 4) / 3)
    assert bounds.ideal.total == pytest.approx(-3 * log2 * 2 - 0.5 * log2 * 4)
    zeros = torch.zeros(5, 14, dtype=torch.float64)
    assert float(loss(zeros, zeros).loss) == pytest.approx(bounds.uniform.total)


def test_no_batch_of_hard_codes_beats_the_batch_limit() -> None:
    for seed in range(5):
        codes = torch.randint(0, 8, (6, 4), generator=torch.Generator().manual_seed(seed))
        values = 1000 * nn.functional.one_hot(codes, 8).flatten(1).double()
        loss = IMSVDLoss(8)
        assert float(loss(values, values).loss) >= loss.bounds(6, 32).batch_limit.total - 1e-12
