"""Questions about all images of an index: rare images, gaps, images to label, and drift to another index.

The mathematics is in `imsvd.population`; here, results carry paths and names of units.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from imsvd.datasets import UnreadableImage
from imsvd.errors import InputError
from imsvd.index.columns import Numbers
from imsvd.index.contents import Contents
from imsvd.index.query import parse
from imsvd.index.searching import data_frame, find, vocabulary
from imsvd.population import (
    Coverage,
    Drift,
    ImageSet,
    PairUse,
    UnitShift,
    find_outliers,
    measure_coverage,
    measure_drift,
    select_images,
)
from imsvd.population.appearance import appearance
from imsvd.population.counting import Progress
from imsvd.population.drift import LEVEL
from imsvd.population.homogeneity import PERMUTATIONS
from imsvd.population.outliers import Surprise
from imsvd.progress import progress_bar

APPEARANCES = 2000
"""Images of each set whose appearance is measured."""
_FEW_READABLE = 0.5
"""Appearance is not compared if a smaller share of these images can still be read."""
_SLOW_READS = 20_000
"""Images in archives are found by name; in larger indexes, reading many of them takes too long."""


@dataclass(frozen=True)
class RareImage:
    """An image whose units are jointly rare.

    Attributes:
        position: its position in the index.
        path: its path.
        score: bits beyond the mean image's, without the most surprising variable.
        deviations: standard deviations of the score above the mean of all images.
        reasons: units that contribute most, as sentences.
    """

    position: int
    path: str
    score: float
    deviations: float
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class RareImages:
    """The images with the rarest codes, rarest first."""

    items: tuple[RareImage, ...]

    def to_pandas(self) -> Any:
        """Return a data frame, one row per image."""
        return data_frame(map(asdict, self.items), RareImage.__dataclass_fields__)


@dataclass(frozen=True)
class Choice:
    """An image to label, and the mean similarity of all images to the plan up to it."""

    position: int
    path: str
    represented: float


@dataclass(frozen=True)
class Plan:
    """Images to label, most useful first; every beginning of it is a plan too."""

    items: tuple[Choice, ...]

    def to_pandas(self) -> Any:
        """Return a data frame, one row per image."""
        return data_frame(map(asdict, self.items), Choice.__dataclass_fields__)


@dataclass(frozen=True)
class Gaps:
    """Coverage of an index; `found` has the numbers, names are those of units."""

    found: Coverage
    names: dict[str, str]

    def rows(self) -> list[dict[str, Any]]:
        """Return units, then pairs, each by the number of images missing or in surplus."""
        rows = []
        for use in itertools.chain(self.found.units, self.found.pairs):
            units = [f"{use.variable}.{use.unit}"]
            if isinstance(use, PairUse):
                units.append(f"{use.other_variable}.{use.other_unit}")
            rows.append(
                {
                    "units": " & ".join(named(unit, self.names) for unit in units),
                    "images": use.images,
                    "expected": use.expected,
                    "ratio": use.ratio,
                    "p_value": use.p_value,
                }
            )
        return rows

    def to_pandas(self) -> Any:
        """Return a data frame, one row per unit or pair."""
        return data_frame(self.rows(), ("units", "images", "expected", "ratio", "p_value"))


@dataclass(frozen=True)
class IndexDrift:
    """Drift from one index to another, with the indexes that its positions refer to.

    Attributes:
        found: the result of the tests.
        indexes: the two indexes.
        note: why the appearance of images was not compared; empty if it was.
    """

    found: Drift
    indexes: tuple[Contents, Contents]
    note: str

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per variable, smallest p-value first, with its most changed unit."""
        names = self.indexes[1].names
        return [
            {
                "variable": shift.name,
                "family": shift.family,
                "p_value": shift.p_value,
                "moved": shift.moved,
                "unit": named(shift.units[0].name, names),
                "before": shift.units[0].shares[0],
                "after": shift.units[0].shares[1],
            }
            for shift in self.found.variables
        ]

    def paths(self, positions: Iterable[int], second: bool) -> list[str]:
        """Return paths of images of the first or the second set."""
        return [self.indexes[second].paths[position] for position in positions]

    def to_pandas(self) -> Any:
        """Return a data frame, one row per variable."""
        return data_frame(self.rows())


