"""How discrete the codes are, how evenly units are used, and how many bits the codes hold.

The entropy of whole codes cannot be estimated directly: n images show at most log2 n bits. Two
numbers bracket it instead.

- Lower: the plug-in entropy of the observed codes, at most log2 n and biased downwards.
- Upper: the entropy of the Chow-Liu tree, Σ H(m) minus the mutual information along the tree of the
  most dependent pairs. Ignoring further dependence can only add entropy. Entropies carry Miller and
  Madow's correction (K - 1) / 2n for K occupied cells. It is too small where many cells were never
  observed, so the mutual information of shuffled pairs is subtracted as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from imsvd.explanations.encodings import Encodings, EncodingsCollector
from imsvd.explanations.sections import Findings, Part, Section, Tile, percent, table, write_json
from imsvd.explanations.subject import Progress, Subject, evenly_spaced
from imsvd.figures import CURVE, PALETTE, STYLE, save_figure
from imsvd.information import dead_units
from imsvd.population.counting import spanning_tree

OVERUSED = 3.0
"""A unit is overused when its share exceeds the even share by this factor."""

PAPER_SHARES = {"0.9": 0.9118, "0.99": 0.8125}
_MAX_IMAGES_FOR_PAIRS = 50_000
_SHUFFLES = 4
"""Shuffles per pair. The tree selects pairs whose chance value was underestimated; more shuffles
reduce this bias."""

Codes = NDArray[np.integer[Any]]


class CodeEntropy(NamedTuple):
    """Bits of a code: the capacity of M variables, and the bracket around what they hold."""

    capacity: float
    marginal_sum: float
    upper: float
    lower: float
    distinct_codes: int


def entropy_bits(counts: NDArray[np.integer[Any]]) -> float:
    """Return the entropy of a histogram in bits, with Miller and Madow's correction."""
    occupied = counts[counts > 0].astype(np.float64)
    total = occupied.sum()
    shares = occupied / total
    return float(-(shares * np.log2(shares)).sum() + (len(occupied) - 1) / (2 * total * np.log(2)))


def code_entropy(
    codes: Codes, units: tuple[int, ...], progress: Progress | None = None
) -> CodeEntropy:
    """Bracket the entropy of codes (n, M)."""
    # Sorting rows as opaque values is many times faster than sorting arrays.
    whole = np.ascontiguousarray(codes).view(np.dtype((np.void, codes.dtype.itemsize * len(units))))
    counts = np.unique(whole, return_counts=True)[1]
    shares = counts / counts.sum()
    sample = codes[evenly_spaced(len(codes), _MAX_IMAGES_FOR_PAIRS)]
    single = [
        entropy_bits(np.bincount(sample[:, m], minlength=size)) for m, size in enumerate(units)
    ]
    lower = float(-(shares * np.log2(shares)).sum())
    tree = spanning_tree_weight(pairwise_bits(sample, units, single, progress))
    capacity = float(np.log2(units).sum())
    return CodeEntropy(
        capacity,
        min(capacity, sum(single)),
        max(lower, min(capacity, sum(single) - tree)),
        lower,
        len(counts),
    )


