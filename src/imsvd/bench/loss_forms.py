"""The losses that `imsvd bench loss` compares: each turns two embeddings into their gradients.

A form is a function of two `(batch, width)` embeddings that require gradients and of the units per
variable; it runs forward and backward once.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from imsvd.losses.imsvd import IMSVDLoss


class Form(NamedTuple):
    """One row of the table.

    Attributes:
        label: what the table calls it.
        step: forward and backward of two embeddings.
        matrices: how many `(width, width)` matrices it holds at its peak, to foresee what fits.
        needs: a package that must be installed, or None.
    """

    label: str
    step: Callable[[Tensor, Tensor, int], None]
    matrices: float
    needs: str | None = None


def _backward(loss: Tensor) -> None:
    torch.autograd.backward(loss)


def _ours(first: Tensor, second: Tensor, units: int) -> None:
    _backward(IMSVDLoss(units)(first, second).loss)


def _floor(first: Tensor, second: Tensor, _units: int) -> None:
    """The three matrix products no implementation can avoid, and nothing else."""
    with torch.no_grad():
        joint = first.T @ second
        first.grad = second @ joint.T
        second.grad = first @ joint


def _dense(first: Tensor, second: Tensor, units: int) -> None:
    """The joint matrix whole, its blocks picked out, and autograd through all of it."""
    batch, width = first.shape
    variables = width // units
    q1, q2 = (view.view(batch, variables, units).softmax(-1) for view in (first, second))
    q1, q2 = q1.clamp_min(1e-8), q2.clamp_min(1e-8)
    similarity = (q1 * q2).sum(-1).log().mean()
    joint = q1.flatten(1).T @ q2.flatten(1) / batch
    blocks = joint.view(variables, units, variables, units).transpose(1, 2)
    same = torch.eye(variables, dtype=torch.bool, device=first.device)
    off_diagonal, diagonal = blocks[~same], blocks[same].diagonal(dim1=1, dim2=2)
    loss = (diagonal * diagonal.log()).sum() / variables - similarity
    pairs = variables * (variables - 1)
    _backward(loss + (off_diagonal * off_diagonal.log()).sum() / pairs)


def _vicreg(first: Tensor, second: Tensor, _units: int) -> None:
    loss = 25 * nn.functional.mse_loss(first, second)
    for view in (first, second):
        centered = view - view.mean(0)
        spread = torch.sqrt(centered.var(0) + 1e-4)
        covariance = centered.T @ centered / (len(view) - 1)
        off_diagonal = covariance.pow(2).sum() - covariance.diagonal().pow(2).sum()
        loss = loss + 12.5 * torch.relu(1 - spread).mean() + off_diagonal / view.shape[1]
    _backward(loss)


def _barlow_twins(first: Tensor, second: Tensor, _units: int) -> None:
    normalized = [(view - view.mean(0)) / view.std(0) for view in (first, second)]
    correlation = normalized[0].T @ normalized[1] / len(first)
    diagonal = correlation.diagonal()
    off_diagonal = correlation.pow(2).sum() - diagonal.pow(2).sum()
    _backward((1 - diagonal).pow(2).sum() + 0.0051 * off_diagonal)


def _lightly_vicreg(first: Tensor, second: Tensor, _units: int) -> None:
    from lightly.loss import VICRegLoss  # noqa: PLC0415 - an optional package

    _backward(VICRegLoss()(first, second))


def _lightly_barlow_twins(first: Tensor, second: Tensor, _units: int) -> None:
    from lightly.loss import BarlowTwinsLoss  # noqa: PLC0415 - an optional package

    _backward(BarlowTwinsLoss()(first, second))


FORMS: dict[str, Form] = {
    "floor": Form("three matrix products", _floor, 1),
    "ours": Form("IMSVD, ours", _ours, 0),
    "dense": Form("IMSVD, dense autograd", _dense, 6),
    "vicreg": Form("VICReg, plain", _vicreg, 4),
    "vicreg-lightly": Form("VICReg, lightly", _lightly_vicreg, 6, "lightly"),
    "barlow": Form("Barlow Twins, plain", _barlow_twins, 3),
    "barlow-lightly": Form("Barlow Twins, lightly", _lightly_barlow_twins, 5, "lightly"),
}
