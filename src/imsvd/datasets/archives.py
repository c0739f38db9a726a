"""Images in zip and tar archives, read in place; several tars may be shards of a WebDataset."""

import contextlib
import hashlib
import io
import json
import os
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from imsvd.datasets.decoding import MAX_FILE_BYTES, TOO_LARGE, UnreadableImage
from imsvd.datasets.layouts import (
    EXTENSIONS,
    Labeling,
    NoImagesError,
    Split,
    is_image_name,
    label_by_folder,
    label_by_value,
    member_name,
    open_split,
    parts_of_files,
    parts_of_names,
)
from imsvd.datasets.named import data_folder
from imsvd.datasets.sources import EncodedSource, ImageSource, PackedNames, printable
from imsvd.errors import InputError
from imsvd.files import write_atomically

_ZIP_HEADER = struct.Struct("<4s22xHH")
_ENCRYPTED = 0x1

_NOT_PLAIN = -1
"""Offset of a tar member without data of its own, such as a link."""
_COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")
"""First bytes of gzip, bzip2, xz and zstd."""
_JSON_KEYS = ("label", "cls", "class")
_MAX_LABEL_BYTES = 1024**2

MIN_CACHED = 1000
"""Scans of fewer images are repeated rather than cached."""
_CACHE_FORMAT = "2"  # changes with the meaning of the cached arrays


class ArchiveIndex(NamedTuple):
    """The images of one or more archives, in the order of the unpacked folder.

    Attributes:
        paths: the archives.
        names: paths of the images inside.
        table: location of each image. Zip, (n, 5): offset of the local header, compressed size,
            size, method, checksum. Tar, (n, 3): number of the archive, offset, size.
        labels: contents of the label file beside each image, if any; tar only.
    """

    paths: list[Path]
    names: list[str]
    table: NDArray[np.int64]
    labels: list[str | None]


class ArchiveSource(EncodedSource):
    """The images below `prefix`.

    Labels come from the `.cls` or `.json` file beside each image, as in a WebDataset, otherwise
    from class folders. Every read opens the archive, so threads and processes share nothing.
    """

    def __init__(
        self, index: ArchiveIndex, prefix: str = "", classes: Sequence[str] | None = None
    ) -> None:
        where = _describe(index.paths)
        chosen = [i for i, name in enumerate(index.names) if name.startswith(prefix)]
        if not chosen:
            raise NoImagesError(f"{where}/{prefix}" if prefix else where)
        names = [index.names[i].removeprefix(prefix) for i in chosen]
        self._names = PackedNames(names)
        self._table = index.table[chosen]
        self._paths = index.paths
        self.labels, self.classes = _label(where, names, [index.labels[i] for i in chosen], classes)

    def __len__(self) -> int:
        return len(self._names)

    def identity(self, index: int) -> str:
        """Return the path inside the archive, after the archive's name if there are several."""
        self.require_index(index)
        name = printable(self._names[index])
        if len(self._paths) == 1:
            return name
        return f"{self._paths[int(self._table[index, 0])].name}/{name}"

    def fingerprint(self) -> str:
        """Return a hash of paths and labels, for one archive equal to that of the same folder."""
        return self.hash_with_labels(self._names.blob)


class ZipSource(ArchiveSource):
    """Images in a zip archive."""

    def encoded(self, index: int) -> bytes:
        """Return the bytes of the image file, verified by the archive's checksum."""
        identity = self.identity(index)
        offset, packed, size, method, checksum = map(int, self._table[index])
        if max(packed, size) > MAX_FILE_BYTES:
            raise UnreadableImage(identity, TOO_LARGE)
        try:
            data = self._member(offset, packed, size, method)
        except (OSError, struct.error, zlib.error) as error:
            raise UnreadableImage(identity, "damaged in the archive") from error
        if len(data) != size or zlib.crc32(data) != checksum:
            raise UnreadableImage(identity, "damaged in the archive")
        return data

    def _member(self, offset: int, packed: int, size: int, method: int) -> bytes:
        with self._paths[0].open("rb") as file:
            file.seek(offset)
            header = file.read(_ZIP_HEADER.size)
            signature, name_length, extra_length = _ZIP_HEADER.unpack(header)
            if signature != b"PK\3\4":
                raise zlib.error("no member here")
            file.seek(name_length + extra_length, os.SEEK_CUR)
            data = file.read(packed)
        if method == zipfile.ZIP_STORED:
            return data
        # One byte more than declared suffices to detect a member that declares too little.
        return zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, size + 1)


