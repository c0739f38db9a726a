"""Images in the rows of tables: Parquet files, and Arrow files as Hugging Face `datasets` saves them."""

import json
import os
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from imsvd.datasets.decoding import MAX_FILE_BYTES, TOO_LARGE, UnreadableImage, read_file
from imsvd.datasets.layouts import (
    TEST_NAMES,
    Labeling,
    Split,
    label_by_value,
    open_split,
    parts_of_files,
)
from imsvd.datasets.sources import EncodedSource, ImageSource, printable
from imsvd.errors import InputError

IMAGE_COLUMNS = ("image", "img", "jpg", "jpeg", "png", "webp")
LABEL_COLUMNS = ("label", "labels", "cls")
_CACHED_GROUPS = 4
_CACHED_BYTES = 256 * 1024**2
_STATE = "state.json"
_DICTIONARY = "dataset_dict.json"


class TableFile(ABC):
    """A file of rows in groups that are each read as a whole.

    Arrow's readers cannot be shared, so every process opens the file on first use.

    Attributes:
        path: the file.
        schema: its `pyarrow.Schema`.
        group_rows: number of rows of every group.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._opened: dict[int, Any] = {}
        self.schema: Any
        self.group_rows: list[int]
        try:
            import pyarrow  # noqa: F401, PLC0415 - optional
        except ImportError as error:
            raise InputError(f"{path} needs pyarrow: pip install 'imsvd[data]'.") from error
        try:
            self.schema, self.group_rows = self._describe(self._handle())
        except InputError:
            raise
        except Exception as error:  # damaged files make Arrow raise almost anything
            # Arrow's own errors include OSErrors without an error number.
            reason = error.strerror if isinstance(error, OSError) and error.errno else "damaged"
            raise InputError(
                f"{path} cannot be read as a table ({reason}); copy or download it again."
            ) from error

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": {}}

    def _handle(self) -> Any:
        handle = self._opened.get(os.getpid())
        if handle is None:
            handle = self._opened.setdefault(os.getpid(), self._open())
        return handle

    @abstractmethod
    def _open(self) -> Any:
        """Return what reads the file."""

    @abstractmethod
    def _describe(self, handle: Any) -> tuple[Any, list[int]]:
        """Return the schema and the number of rows of every group."""

    @abstractmethod
    def read_group(self, number: int, column: str) -> Any:
        """Return a column of a group, a `pyarrow.Array` or `ChunkedArray`; may raise anything."""

    @abstractmethod
    def read_column(self, column: str) -> list[Any]:
        """Return a whole column of small values."""


class ParquetTable(TableFile):
    """A Parquet file; its groups are the row groups."""

    def _open(self) -> Any:
        import pyarrow.parquet  # noqa: PLC0415 - optional

        # Without threads, which do not survive a fork.
        return pyarrow.parquet.ParquetFile(
            self.path, pre_buffer=False, page_checksum_verification=True
        )

    def _describe(self, handle: Any) -> tuple[Any, list[int]]:
        counts = [
            handle.metadata.row_group(group).num_rows for group in range(handle.num_row_groups)
        ]
        if min(counts, default=0) < 0 or sum(counts) != handle.metadata.num_rows:
            raise ValueError("inconsistent numbers of rows")
        return handle.schema_arrow, counts

    def read_group(self, number: int, column: str) -> Any:
        """Return a column of a row group."""
        table = self._handle().read_row_group(number, columns=[column], use_threads=False)
        return table.column(column)

    def read_column(self, column: str) -> list[Any]:
        """Return a whole column."""
        values: list[Any] = self._handle().read([column], use_threads=False)[column].to_pylist()
        return values


class ArrowTable(TableFile):
    """A memory-mapped Arrow file or stream; its groups are the record batches."""

    def _open(self) -> Any:
        import pyarrow  # noqa: PLC0415 - optional

        mapped = pyarrow.memory_map(str(self.path))
        try:
            table = pyarrow.ipc.open_stream(mapped).read_all()
        except pyarrow.ArrowInvalid:
            table = pyarrow.ipc.open_file(mapped).read_all()
        # Offsets beyond the end of the file would crash the process instead of raising.
        table.validate(full=True)
        return table.to_batches()

    def _describe(self, handle: Any) -> tuple[Any, list[int]]:
        if not handle:
            raise InputError(f"{self.path} has no rows.")
        return handle[0].schema, [batch.num_rows for batch in handle]

    def read_group(self, number: int, column: str) -> Any:
        """Return a column of a record batch."""
        return self._handle()[number].column(column)

    def read_column(self, column: str) -> list[Any]:
        """Return a whole column."""
        return [value for batch in self._handle() for value in batch.column(column).to_pylist()]


def open_tables(files: Sequence[Path], split: Split) -> ImageSource:
    """Open Parquet or Arrow files, or those of them for `split`."""
    kind = ArrowTable if files[0].suffix.lower() == ".arrow" else ParquetTable
    return open_split(
        split,
        parts_of_files(files),
        lambda part, classes: TableSource([kind(path) for path in part], classes),
        f"{files[0]} has no test images: give files named train-… and test-… (or val-…).",
    )


def is_saved_dataset(root: Path) -> bool:
    """Return whether the folder was written by `datasets`."""
    return (root / _STATE).is_file() or (root / _DICTIONARY).is_file()


def open_saved_dataset(root: Path, split: Split) -> ImageSource:
    """Open the output of `Dataset.save_to_disk` or `DatasetDict.save_to_disk`."""
    if (root / _STATE).is_file():
        parts: tuple[Path, Sequence[Path]] = (root, [])
    else:
        splits = _read_json(root / _DICTIONARY).get("splits", [])
        if "train" not in splits:
            raise InputError(f"{root} has no split named train; give one of its folders.")
        parts = (root / "train", [root / name for name in TEST_NAMES if name in splits])
    return open_split(
        split,
        parts,
        _open_saved,
        f"{root} has no test images: save a DatasetDict with a test split.",
    )


def _open_saved(folder: Path, classes: Sequence[str] | None) -> ImageSource:
    state = _read_json(folder / _STATE)
    try:
        names = [str(item["filename"]) for item in state["_data_files"]]
    except (KeyError, TypeError) as error:
        raise InputError(f"{folder / _STATE} is damaged; save the dataset again.") from error
    if not names:
        raise InputError(f"{folder} has no rows.")
    return TableSource([ArrowTable(folder / name) for name in names], classes)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise InputError(f"{path} is missing or damaged; save the dataset again.") from error
    return content if isinstance(content, dict) else {}


class TableSource(EncodedSource):
    """One image per row, in the order of files and rows.

    The image column holds the bytes of image files, or, as Hugging Face writes it, a structure with
    `bytes` or a `path` relative to the table's folder. Class names come from the Hugging Face
    metadata, if any.
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
            raise InputError(f"{self._files[0].path} has no rows.")
        self.labels, self.classes = _label(self._files, columns, classes)
        self._cache = _GroupCache()

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def encoded(self, index: int) -> bytes:
        """Return the bytes of the image file in one row."""
        identity = self.identity(index)
        group = int(np.searchsorted(self._ends, index, side="right"))
        start = int(self._ends[group - 1]) if group else 0
        file, number = map(int, self._groups[group])
        try:
            values = self._cache.get(self._files[file], file, number, self._column)
            data, path = _cell_content(values[index - start])
        except Exception as error:  # damaged pages make Arrow raise almost anything
            raise UnreadableImage(identity, "damaged in the table") from error
        if data is None and path:
            return read_file(self._files[file].path.parent / path, identity)
        if data is None:
            raise UnreadableImage(identity, "no bytes in the table")
        if len(data) > MAX_FILE_BYTES:
            raise UnreadableImage(identity, TOO_LARGE)
        return data

    def identity(self, index: int) -> str:
        """Return the name of the file and the number of the row in it, from 0."""
        self.require_index(index)
        file = int(np.searchsorted(self._firsts, index, side="right")) - 1
        row = index - int(self._firsts[file])
        return f"{printable(self._files[file].path.name)} row {row}"

    def fingerprint(self) -> str:
        """Return a hash of file names, numbers of rows, labels and classes."""
        counts = (f"{file.path.name} {sum(file.group_rows)}" for file in self._files)
        return self.hash_with_labels(*map(os.fsencode, counts))


