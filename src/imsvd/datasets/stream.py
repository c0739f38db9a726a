"""Images streamed from shards that litdata wrote, for data larger than a disk.

Only the bytes of the image that is asked for are fetched, so that any image can be read at any time
and a resumed run continues exactly. The labels are spread over all shards and are not fetched.
"""

import json
import os
import re
import struct
import threading
from pathlib import Path
from typing import Any

from imsvd.datasets.encoded import EncodedSource
from imsvd.datasets.named import Split
from imsvd.datasets.source import ImageSource, UnreadableImage, hash_listing
from imsvd.datasets.tables import IMAGE_COLUMNS
from imsvd.errors import InputError

_REMOTE = re.compile(r"(s3|gs|r2|azure)://.+")


class StreamSource(EncodedSource):
    """Every sample of a folder or remote prefix of litdata's shards, unlabeled.

    A sample is the bytes of an image file, or a dictionary, tuple or list with such bytes in it.
    """

    def __init__(self, place: str) -> None:
        self.place = place
        self._opened: dict[int, tuple[threading.Lock, Any]] = {}
        _require_litdata(place)
        try:
            _, dataset = self._dataset()
            # Not the dataset's length, which is that of one rank's share.
            self._counts = [int(end) - int(start) for start, end in dataset.region_of_interest]
            self._shards = [str(name) for name in dataset.subsampled_files]
            sample = self._fetch(0)
        except struct.error as error:
            raise InputError(
                f"the samples of {place} are dictionaries of bytes, which litdata cannot fetch one "
                f"by one from afar; write them as JPEG images or as bytes alone"
            ) from error
        except Exception as error:  # whatever the connection or the description make of it
            raise InputError(
                f"{place} cannot be opened as litdata shards ({type(error).__name__}: "
                f"{str(error)[:200]}); check the address, the access rights and its index.json"
            ) from error
        if _image_bytes(sample) is None:
            raise InputError(
                f"the samples of {place} hold no image files; write them with the bytes of a JPEG "
                f"or PNG file under the key image"
            )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": {}}

    def __len__(self) -> int:
        return sum(self._counts)

    def encoded(self, index: int) -> bytes:
        """The bytes of the image file, fetched now."""
        identity = self.identity(index)
        try:
            sample = self._fetch(index)
        except Exception as error:
            # No bad image: after a lost connection all would be, and the data are not at fault.
            raise InputError(
                f"{identity} of {self.place} cannot be fetched ({type(error).__name__}: "
                f"{str(error)[:200]}); see to the connection and resume the run"
            ) from error
        data = _image_bytes(sample)
        if data is None:
            raise UnreadableImage(identity, "no image file in the sample")
        return data

    def identity(self, index: int) -> str:
        """Number of the sample, counted from 0."""
        self.require_index(index)
        return f"sample {index}"

    def fingerprint(self) -> str:
        """Hash of the shards' names and lengths."""
        return hash_listing([json.dumps([self._shards, self._counts]).encode()])

    def _fetch(self, index: int) -> Any:
        lock, dataset = self._dataset()
        with lock:
            return dataset[index]

    def _dataset(self) -> tuple[threading.Lock, Any]:
        """This process's own dataset: connections and threads do not survive a fork."""
        if os.getpid() not in self._opened:
            self._opened.setdefault(os.getpid(), (threading.Lock(), _open_dataset(self.place)))
        return self._opened[os.getpid()]


def is_remote(data: str) -> bool:
    """Whether this is the address of shards rather than a path."""
    return _REMOTE.fullmatch(data) is not None


def is_shard_folder(root: Path) -> bool:
    """Whether litdata wrote its shards into this folder."""
    try:
        index = json.loads((root / "index.json").read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(index, dict) and {"chunks", "config"} <= index.keys()


def open_stream(place: str, split: Split) -> ImageSource:
    """Open a prefix or folder of shards, all of it for training."""
    if split == "test":
        raise InputError(f"{place} has no test images: streams are for training only")
    return StreamSource(place)


def _require_litdata(place: str) -> None:
    try:
        import litdata  # noqa: F401, PLC0415 - optional
    except ImportError as error:
        raise InputError(f"{place} needs litdata: pip install 'imsvd[stream]'") from error


def _open_dataset(place: str) -> Any:
    from litdata import StreamingDataset  # noqa: PLC0415 - optional, and slow to import
    from litdata.streaming.serializers import Serializer  # noqa: PLC0415

    class Raw(Serializer):  # type: ignore[misc]
        """Leaves a file's bytes to our own decoder."""

        def serialize(self, data: Any) -> tuple[bytes, str | None]:
            raise NotImplementedError

        def deserialize(self, data: bytes) -> bytes:
            return bytes(data)

        def can_serialize(self, _: Any) -> bool:
            return False

    class Refused(Raw):
        """Pickled data could run any program."""

        def deserialize(self, _: bytes) -> Any:
            return None

    serializers = {
        **{name: Raw() for name in ("jpeg", "image", "file")},
        **{name: Refused() for name in ("pickle", "graph")},
    }
    return StreamingDataset(place, serializers=serializers)


def _image_bytes(sample: Any) -> bytes | None:
    """The image file in a sample: under a usual name, or else its first bytes."""
    if isinstance(sample, bytes | bytearray | memoryview):
        return bytes(sample)
    if isinstance(sample, dict):
        values = [sample[name] for name in IMAGE_COLUMNS if name in sample] or list(sample.values())
    else:
        values = list(sample) if isinstance(sample, list | tuple) else []
    found = (item for item in values if isinstance(item, bytes | bytearray | memoryview))
    return next((bytes(item) for item in found), None)
