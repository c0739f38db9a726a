"""Information measures of softly discretized variables (https://arxiv.org/abs/2501.03469).

An embedding of `width` numbers is read as M variables; variable m has D_m units and
`width = sum of D_m`. A softmax inside each variable turns it into a distribution, and batch means
of products of those distributions estimate marginal and joint probabilities.

| symbol | here |
|---|---|
| z(m, d) | `logits`, `(batch, width)` |
| q(m, d), Eq. 1 | `q = soft_discretize(logits, units)`, `(batch, width)` |
| p(m, d), Eq. 2 | `marginals(q)`, `(width,)` |
| P(q^r; d^r), Eq. 3 | `joint(q, variables, units)`, `(D_m1, ..., D_mr)` |
| S̄(r), Eqs. 5-7 | `mean_entropy(q, units, order)` |
| C̄(r), Eq. 8 | `total_correlation(q, units, order)` |
| P^c(m1, m2; d1, d2) | `cross_joint(q1, q2)`, `(width, width)` |

Logarithms are natural. `units` is one number for all variables, or one number per variable.

Everything here is public: the paper's Eqs. 1 to 8 and measures of codes, on whole tensors of one
process. The loss computes the same quantities over all ranks, tile by tile (`imsvd.losses.imsvd`).
"""

import itertools
import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from imsvd.errors import InputError

Units = int | Sequence[int]