def pairwise_bits(
    codes: Codes, units: tuple[int, ...], single: list[float], progress: Progress | None = None
) -> NDArray[np.float64]:
    """Return the corrected mutual information of every two variables in bits, (M, M)."""
    shared = np.zeros((len(units), len(units)))
    columns = np.ascontiguousarray(codes.T).astype(np.int64)
    random = np.random.default_rng(0)
    shuffles = [columns[:, random.permutation(len(codes))] for _ in range(_SHUFFLES)]

    def bits(a: int, b: int, second: NDArray[np.int64]) -> float:
        cells = np.bincount(columns[a] * units[b] + second, minlength=units[a] * units[b])
        return single[a] + single[b] - entropy_bits(cells)

    for a in range(len(units)):
        for b in range(a + 1, len(units)):
            # The chance value depends on how evenly both are used, so each pair needs its own.
            chance = sum(bits(a, b, shuffled[b]) for shuffled in shuffles) / _SHUFFLES
            excess = bits(a, b, columns[b]) - max(0.0, chance)
            shared[a, b] = shared[b, a] = max(0.0, excess)
        if progress is not None:
            # Progress counts pairs: the first variables have the most of them.
            progress((a + 1) * (2 * len(units) - a - 2) // 2, len(units) * (len(units) - 1) // 2)
    return shared


def spanning_tree_weight(weights: NDArray[np.float64]) -> float:
    """Return the weight of the maximum spanning tree of (M, M) weights."""
    return float(sum(weights[parent, child] for parent, child in spanning_tree(weights)))


def discreteness(
    encodings: Encodings, units: tuple[int, ...], progress: Progress | None = None
) -> dict[str, Any]:
    """Return all measures of discreteness as a JSON-ready record."""
    total = encodings.codes.size
    entropy = code_entropy(encodings.codes, units, progress)
    shares = encodings.marginals * np.repeat(units, units)
    dead = int(dead_units(torch.from_numpy(encodings.marginals), units))
    return {
        "images": len(encodings.codes),
        "variables": len(units),
        "units": sum(units),
        "share_above_0.9": float(encodings.above[0] / total),
        "share_above_0.99": float(encodings.above[1] / total),
        "paper_share_above_0.9": PAPER_SHARES["0.9"],
        "paper_share_above_0.99": PAPER_SHARES["0.99"],
        "dead_units": dead,
        "overused_units": int((shares > OVERUSED).sum()),
        "overused_means": f"mean q above {OVERUSED:g} times the even share",
        "dead_means": "mean q below 0.01 times the even share",
        "distinct_codes": entropy.distinct_codes,
        "bits": {
            "capacity": entropy.capacity,
            "sum_of_variables": entropy.marginal_sum,
            "upper": entropy.upper,
            "lower": entropy.lower,
            "upper_means": "Chow-Liu tree, corrected for small samples (Miller-Madow and shuffled pairs)",
            "lower_means": "plug-in entropy of whole codes, at most log2 of the number of images",
        },
        "histogram": encodings.histogram.tolist(),
        "mean_confidence": [
            round(float(value), 4) for value in encodings.confidence.mean(0, dtype=np.float64)
        ],
    }


def _make(subject: Subject, encodings: Encodings, progress: Progress) -> dict[str, Any]:
    record = discreteness(encodings, subject.units, progress)
    shares = encodings.marginals * np.repeat(subject.units, subject.units)
    draw_discreteness(record, shares, subject.folder / "discreteness.png")
    write_json(subject, "discreteness.json", record)
    kept = ("share_above_0.9", "share_above_0.99", "dead_units", "overused_units", "distinct_codes")
    bits = {f"bits_{name}": record["bits"][name] for name in ("capacity", "upper", "lower")}
    return {name: record[name] for name in kept} | bits


@mpl.rc_context(STYLE)
def draw_discreteness(record: Mapping[str, Any], shares: NDArray[np.float64], path: Path) -> Path:
    """Draw the confidence of the codes, the use of units, and the bits the codes hold."""
    figure = Figure(figsize=(12, 3.4), layout="constrained")
    confidence, use, bits = figure.subplots(1, 3, width_ratios=(1.2, 1.2, 1))
    counts = np.array(record["histogram"], dtype=np.float64)
    places = (np.arange(len(counts)) + 0.5) / len(counts)
    confidence.bar(places, 100 * counts / counts.sum(), width=1 / len(counts), color=CURVE)
    confidence.set(xlabel="largest q of a variable", ylabel="share of sub-vectors, %", xlim=(0, 1))
    above = [100 * record[f"share_above_{level}"] for level in PAPER_SHARES]
    paper = [100 * record[f"paper_share_above_{level}"] for level in PAPER_SHARES]
    confidence.set_title(
        f"above 0.9: {above[0]:.1f} %, above 0.99: {above[1]:.1f} %\n"
        f"(the paper's ImageNet model: {paper[0]:.2f} %, {paper[1]:.2f} %)"
    )
    use.hist(shares, bins=50, color=CURVE)
    use.axvline(1, color="black", linestyle="--", label="even use")
    use.set(xlabel="mean q of a unit / even share", ylabel="units", xlim=(0, None))
    use.set_title(
        f"{record['dead_units']} dead and {record['overused_units']} overused\n"
        f"of {record['units']:,} units"
    )
    use.legend(frameon=False)
    _draw_bits(bits, record)
    return save_figure(figure, path)


def _draw_bits(axis: Axes, record: Mapping[str, Any]) -> None:
    names = {
        "capacity": "capacity",
        "sum_of_variables": "sum of variables",
        "upper": "at most",
        "lower": "at least",
    }
    values = [record["bits"][name] for name in names]
    bars = axis.barh(range(len(names)), values, color=["#999999", PALETTE[5], CURVE, CURVE])
    axis.bar_label(bars, fmt="%.1f", padding=2, fontsize=8)
    axis.set_yticks(range(len(names)), list(names.values()))
    axis.invert_yaxis()
    axis.margins(x=0.18)
    axis.set(xlabel="bits per code")
    axis.set_title(f"{record['distinct_codes']:,} distinct codes\nof {record['images']:,} images")


def _section(findings: Findings) -> Section | None:
    record = findings.record("discreteness", "discreteness.json")
    if record is None:
        return None
    bits, units = record["bits"], record["units"]
    rows = [
        *(
            (
                f"decided choices (q above {level})",
                percent(record[f"share_above_{level}"]),
                percent(record[f"paper_share_above_{level}"], 2),
            )
            for level in PAPER_SHARES
        ),
        ("dead units", f"{record['dead_units']:,} of {units:,}", "–"),
        ("overused units", f"{record['overused_units']:,} of {units:,}", "–"),
        ("distinct codes", f"{record['distinct_codes']:,} of {record['images']:,} images", "–"),
        ("bits per code, at most", f"{bits['upper']:.1f} of {bits['capacity']:.1f}", "–"),
        ("bits per code, at least", f"{bits['lower']:.1f}", "–"),
    ]
    alt = (
        f"Three charts: the largest q of each variable, {rows[0][1]} of them above 0.9; the use of "
        f"units compared with even use; and bits per code: capacity {bits['capacity']:.1f}, at most "
        f"{bits['upper']:.1f}, at least {bits['lower']:.1f}."
    )
    caption = f"Codes of {record['images']:,} whole images"
    return [
        table(caption, ("", "this run", "paper, ImageNet"), rows),
        findings.figure("discreteness", alt),
    ]


def _tiles(found: Mapping[str, Any]) -> list[Tile]:
    return [
        Tile(percent(found["share_above_0.9"]), "of choices are decided (q above 0.9)"),
        Tile(
            f"{found['bits_lower']:.1f} to {found['bits_upper']:.1f}",
            f"bits per code, out of a capacity of {found['bits_capacity']:.0f}",
        ),
    ]


PART = Part(
    title="Discreteness of the codes",
    files=("discreteness.png", "discreteness.json"),
    reads=EncodingsCollector,
    make=_make,
    section=_section,
    tiles=_tiles,
    method=(
        "Discreteness and bits",
        "Measured on whole images, not on augmented views, so these shares may differ from those of "
        "the five properties. A unit is dead if its mean probability is below a hundredth of the "
        "even share, and overused above three times the even share. The bits per code are "
        "bracketed: at least the entropy of the observed codes, which cannot exceed log2 of the "
        "number of images; at most the entropy of the tree of the most dependent pairs of variables "
        "(Chow and Liu), with Miller and Madow's correction and minus the mutual information of "
        "shuffled values.",
    ),
)