class _GroupCache:
    """The groups read last; every process has its own, which is not pickled."""

    def __init__(self) -> None:
        self._by_process: dict[int, tuple[threading.Lock, OrderedDict[tuple[int, int], Any]]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"_by_process": {}}

    def get(self, file: TableFile, number: int, group: int, column: str) -> Any:
        """Return a column of a group, reading it if it is not cached."""
        # Per process, because a lock held by a thread during a fork stays locked in the child.
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
    """Find the columns by their usual names, otherwise by the Hugging Face metadata."""
    names = file.schema.names
    features = _hugging_face_features(file.schema)
    kinds = {name: kind.get("_type") for name, kind in features.items() if isinstance(kind, dict)}
    described = [name for name, kind in kinds.items() if kind == "Image" and name in names]
    image = next((name for name in (*IMAGE_COLUMNS, *described) if name in names), None)
    if image is None:
        raise InputError(
            f"{file.path} has no image column (looked for {', '.join(IMAGE_COLUMNS)}; found "
            f"{', '.join(names) or 'none'}); rename the column of image files to image."
        )
    described = [name for name, kind in kinds.items() if kind == "ClassLabel" and name in names]
    label = next((name for name in (*LABEL_COLUMNS, *described) if name in names), None)
    class_names = features[label].get("names") if label in described else None
    return _Columns(image, label, tuple(map(str, class_names)) if class_names else None)


def _hugging_face_features(schema: Any) -> Mapping[str, Any]:
    """Return the features that `datasets` writes into a schema; empty if missing or damaged."""
    try:
        described = json.loads((schema.metadata or {})[b"huggingface"])
        features = described["info"]["features"]
    except (KeyError, ValueError, TypeError):
        return {}
    return features if isinstance(features, dict) else {}


def _require_columns(file: TableFile, columns: _Columns) -> None:
    for name in filter(None, (columns.image, columns.label)):
        if name not in file.schema.names:
            raise InputError(f"{file.path} lacks the column {name}, which the other files have.")
    kind = file.schema.field(columns.image).type
    content = kind
    if hasattr(kind, "get_field_index"):  # a structure
        field = kind.get_field_index("bytes")
        content = kind.field(field).type if field >= 0 else None
    if str(content) not in ("binary", "large_binary"):
        raise InputError(
            f"the column {columns.image} of {file.path} holds {str(kind)[:80]}; it must hold the "
            f"bytes of image files (binary, or a structure with a field called bytes)."
        )


def _cell_content(cell: Any) -> tuple[bytes | None, str | None]:
    """Return the bytes of an image file, or the path of a file that is not embedded."""
    content = cell.as_py()
    if not isinstance(content, dict):
        return content, None
    return content.get("bytes"), content.get("path")


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
        except Exception as error:  # see `encoded`
            raise InputError(
                f"the column {columns.label} of {file.path} is damaged; copy or download it again."
            ) from error
    if not all(value is None or type(value) in (int, str) for value in values):
        return Labeling()  # several labels per image, or measurements
    return label_by_value(files[0].path, values, columns.class_names, classes)