def named(unit: str, names: dict[str, str]) -> str:
    """Return a unit such as 12.3 with its name, if it has one."""
    return f"{unit} {names[unit]}" if unit in names else unit


def _codes(index: Contents) -> Numbers:
    """Return the codes of an index that has images."""
    if not len(index):
        raise InputError(
            f"{index.path} has no images; add some with `imsvd add {index.path} DATA`."
        )
    return index.codes()


def outliers(index: Contents, count: int = 100, console: Console | None = None) -> RareImages:
    """Return the images whose units are jointly rarest, see `imsvd.population.outliers`."""
    if count < 1:
        raise InputError(f"count = {count}: choose at least 1.")
    with _Bar(console, "pairs of variables") as progress:
        found = find_outliers(_codes(index), index.units, count, progress)
    names = index.names
    return RareImages(
        tuple(
            RareImage(
                rare.image,
                index.paths[rare.image],
                round(rare.score, 3),
                round(rare.deviations, 3),
                tuple(_reason(surprise, names) for surprise in rare.reasons),
            )
            for rare in found.images
        )
    )


def _reason(surprise: Surprise, names: dict[str, str]) -> str:
    unit = named(f"{surprise.variable}.{surprise.unit}", names)
    share = f"{100 * surprise.share:.2g} %"
    if surprise.parent is None:
        return f"{unit}: {share} of all images"
    parent = named("{}.{}".format(*surprise.parent), names)
    return f"{unit}: {share} of images with {parent}"


def coverage(index: Contents, level: float = LEVEL, console: Console | None = None) -> Gaps:
    """Return units and pairs that are missing or crowded, see `imsvd.population.coverage`."""
    with _Bar(console, "pairs of variables") as progress:
        found = measure_coverage(_codes(index), index.units, level=level, progress=progress)
    return Gaps(found, index.names)


def select(
    index: Contents,
    count: int,
    *,
    labeled: Sequence[str | Path] = (),
    seed: int = 0,
    console: Console | None = None,
) -> Plan:
    """Return `count` images to label, see `imsvd.population.selection`.

    Args:
        index: the images.
        count: number of images to choose.
        labeled: paths of images that have labels already; they count as chosen.
        seed: draws the sample that represents many images.
        console: where to show progress.
    """
    given = []
    for path in labeled:
        if (position := index.find(path)) is None:
            raise InputError(f"{path} is not in {index.path}; take it from the labeled images.")
        given.append(position)
    with _Bar(console, "images to label") as progress:
        codes = np.ascontiguousarray(_codes(index))
        found = select_images(codes, index.units, count, given=given, seed=seed, progress=progress)
    chosen = zip(found.images, found.represented, strict=True)
    return Plan(
        tuple(Choice(image, index.paths[image], round(share, 5)) for image, share in chosen)
    )


