"""The joint matrix P^c of a whole dataset, compared with the five properties the theorem predicts.

| symbol | here |
|---|---|
| P^c(m1, m2; d1, d2) | `JointMatrix.rows(start, stop)` |
| p(m, d) of the two views | `JointMatrix.marginals()` |
| I(m1; m2) | `mutual_information(joint)` |

Sums run over batches and are divided by the number of images at the end, so that every image has
the same weight. Logarithms are natural.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from torch import Tensor

from imsvd.explanations.sections import (
    Findings,
    Part,
    Section,
    Tile,
    element,
    join,
    paragraph,
    table,
    write_array,
    write_json,
)
from imsvd.explanations.subject import Collector, Progress, ReadBatch, Subject, unit_starts
from imsvd.figures import CURVE, PALETTE, STYLE, save_figure
from imsvd.information import max_probabilities, surprise, variable_sums

MAX_DOUBLE_WIDTH = 8192
"""Widest embedding whose sums are kept in float64 (half a GiB); wider ones use float32."""
KEPT_WIDTH = 1024
"""Most units of the leading variables whose part of the matrix is written to a file (4 MiB)."""

PROPERTIES = {
    "one_hot": "Each variable is decided: one unit holds nearly all of the probability.",
    "equal_views": "Two views of an image take the same units.",
    "even_units": "The units of a variable are used equally often.",
    "even_pairs": "All pairs of units of two variables are equally frequent.",
    "independent": "One variable says nothing about another.",
}
VERDICTS = {
    "holds": ("good", "✓"),
    "partly": ("middle", "≈"),
    "does not hold": ("bad", "✗"),
    "too few images": ("middle", "?"),
}
TABLE_TITLE = "Theorem properties: predicted vs. measured"
BY_CHANCE = "value expected by chance at this sample size and confidence, if the property held"
Verdict = Literal["holds", "partly", "does not hold", "too few images"]


class JointMatrix:
    """Sums the products of two views' probabilities, `tile_rows` rows at a time to save memory."""

    def __init__(
        self, units: Sequence[int], tile_rows: int = 1024, device: torch.device | str = "cpu"
    ) -> None:
        self.units = tuple(units)
        width = sum(self.units)
        dtype = torch.float64 if width <= MAX_DOUBLE_WIDTH else torch.float32
        self._tile_rows = tile_rows
        self.sums = {
            "products": torch.zeros(width, width, dtype=dtype, device=device),
            "squares": torch.zeros(2, width, dtype=torch.float64, device=device),
            "agreement": torch.zeros(1, dtype=torch.float64),
            "counts": torch.zeros(2, dtype=torch.int64),
        }

    @property
    def count(self) -> int:
        """Number of images."""
        return int(self.sums["counts"][0])

    @property
    def off_block_cells(self) -> int:
        """Number of pairs of units of different variables, at least 1."""
        return max(1, sum(self.units) ** 2 - sum(size**2 for size in self.units))

    def add(self, q1: Tensor, q2: Tensor) -> None:
        """Add the probabilities of two views of the same images, (batch, width) each."""
        products = self.sums["products"]
        for start in range(0, len(products), self._tile_rows):
            rows = slice(start, start + self._tile_rows)
            products[rows] += (q1[:, rows].T @ q2).to(products)
        self.sums["squares"] += torch.stack([q.double().square().sum(0) for q in (q1, q2)])
        self.sums["agreement"] += float(variable_sums(q1 * q2, self.units).double().sum())
        one_hot = sum(int((max_probabilities(q, self.units) > 0.9).sum()) for q in (q1, q2))
        self.sums["counts"] += torch.tensor([len(q1), one_hot])

    def rows(self, start: int, stop: int) -> Tensor:
        """Return rows of P^c, (stop - start, width) float64."""
        return self.sums["products"][start:stop].cpu().double() / self.count

    def leading(self, num_variables: int) -> Tensor:
        """Return P^c among the first variables."""
        width = sum(self.units[:num_variables])
        return self.rows(0, width)[:, :width]

    def marginals(self) -> tuple[Tensor, Tensor]:
        """Return the probability of every unit in the first and the second view, (width,) each."""
        first = self.sums["products"][:, : self.units[0]].cpu().double().sum(1) / self.count
        return first, self.rows(0, self.units[0]).sum(0)

    def mean_squares(self) -> Tensor:
        """Return the mean of q² of every unit in the first and the second view, (2, width)."""
        return self.sums["squares"].cpu() / self.count

    def agreement(self) -> float:
        """Return the mean of ⟨q', q''⟩ over images and variables: 1 if one-hot and equal."""
        return float(self.sums["agreement"]) / (self.count * len(self.units))

    def one_hot_share(self) -> float:
        """Return the share of sub-vectors of either view with a probability above 0.9."""
        return int(self.sums["counts"][1]) / (2 * self.count * len(self.units))


