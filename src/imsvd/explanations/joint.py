"""The joint matrix P^c of a whole dataset, and how near it is to what the theorem promises.

| symbol | here |
|---|---|
| P^c(m1, m2; d1, d2) | `JointMatrix.rows(start, stop)` |
| p(m, d) of the two views | `JointMatrix.marginals()` |
| I(m1; m2) | `mutual_information(joint)` |

Sums are added up over batches and divided by the number of images at the end, so that every image
weighs the same whatever the batches. Logarithms are natural.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from imsvd.errors import InputError
from imsvd.explanations.subject import unit_starts
from imsvd.information import max_probabilities, surprise, variable_sums

MAX_DOUBLE_WIDTH = 8192
"""Widest embedding whose sums are kept in float64 (half a GiB); wider ones in float32."""

KEPT_WIDTH = 1024
"""Most units of the leading variables whose part of the matrix is kept in a file (4 MiB)."""

Verdict = Literal["holds", "partly", "does not hold", "too few images"]


class JointMatrix:
    """Adds up the products of two views' probabilities, tile by tile.

    Args:
        units: units of each variable.
        tile_rows: rows of the matrix made at a time; more need more memory beside the sums.
        device: where the sums are kept; best that of the probabilities.
    """

    def __init__(
        self, units: Sequence[int], tile_rows: int = 1024, device: torch.device | str = "cpu"
    ) -> None:
        self.units = tuple(units)
        self.count = 0
        width = sum(self.units)
        dtype = torch.float64 if width <= MAX_DOUBLE_WIDTH else torch.float32
        self._sums = torch.zeros(width, width, dtype=dtype, device=device)
        self._tile_rows = tile_rows
        self._squares = torch.zeros(2, width, dtype=torch.float64, device=device)
        self._agreement = 0.0
        self._one_hot = 0

    def add(self, q1: Tensor, q2: Tensor) -> None:
        """Count the probabilities of two views of the same images, (batch, width) each."""
        for start in range(0, len(self._sums), self._tile_rows):
            rows = slice(start, start + self._tile_rows)
            self._sums[rows] += (q1[:, rows].T @ q2).to(self._sums)
        self._squares += torch.stack([q.double().square().sum(0) for q in (q1, q2)])
        self.count += len(q1)
        self._agreement += float(variable_sums(q1 * q2, self.units).double().sum())
        self._one_hot += sum(int((max_probabilities(q, self.units) > 0.9).sum()) for q in (q1, q2))

    def rows(self, start: int, stop: int) -> Tensor:
        """Rows of P^c, (stop - start, width) float64."""
        if not self.count:
            raise InputError("a joint matrix needs at least one readable image.")
        return self._sums[start:stop].cpu().double() / self.count

    def state(self) -> dict[str, NDArray[Any]]:
        """Everything that has been added up, for `restore`."""
        return {
            "sums": self._sums.cpu().numpy(),
            "squares": self._squares.cpu().numpy(),
            "count": np.array(self.count),
            "agreement": np.array(self._agreement),
            "one_hot": np.array(self._one_hot),
        }

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from what `state` gave."""
        self._sums.copy_(torch.from_numpy(state["sums"]))
        self._squares.copy_(torch.from_numpy(state["squares"]))
        self.count = int(state["count"])
        self._agreement = float(state["agreement"])
        self._one_hot = int(state["one_hot"])

    def leading(self, num_variables: int) -> Tensor:
        """P^c of the first variables among themselves."""
        width = sum(self.units[:num_variables])
        return self.rows(0, width)[:, :width]

    def marginals(self) -> tuple[Tensor, Tensor]:
        """Probability of every unit in the first and in the second view, (width,) each."""
        first = self._sums[:, : self.units[0]].cpu().double().sum(1) / self.count
        return first, self.rows(0, self.units[0]).sum(0)

    def mean_squares(self) -> Tensor:
        """Mean of q² of every unit in the first and in the second view, (2, width)."""
        return self._squares.cpu() / self.count

    def agreement(self) -> float:
        """Mean over images and variables of ⟨q', q''⟩: 1 when both are one-hot and the same."""
        return self._agreement / (self.count * len(self.units))

    def one_hot_share(self) -> float:
        """Share of sub-vectors of either view whose largest probability is above 0.9."""
        return self._one_hot / (2 * self.count * len(self.units))


def mutual_information(joint: JointMatrix) -> Tensor:
    """Mutual information of every variable of one view with every one of the other, (M, M).

    The diagonal says what of a variable survives the augmentation: ln D_m at best.
    """
    first, second = (variable_sums(surprise(p), joint.units) for p in joint.marginals())
    together = [
        variable_sums(surprise(joint.rows(start, start + size)).sum(0), joint.units)
        for start, size in zip(unit_starts(joint.units), joint.units, strict=True)
    ]
    return first[:, None] + second[None, :] - torch.stack(together)


def leading_variables(units: Sequence[int], width: int = KEPT_WIDTH) -> int:
    """How many of the first variables have at most `width` units together."""
    return sum(
        start + size <= width for start, size in zip(unit_starts(tuple(units)), units, strict=True)
    )


class Deviations(NamedTuple):
    """Relative distances from an even distribution: of p · D_m from 1, and of P · D_m1 · D_m2."""

    marginal_mean: float
    marginal_largest: float
    off_block_mean: float
    off_block_largest: float


