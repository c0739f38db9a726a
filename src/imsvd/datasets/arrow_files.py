"""The two kinds of table that people keep images in: Parquet, and Arrow as `datasets` saves it."""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from imsvd.datasets.named import Split
from imsvd.datasets.source import ImageSource
from imsvd.datasets.splits import TEST_NAMES, open_split, parts_of_files
from imsvd.datasets.tables import TableFile, TableSource
from imsvd.errors import InputError

STATE = "state.json"
DICTIONARY = "dataset_dict.json"


class _LazyFile(TableFile):
    """A file opened on first use in every process, since Arrow's readers cannot be shared."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._opened: dict[int, Any] = {}
        _require_pyarrow(path)
        try:
            self.schema, self.group_rows = self._describe(self._handle())
        except InputError:
            raise
        except OSError as error:
            # Arrow's own complaints are among these, without an error number.
            reason = error.strerror if error.errno else "damaged"
            raise InputError(_unusable(path, reason or "damaged")) from error
        except Exception as error:  # whatever the damage makes Arrow raise
            raise InputError(_unusable(path, "damaged")) from error

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": {}}

    def _handle(self) -> Any:
        handle = self._opened.get(os.getpid())
        if handle is None:
            handle = self._opened.setdefault(os.getpid(), self._open())
        return handle

    def _open(self) -> Any:
        raise NotImplementedError

    def _describe(self, handle: Any) -> tuple[Any, list[int]]:
        raise NotImplementedError


class ParquetTable(_LazyFile):
    """A Parquet file, a row group at a time."""

    def _open(self) -> Any:
        import pyarrow.parquet  # noqa: PLC0415 - optional

        # Without threads, which a forked worker would not have.
        return pyarrow.parquet.ParquetFile(
            self.path, pre_buffer=False, page_checksum_verification=True
        )

    def _describe(self, handle: Any) -> tuple[Any, list[int]]:
        counts = [
            handle.metadata.row_group(group).num_rows for group in range(handle.num_row_groups)
        ]
        if min(counts, default=0) < 0 or sum(counts) != handle.metadata.num_rows:
            raise ValueError("impossible numbers of rows")
        return handle.schema_arrow, counts

    def read_group(self, number: int, column: str) -> Any:
        """One column of one row group."""
        table = self._handle().read_row_group(number, columns=[column], use_threads=False)
        return table.column(column)

    def read_column(self, column: str) -> list[Any]:
        """One whole column, for columns of small values."""
        values: list[Any] = self._handle().read([column], use_threads=False)[column].to_pylist()
        return values


class ArrowTable(_LazyFile):
    """An Arrow file or stream, mapped into memory; its record batches are the groups."""

    def _open(self) -> Any:
        import pyarrow  # noqa: PLC0415 - optional

        mapped = pyarrow.memory_map(str(self.path))
        try:
            table = pyarrow.ipc.open_stream(mapped).read_all()
        except pyarrow.ArrowInvalid:
            table = pyarrow.ipc.open_file(mapped).read_all()
        # Offsets that point outside the file would crash the process rather than raise.
        table.validate(full=True)
        return table.to_batches()

    def _describe(self, handle: Any) -> tuple[Any, list[int]]:
        if not handle:
            raise InputError(f"{self.path} has no rows, so there are no images")
        return handle[0].schema, [batch.num_rows for batch in handle]

    def read_group(self, number: int, column: str) -> Any:
        """One column of one record batch."""
        return self._handle()[number].column(column)

    def read_column(self, column: str) -> list[Any]:
        """One whole column, for columns of small values."""
        return [value for batch in self._handle() for value in batch.column(column).to_pylist()]


def open_parquet(files: Sequence[Path], split: Split) -> ImageSource:
    """Open Parquet files, or those of them that `split` names."""
    return _open_tables(files, split, ParquetTable)


def open_arrow(files: Sequence[Path], split: Split) -> ImageSource:
    """Open Arrow files, or those of them that `split` names."""
    return _open_tables(files, split, ArrowTable)


def _open_tables(
    files: Sequence[Path], split: Split, kind: Callable[[Path], TableFile]
) -> ImageSource:
    return open_split(
        split,
        parts_of_files(files),
        lambda part, classes: TableSource([kind(path) for path in part], classes),
        f"{files[0]} has no test images: give files named train-… and test-… (or val-…)",
    )


def is_saved_dataset(root: Path) -> bool:
    """Whether `datasets` saved something into this folder."""
    return (root / STATE).is_file() or (root / DICTIONARY).is_file()


def open_saved_dataset(root: Path, split: Split) -> ImageSource:
    """Open what `Dataset.save_to_disk` or `DatasetDict.save_to_disk` wrote."""
    if (root / STATE).is_file():
        parts: tuple[Path, Sequence[Path]] = (root, [])
    else:
        splits = _described(root / DICTIONARY).get("splits", [])
        if "train" not in splits:
            raise InputError(f"{root} has no split called train; give one of its folders")
        parts = (root / "train", [root / name for name in TEST_NAMES if name in splits])
    return open_split(
        split,
        parts,
        _open_saved,
        f"{root} has no test images: save a DatasetDict with a test split",
    )


def _open_saved(folder: Path, classes: Sequence[str] | None) -> ImageSource:
    state = _described(folder / STATE)
    try:
        names = [str(item["filename"]) for item in state["_data_files"]]
    except (KeyError, TypeError) as error:
        raise InputError(f"{folder / STATE} is damaged; save the dataset again") from error
    if not names:
        raise InputError(f"{folder} has no rows, so there are no images")
    return TableSource([ArrowTable(folder / name) for name in names], classes)


def _described(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise InputError(f"{path} is missing or damaged; save the dataset again") from error
    return content if isinstance(content, dict) else {}


def _require_pyarrow(path: Path) -> None:
    try:
        import pyarrow  # noqa: F401, PLC0415 - optional
    except ImportError as error:
        raise InputError(f"{path} needs pyarrow: pip install 'imsvd[parquet]'") from error


def _unusable(path: Path, reason: str) -> str:
    return f"{path} cannot be read as a table ({reason}); copy or download it again"
