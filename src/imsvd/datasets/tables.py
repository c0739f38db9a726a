"""Images in the rows of tables: Parquet files, and datasets saved by Hugging Face `datasets`."""

import json
import os
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from imsvd.datasets.encoded import MAX_FILE_BYTES, TOO_LARGE, EncodedSource, read_file
from imsvd.datasets.labels import Labeling, label_by_value
from imsvd.datasets.names import printable
from imsvd.datasets.source import UnreadableImage, hash_listing
from imsvd.errors import InputError

IMAGE_COLUMNS = ("image", "img", "jpg", "jpeg", "png", "webp")
LABEL_COLUMNS = ("label", "labels", "cls")
_CACHED_GROUPS = 4
_CACHED_BYTES = 256 * 1024**2


class TableFile(ABC):
    """A file of rows that come in groups, each read as a whole.

    Attributes:
        path: the file.
        schema: its `pyarrow.Schema`.
        group_rows: number of rows of every group.
    """

    path: Path
    schema: Any
    group_rows: list[int]

    @abstractmethod
    def read_group(self, number: int, column: str) -> Any:
        """One column of one group, a `pyarrow.Array` or `ChunkedArray`; raises any exception."""

    @abstractmethod
    def read_column(self, column: str) -> list[Any]:
        """One whole column, for columns of small values."""


class TableSource(EncodedSource):
    """One image per row, in the order of files and rows.

    The image's column holds the bytes of an image file, or a structure with such `bytes`, as
    Hugging Face has it; where these are missing, its `path` counts from the table's folder. Class
    names come from Hugging Face's description, if there is one.
    """

    def __init__(self, files: Sequence[TableFile], classes: Sequence[str] | None = None) -> None:
        self._files = list(files)
        columns = _find_columns(self._files[0])
        for file in self._files:
            _require_columns(file, columns)
        self._column = columns.image
        groups = [(f, g) for f, file in enumerate(files) for g in range(len(file.group_rows))]
        self._groups = np.array(groups, dtype=np.int64).reshape(-1, 2)
        self._ends = np.cumsum([rows for file in files for rows in file.group_rows], dtype=np.int64)
        self._firsts = np.cumsum([0, *(sum(file.group_rows) for file in files)])
        if len(self) == 0:
            raise InputError(f"{self._files[0].path} has no rows, so there are no images")
        self.labels, self.classes = _label(self._files, columns, classes)
        self._cache = _GroupCache()

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def encoded(self, index: int) -> bytes:
        """The bytes of the image file in one row."""
        identity = self.identity(index)
        group = int(np.searchsorted(self._ends, index, side="right"))
        start = int(self._ends[group - 1]) if group else 0
        file, number = map(int, self._groups[group])
        try:
            values = self._cache.get(self._files[file], file, number, self._column)
            data, path = _cell_content(values[index - start])
        # Damaged pages let escape whatever Arrow's decoders and their wrappers make of them.
        except Exception as error:
            raise UnreadableImage(identity, "damaged in the table") from error
        if data is None and path:
            return read_file(self._files[file].path.parent / path, identity)
        if data is None:
            raise UnreadableImage(identity, "no bytes in the table")
        if len(data) > MAX_FILE_BYTES:
            raise UnreadableImage(identity, TOO_LARGE)
        return data

    def identity(self, index: int) -> str:
        """Name of the file and number of the row in it, counted from 0."""
        self.require_index(index)
        file = int(np.searchsorted(self._firsts, index, side="right")) - 1
        row = index - int(self._firsts[file])
        return f"{printable(self._files[file].path.name)} row {row}"

    def fingerprint(self) -> str:
        """Hash of file names, numbers of rows, labels and classes."""
        counts = [f"{file.path.name} {sum(file.group_rows)}" for file in self._files]
        labels = b"" if self.labels is None else self.labels.numpy().tobytes()
        names = (name.encode() for name in self.classes)
        return hash_listing([*map(os.fsencode, counts), labels, *names])


