"""How large a code should be, found without labels: the size whose variables say most that lasts.

A variable is worth what it still says when the image is seen again: the information that its units
in one view have about its units in another view, I(c'_m; c''_m). Variables that depend on each other
say part of it twice. The criterion is what they say once,

    lasting information = Σ_m I(c'_m; c''_m) · share that is not repeated,

measured from hard codes of images that the head was not trained on, and corrected for what few
images show by chance (`imsvd.discretizing.held_out`). A head that memorizes its images, variables that
repeat each other, and units that change from view to view all lower it. A short training per size is
enough to compare sizes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from imsvd.distributed import on_first_rank
from imsvd.errors import InputError
from imsvd.files import write_atomically
from imsvd.progress import counted

BITS = (16, 32, 64, 128)
UNITS = (2, 4, 8)
SMALLEST, LARGEST = 2, 1024
"""Bits that a code may have."""


class CodeSize(NamedTuple):
    """Number of variables and units of each."""

    variables: int
    units: int

    @property
    def bits(self) -> int:
        """Bits of the code."""
        return self.variables * bits_of(self.units)

    @property
    def freedom(self) -> int:
        """Frequencies of units that can differ freely."""
        return self.variables * (self.units - 1)

    def __str__(self) -> str:
        return f"{self.variables} × {self.units}"

    def describe(self) -> str:
        """Return the size in words."""
        return f"{self.variables} variables of {self.units} units, {self.bits} bits"


class Trial(NamedTuple):
    """A size, and the nats that its code still says of held-out images in another view."""

    size: CodeSize
    surviving: float
    unrepeated: float
    """Share of it that variables do not repeat."""

    @property
    def lasting(self) -> float:
        """The criterion."""
        return self.surviving * self.unrepeated


def bits_of(units: int) -> int:
    """Return the bits of a variable of `units` units; raise if they are no whole number."""
    bits = units.bit_length() - 1
    if units < 2 or units != 2**bits:
        raise InputError(f"--units {units} is not a power of two; choose 2, 4, 8 or 16.")
    return bits


def code_size(bits: int, units: int) -> CodeSize:
    """Return the size of a code of `bits` bits in variables of `units` units; raise if there is none."""
    each = bits_of(units)
    if bits < each or bits % each:
        below, above = bits // each * each, (bits // each + 1) * each
        nearest = f"{below} or {above}" if below > 0 else f"{above}"
        raise InputError(
            f"--bits {bits} is not a multiple of {each}, the bits of a variable of {units} units; "
            f"choose {nearest}."
        )
    return CodeSize(bits // each, units)


def too_few_images(images: int, units: int) -> InputError:
    """Return the error that `images` are fewer than pairs of units, which could not be told apart."""
    remedy = "" if units == min(UNITS) else " or fewer --units"
    return InputError(
        f"{counted(images, 'image')} cannot fill the {units**2} pairs of units of two variables; "
        f"give at least {units**2} images{remedy}."
    )


def ladder(bits: int | None, units: int | None, images: int) -> list[CodeSize]:
    """Return the sizes to choose from, smallest first.

    Args:
        bits: of the code, or None to choose.
        units: of every variable, or None to choose.
        images: number of images, which must fill all pairs of units.
    """
    if bits is not None and units is not None:
        return [code_size(bits, units)]
    if bits is not None and not SMALLEST <= bits <= LARGEST:
        raise InputError(f"--bits {bits}: choose {SMALLEST} to {LARGEST}.")
    wanted = BITS if bits is None else (bits,)
    allowed = UNITS if units is None else (units,)
    sizes = {
        CodeSize(round(total / bits_of(each)), each)
        for total in wanted
        for each in allowed
        # A size that was asked for exactly is not rounded; 21 variables of 8 units are about 64 bits.
        if bits is None or total % bits_of(each) == 0
        if total >= 2 * bits_of(each) and images >= each**2
    }
    if not sizes:
        raise too_few_images(images, min(allowed))
    return sorted(sizes, key=lambda size: (size.bits, size.units))


def choose_size(
    sizes: Sequence[CodeSize], attempt: Callable[[CodeSize], Trial], path: Path, key: str
) -> CodeSize:
    """Return the size whose code says most that lasts, and write all trials to `path`.

    The largest codes are tried first. With fewer bits, the criterion rises as long as images are too few
    for the code, and then falls: sizes are tried down to the first number of bits that says less than
    the one before. Trials that `path` already holds under the same `key` are not repeated.
    """
    done = {trial.size: trial for trial in read_trials(path, key)}
    most = -math.inf
    for equal_bits in by_bits(sizes):
        for size in equal_bits:
            if size not in done:
                done[size] = attempt(size)
                trials = [done[each] for each in sizes if each in done]
                on_first_rank(partial(_write, path, key, trials))
        lasting = max(done[size].lasting for size in equal_bits)
        if lasting < most:
            break
        most = lasting
    return max((done[size] for size in sizes if size in done), key=lambda trial: trial.lasting).size


def by_bits(sizes: Sequence[CodeSize]) -> list[list[CodeSize]]:
    """Return the sizes grouped by about equal bits (63, 64), largest first."""
    groups: dict[int, list[CodeSize]] = {}
    for size in sizes:
        groups.setdefault(round(math.log2(size.bits)), []).append(size)
    return [groups[power] for power in sorted(groups, reverse=True)]


def read_trials(path: Path, key: str | None = None) -> list[Trial]:
    """Return the trials in `path`; none if there are none, or if they have another key."""
    try:
        content = json.loads(path.read_text())
        if key is not None and content["key"] != key:
            return []
        return [
            Trial(
                CodeSize(row["variables"], row["units"]),
                row["surviving_nats"],
                row["unrepeated_share"],
            )
            for row in content["trials"]
        ]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _write(path: Path, key: str, trials: Sequence[Trial]) -> None:
    best = max(trials, key=lambda trial: trial.lasting)
    rows: list[dict[str, Any]] = [
        {
            "variables": trial.size.variables,
            "units": trial.size.units,
            "bits": trial.size.bits,
            "surviving_nats": trial.surviving,
            "unrepeated_share": trial.unrepeated,
            "lasting_nats": trial.lasting,
            "best": trial is best,
        }
        for trial in trials
    ]
    write_atomically(path, (json.dumps({"key": key, "trials": rows}, indent=2) + "\n").encode())
