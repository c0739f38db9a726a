"""Images in a zip archive, read in place."""

import struct
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from imsvd.datasets.encoded import MAX_FILE_BYTES, TOO_LARGE, EncodedSource
from imsvd.datasets.labels import label_by_folder
from imsvd.datasets.named import Split
from imsvd.datasets.names import NoImagesError, PackedNames, folder_order, member_name, printable
from imsvd.datasets.random_access import RandomAccessFiles
from imsvd.datasets.source import ImageSource, UnreadableImage, hash_listing
from imsvd.datasets.splits import open_archives
from imsvd.errors import InputError

_LOCAL_HEADER = struct.Struct("<4s22xHH")
_ENCRYPTED = 0x1


class ZipIndex(NamedTuple):
    """The images of an archive: names in the order of a folder, and where their bytes are.

    `table` (n, 5) holds offset of the local header, compressed size, size, method, checksum.
    """

    path: Path
    names: list[str]
    table: NDArray[np.int64]


class ZipSource(EncodedSource):
    """The images below `prefix` in an archive, with the labels they would have in a folder.

    The table of contents is read once, here. Reading a picture then needs no more than the
    file, so that processes share nothing and threads do not wait for one another.
    """

    def __init__(
        self, index: ZipIndex, prefix: str = "", classes: Sequence[str] | None = None
    ) -> None:
        chosen = [i for i, name in enumerate(index.names) if name.startswith(prefix)]
        if not chosen:
            raise NoImagesError(f"{index.path}/{prefix}" if prefix else index.path)
        names = [index.names[i].removeprefix(prefix) for i in chosen]
        self.path = index.path
        self._names = PackedNames.pack(names)
        self._table = index.table[chosen]
        self._file = RandomAccessFiles([index.path])
        self.labels, self.classes = label_by_folder(index.path, names, classes)

    def __len__(self) -> int:
        return len(self._names)

    def encoded(self, index: int) -> bytes:
        """The bytes of the image file, checked against the archive's checksum."""
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
        header = self._file.read(0, offset, _LOCAL_HEADER.size)
        signature, name_length, extra_length = _LOCAL_HEADER.unpack(header)
        if signature != b"PK\3\4":
            raise zlib.error("no member here")
        data = self._file.read(0, offset + len(header) + name_length + extra_length, packed)
        if method == zipfile.ZIP_STORED:
            return data
        # One byte more than declared is enough to notice a member that declares too little.
        return zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, size + 1)

    def identity(self, index: int) -> str:
        """Path inside the archive, below the part that was opened."""
        self.require_index(index)
        return printable(self._names[index])

    def fingerprint(self) -> str:
        """Hash of paths and classes, equal to that of the unpacked folder."""
        return hash_listing([self._names.blob, *(name.encode() for name in self.classes)])


def open_zip(path: Path, split: Split) -> ImageSource:
    """Open an archive, or the part of it that `split` names, or the val.zip beside a train.zip."""
    missing = f"{path} has no test images: give an archive with train/ and test/ (or val/) in it"
    return open_archives([path], split, lambda files: read_zip_index(files[0]), ZipSource, missing)


def read_zip_index(path: Path) -> ZipIndex:
    """Read an archive's table of contents; raises `InputError` if it is damaged or encrypted."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
    except OSError as error:
        raise InputError(f"{path} cannot be opened ({error.strerror or error})") from error
    except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error, EOFError) as error:
        raise InputError(
            f"{path} is cut off or no zip archive ({error}); copy or download it again"
        ) from error
    found: dict[str, zipfile.ZipInfo] = {}
    for member in members:
        name = None if member.filename.endswith("/") else member_name(member.filename)
        if name is not None:
            _require_readable(path, member)
            found[name] = member  # of members with the same name the last one counts
    names = sorted(found, key=folder_order)
    rows = [
        (item.header_offset, item.compress_size, item.file_size, item.compress_type, item.CRC)
        for item in map(found.__getitem__, names)
    ]
    return ZipIndex(path, names, np.array(rows, dtype=np.int64).reshape(-1, 5))


def _require_readable(path: Path, member: zipfile.ZipInfo) -> None:
    if member.flag_bits & _ENCRYPTED:
        raise InputError(f"{path} is encrypted; unpack it with its password and give the folder")
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise InputError(
            f"{path} is compressed by another method than deflate (number "
            f"{member.compress_type}); unpack it and give the folder, or pack it with plain zip"
        )