class _GroupCache:
    """The groups read last; each process has its own, which is not pickled."""

    def __init__(self) -> None:
        self._by_process: dict[int, tuple[threading.Lock, OrderedDict[tuple[int, int], Any]]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"_by_process": {}}

    def get(self, file: TableFile, number: int, group: int, column: str) -> Any:
        """A column of a group, read unless it is still here."""
        # By process, because a lock that a thread held during a fork stays locked in the child.
        fresh = (threading.Lock(), OrderedDict[tuple[int, int], Any]())
        lock, groups = self._by_process.setdefault(os.getpid(), fresh)
        with lock:
            values = groups.pop((number, group), None)
            if values is None:
                values = file.read_group(group, column)
            groups[number, group] = values
            while len(groups) > _CACHED_GROUPS or (
                len(groups) > 1 and sum(item.nbytes for item in groups.values()) > _CACHED_BYTES
            ):
                groups.popitem(last=False)
        return values


class _Columns(NamedTuple):
    image: str
    label: str | None
    class_names: tuple[str, ...] | None


def _find_columns(file: TableFile) -> _Columns:
    """Columns by their usual names, or else by Hugging Face's description of them."""
    names = file.schema.names
    features = _hugging_face_features(file.schema)
    kinds = {name: kind.get("_type") for name, kind in features.items() if isinstance(kind, dict)}
    described = [name for name, kind in kinds.items() if kind == "Image" and name in names]
    image = next((name for name in (*IMAGE_COLUMNS, *described) if name in names), None)
    if image is None:
        raise InputError(
            f"{file.path} has no column of images (looked for {', '.join(IMAGE_COLUMNS)}; found "
            f"{', '.join(names) or 'none'}); rename the column that holds the image files to image"
        )
    described = [name for name, kind in kinds.items() if kind == "ClassLabel" and name in names]
    label = next((name for name in (*LABEL_COLUMNS, *described) if name in names), None)
    class_names = features[label].get("names") if label in described else None
    return _Columns(image, label, tuple(map(str, class_names)) if class_names else None)


def _hugging_face_features(schema: Any) -> Mapping[str, Any]:
    """The features that `datasets` writes into a schema; empty without or with damaged ones."""
    try:
        described = json.loads((schema.metadata or {})[b"huggingface"])
        features = described["info"]["features"]
    except (KeyError, ValueError, TypeError):
        return {}
    return features if isinstance(features, dict) else {}


def _require_columns(file: TableFile, columns: _Columns) -> None:
    for name in filter(None, (columns.image, columns.label)):
        if name not in file.schema.names:
            raise InputError(f"{file.path} lacks the column {name}, which the other files have")
    kind = file.schema.field(columns.image).type
    content = kind
    if _is_structure(kind):
        field = kind.get_field_index("bytes")
        content = kind.field(field).type if field >= 0 else None
    if str(content) not in ("binary", "large_binary"):
        raise InputError(
            f"the column {columns.image} of {file.path} holds {str(kind)[:80]}; it must hold the "
            f"bytes of image files (binary, or a structure with a field called bytes)"
        )


def _cell_content(cell: Any) -> tuple[bytes | None, str | None]:
    """Bytes of an image file, or else the path that `datasets` leaves for a file not embedded."""
    content = cell.as_py()
    if not isinstance(content, dict):
        return content, None
    return content.get("bytes"), content.get("path")


def _is_structure(kind: Any) -> bool:
    return hasattr(kind, "get_field_index")


def _label(
    files: Sequence[TableFile], columns: _Columns, classes: Sequence[str] | None
) -> Labeling:
    if columns.label is None:
        return Labeling()
    values: list[Any] = []
    for file in files:
        try:
            found = file.read_column(columns.label)
            values += found
            if len(found) != sum(file.group_rows):
                raise ValueError("rows without a label")
        except Exception as error:  # as for the images, whatever the decoders raise
            raise InputError(
                f"the column {columns.label} of {file.path} is damaged; copy or download it again"
            ) from error
    if not all(value is None or type(value) in (int, str) for value in values):
        return Labeling()  # several labels per image, or measurements: no classes
    return label_by_value(files[0].path, values, columns.class_names, classes)