def drift(  # noqa: PLR0913 - independent options
    first: Contents,
    second: Contents,
    *,
    level: float = LEVEL,
    permutations: int = PERMUTATIONS,
    appearances: int = APPEARANCES,
    seed: int = 0,
    queries: tuple[str, str] = ("", ""),
    console: Console | None = None,
    progress: Progress | None = None,
) -> IndexDrift:
    """Compare two indexes of the same encoder, or the images of them that two queries ask for.

    See `imsvd.population.drift`. `appearances` images of each are read to compare how they look; 0
    compares codes only. `progress` is called in place of a bar on the console.
    """
    if first.manifest.encoder != second.manifest.encoder:
        raise InputError(
            f"{first.path} and {second.path} were made by different encoders, so their codes do not "
            "compare; index both with the same run."
        )
    chosen = [
        _asked_for(index, query) for index, query in zip((first, second), queries, strict=True)
    ]
    same = any(queries) and first.path.resolve() == second.path.resolve()
    if same and np.isin(chosen[0], chosen[1]).any():
        raise InputError("the two sets have images in common; choose sets that have none.")
    looks = [
        _looks(index, positions, appearances, seed, console, progress)
        for index, positions in zip((first, second), chosen, strict=True)
    ]
    note = next((index_note for _, _, index_note in looks if index_note), "")
    sets = [
        ImageSet(np.ascontiguousarray(index.codes()[positions]), *(look[:2] if not note else ()))
        for index, positions, look in zip((first, second), chosen, looks, strict=True)
    ]
    with _Bar(console, "permutations", progress) as shown:
        found = measure_drift(
            sets[0],
            sets[1],
            first.units,
            level=level,
            permutations=permutations,
            seed=seed,
            progress=shown,
        )
    return IndexDrift(_placed(found, chosen[0], chosen[1]), (first, second), note)


def _asked_for(index: Contents, query: str) -> NDArray[np.int64]:
    """Return the positions of the images that a query asks for, all if it is empty."""
    if not query.strip():
        return np.arange(len(_codes(index)))
    found = find(index, parse(query, vocabulary(index)))
    if len(found) < 2:
        raise InputError(
            f"{query!r} finds {len(found)} images of {index.path}; at least 2 are needed."
        )
    return found


def _placed(found: Drift, first: NDArray[np.int64], second: NDArray[np.int64]) -> Drift:
    """Return a result whose examples are positions in the indexes, not in the two sets."""

    def unit(shift: UnitShift) -> UnitShift:
        places = second if shift.gained else first
        return replace(shift, examples=tuple(places[list(shift.examples)].tolist()))

    variables = tuple(
        replace(shift, units=tuple(unit(each) for each in shift.units)) for shift in found.variables
    )
    typical = tuple(
        places[list(own)].tolist()
        for places, own in zip((first, second), found.typical, strict=True)
    )
    return replace(found, variables=variables, typical=(tuple(typical[0]), tuple(typical[1])))


def _looks(
    index: Contents,
    chosen: NDArray[np.int64],
    count: int,
    seed: int,
    console: Console | None,
    progress: Progress | None,
) -> tuple[NDArray[np.float32] | None, NDArray[np.int64] | None, str]:
    """Return the appearance of a sample of the images chosen, their places among these, and why there is none."""
    if count == 0:
        return None, None, "only codes were asked for"
    if not index.image(0).is_file and len(index) > _SLOW_READS:
        return (
            None,
            None,
            f"{index.path} holds images of an archive, where single images are slow to read",
        )
    wanted = min(count, len(chosen))
    drawn = np.random.default_rng(seed).choice(len(chosen), wanted, replace=False)
    rows, places = [], []
    with _Bar(console, f"appearance of {index.path.name}", progress) as shown:
        for number, place in enumerate(np.sort(drawn).tolist()):
            try:
                rows.append(appearance(index.read(int(chosen[place])).numpy()))
                places.append(place)
            except UnreadableImage:
                pass  # counted below: deleted or damaged since
            shown(number + 1, wanted)
    if len(rows) < max(2, _FEW_READABLE * wanted):
        return None, None, f"only {len(rows):,} of {wanted:,} images of {index.path} can be read"
    return np.stack(rows), np.array(places), ""


class _Bar:
    """A progress bar, or nothing without a console, or a function that is called with (done, total)."""

    def __init__(
        self, console: Console | None, title: str, instead: Progress | None = None
    ) -> None:
        self._instead = instead
        self._bar = progress_bar(console or Console(quiet=True))
        self._title = title

    def __enter__(self) -> Progress:
        self._bar.__enter__()
        task = self._bar.add_task(self._title, total=None)
        if self._instead is not None:
            return self._instead
        return lambda done, total: self._bar.update(task, completed=done, total=total)

    def __exit__(self, *error: Any) -> None:
        self._bar.__exit__(*error)
