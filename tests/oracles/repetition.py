"""What variables of a code repeat, from canonical correlations of their units."""

import numpy as np
from numpy.typing import NDArray

Codes = NDArray[np.int64]


def information(first: Codes, second: Codes) -> float:
    """Return -½ Σ ln(1 - ρ²) over the canonical correlations ρ of two codes (n, variables)."""
    one, other = (_free_units(codes) for codes in (first, second))
    bases = [np.linalg.qr(part)[0] for part in (one, other)]
    correlations = np.linalg.svd(bases[0].T @ bases[1], compute_uv=False)
    return float(-0.5 * np.log1p(-(correlations**2)).sum())


def unrepeated_share(first: Codes, second: Codes) -> float:
    """Return I(C'; C'') / Σ_m I(c'_m; c''_m)."""
    variables = range(first.shape[1])
    alone = sum(information(first[:, [m]], second[:, [m]]) for m in variables)
    return information(first, second) / alone


def _free_units(codes: Codes) -> NDArray[np.float64]:
    units = codes.max() + 1
    columns: NDArray[np.float64] = np.eye(units)[codes][:, :, :-1].reshape(len(codes), -1)
    columns -= columns.mean(0)
    return columns
