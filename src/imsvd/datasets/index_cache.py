"""Listings kept between runs, so that large data open at once the next time.

They lie in the folder `index` beside the downloaded datasets. A cache that cannot be read or
written is as good as none: the data are listed afresh.
"""

import contextlib
import hashlib
import os
import tempfile
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from imsvd.datasets.named import data_folder

Arrays = Mapping[str, NDArray[Any]]

MIN_ENTRIES = 1000
"""Shorter listings are made faster than they are worth keeping."""

_FORMAT = "1"  # changes whenever the meaning of the arrays does


def load_listing(key: str) -> Arrays | None:
    """The arrays saved under `key`; None without a usable cache."""
    try:
        with np.load(_path(key), allow_pickle=False) as saved:
            arrays = {name: saved[name] for name in saved.files}
            return arrays if arrays["key"].tobytes() == _described(key) else None
    except (OSError, ValueError, KeyError, EOFError, RuntimeError):
        return None
    except (zipfile.BadZipFile, zlib.error, NotImplementedError):
        return None


def save_listing(key: str, arrays: Arrays) -> None:
    """Keep arrays under `key`, whole or not at all, if the cache can be written."""
    path = _path(key)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
        try:
            with os.fdopen(descriptor, "wb") as file:
                np.savez(file, allow_pickle=False, key=as_bytes(_described(key)), **arrays)
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise


def as_bytes(data: bytes) -> NDArray[np.uint8]:
    """Bytes as an array, the form in which listings are kept."""
    return np.frombuffer(data, np.uint8)


def _described(key: str) -> bytes:
    return os.fsencode(f"{_FORMAT} {key}")


def _path(key: str) -> Path:
    name = hashlib.sha256(_described(key)).hexdigest()[:32]
    return data_folder() / "index" / f"{name}.npz"