def resolve_units(width: int, units: Units) -> tuple[int, ...]:
    """Return the number of units of every variable of an embedding of `width` numbers."""
    sizes = (units,) if isinstance(units, int) else tuple(units)
    if not sizes or min(sizes) < 2:
        raise InputError(f"units = {units}: every variable needs at least 2 units.")
    if not isinstance(units, int):
        if sum(sizes) != width:
            raise InputError(
                f"Width {width} does not match units that sum to {sum(sizes)}: "
                f"set the width to {sum(sizes)} or change the units."
            )
        return sizes
    if width < 1 or width % units:
        below, above = width // units * units, (width // units + 1) * units
        nearest = f"{below} or {above}" if below > 0 else f"{above}"
        raise InputError(
            f"Width {width} is not divisible by units {units}: set the width to {nearest}, "
            f"or choose units that divide {width}."
        )
    return sizes * (width // units)


def at_least_float32(tensor: Tensor) -> Tensor:
    """Return half precision widened to float32; float32 and float64 unchanged."""
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()


def soft_discretize(logits: Tensor, units: Units) -> Tensor:
    """Softmax within each variable (Eq. 1), in float32 at least.

    Args:
        logits: `(batch, width)`.
        units: units of all variables, or of each.

    Returns:
        `(batch, width)` probabilities that sum to 1 within each variable.
    """
    sizes = resolve_units(logits.shape[-1], units)
    logits = at_least_float32(logits)
    parts = [part.softmax(-1).flatten(-2) for part in _by_variable(logits, sizes)]
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


def variable_sums(values: Tensor, units: Units) -> Tensor:
    """Sum of the units of each variable: `(..., width)` to `(..., variables)`."""
    sizes = resolve_units(values.shape[-1], units)
    parts = [part.sum(-1) for part in _by_variable(values, sizes)]
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


def split_variables(values: Tensor, units: Units) -> tuple[Tensor, ...]:
    """Views of the variables of `(..., width)`: one `(..., D_m)` each."""
    return torch.split(values, list(resolve_units(values.shape[-1], units)), -1)


def _by_variable(values: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """`(..., width)` seen as `(..., variables, units)`, one tensor per run of variables of equal size.

    A GPU spends as long on starting an operation for one variable as for a hundred.
    """
    runs = [(len(list(run)), size) for size, run in itertools.groupby(sizes)]
    parts = torch.split(values, [count * size for count, size in runs], -1)
    return [part.reshape(*values.shape[:-1], *run) for part, run in zip(parts, runs, strict=True)]


def marginals(q: Tensor) -> Tensor:
    """Probability of every unit (Eq. 2): the batch mean, `(width,)`."""
    return q.mean(0)


def joint(q: Tensor, variables: Sequence[int], units: Units) -> Tensor:
    """Joint distribution of any number of variables (Eq. 3).

    Args:
        q: `(batch, width)` probabilities.
        variables: indices of the variables, in the order of the result's dimensions.
        units: units of all variables, or of each.

    Returns:
        `(D_m1, ..., D_mr)` probabilities.
    """
    sizes = resolve_units(q.shape[-1], units)
    if not variables:
        raise InputError("A joint distribution needs at least one variable.")
    if not all(0 <= m < len(sizes) for m in variables):
        raise InputError(f"variables = {list(variables)}: the indices are 0 to {len(sizes) - 1}.")
    parts = split_variables(q, sizes)
    chosen = [parts[m] for m in variables]
    # Halving keeps the largest intermediate at batch x (about the square root of the result).
    half = len(chosen) // 2
    left, right = _products(q, chosen[:half]), _products(q, chosen[half:])
    return (left.T @ right / q.shape[0]).reshape([part.shape[-1] for part in chosen])


def _products(q: Tensor, parts: Iterable[Tensor]) -> Tensor:
    """Per sample, the products of one entry from each part: `(batch, product of sizes)`."""
    result = q.new_ones(q.shape[0], 1)
    for part in parts:
        result = (result.unsqueeze(-1) * part.unsqueeze(-2)).flatten(1)
    return result


def cross_joint(q1: Tensor, q2: Tensor) -> Tensor:
    """Cross-joint distribution P^c of two views, all blocks at once: `(width, width)`."""
    return q1.T @ q2 / q1.shape[0]


def certainty(q: Tensor, units: Units) -> Tensor:
    """Return -log(1 - q) of every unit, which still tells apart units whose q rounds to 1.

    A q of 1 - 1e-30 has the certainty 69. Probabilities should be float64, in which the other units
    of a variable keep their tiny values.
    """
    sizes = resolve_units(q.shape[-1], units)
    places = torch.tensor((0, *itertools.accumulate(sizes[:-1])), device=q.device)
    largest = torch.zeros_like(q).scatter_(-1, codes(q, units) + places, 1.0)
    others = variable_sums(q * (1 - largest), sizes)
    repeats = torch.tensor(sizes, device=q.device)
    rest = torch.where(largest > 0, others.repeat_interleave(repeats, -1), 1 - q)
    return -rest.clamp(torch.finfo(q.dtype).tiny, 1).log()


def surprise(p: Tensor) -> Tensor:
    """Elementwise -p log p, with 0 log 0 = 0 and a finite gradient at 0."""
    return -p * p.clamp_min(torch.finfo(p.dtype).tiny).log()


def entropy(p: Tensor) -> Tensor:
    """Entropy of all entries of `p` together (Eq. 6), a scalar."""
    return surprise(p).sum()


def mean_entropy(
    q: Tensor,
    units: Units,
    order: int,
    max_subsets: int | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Mean joint entropy S̄(r) of the subsets of `order` variables (Eqs. 5 and 7).

    The paper's Eq. 5 has a minus sign in front of entropies that are already positive; it is
    dropped here, as in the paper's Eq. 7.

    Args:
        q: `(batch, width)` probabilities.
        units: units of all variables, or of each.
        order: r, the number of variables of a subset.
        max_subsets: draw this many distinct subsets if there are more.
        generator: random generator of that draw.

    Returns:
        A scalar.
    """
    sizes = resolve_units(q.shape[-1], units)
    if not 1 <= order <= len(sizes):
        raise InputError(f"order = {order}: choose 1 to {len(sizes)}, the number of variables.")
    if order == 1 and max_subsets is None:
        return entropy(marginals(q)) / len(sizes)
    subsets = _subsets(len(sizes), order, max_subsets, generator)
    return torch.stack([entropy(joint(q, subset, sizes)) for subset in subsets]).mean()


def _subsets(
    num_variables: int, order: int, max_subsets: int | None, generator: torch.Generator | None
) -> list[tuple[int, ...]]:
    if max_subsets is None or max_subsets >= math.comb(num_variables, order):
        return list(itertools.combinations(range(num_variables), order))
    if max_subsets < 1:
        raise InputError(f"max_subsets = {max_subsets}: choose at least 1.")
    drawn: set[tuple[int, ...]] = set()
    while len(drawn) < max_subsets:
        chosen = torch.randperm(num_variables, generator=generator)[:order]
        drawn.add(tuple(sorted(chosen.tolist())))
    return sorted(drawn)


def total_correlation(
    q: Tensor,
    units: Units,
    order: int,
    max_subsets: int | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Mean total correlation C̄(r) = r S̄(1) - S̄(r) (Eq. 8): 0 when variables are independent.

    Arguments as for `mean_entropy`. With sampled subsets S̄(1) still covers every variable.
    """
    return order * mean_entropy(q, units, 1) - mean_entropy(q, units, order, max_subsets, generator)


def pairwise_mutual_information(q: Tensor, units: Units) -> Tensor:
    """Mutual information of every two variables: `(variables, variables)`.

    The diagonal holds the entropy of each variable, which is its information about itself if codes
    are hard. Memory is that of one variable's rows of the joint matrix.
    """
    sizes = resolve_units(q.shape[-1], units)
    rows = (cross_joint(part, q) for part in split_variables(q, sizes))
    joint_entropies = torch.stack([variable_sums(surprise(row).sum(0), sizes) for row in rows])
    single = variable_sums(surprise(marginals(q)), sizes)
    information = single.unsqueeze(0) + single.unsqueeze(1) - joint_entropies
    return torch.where(
        torch.eye(len(sizes), dtype=torch.bool, device=q.device), single, information
    )


def max_probabilities(q: Tensor, units: Units) -> Tensor:
    """Largest probability of each variable: `(batch, variables)`."""
    parts = split_variables(q, units)
    return torch.stack([part.amax(-1) for part in parts], -1)


def codes(q: Tensor, units: Units) -> Tensor:
    """Discrete code of each sample, the most probable unit per variable: `(batch, variables)`."""
    parts = split_variables(q, units)
    return torch.stack([part.argmax(-1) for part in parts], -1)


def one_hotness(q: Tensor, units: Units, threshold: float) -> Tensor:
    """Share of sub-vectors whose largest probability exceeds `threshold`, a scalar."""
    return (max_probabilities(q, units) > threshold).to(q.dtype).mean()


def dead_units(p: Tensor, units: Units, fraction: float = 0.01) -> Tensor:
    """Number of dead units: those with a marginal below `fraction` of the even share 1 / D_m."""
    sizes = torch.tensor(resolve_units(p.shape[-1], units), device=p.device)
    return (p * sizes.repeat_interleave(sizes) < fraction).sum()


def effective_rank(features: Tensor) -> Tensor:
    """Exponential of the entropy of the normalized singular values (Roy and Vetterli, 2007).

    Between 1 and `min(batch, width)` for features `(batch, width)`; not centered. All-zero features
    have rank 1, the collapsed case.
    """
    singular = torch.linalg.svdvals(at_least_float32(features))
    total = singular.sum().clamp_min(torch.finfo(singular.dtype).tiny)
    return entropy(singular / total).exp()