class TarSource(ArchiveSource):
    """Images in tar archives."""

    def encoded(self, index: int) -> bytes:
        """Return the bytes of the image file."""
        identity = self.identity(index)
        number, offset, size = map(int, self._table[index])
        if offset == _NOT_PLAIN:
            raise UnreadableImage(identity, "a link, not a file")
        if size > MAX_FILE_BYTES:
            raise UnreadableImage(identity, TOO_LARGE)
        try:
            with self._paths[number].open("rb") as file:
                file.seek(offset)
                data = file.read(size)
        except OSError as error:
            raise UnreadableImage(identity, "the archive cannot be read") from error
        if len(data) != size:
            raise UnreadableImage(identity, "cut off with its archive")
        return data


def open_zip(files: Sequence[Path], split: Split) -> ImageSource:
    """Open one archive, the folder for `split` inside it, or the val.zip beside a train.zip."""
    if len(files) > 1:
        raise InputError(
            f"{files[0]} is one of {len(files)} zip archives; give one, or unpack them into a folder."
        )
    missing = f"{files[0]} has no test images: give an archive with train/ and test/ (or val/)."
    return _open_archives(files, split, lambda part: scan_zip(part[0]), ZipSource, missing)


def open_tars(files: Sequence[Path], split: Split) -> ImageSource:
    """Open the archives for `split`, or the folder for it inside them."""
    missing = (
        f"{_describe(files)} has no test images: give shards named train-… and test-… (or val-…), "
        f"or an archive with train/ and test/ (or val/) in it."
    )
    return _open_archives(files, split, scan_tars, TarSource, missing)


def _open_archives(
    files: Sequence[Path],
    split: Split,
    scan: Callable[[Sequence[Path]], ArchiveIndex],
    source: Callable[[ArchiveIndex, str, Sequence[str] | None], ImageSource],
    missing: str,
) -> ImageSource:
    train, tests = parts_of_files(files)
    if not tests:
        index = scan(train)
        return open_split(
            split,
            parts_of_names(index.names),
            lambda prefix, classes: source(index, prefix, classes),
            missing,
        )

    def open_whole(part: Sequence[Path], classes: Sequence[str] | None) -> ImageSource:
        index = scan(part)
        folder, _ = parts_of_names(index.names)
        return source(index, folder, classes)

    return open_split(split, (train, tests), open_whole, missing)


