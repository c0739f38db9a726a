"""Images listed in a text file, one path a line, with or without a label."""

import os
from collections.abc import Sequence
from pathlib import Path

from imsvd.datasets.encoded import EncodedSource, read_file
from imsvd.datasets.labels import label_by_value
from imsvd.datasets.named import Split
from imsvd.datasets.names import PackedNames, is_image_name, printable
from imsvd.datasets.source import ImageSource, hash_listing
from imsvd.datasets.splits import open_split, parts_of_files
from imsvd.errors import InputError


class PathListSource(EncodedSource):
    """The images a text file lists, in its order; relative paths start at the file's folder.

    A label, if any, follows after a tab or a space. Blank lines and lines that begin with # are
    passed over. Whether the files exist shows when they are read.
    """

    def __init__(self, path: Path, classes: Sequence[str] | None = None) -> None:
        self.path = path
        entries = _parse(path)
        self._names = PackedNames.pack([name for name, _ in entries])
        values = [label for _, label in entries]
        if values[0] is not None:
            self.labels, self.classes = label_by_value(path, values, None, classes)

    def __len__(self) -> int:
        return len(self._names)

    def encoded(self, index: int) -> bytes:
        """The bytes of the image file."""
        identity = self.identity(index)
        return read_file(self.path.parent / self._names[index], identity)

    def identity(self, index: int) -> str:
        """The path as it is listed."""
        self.require_index(index)
        return printable(self._names[index])

    def fingerprint(self) -> str:
        """Hash of paths, labels and classes; not of the list's own name."""
        labels = b"" if self.labels is None else self.labels.numpy().tobytes()
        return hash_listing([self._names.blob, labels, *(name.encode() for name in self.classes)])


def open_list(files: Sequence[Path], split: Split) -> ImageSource:
    """Open a list; beside train.txt, test.txt (or val.txt) lists the test images."""
    return open_split(
        split,
        parts_of_files(files),
        lambda part, classes: PathListSource(part[0], classes),
        f"{files[0]} has no test images: name the lists train.txt and test.txt (or val.txt) "
        f"in one folder, and give train.txt",
    )


def _parse(path: Path) -> list[tuple[str, str | None]]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be opened ({error.strerror or error})") from error
    entries: list[tuple[str, str | None]] = []
    for number, raw in enumerate(data.removeprefix(b"\xef\xbb\xbf").splitlines(), start=1):
        line = os.fsdecode(raw.replace(b"\0", b"\\0")).strip()
        if not line or line.startswith("#"):
            continue
        name, label = _split_line(line)
        if entries and (label is None) != (entries[0][1] is None):
            raise InputError(
                f"{path} gives a label to some images only; line {number} differs from the first"
            )
        entries.append((name, label))
    if not entries:
        raise InputError(f"{path} lists no images; write one path a line")
    return entries


def _split_line(line: str) -> tuple[str, str | None]:
    """Path and label of a line; a path may itself contain spaces."""
    if "\t" in line:
        name, _, label = line.partition("\t")
        return name.strip(), label.strip()
    name, space, label = line.rpartition(" ")
    if space and not is_image_name(line) and is_image_name(name.rstrip()):
        return name.rstrip(), label
    return line, None
