"""What moved between two sets of images: verdict, variables, units, and images that show it.

Two families of variables are tested (see `homogeneity` and `appearance`): the codes, whose p-value comes
from the mean statistic of all variables, and the appearance of images, whose p-value comes from the
largest one, because a blur or a color cast moves one or two properties, but these by much. Nine tenths
of the level belong to the codes, one tenth to the appearance:

    p = min(p_codes / 0.9, p_appearance / 0.1).

This holds the level however both depend on each other, and costs the codes little. P-values of single
variables and units are weighted likewise and are never below the overall p-value: where there is no
drift, nothing has moved.

Examples of a unit that moved are the images that are most typical of one set and not of the other,
among those that take the unit. With shares a_u and b_u of unit u in both sets, an image is typical of
the second by Σ_m log(b_u / a_u).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from imsvd.errors import InputError
from imsvd.population.appearance import PROPERTIES, QUARTERS, quarters
from imsvd.population.counting import Codes, Progress, first_units
from imsvd.population.homogeneity import PERMUTATIONS, Homogeneity, compare_codes

LEVEL = 0.05
WEIGHTS = {"codes": 0.9, "appearance": 0.1}
"""Share of the level that each family may use."""
EXAMPLES = 12


class ImageSet(NamedTuple):
    """One of two sets: its codes (n, M), and the appearance (k, 8) of the images at k `positions`."""

    codes: Codes
    appearance: NDArray[np.float32] | None = None
    positions: NDArray[np.int64] | None = None


@dataclass(frozen=True)
class UnitShift:
    """The change of one unit.

    Attributes:
        name: "12.3" for unit 3 of variable 12, or a quarter of a property.
        shares: share of the images of each set that take it.
        p_value: adjusted for all other units.
        gained: whether the second set has the larger share.
        examples: images of that set (the first set for a loss) that show the change best.
    """

    name: str
    shares: tuple[float, float]
    p_value: float
    examples: tuple[int, ...] = field(repr=False)

    @property
    def gained(self) -> bool:
        """Whether the second set has the larger share."""
        return self.shares[1] > self.shares[0]


@dataclass(frozen=True)
class VariableShift:
    """The change of a variable or property.

    Attributes:
        name: number of the variable, or name of the property.
        family: "codes" or "appearance".
        p_value: adjusted for all other variables.
        moved: share of images that would have to change their unit, Σ_u |b_u - a_u| / 2.
        units: units by the size of their change, largest first.
    """

    name: str
    family: str
    p_value: float
    moved: float
    units: tuple[UnitShift, ...]


@dataclass(frozen=True)
class Drift:
    """The comparison of two sets.

    Attributes:
        images: number of images of both sets.
        level: the level of the verdict.
        p_value: overall p-value.
        families: p-value of each family that was tested, before weighting.
        variables: all variables, those with the smallest p-value first, then by the share moved.
        typical: images most typical of the first set and not the second, and the other way round.
    """

    images: tuple[int, int]
    level: float
    p_value: float
    families: dict[str, float]
    variables: tuple[VariableShift, ...]
    typical: tuple[tuple[int, ...], tuple[int, ...]]

    @property
    def drifted(self) -> bool:
        """Whether the sets differ at the level."""
        return self.p_value <= self.level

    @property
    def moved(self) -> tuple[VariableShift, ...]:
        """The variables that differ at the level."""
        return tuple(shift for shift in self.variables if shift.p_value <= self.level)


def measure_drift(
    first: ImageSet,
    second: ImageSet,
    units: tuple[int, ...],
    *,
    level: float = LEVEL,
    permutations: int = PERMUTATIONS,
    seed: int = 0,
    progress: Progress | None = None,
) -> Drift:
    """Compare two sets of images by their codes, and by their appearance if both have it."""
    if not 0 < level < 1:
        raise InputError(f"level = {level}: choose a number between 0 and 1, such as 0.05.")
    if 1 / (permutations + 1) > level * min(WEIGHTS.values()):
        raise InputError(
            f"{permutations} permutations cannot reach the level {level:g}; "
            f"choose at least {int(np.ceil(1 / level / min(WEIGHTS.values())))}."
        )
    codes = compare_codes(
        first.codes, second.codes, units, permutations=permutations, seed=seed, progress=progress
    )
    likeness = _Likeness(codes, units)
    sets = _Family("codes", (first.codes, second.codes), units, codes, codes.p_value)
    families = [sets]
    if first.appearance is not None and second.appearance is not None:
        coded, sizes = (
            quarters(first.appearance, second.appearance),
            (len(QUARTERS),) * len(PROPERTIES),
        )
        found = compare_codes(*coded, sizes, permutations=permutations, seed=seed + 1)
        positions = first.positions, second.positions
        families.append(
            _Family("appearance", coded, sizes, found, found.largest_p_value, positions)
        )
    weights = WEIGHTS if len(families) > 1 else {"codes": 1.0}
    overall = min(1.0, *(family.p_value / weights[family.name] for family in families))
    shifts = [
        shift
        for family in families
        for shift in family.shifts(weights[family.name], overall, level)
    ]
    return Drift(
        codes.images,
        level,
        overall,
        {family.name: family.p_value for family in families},
        tuple(sorted(shifts, key=lambda shift: (shift.p_value, -shift.moved))),
        (
            _best(-likeness.of(first.codes), EXAMPLES),
            _best(likeness.of(second.codes), EXAMPLES),
        ),
    )


class _Likeness:
    """How typical images are of the second set and not the first: Σ_m log(b_u / a_u)."""

    def __init__(self, found: Homogeneity, units: tuple[int, ...]) -> None:
        # Half an image for each unit keeps the logarithm finite.
        shares = (found.counts + 0.5) / (np.array(found.images)[:, None] + 1)
        self._terms = np.log(shares[1] / shares[0]).astype(np.float32)
        self._starts = first_units(units)[:-1]

    def of(self, codes: Codes) -> NDArray[np.float32]:
        """Return the likeness of codes (n, M), (n,)."""
        total = np.zeros(len(codes), dtype=np.float32)
        for variable, start in enumerate(self._starts):
            total += self._terms[start + codes[:, variable].astype(np.int64)]
        return total


def _best(scores: NDArray[np.float32], count: int) -> tuple[int, ...]:
    return tuple(np.argsort(-scores, kind="stable")[:count].tolist())


class _Family:
    """Variables that are tested together."""

    def __init__(
        self,
        name: str,
        codes: tuple[Codes, Codes],
        units: tuple[int, ...],
        found: Homogeneity,
        p_value: float,
        positions: tuple[NDArray[np.int64] | None, NDArray[np.int64] | None] = (None, None),
    ) -> None:
        self.name = name
        self.p_value = p_value
        self._codes, self._units, self._found, self._positions = codes, units, found, positions
        likeness = _Likeness(found, units)
        self._typical = (-likeness.of(codes[0]), likeness.of(codes[1]))

    def shifts(self, weight: float, overall: float, level: float) -> list[VariableShift]:
        """Return the change of each variable; p-values are divided by the family's weight."""
        starts, shares = first_units(self._units), self._found.shares()
        shifts = []
        for variable in range(len(self._units)):
            own = slice(starts[variable], starts[variable + 1])
            p_value = _weighted(self._found.variable_p_values[variable], weight, overall)
            change = np.abs(shares[1, own] - shares[0, own])
            order = np.argsort(-change, kind="stable")
            # Examples are looked up only where they will be shown.
            shown = p_value <= level
            found = [self._unit(variable, int(unit), weight, overall, shown) for unit in order]
            name = str(variable) if self.name == "codes" else PROPERTIES[variable]
            moved = float(change.sum() / 2)
            shifts.append(VariableShift(name, self.name, p_value, moved, tuple(found)))
        return shifts

    def _unit(
        self, variable: int, unit: int, weight: float, overall: float, shown: bool
    ) -> UnitShift:
        place = int(first_units(self._units)[variable]) + unit
        before, after = self._found.shares()[:, place].tolist()
        name = f"{variable}.{unit}"
        if self.name != "codes":
            name = f"{PROPERTIES[variable]}: {QUARTERS[unit]}"
        return UnitShift(
            name,
            (before, after),
            _weighted(self._found.unit_p_values[place], weight, overall),
            self._examples(variable, unit, int(after > before)) if shown else (),
        )

    def _examples(self, variable: int, unit: int, side: int) -> tuple[int, ...]:
        taking = np.flatnonzero(self._codes[side][:, variable] == unit)
        best = taking[list(_best(self._typical[side][taking], EXAMPLES))]
        positions = self._positions[side]
        return tuple((best if positions is None else positions[best]).tolist())


def _weighted(p_value: float, weight: float, overall: float) -> float:
    return min(1.0, max(float(p_value) / weight, overall))


def unit_shifts(drift: Drift) -> Sequence[tuple[VariableShift, UnitShift]]:
    """Return the units that moved at the level, smallest p-value first, then by the change of share."""
    found = [
        (variable, unit)
        for variable in drift.moved
        for unit in variable.units
        if unit.p_value <= drift.level
    ]
    return sorted(
        found, key=lambda pair: (pair[1].p_value, -abs(pair[1].shares[1] - pair[1].shares[0]))
    )
