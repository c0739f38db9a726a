"""An index in the explorer: searches, counts of units, lists of paths and pictures."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from imsvd.datasets import UnreadableImage
from imsvd.datasets.sources import printable
from imsvd.errors import InputError
from imsvd.explorer.completion import facet_term
from imsvd.explorer.explained_run import NotFoundError
from imsvd.explorer.pictures import as_jpeg, making_thumbnail
from imsvd.explorer.recent import Recent
from imsvd.index import Index
from imsvd.index.likeness import example_at
from imsvd.index.query import parse
from imsvd.index.searching import Ranking, find, matches, rank, vocabulary
from imsvd.index.sheets import path_list
from imsvd.index.storage import MANIFEST

MOST_RANKED = 10_000
"""Most images of one search that pages show."""
MOST_SAVED = 100_000
"""Most paths in a list."""
MOST_SEARCHES = 32
MOST_PICTURES = 2000
SHOWN_VALUES = 12
"""Units of a variable, or values of a label, that are counted one by one."""

Record = dict[str, Any]


def is_index(path: str | Path) -> bool:
    """Return whether a folder is an index."""
    return (Path(path) / MANIFEST).exists()


class Search(NamedTuple):
    """What is searched for: a query, and positions of images to be like and unlike."""

    query: str = ""
    like: tuple[int, ...] = ()
    unlike: tuple[int, ...] = ()


class OpenedIndex:
    """Answers questions about an index as it was when the explorer was started."""

    def __init__(self, path: str | Path) -> None:
        self.index = Index(path)
        if not len(self.index):
            raise InputError(f"{path} has no images; add some with `imsvd add {path} DATA`.")
        content = self.index.manifest.model_dump_json().encode()
        self.key = hashlib.sha256(content).hexdigest()[:16]
        # One at a time, so that many requests together need no more memory than one.
        self._searching, self._reading = threading.Lock(), threading.Lock()
        self._rankings: Recent[Ranking] = Recent(MOST_SEARCHES)
        self._counts: Recent[_Counts] = Recent(MOST_SEARCHES)
        self._pictures: Recent[bytes] = Recent(MOST_PICTURES)

    def overview(self, number: int) -> Record:
        """Summarize the index."""
        index = self.index
        return {
            "id": number,
            "name": printable(index.path.resolve().name),
            "path": printable(str(index.path)),
            "key": self.key,
            "encoder": index.manifest.encoder,
            "images": len(index),
            "units": list(index.units),
            "names": {**index.variable_names, **index.names},
            "facets": {name: len(values) for name, values in index.facets.items()},
            "splits": list(index.facets.get("split", ())),
            "features": index.manifest.features is not None,
        }

    def reread_names(self) -> None:
        """Search by the names that the run folder has now."""
        self.index.reread_names()
        self._rankings.clear()  # queries in it may mean other units now

    def require(self, images: Sequence[int]) -> None:
        """Raise `NotFoundError` unless all images exist."""
        for image in images:
            if not 0 <= image < len(self.index):
                raise NotFoundError(
                    f"There is no image {image}; this index has images 0 to {len(self.index) - 1}."
                )

    def search(self, search: Search, offset: int, count: int) -> Record:
        """Return one page of the images found, best first, with reasons."""
        ranking = self._ranking(search)
        found = matches(self.index, ranking, offset, offset + count)
        scored = bool(search.query.strip() or search.like or search.unlike)
        return {
            "total": ranking.total,
            "shown": len(ranking.positions),
            "like": [self.image(image) for image in search.like],
            "unlike": [self.image(image) for image in search.unlike],
            "items": [
                {
                    **self.image(item.position),
                    "score": round(item.score, 4) if scored else None,
                    "reasons": [printable(reason) for reason in item.reasons],
                    "state": item.state,
                }
                for item in found
            ],
        }

    def _ranking(self, search: Search) -> Ranking:
        return self._rankings.get(search, lambda: self._rank(search, MOST_RANKED))

    def _rank(self, search: Search, most: int) -> Ranking:
        self.require((*search.like, *search.unlike))
        like, unlike = (
            [example_at(self.index, image) for image in images]
            for images in (search.like, search.unlike)
        )
        with self._searching:
            return rank(self.index, search.query, like, unlike, most)

    def image(self, image: int) -> Record:
        """Return number, name and path of an image."""
        path = printable(self.index.image(image).path)
        return {"image": image, "name": path.rpartition("/")[2], "path": path}

    def facets(self, query: str, offset: int, count: int) -> Record:
        """Count units and labels among the images that a query asks for.

        Variables come in the order of how much the images found differ from all images: half the sum
        of the differences of shares.
        """
        found, whole = self._counted(query), self._counted("")
        order = np.argsort(-found.apart(whole), kind="stable")
        names = self.index.names
        return {
            "total": found.images,
            "all": whole.images,
            "variables": [
                {
                    "variable": int(variable),
                    **_most_frequent(
                        found.units[variable], whole.units[variable], self._units(variable, names)
                    ),
                }
                for variable in order[offset : offset + count]
            ],
            "labels": [
                {
                    "label": printable(label),
                    **_most_frequent(
                        counts[1:],
                        whole.labels[label][1:],
                        [(facet_term(label, value), printable(value), "") for value in values],
                    ),
                }
                for (label, values), counts in zip(
                    self.index.facets.items(), found.labels.values(), strict=True
                )
            ],
        }

    def _units(self, variable: int, names: dict[str, str]) -> list[tuple[str, str, str]]:
        """Return query, text and name of the units of a variable."""
        return [
            (f"{variable}.{unit}", f"{variable}.{unit}", names.get(f"{variable}.{unit}", ""))
            for unit in range(self.index.units[variable])
        ]

    def _counted(self, query: str) -> _Counts:
        text = query.strip()
        node = parse(text, vocabulary(self.index)) if text else None

        def make() -> _Counts:
            with self._searching:
                found = find(self.index, node) if node else slice(None)
                codes = self.index.codes()
                units = [
                    np.bincount(codes[:, variable][found], minlength=size)
                    for variable, size in enumerate(self.index.units)
                ]
                labels = {
                    name: np.bincount(self.index.facet(name)[found], minlength=len(values) + 1)
                    for name, values in self.index.facets.items()
                }
                return _Counts(int(units[0].sum()), units, labels)

        return self._counts.get(node, make)

    def found(self, search: Search) -> list[int]:
        """Return all images that a search finds; of those like others, the best."""
        if search.like or search.unlike:
            return [int(image) for image in self._ranking(search).positions]
        ranking = self._rank(search, MOST_SAVED)
        if ranking.total > MOST_SAVED:
            raise InputError(
                f"a list has at most {MOST_SAVED:,} images, and this search finds {ranking.total:,}; "
                "narrow it, or use `imsvd search --count 0 --paths FILE.txt`."
            )
        return [int(image) for image in ranking.positions]

    def paths(self, images: Sequence[int]) -> bytes:
        """Return a list of paths that `imsvd` reads as DATA."""
        self.require(images)
        if not images:
            raise InputError("there is nothing to save; select images, or search for others.")
        return path_list(self.index, images)

    def thumbnail(self, image: int, size: int) -> bytes:
        """Return a JPEG of a whole image, `size` pixels on its longer side."""
        self.require([image])

        def make() -> bytes:
            with making_thumbnail:
                return self._thumbnail(image, size)

        return self._pictures.get((image, size), make)

    def _thumbnail(self, image: int, size: int) -> bytes:
        try:
            if self.index.image(image).is_file:
                pixels = self.index.read(image)
            else:  # some containers cannot be read from two threads at once
                with self._reading:
                    pixels = self.index.read(image)
        except UnreadableImage as error:
            raise NotFoundError(f"Image {image} can no longer be read: {error.reason}.") from error
        picture = Image.fromarray(pixels.permute(1, 2, 0).numpy())
        scale = size / max(picture.size)
        width, height = (max(1, round(side * scale)) for side in picture.size)
        return as_jpeg(picture.resize((width, height), Image.Resampling.LANCZOS))


class _Counts(NamedTuple):
    """Numbers of images by unit and by label; value 0 of a label is unknown."""

    images: int
    units: list[NDArray[np.int64]]
    labels: dict[str, NDArray[np.int64]]

    def apart(self, other: _Counts) -> NDArray[np.float64]:
        """Return how far the shares of each variable's units differ, (variables,)."""
        return np.array(
            [
                np.abs(own / max(1, self.images) - all_ / max(1, other.images)).sum() / 2
                for own, all_ in zip(self.units, other.units, strict=True)
            ]
        )


def _most_frequent(
    counts: NDArray[np.int64], whole: NDArray[np.int64], terms: Sequence[tuple[str, str, str]]
) -> Record:
    order = np.argsort(-counts, kind="stable")[:SHOWN_VALUES].tolist()
    values = [
        {
            "query": terms[place][0],
            "text": terms[place][1],
            "name": terms[place][2],
            "count": int(counts[place]),
            "all": int(whole[place]),
        }
        for place in order
    ]
    return {"values": values, "more": max(0, len(counts) - SHOWN_VALUES)}
