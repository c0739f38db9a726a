"""Checkpoints of tensors and JSON, written atomically and hashed; nothing is ever unpickled.

A checkpoint is one safetensors file with every tensor of a nested state; the rest of the state is
JSON in the file's header. The file's SHA-256 is stored beside it. Both are written under a temporary
name, flushed to disk and renamed, the hash last: a file without a hash is incomplete.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from imsvd.errors import InputError
from imsvd.files import write_atomically

STATE_KEY = "state"
"""Name of the JSON part in the safetensors header."""
FORMAT_KEY, FORMAT = "format", 1
"""Name and value of the number that grows when older versions can no longer read a checkpoint."""

FileIdentity = tuple[int, ...]

_known_hashes: dict[FileIdentity, str] = {}
"""SHA-256 of files that this process has written or read, so that unchanged files are not read again."""


def save_checkpoint(folder: Path, step: int, state: dict[str, Any], keep: int = 2) -> Path:
    """Write `state` as the checkpoint of `step` and delete all but the newest `keep` undamaged ones."""
    path = folder / f"step-{step:09d}.safetensors"
    write_checkpoint(path, state)
    # A damaged file must not take the place of a good one.
    others = [other for other in _newest_first(folder) if other != path]
    kept = set(itertools.islice(filter(_is_whole, others), keep - 1))
    for old in others:
        if old not in kept:
            _delete(old)
    return path


def write_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write `state` and its hash."""
    tensors: dict[str, Tensor] = {}
    skeleton = _pack(state, tensors)
    content = save(tensors, {STATE_KEY: json.dumps(skeleton), FORMAT_KEY: str(FORMAT)})
    digest = hashlib.sha256(content).hexdigest()
    write_atomically(path, content)
    write_atomically(_hash_path(path), digest.encode())
    _known_hashes[_identity(path)] = digest


Objection = Callable[[dict[str, Any]], str]
"""Returns what is wrong with a state, such as "is of another run"; an empty string if nothing is."""


def load_newest_checkpoint(
    folder: Path, objection: Objection = lambda _: ""
) -> tuple[dict[str, Any] | None, list[str]]:
    """Return the newest usable state, or None, and one sentence per file that was skipped.

    A file is skipped if it is damaged or if `objection` finds something wrong with its state.
    """
    complaints: list[str] = []
    paths = _newest_first(folder)
    if len(paths) == 1 and not _hash_path(paths[0]).exists():
        return None, []  # a kill interrupted the first save: nothing has been saved yet
    for path in paths:
        try:
            state = read_checkpoint(path)
            if not (problem := objection(state)):
                return state, complaints
            complaints.append(f"checkpoint {path} {problem}.")
        except InputError as error:
            complaints.append(str(error))
    return None, complaints


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read one checkpoint, or raise `InputError` if it is damaged."""
    try:
        identity = _identity(path)
        content = path.read_bytes()
        expected = _hash_path(path).read_text(errors="replace").strip()
    except OSError as error:
        raise InputError(f"checkpoint {path} cannot be read: {error.strerror}.") from error
    _known_hashes[identity] = hashlib.sha256(content).hexdigest()
    if _known_hashes[identity] != expected:
        raise InputError(f"checkpoint {path} is damaged: its SHA-256 does not match.")
    try:
        tensors = load(content)
        header_length = int.from_bytes(content[:8], "little")
        metadata = json.loads(content[8 : 8 + header_length])["__metadata__"]
        newer = int(metadata.get(FORMAT_KEY, FORMAT)) > FORMAT
        state = {} if newer else _unpack(json.loads(metadata[STATE_KEY]), tensors)
    except (SafetensorError, KeyError, ValueError, TypeError) as error:
        raise InputError(f"checkpoint {path} was not written by imsvd: {error}.") from error
    if newer or not isinstance(state, dict):
        raise InputError(
            f"checkpoint {path} was written by a newer version of imsvd; install that version to use it."
        )
    return state


def _hash_path(path: Path) -> Path:
    return path.with_suffix(".sha256")


def _is_whole(path: Path) -> bool:
    try:
        expected = _hash_path(path).read_text().strip()
        identity = _identity(path)
        if identity not in _known_hashes:
            _known_hashes[identity] = hashlib.sha256(path.read_bytes()).hexdigest()
        return _known_hashes[identity] == expected
    except (OSError, UnicodeDecodeError):
        return False


def _identity(path: Path) -> FileIdentity:
    """Return file attributes that change whenever the file is written or replaced."""
    status = path.stat()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _delete(path: Path) -> None:
    _hash_path(path).unlink(missing_ok=True)
    with contextlib.suppress(FileNotFoundError):
        _known_hashes.pop(_identity(path), None)
        path.unlink()


def _newest_first(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*.safetensors"), reverse=True)


def _pack(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Move every tensor of `value` into `tensors`; return JSON that `_unpack` reverses exactly."""
    if isinstance(value, Tensor):
        name = str(len(tensors))
        # Cloned because safetensors refuses tensors that share storage.
        tensors[name] = value.detach().to("cpu", copy=True).contiguous()
        return {"tensor": name}
    if isinstance(value, dict):
        return {
            "dict": [[_pack(key, tensors), _pack(item, tensors)] for key, item in value.items()]
        }
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_pack(item, tensors) for item in value]}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"a checkpoint holds tensors and plain values, not {type(value).__name__}")


def _unpack(value: Any, tensors: dict[str, Tensor]) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "dict":
        return {_unpack(key, tensors): _unpack(item, tensors) for key, item in content}
    items: Iterator[Any] = (_unpack(item, tensors) for item in content)
    if kind == "list":
        return list(items)
    if kind == "tuple":
        return tuple(items)
    raise ValueError(f"it holds values of the unknown kind {kind!r}")


def seed_random_state(seed: int) -> None:
    """Seed every random generator that a network may use."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - the global one is meant


def seed_step(seed: int, step: int, rank: int) -> None:
    """Make random draws inside a step, such as dropout or anchors, depend on these three values only."""
    seed_random_state(int(np.random.SeedSequence((seed, step, rank)).generate_state(1)[0]))


def random_state() -> dict[str, Any]:
    """Return the state of every random generator that a network may use."""
    kind, words, *position = np.random.get_state(legacy=True)  # noqa: NPY002 - the global one is meant
    state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": (kind, [int(word) for word in words], *position),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    if torch.backends.mps.is_available():
        state["mps"] = torch.mps.get_rng_state()
    return state


def restore_random_state(state: dict[str, Any]) -> None:
    """Restore the state that `random_state` returned."""
    torch.set_rng_state(state["torch"])
    random.setstate(state["python"])
    kind, words, *position = state["numpy"]
    np.random.set_state((kind, np.array(words, dtype=np.uint32), *position))  # noqa: NPY002
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
    if "mps" in state and torch.backends.mps.is_available():
        torch.mps.set_rng_state(state["mps"])