def deviations(joint: JointMatrix) -> Deviations:
    """Compare marginals and off-diagonal blocks with 1 / D_m and 1 / (D_m1 D_m2)."""
    sizes = torch.tensor(joint.units, dtype=torch.float64).repeat_interleave(
        torch.tensor(joint.units)
    )
    marginal = (torch.stack(joint.marginals()) * sizes - 1).abs()
    total, largest = 0.0, 0.0
    for start, size in zip(unit_starts(joint.units), joint.units, strict=True):
        distance = (joint.rows(start, start + size) * sizes * size - 1).abs()
        distance[:, start : start + size] = 0
        total += float(distance.sum())
        largest = max(largest, float(distance.max()))
    cells = sum(joint.units) ** 2 - sum(size**2 for size in joint.units)
    return Deviations(float(marginal.mean()), float(marginal.max()), total / max(1, cells), largest)


class Property(NamedTuple):
    """One promise of the theorem (Thm 1) beside what was measured."""

    name: str
    meaning: str
    measured: float
    ideal: float
    floor: float
    """What variables as sure as these would show on so few images if the promise held."""
    verdict: Verdict


def theorem_properties(
    joint: JointMatrix, information: Tensor, distance: Deviations
) -> list[Property]:
    """The theorem's five properties; `information` as `mutual_information` gives it."""
    off_diagonal = float(_off_diagonal_mean(information))
    scale = float(torch.tensor(joint.units, dtype=torch.float64).log().mean())
    floors = noise_floors(joint)
    return [
        _near_one("one_hot", "share of q with a maximum above 0.9", joint.one_hot_share()),
        _near_one("equal_views", "mean ⟨q', q''⟩ of two views", joint.agreement()),
        _near_zero(
            "even_units", "mean |p · D − 1|", distance.marginal_mean, floors.even_units, 1.0
        ),
        _near_zero(
            "even_pairs",
            "mean |P · D² − 1| off the diagonal blocks",
            distance.off_block_mean,
            floors.even_pairs,
            1.0,
        ),
        _near_zero(
            "independent",
            "mean mutual information of two variables, nats",
            off_diagonal,
            floors.independent,
            scale / 2,
        ),
    ]


class Floors(NamedTuple):
    """What is measured of even and independent variables because there are only so many images."""

    even_units: float
    even_pairs: float
    independent: float


def noise_floors(joint: JointMatrix) -> Floors:
    """Estimate the floors from how much each unit's probability varies from image to image.

    With N images a mean of q varies by √(var q / N), and a mean of products of independent q' and q''
    by √((E q'² E q''² − p'² p''²) / N); what is then seen of |p · D − 1| and |P · D² − 1| is √(2/π) of
    it. Two independent variables seem to share v' v'' / 2N nats, with v = Σ_d var q_d / p_d. Codes that
    are one-hot and even have v = D − 1; soft ones vary less, and show less.
    """
    sizes = torch.tensor(joint.units)
    scale = sizes.double().repeat_interleave(sizes)
    marginals, squares = torch.stack(joint.marginals()), joint.mean_squares()
    variances = (squares - marginals**2).clamp_min(0)
    spread = math.sqrt(2 / (math.pi * joint.count))
    even_units = spread * float((variances.sqrt() * scale).mean())
    relative = variances / marginals.clamp_min(torch.finfo(marginals.dtype).tiny)
    first, second = (variable_sums(values, joint.units) for values in relative)
    independent = float(_off_diagonal_mean(first[:, None] * second[None])) / (2 * joint.count)
    return Floors(even_units, spread * _pair_spread(joint, scale, marginals, squares), independent)


def _pair_spread(joint: JointMatrix, scale: Tensor, marginals: Tensor, squares: Tensor) -> float:
    """Mean deviation of q' q'' · D' D'' over the pairs of units of different variables."""
    total = 0.0
    for start, size in zip(unit_starts(joint.units), joint.units, strict=True):
        rows = slice(start, start + size)
        variance = torch.outer(squares[0, rows], squares[1])
        variance -= torch.outer(marginals[0, rows], marginals[1]) ** 2
        spread = variance.clamp_min(0).sqrt() * scale[rows, None] * scale
        spread[:, rows] = 0
        total += float(spread.sum())
    cells = sum(joint.units) ** 2 - sum(size**2 for size in joint.units)
    return total / max(1, cells)


def _off_diagonal_mean(values: Tensor) -> Tensor:
    pairs = max(1, len(values) * (len(values) - 1))
    return (values.sum() - values.diagonal().sum()) / pairs


def _near_one(name: str, meaning: str, measured: float) -> Property:
    verdict: Verdict = (
        "holds" if measured >= 0.9 else "partly" if measured >= 0.5 else "does not hold"
    )
    return Property(name, meaning, measured, 1.0, 1.0, verdict)


def _near_zero(name: str, meaning: str, measured: float, floor: float, scale: float) -> Property:
    """Judge a distance from 0 in units of `scale`, less what the number of images explains."""
    excess = (measured - floor) / scale
    verdict: Verdict = "holds" if excess <= 0.1 else "partly" if excess <= 0.5 else "does not hold"
    if floor > scale and excess <= 0.5:  # noise could hide anything
        verdict = "too few images"
    return Property(name, meaning, measured, 0.0, floor, verdict)


def most_dependent(information: Tensor, count: int = 10) -> list[dict[str, Any]]:
    """The pairs of variables that share most, each pair once, averaged over both directions."""
    shared = ((information + information.T) / 2).triu(1)
    order = shared.flatten().argsort(descending=True, stable=True)[:count]
    num_variables = len(information)
    pairs = [(int(place) // num_variables, int(place) % num_variables) for place in order]
    return [{"variables": [a, b], "nats": round(float(shared[a, b]), 6)} for a, b in pairs if a < b]
