"""Images streamed from litdata shards, for data larger than the disk.

Only the bytes of the requested image are fetched, so any image can be read at any time and a
resumed run continues exactly. Labels are spread over all shards and are not fetched.
"""

import json
import os
import re
import struct
import threading
from pathlib import Path
from typing import Any

from imsvd.datasets.decoding import UnreadableImage
from imsvd.datasets.layouts import NoTestImagesError, Split
from imsvd.datasets.sources import EncodedSource, ImageSource, hash_listing
from imsvd.datasets.tables import IMAGE_COLUMNS
from imsvd.errors import InputError

_REMOTE = re.compile(r"(s3|gs|r2|azure)://.+")


class StreamSource(EncodedSource):
    """All samples of a local folder or remote prefix of litdata shards, unlabeled.

    A sample is the bytes of an image file, or a dictionary, tuple or list that contains them.
    """

    def __init__(self, place: str) -> None:
        self.place = place
        self._opened: dict[int, tuple[threading.Lock, Any]] = {}
        try:
            import litdata  # noqa: F401, PLC0415 - optional
        except ImportError as error:
            raise InputError(f"{place} needs litdata: pip install 'imsvd[data]'.") from error
        try:
            _, dataset = self._dataset()
            # The length of the dataset itself is that of one rank's share.
            self._counts = [int(end) - int(start) for start, end in dataset.region_of_interest]
            self._shards = [str(name) for name in dataset.subsampled_files]
            sample = self._fetch(0)
        except struct.error as error:
            raise InputError(
                f"the samples of {place} are dictionaries of bytes, which litdata cannot fetch "
                f"individually from remote storage; write them as JPEG images or plain bytes."
            ) from error
        except Exception as error:  # a bad connection or index can raise anything
            raise InputError(
                f"{place} cannot be opened as litdata shards ({type(error).__name__}: "
                f"{str(error)[:200]}); check the address, the access rights and its index.json."
            ) from error
        if _image_bytes(sample) is None:
            raise InputError(
                f"the samples of {place} hold no image files; write the bytes of a JPEG or PNG file "
                f"under the key image."
            )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": {}}

    def __len__(self) -> int:
        return sum(self._counts)

    def encoded(self, index: int) -> bytes:
        """Fetch the bytes of the image file."""
        identity = self.identity(index)
        try:
            sample = self._fetch(index)
        except Exception as error:
            # Not a bad image: after a lost connection all of them would be.
            raise InputError(
                f"{identity} of {self.place} cannot be fetched ({type(error).__name__}: "
                f"{str(error)[:200]}); check the connection and resume the run."
            ) from error
        data = _image_bytes(sample)
        if data is None:
            raise UnreadableImage(identity, "no image file in the sample")
        return data

    def identity(self, index: int) -> str:
        """Return the number of the sample, from 0."""
        self.require_index(index)
        return f"sample {index}"

    def fingerprint(self) -> str:
        """Return a hash of the names and lengths of the shards."""
        return hash_listing([json.dumps([self._shards, self._counts]).encode()])

    def _fetch(self, index: int) -> Any:
        lock, dataset = self._dataset()
        with lock:
            return dataset[index]

    def _dataset(self) -> tuple[threading.Lock, Any]:
        """Return the dataset of this process; connections and threads do not survive a fork."""
        if os.getpid() not in self._opened:
            self._opened.setdefault(os.getpid(), (threading.Lock(), _open_dataset(self.place)))
        return self._opened[os.getpid()]


def is_remote(data: str) -> bool:
    """Return whether this is a remote address rather than a path."""
    return _REMOTE.fullmatch(data) is not None


def is_shard_folder(root: Path) -> bool:
    """Return whether the folder contains litdata shards."""
    try:
        index = json.loads((root / "index.json").read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(index, dict) and {"chunks", "config"} <= index.keys()


def open_stream(place: str, split: Split) -> ImageSource:
    """Open a folder or prefix of shards, all of it for training."""
    if split == "test":
        raise NoTestImagesError(f"{place} has no test images: streams are for training only.")
    return StreamSource(place)


def _open_dataset(place: str) -> Any:
    from litdata import StreamingDataset  # noqa: PLC0415 - optional, and slow to import
    from litdata.streaming.serializers import Serializer  # noqa: PLC0415

    class Raw(Serializer):  # type: ignore[misc]
        """Returns the bytes of a file for our own decoder, but no pickled data."""

        def __init__(self, *, pickled: bool = False) -> None:
            self.pickled = pickled  # could run any program

        def serialize(self, data: Any) -> tuple[bytes, str | None]:
            raise NotImplementedError

        def deserialize(self, data: bytes) -> bytes | None:
            return None if self.pickled else bytes(data)

        def can_serialize(self, _: Any) -> bool:
            return False

    serializers = {
        **{name: Raw() for name in ("jpeg", "image", "file")},
        **{name: Raw(pickled=True) for name in ("pickle", "graph")},
    }
    return StreamingDataset(place, serializers=serializers)


def _image_bytes(sample: Any) -> bytes | None:
    """Return the image file in a sample: under a usual name, otherwise its first bytes."""
    if isinstance(sample, bytes | bytearray | memoryview):
        return bytes(sample)
    if isinstance(sample, dict):
        values = [sample[name] for name in IMAGE_COLUMNS if name in sample] or list(sample.values())
    else:
        values = list(sample) if isinstance(sample, list | tuple) else []
    found = (item for item in values if isinstance(item, bytes | bytearray | memoryview))
    return next((bytes(item) for item in found), None)