class JointCollector(Collector):
    """Adds two augmented views of every image to a `JointMatrix`."""

    name = "joint"
    uses_views = True

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self.joint = JointMatrix(subject.units, device=subject.device)
        self.sums = self.joint.sums

    def take(self, batch: ReadBatch) -> None:
        """Add a batch."""
        self.joint.add(*batch.view_q)

    def finish(self) -> JointMatrix:
        """Return the joint matrix."""
        return self.joint


def mutual_information(joint: JointMatrix) -> Tensor:
    """Return the mutual information of each variable of one view with each of the other, (M, M).

    The diagonal is the part of a variable that survives the augmentation, at most ln D_m.
    """
    first, second = (variable_sums(surprise(p), joint.units) for p in joint.marginals())
    together = [
        variable_sums(surprise(joint.rows(start, start + size)).sum(0), joint.units)
        for start, size in zip(unit_starts(joint.units), joint.units, strict=True)
    ]
    return first[:, None] + second[None, :] - torch.stack(together)


def leading_variables(units: Sequence[int], width: int = KEPT_WIDTH) -> int:
    """Return how many of the first variables have at most `width` units together."""
    return int((np.cumsum(units) <= width).sum())


class Deviations(NamedTuple):
    """Relative distances from a uniform distribution: of p · D_m and of P · D_m1 · D_m2 from 1."""

    marginal_mean: float
    marginal_largest: float
    off_block_mean: float
    off_block_largest: float


def deviations(joint: JointMatrix) -> Deviations:
    """Compare marginals and off-diagonal blocks with 1 / D_m and 1 / (D_m1 D_m2)."""
    sizes = torch.tensor(joint.units).double().repeat_interleave(torch.tensor(joint.units))
    marginal = (torch.stack(joint.marginals()) * sizes - 1).abs()
    total, largest = 0.0, 0.0
    for start, size in zip(unit_starts(joint.units), joint.units, strict=True):
        distance = (joint.rows(start, start + size) * sizes * size - 1).abs()
        distance[:, start : start + size] = 0
        total += float(distance.sum())
        largest = max(largest, float(distance.max()))
    return Deviations(
        float(marginal.mean()), float(marginal.max()), total / joint.off_block_cells, largest
    )


class Property(NamedTuple):
    """One property predicted by the theorem (Thm 1) and its measured value."""

    name: str
    meaning: str
    measured: float
    ideal: float
    floor: float
    """The value expected by chance at this sample size and confidence, if the property held."""
    verdict: Verdict


def theorem_properties(
    joint: JointMatrix, information: Tensor, distance: Deviations
) -> list[Property]:
    """Judge the theorem's five properties, given `mutual_information` and `deviations`."""
    shared = float(_off_diagonal_mean(information))
    scale = float(torch.tensor(joint.units, dtype=torch.float64).log().mean()) / 2
    floors = noise_floors(joint)
    off_blocks = "mean |P · D² − 1| off the diagonal blocks"
    between = "mean mutual information of two variables, nats"
    return [
        _judge("one_hot", "share of q with a maximum above 0.9", joint.one_hot_share(), 1.0, 1.0),
        _judge("equal_views", "mean ⟨q', q''⟩ of two views", joint.agreement(), 1.0, 1.0),
        _judge("even_units", "mean |p · D − 1|", distance.marginal_mean, 0.0, floors[0]),
        _judge("even_pairs", off_blocks, distance.off_block_mean, 0.0, floors[1]),
        _judge("independent", between, shared, 0.0, floors[2], scale),
    ]


