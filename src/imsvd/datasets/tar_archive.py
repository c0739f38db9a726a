"""Images in tar archives, read in place: one archive, or the shards of a WebDataset."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from imsvd.datasets.encoded import MAX_FILE_BYTES, TOO_LARGE, EncodedSource
from imsvd.datasets.index_cache import MIN_ENTRIES, as_bytes, load_listing, save_listing
from imsvd.datasets.labels import Labeling, label_by_folder, label_by_value
from imsvd.datasets.named import Split
from imsvd.datasets.names import EXTENSIONS, NoImagesError, PackedNames, printable
from imsvd.datasets.random_access import RandomAccessFiles
from imsvd.datasets.source import ImageSource, UnreadableImage, hash_listing
from imsvd.datasets.splits import open_archives
from imsvd.datasets.tar_scan import NOT_PLAIN, scan_tar
from imsvd.errors import InputError


class TarIndex(NamedTuple):
    """The images of some archives, archive by archive, each in the order of a folder.

    `table` (n, 3) holds number of the archive, offset and size; `labels` is what the file beside
    an image says, None where there is no such file.
    """

    paths: list[Path]
    names: list[str]
    labels: list[str | None]
    table: NDArray[np.int64]


class TarSource(EncodedSource):
    """The images below `prefix` in some archives.

    Labels come from the `.cls` or `.json` file beside each image, as WebDataset has it; without
    such files from class folders, as in a folder.
    """

    def __init__(
        self, index: TarIndex, prefix: str = "", classes: Sequence[str] | None = None
    ) -> None:
        where = _describe(index.paths)
        chosen = [i for i, name in enumerate(index.names) if name.startswith(prefix)]
        if not chosen:
            raise NoImagesError(f"{where}/{prefix}" if prefix else where)
        names = [index.names[i].removeprefix(prefix) for i in chosen]
        self._names = PackedNames.pack(names)
        self._table = index.table[chosen]
        self._files = RandomAccessFiles(index.paths)
        values = [index.labels[i] for i in chosen]
        self._labels_lie_beside = any(value is not None for value in values)
        self.labels, self.classes = _label(where, names, values, classes)

    def __len__(self) -> int:
        return len(self._names)

    def encoded(self, index: int) -> bytes:
        """The bytes of the image file."""
        identity = self.identity(index)
        number, offset, size = map(int, self._table[index])
        if offset == NOT_PLAIN:
            raise UnreadableImage(identity, "a link, not a file")
        if size > MAX_FILE_BYTES:
            raise UnreadableImage(identity, TOO_LARGE)
        try:
            data = self._files.read(number, offset, size)
        except OSError as error:
            raise UnreadableImage(identity, "the archive cannot be read") from error
        if len(data) != size:
            raise UnreadableImage(identity, "cut off with its archive")
        return data

    def identity(self, index: int) -> str:
        """Path inside the archive, after the archive's name if there are several."""
        self.require_index(index)
        name = printable(self._names[index])
        if len(self._files.paths) == 1:
            return name
        return f"{self._files.paths[int(self._table[index, 0])].name}/{name}"

    def fingerprint(self) -> str:
        """Hash of paths and labels; for class folders in one archive that of the same folder."""
        parts = [self._names.blob, *(name.encode() for name in self.classes)]
        if self.labels is not None and self._labels_lie_beside:
            parts.append(self.labels.numpy().tobytes())
        return hash_listing(parts)


def open_tars(files: Sequence[Path], split: Split) -> ImageSource:
    """Open archives, or those of them, or the folder within, that `split` names."""
    missing = (
        f"{_describe(files)} has no test images: give shards named train-… and test-… (or val-…), "
        f"or an archive with train/ and test/ (or val/) in it"
    )
    return open_archives(files, split, read_tar_index, TarSource, missing)


def read_tar_index(paths: Sequence[Path]) -> TarIndex:
    """Scan the headers of archives, or take the result of an earlier scan of the same files."""
    absolute = "\0".join(str(path.absolute()) for path in paths)
    key = f"tar {' '.join(EXTENSIONS)} {absolute}"
    stamps = np.array([_stamp(path) for path in paths], dtype=np.int64)
    cached = load_listing(key)
    if cached is not None and np.array_equal(cached["stamps"], stamps):
        names = PackedNames(cached["names"].tobytes()).unpack()
        return TarIndex(list(paths), names, json.loads(cached["labels"].tobytes()), cached["table"])
    names, labels, rows = [], [], []
    for number, path in enumerate(paths):
        for member in scan_tar(path):
            names.append(member.name)
            labels.append(member.label)
            rows.append((number, member.offset, member.size))
    index = TarIndex(list(paths), names, labels, np.array(rows, dtype=np.int64).reshape(-1, 3))
    if len(names) >= MIN_ENTRIES:
        save_listing(
            key,
            {
                "stamps": stamps,
                "table": index.table,
                "names": as_bytes(PackedNames.pack(names).blob),
                "labels": as_bytes(json.dumps(labels).encode()),
            },
        )
    return index


def _stamp(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError as error:
        raise InputError(f"{path} cannot be opened ({error.strerror or error})") from error
    return status.st_size, status.st_mtime_ns


def _label(
    where: str,
    names: Sequence[str],
    values: Sequence[str | None],
    classes: Sequence[str] | None,
) -> Labeling:
    if all(value is None for value in values):
        return label_by_folder(where, names, classes)
    missing = next((name for name, value in zip(names, values, strict=True) if value is None), None)
    if missing is not None:
        raise InputError(
            f"{where} has labels (.cls or .json) beside some images but not beside "
            f"{printable(missing)}; add the missing ones or remove all"
        )
    return label_by_value(where, values, None, classes)


def _describe(paths: Sequence[Path]) -> str:
    return str(paths[0]) if len(paths) == 1 else f"{paths[0]} (and {len(paths) - 1} more)"
