"""Where the images of a tar archive lie, from one pass over its headers."""

import json
import tarfile
from pathlib import Path
from typing import NamedTuple

from imsvd.datasets.names import folder_order, is_image_name, member_name
from imsvd.errors import InputError

NOT_PLAIN = -1
"""Stands for the offset of a member that has no bytes of its own, such as a link."""

_COMPRESSED = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
}
_JSON_KEYS = ("label", "cls", "class")
_MAX_LABEL_BYTES = 1024**2
_BLOCK = tarfile.BLOCKSIZE


class TarMember(NamedTuple):
    """An image: name, offset and length of its bytes, and the label beside it, if any."""

    name: str
    offset: int
    size: int
    label: str | None


def scan_tar(path: Path) -> list[TarMember]:
    """The images of an archive in the order of a folder; raises `InputError` if it is damaged."""
    _require_plain(path)
    images: dict[str, tuple[int, int]] = {}
    labels: dict[str, str] = {}
    try:
        with tarfile.open(path, "r:") as archive:
            while (member := archive.next()) is not None:
                # Else tarfile keeps every header of the archive.
                archive.members = []  # type: ignore[attr-defined]
                _note(archive, member, images, labels)
            _require_end(path, archive.offset)
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror or error})") from error
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise InputError(_damaged(path)) from error
    return [
        TarMember(name, *images[name], labels.get(_sample_key(name)))
        for name in sorted(images, key=folder_order)
    ]


def _require_plain(path: Path) -> None:
    try:
        with path.open("rb") as file:
            head = file.read(8)
    except OSError as error:
        raise InputError(f"{path} cannot be opened ({error.strerror or error})") from error
    for magic, method in _COMPRESSED.items():
        if head.startswith(magic):
            raise InputError(
                f"{path} is compressed as a whole ({method}), so that no image in it can be read "
                f"without all before it; unpack it and give the folder, or give a plain tar"
            )


def _note(
    archive: tarfile.TarFile,
    member: tarfile.TarInfo,
    images: dict[str, tuple[int, int]],
    labels: dict[str, str],
) -> None:
    """Remember a member if it is an image or a label."""
    if not is_image_name(member.name):
        _note_label(archive, member, labels)
        return
    name = member_name(member.name)
    if name is None or member.isdir():
        return
    place = (NOT_PLAIN, 0)
    if member.islnk():  # GNU tar's form of a file packed under a second name
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
    """What the files of one WebDataset sample share: all up to the first dot of the last part."""
    folder, slash, last = name.rpartition("/")
    return folder + slash + last.partition(".")[0]


def _require_end(path: Path, offset: int) -> None:
    """Raise `InputError` if the headers stop before the archive does.

    `tarfile` takes a damaged header for the end, and the images after it would be lost in silence.
    """
    with path.open("rb") as file:
        file.seek(offset)
        block = file.read(_BLOCK)
    if block.strip(b"\0") or 0 < len(block) < _BLOCK:
        raise InputError(_damaged(path))


def _damaged(path: Path) -> str:
    return f"{path} is cut off, damaged or no tar archive; copy or download it again"
