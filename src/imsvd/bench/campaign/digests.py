"""What a folder of results holds, without what no two runs have in common: times and memory."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import yaml

COSTS = {
    "commit",
    "curve",
    "evaluation_seconds",
    "finished",
    "id",
    "images_per_second",
    "modified",
    "memory_mib",
    "peak_memory",
    "seconds",
    "sha256",
    "seconds_per_epoch",
    "time",
    "total_seconds",
    "training_seconds",
}
"""Keys of JSON files that differ between equal runs."""
IGNORED_FOLDERS = {"tensorboard"}
IGNORED_FILES = {".lock", "lock", "output.txt", "training.png", "accuracy.png", "report.html"}
IGNORED_FILES |= {"comparison.csv", "comparison.json", "comparison.md"}  # made of outcomes
"""Files that show times, and those that are no results."""

Digests = dict[str, str]
"""Hash of every file, by its path."""


def digest_folder(folder: Path) -> Digests:
    """Return the hashes of the results in `folder`; of checkpoints, those of the newest."""
    return {
        str(path.relative_to(folder)): _digest(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and path.name not in IGNORED_FILES
        and not IGNORED_FOLDERS & set(path.parts)
        and not _is_aside(path)
    }


def _is_aside(path: Path) -> bool:
    """Return whether a file is the hash of a checkpoint, or a checkpoint that is not the newest.

    At which step several ranks agree to save an older one depends on where they were interrupted.
    """
    if not path.name.startswith("step-"):
        return False
    return path.suffix == ".sha256" or path != max(path.parent.glob(f"step-*{path.suffix}"))


def differences(found: Digests, expected: Digests) -> str:
    """Name the files that differ, or return an empty string."""
    lacking = sorted(expected.keys() - found.keys())
    extra = sorted(found.keys() - expected.keys())
    changed = sorted(
        name for name in found.keys() & expected.keys() if found[name] != expected[name]
    )
    parts = {"missing": lacking, "left over": extra, "different": changed}
    return "; ".join(f"{title}: {', '.join(names)}" for title, names in parts.items() if names)


def _digest(path: Path) -> str:
    if path.suffix == ".jsonl":
        content: Any = [json.loads(line) for line in path.read_text().splitlines()]
    elif path.suffix == ".json":
        content = json.loads(path.read_text())
    elif path.name == "config.yaml":
        # Machines do not define a run.
        content = {**yaml.safe_load(path.read_text()), "compute": None}
    elif path.suffix == ".safetensors":
        content = _tensors(path.read_bytes())
    else:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    # Sorted: the order of a safetensors header is random.
    text = json.dumps(_lasting(content), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _tensors(content: bytes) -> list[Any]:
    """Return the header of a safetensors file, the state in it, and a hash of the tensors."""
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    state = header.get("__metadata__", {}).pop("state", "null")
    return [header, json.loads(state), hashlib.sha256(content[end:]).hexdigest()]


def _lasting(value: Any) -> Any:
    """Return `value` without costs."""
    if isinstance(value, dict):
        return {key: _lasting(item) for key, item in value.items() if key not in COSTS}
    if isinstance(value, list):
        # Checkpoints store dictionaries as pairs.
        return [_lasting(item) for item in value if not (_is_pair(item) and item[0] in COSTS)]
    return value


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and isinstance(value[0], str)