def noise_floors(joint: JointMatrix) -> tuple[float, float, float]:
    """Estimate what even units, even pairs and independent variables show in a finite sample.

    With N images, the mean of q has standard deviation √(var q / N), and the mean of products of
    independent q' and q'' has √((E q'² E q''² − p'² p''²) / N); the expected |p · D − 1| and
    |P · D² − 1| are √(2/π) of it. Two independent variables appear to share v' v'' / 2N nats, where
    v = Σ_d var q_d / p_d. One-hot, evenly used codes have v = D − 1; soft ones have less.
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
    return even_units, spread * _pair_spread(joint, scale, marginals, squares), independent


def _pair_spread(joint: JointMatrix, scale: Tensor, marginals: Tensor, squares: Tensor) -> float:
    """Return the mean deviation of q' q'' · D' D'' over pairs of units of different variables."""
    total = 0.0
    for start, size in zip(unit_starts(joint.units), joint.units, strict=True):
        rows = slice(start, start + size)
        variance = torch.outer(squares[0, rows], squares[1])
        variance -= torch.outer(marginals[0, rows], marginals[1]) ** 2
        spread = variance.clamp_min(0).sqrt() * scale[rows, None] * scale
        spread[:, rows] = 0
        total += float(spread.sum())
    return total / joint.off_block_cells


def _off_diagonal_mean(values: Tensor) -> Tensor:
    pairs = max(1, len(values) * (len(values) - 1))
    return (values.sum() - values.diagonal().sum()) / pairs


def _judge(
    name: str, meaning: str, measured: float, ideal: float, floor: float, scale: float = 1.0
) -> Property:
    """Judge the distance from `ideal`; from 0 in units of `scale`, beyond what chance explains."""
    excess = 1 - measured if ideal else (measured - floor) / scale
    verdict: Verdict = "holds" if excess <= 0.1 else "partly" if excess <= 0.5 else "does not hold"
    if not ideal and floor > scale and excess <= 0.5:  # noise could hide anything
        verdict = "too few images"
    return Property(name, meaning, measured, ideal, floor, verdict)


def property_numbers(row: Mapping[str, Any]) -> list[str]:
    """Format measured, predicted and chance value; chance only matters if 0 is predicted."""
    by_chance = "–" if row["ideal"] else f"{row['floor']:.3g}"
    return [f"{row['measured']:.3g}", f"{row['ideal']:.3g}", by_chance]


def most_dependent(information: Tensor, count: int = 10) -> list[dict[str, Any]]:
    """Return the pairs of variables that share most, averaged over both directions."""
    shared = ((information + information.T) / 2).triu(1)
    order = shared.flatten().argsort(descending=True, stable=True)[:count]
    num_variables = len(information)
    pairs = [(int(place) // num_variables, int(place) % num_variables) for place in order]
    return [{"variables": [a, b], "nats": round(float(shared[a, b]), 6)} for a, b in pairs if a < b]


def _make(subject: Subject, joint: JointMatrix, _: Progress) -> dict[str, Any]:
    information = mutual_information(joint)
    distance = deviations(joint)
    properties = theorem_properties(joint, information, distance)
    floor = properties[-1].floor
    drawn = min(5, len(subject.units))
    matrix, folder = joint.leading(drawn).numpy(), subject.folder
    draw_joint(matrix, subject.units[:drawn], joint.count, folder / "joint_matrix.png")
    draw_mutual_information(information.numpy(), floor, folder / "mutual_information.png")
    kept = joint.leading(leading_variables(subject.units))
    write_array(subject, "joint_matrix.npy", kept)
    write_array(subject, "mutual_information.npy", information)
    rows = [row._asdict() for row in properties]
    record = {
        "images": joint.count,
        "properties": rows,
        "deviations": distance._asdict(),
        "mutual_information": {
            "mean": properties[-1].measured,
            "floor": floor,
            "with_itself_in_the_other_view": float(information.diagonal().mean()),
            "most_dependent": most_dependent(information),
        },
    }
    write_json(subject, "properties.json", record)
    held = sum(row.verdict == "holds" for row in properties)
    return {"images": joint.count, "properties_that_hold": held, "properties": rows}


@mpl.rc_context(STYLE)
def draw_joint(matrix: NDArray[np.float64], sizes: Sequence[int], images: int, path: Path) -> Path:
    """Draw P^c of the first variables, clipped at a tenth of its maximum as in the paper."""
    figure = Figure(figsize=(6.2, 5.4), layout="constrained")
    axis = figure.subplots()
    # With fewer than 20 units, the paper's limit would be below twice the uniform value 1 / D².
    tenth, even = 0.1 * float(matrix.max()), 2 / min(sizes) ** 2
    rule = "0.1 × its maximum" if tenth >= even else "twice the uniform value"
    top = max(tenth, even)
    shown = axis.imshow(matrix, vmin=0, vmax=top, cmap="viridis", interpolation="nearest")
    edges = np.cumsum((0, *sizes))
    for draw_line in (axis.axhline, axis.axvline):
        for edge in edges[1:-1]:
            draw_line(edge - 0.5, color="white", linewidth=0.5)
    names, centers = [str(number) for number in range(len(sizes))], (edges[:-1] + edges[1:] - 1) / 2
    axis.set(xticks=centers, xticklabels=names, yticks=centers, yticklabels=names)
    axis.tick_params(length=0)
    axis.set(xlabel="variable, second view", ylabel="variable, first view")
    axis.set_title(f"joint probability of the units of {len(sizes)} variables ({images:,} images)")
    figure.colorbar(shown, ax=axis, extend="max", label=f"P, clipped at {rule}")
    return save_figure(figure, path)


@mpl.rc_context(STYLE)
def draw_mutual_information(information: NDArray[np.float64], floor: float, path: Path) -> Path:
    """Draw the mutual information of every two variables, and its distribution."""
    figure = Figure(figsize=(10, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.15, 1))
    diagonal = np.eye(len(information), dtype=bool)
    off = information[~diagonal]
    colors = mpl.colormaps["viridis"].with_extremes(bad="#dddddd")
    top = float(off.max()) if off.size else 1.0
    masked = np.where(diagonal, np.nan, information)
    shown = left.imshow(masked, cmap=colors, vmin=0, vmax=top, interpolation="nearest")
    for axis in (left.xaxis, left.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    left.set(xlabel="variable, second view", ylabel="variable, first view")
    left.set_title("mutual information of two variables")
    figure.colorbar(shown, ax=left, label="nats")
    if off.size:
        right.hist(off, bins=40, color=CURVE)
        right.axvline(float(off.mean()), color=PALETTE[1], label=f"mean: {off.mean():.3g}")
    chance = f"expected by chance if independent: {floor:.2g}"
    right.axvline(floor, color="black", linestyle="--", label=chance)
    right.set(xlabel="mutual information, nats", ylabel="pairs of variables", xlim=(0, None))
    own = float(np.diagonal(information).mean())
    right.set_title(f"a variable with itself in the other view: {own:.3g} nats")
    right.legend(framealpha=1, edgecolor="none")
    return save_figure(figure, path)


def _section(findings: Findings) -> Section | None:
    record = findings.record("joint", "properties.json")
    if record is None:
        return None
    rows = []
    for row in record["properties"]:
        name = join((row["name"].replace("_", " "), element("small", PROPERTIES[row["name"]])))
        # A symbol as well, so that the verdict does not depend on its color.
        look, sign = VERDICTS.get(row["verdict"], ("middle", ""))
        verdict = element("span", f"{sign} {row['verdict']}".strip(), class_=f"verdict {look}")
        rows.append((name, verdict, row["meaning"], *property_numbers(row)))
    held = sum(row["verdict"] == "holds" for row in record["properties"])
    return [
        paragraph(
            "According to the theorem, a model that minimizes the loss has five properties. "
            f"{held} of {len(rows)} hold for this model, measured on two augmented views of "
            f"{record['images']:,} images."
        ),
        table(
            f"{TABLE_TITLE}. “By chance” is the {BY_CHANCE}.",
            ("property", "verdict", "measured as", "measured", "predicted", "by chance"),
            rows,
            texts=3,
        ),
        *_figures(findings, record["mutual_information"]),
    ]


def _figures(findings: Findings, shared: Mapping[str, Any]) -> Section:
    pairs = [
        (" and ".join(map(str, pair["variables"])), f"{pair['nats']:.3g}")
        for pair in shared["most_dependent"][:5]
    ]
    return [
        findings.figure(
            "joint",
            "Heat map: joint probabilities of the units of the first variables in two views.",
            "Each block is a pair of variables. A block on the diagonal compares a variable with "
            "itself in the other view: only its own diagonal is bright if both views take the same "
            "unit. Ideally, all other blocks are uniform.",
            file="joint_matrix.png",
        ),
        findings.figure(
            "joint",
            "Heat map and histogram: mutual information of every two variables.",
            f"Two variables share {shared['mean']:.3g} nats on average; independent ones would "
            f"show {shared['floor']:.2g} by chance. A variable shares "
            f"{shared['with_itself_in_the_other_view']:.3g} nats with itself in the other view.",
            file="mutual_information.png",
        ),
        table("Most dependent pairs", ("variables", "shared nats"), pairs) if pairs else None,
    ]


def _tiles(found: Mapping[str, Any]) -> list[Tile]:
    number = f"{found['properties_that_hold']} of {len(found['properties'])}"
    return [Tile(number, "properties predicted by the theorem hold")]


PART = Part(
    title="Theorem properties",
    files=(
        "joint_matrix.png",
        "joint_matrix.npy",
        "mutual_information.png",
        "mutual_information.npy",
        "properties.json",
    ),
    reads=JointCollector,
    make=_make,
    section=_section,
    tiles=_tiles,
    method=(
        "Joint matrix and the five properties",
        "Two augmented views of every readable image, made as in training, pass through the network "
        "in evaluation mode. P is the mean over images of the products of their probabilities. "
        f"“By chance” is the {BY_CHANCE}: independent variables appear to share about v² / 2N nats, "
        "where v is the sum of var q / mean q over units (D − 1 for one-hot, evenly used codes). "
        "Properties predicted to be 1 hold from 0.9 and hold partly from 0.5. For those predicted "
        "to be 0, the excess over chance counts: up to 0.1 they hold, up to 0.5 partly (mutual "
        "information in units of ½ ln D). If chance exceeds that unit, there are too few images.",
    ),
)