def scan_zip(path: Path) -> ArchiveIndex:
    """Read an archive's table of contents; raise `InputError` if it is damaged or encrypted."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
    except OSError as error:
        raise InputError(f"{path} cannot be opened ({error.strerror or error}).") from error
    except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error, EOFError) as error:
        raise InputError(
            f"{path} is truncated or not a zip archive ({error}); copy or download it again."
        ) from error
    found: dict[str, zipfile.ZipInfo] = {}
    for member in members:
        name = None if member.filename.endswith("/") else member_name(member.filename)
        if name is not None:
            _require_readable(path, member)
            found[name] = member  # of members with the same name, the last one counts
    names = sorted(found, key=_folder_order)
    rows = [
        (item.header_offset, item.compress_size, item.file_size, item.compress_type, item.CRC)
        for item in map(found.__getitem__, names)
    ]
    table = np.array(rows, dtype=np.int64).reshape(-1, 5)
    return ArchiveIndex([path], names, table, [None] * len(names))


def _require_readable(path: Path, member: zipfile.ZipInfo) -> None:
    if member.flag_bits & _ENCRYPTED:
        raise InputError(f"{path} is encrypted; unpack it and give the folder.")
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise InputError(
            f"{path} uses compression method {member.compress_type}, but only deflate is supported; "
            f"unpack it and give the folder, or pack it with plain zip."
        )


def scan_tars(paths: Sequence[Path]) -> ArchiveIndex:
    """Scan the headers of archives, or load the result of an earlier scan of the same files.

    A scan takes about a minute per million images even if the archives are in memory.
    """
    try:
        status = [path.stat() for path in paths]
    except OSError as error:
        raise InputError(f"{error.filename} cannot be opened ({error.strerror}).") from error
    stamps = np.array([(item.st_size, item.st_mtime_ns) for item in status], dtype=np.int64)
    cache = _cache_path(paths)
    cached = _load_scan(cache, paths, stamps)
    if cached is not None:
        return cached
    members = [(number, *row) for number, path in enumerate(paths) for row in _scan_tar(path)]
    names = [name for _, name, _, _, _ in members]
    labels = [label for _, _, _, _, label in members]
    rows = [(number, offset, size) for number, _, offset, size, _ in members]
    table = np.array(rows, dtype=np.int64).reshape(-1, 3)
    if len(names) >= MIN_CACHED:
        buffer = io.BytesIO()
        np.savez(
            buffer,
            stamps=stamps,
            table=table,
            names=np.frombuffer(PackedNames(names).blob, np.uint8),
            labels=np.frombuffer(json.dumps(labels).encode(), np.uint8),
        )
        with contextlib.suppress(InputError):  # a cache that cannot be written is not needed
            write_atomically(cache, buffer.getvalue())
    return ArchiveIndex(list(paths), names, table, labels)


def _cache_path(paths: Sequence[Path]) -> Path:
    key = [_CACHE_FORMAT, *EXTENSIONS, *(str(path.absolute()) for path in paths)]
    name = hashlib.sha256(os.fsencode("\0".join(key))).hexdigest()[:32]
    return data_folder() / "index" / f"{name}.npz"


def _load_scan(
    cache: Path, paths: Sequence[Path], stamps: NDArray[np.int64]
) -> ArchiveIndex | None:
    """Load a scan of the same, unchanged archives; None without a usable cache."""
    try:
        with np.load(cache, allow_pickle=False) as saved:
            if not np.array_equal(saved["stamps"], stamps):
                return None
            names = os.fsdecode(saved["names"].tobytes()).split("\0")
            labels = json.loads(saved["labels"].tobytes())
            return ArchiveIndex(list(paths), names, saved["table"], labels)
    except (OSError, ValueError, KeyError, EOFError, RuntimeError):
        return None
    except (zipfile.BadZipFile, zlib.error, NotImplementedError):
        return None


def _scan_tar(path: Path) -> list[tuple[str, int, int, str | None]]:
    """Return (name, offset, size, label) of every image, or raise `InputError` if damaged."""
    images: dict[str, tuple[int, int]] = {}
    labels: dict[str, str] = {}
    try:
        _require_uncompressed(path)
        with tarfile.open(path, "r:") as archive:
            while (member := archive.next()) is not None:
                # Otherwise tarfile keeps every header of the archive.
                archive.members = []  # type: ignore[attr-defined]
                if is_image_name(member.name):
                    _note_image(member, images)
                else:
                    _note_label(archive, member, labels)
            _require_end(path, archive.offset)
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror or error}).") from error
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise InputError(
            f"{path} is truncated, damaged or not a tar archive; copy or download it again."
        ) from error
    return [
        (name, *images[name], labels.get(_sample_key(name)))
        for name in sorted(images, key=_folder_order)
    ]


def _require_uncompressed(path: Path) -> None:
    with path.open("rb") as file:
        head = file.read(8)
    if head.startswith(_COMPRESSED):
        refuse_compressed([path])


def refuse_compressed(files: Sequence[Path], _: object = None) -> ImageSource:
    """Raise `InputError`: images in the middle of a compressed tar cannot be read directly."""
    raise InputError(
        f"{files[0]} is compressed as a whole, so reading an image "
        "requires decompressing everything before it; unpack it and give the folder, or give a "
        "plain tar."
    )


def _note_image(member: tarfile.TarInfo, images: dict[str, tuple[int, int]]) -> None:
    name = member_name(member.name)
    if name is None or member.isdir():
        return
    place = (_NOT_PLAIN, 0)
    if member.islnk():  # how GNU tar stores a file packed under a second name
        place = images.get(member_name(member.linkname) or "", place)
    elif member.isreg() and not member.issparse():
        place = (member.offset_data, member.size)
    images[name] = place


def _note_label(archive: tarfile.TarFile, member: tarfile.TarInfo, labels: dict[str, str]) -> None:
    key, _, kind = member.name.rpartition(".")
    if kind not in ("cls", "json") or not member.isreg() or member.size > _MAX_LABEL_BYTES:
        return
    file = archive.extractfile(member)
    text = "" if file is None else file.read().decode("utf-8", "replace").strip()
    key = _sample_key(member_name(f"{key}.jpg") or "")
    if kind == "cls":
        labels[key] = text
        return
    try:
        fields = json.loads(text)
    except ValueError:
        return
    found = [fields[name] for name in _JSON_KEYS if name in fields] if type(fields) is dict else []
    if found and type(found[0]) in (int, str):
        labels.setdefault(key, str(found[0]))


def _sample_key(name: str) -> str:
    """Return what the files of a WebDataset sample share: everything up to the first dot."""
    folder, slash, last = name.rpartition("/")
    return folder + slash + last.partition(".")[0]


def _require_end(path: Path, offset: int) -> None:
    """Raise ValueError if the headers end before the archive does.

    `tarfile` takes a damaged header for the end; the images after it would be lost silently.
    """
    with path.open("rb") as file:
        file.seek(offset)
        block = file.read(tarfile.BLOCKSIZE)
    if block.strip(b"\0") or 0 < len(block) < tarfile.BLOCKSIZE:
        raise ValueError("a header is damaged")


def _folder_order(name: str) -> list[str]:
    """Sorting key that puts the names of an archive in the order of the unpacked folder."""
    return name.split("/")


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
            f"{printable(missing)}; add the missing labels or remove all."
        )
    return label_by_value(where, values, None, classes)


def _describe(paths: Sequence[Path]) -> str:
    return str(paths[0]) if len(paths) == 1 else f"{paths[0]} (and {len(paths) - 1} more)"
