"""Damaged checkpoints: refused or survived with an older one, in one sentence, never a wrong result."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from imsvd.bench.campaign.stage import Stage
from imsvd.bench.campaign.tries import Kind, Outcome, judge, tail

Damage = Callable[[Path, Path, random.Random], None]
"""Damages a checkpoint, given a checkpoint of another run with the same settings but its seed."""


def interrupted(stage: Stage, name: str, seed: int) -> Path:
    """Return the folder of a command that was killed when it had two checkpoints; made once."""
    kept = stage.world.folder / "interrupted" / f"{name}, seed {seed}"
    if kept.exists():
        return kept
    stage.reset(name)
    started = stage.start(name, more=("--set", f"seed={seed}"))
    (rank,) = started.ranks
    while not started.ended_within(0.02):
        rank.kill(signal.SIGSTOP)  # so that nothing changes while its files are counted
        if len(checkpoints(name, stage.world.work)) == 2:
            rank.kill(signal.SIGKILL)
        rank.kill(signal.SIGCONT)
    kept.parent.mkdir(exist_ok=True)
    stage.world.work.rename(kept)
    stage.world.work.mkdir()
    return kept


PLACES = {
    "pretrain": "run/checkpoints",
    "discretize": "run/checkpoints",
    "linear": "run/evaluations/*/checkpoints",
    "coco": "run/coco/*",
}
"""Where the checkpoints of commands are, below the working folder."""


def checkpoints(name: str, folder: Path) -> list[Path]:
    """Return the checkpoints of a command that have their hash, the newest first."""
    found = folder.glob(f"{PLACES[name]}/step-*.safetensors")
    return sorted((path for path in found if path.with_suffix(".sha256").exists()), reverse=True)


def attempt(stage: Stage, name: str, draw: random.Random) -> Outcome:
    """Damage the newest checkpoint, or both, and resume."""
    stage.reference(name)
    whole, other = (interrupted(stage, name, seed) for seed in (0, 1))
    stage.clear()
    stage.world.work.rmdir()
    shutil.copytree(whole, stage.world.work)
    kind = draw.choice(list(DAMAGES))
    found, strangers = checkpoints(name, stage.world.work), checkpoints(name, other)
    chosen = found if draw.random() < 0.25 else found[:1]
    if kind == "swapped":
        DAMAGES[kind](found[0], strangers[0], draw)
        chosen = found
    else:
        for path, stranger in zip(chosen, strangers, strict=False):
            DAMAGES[kind](path, stranger, draw)
    done = f"{kind}, {len(chosen)} of {len(found)} checkpoints"
    ended = stage.start(name).wait()
    if ended.code == 0:
        return judge(stage, name, ended, done)
    if not ended.sentence:
        return Outcome("lost", f"{done}: no single sentence: {tail(ended)}")
    for path in chosen:  # what the sentence is about; the rest must be as good as before
        path.unlink(missing_ok=True)
        path.with_suffix(".sha256").unlink(missing_ok=True)
    again = judge(stage, name, stage.start(name).wait(), f"{done}, then removed")
    return again if again.verdict != "same" else Outcome("refused", f"{done}: {ended.sentence}")


def _flip(path: Path, _: Path, draw: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    path.write_bytes(content)


def _flip_header(path: Path, _: Path, draw: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[draw.randrange(min(64, len(content)))] ^= 1 << draw.randrange(8)
    path.write_bytes(content)


def _flip_hash(path: Path, stranger: Path, draw: random.Random) -> None:
    _flip(path.with_suffix(".sha256"), stranger, draw)


def _truncate(path: Path, _: Path, draw: random.Random) -> None:
    path.write_bytes(path.read_bytes()[: draw.randrange(path.stat().st_size)])


def _empty(path: Path, _: Path, draw: random.Random) -> None:
    (path if draw.random() < 0.5 else path.with_suffix(".sha256")).write_bytes(b"")


def _zero(path: Path, _: Path, draw: random.Random) -> None:
    content = bytearray(path.read_bytes())
    length = draw.randint(1, len(content))
    first = draw.randrange(len(content) - length + 1)
    content[first : first + length] = bytes(length)
    path.write_bytes(content)


def _lose_hash(path: Path, _: Path, draw: random.Random) -> None:
    del draw
    path.with_suffix(".sha256").unlink()


def _swap(path: Path, _: Path, draw: random.Random) -> None:
    """Give two checkpoints of a run each other's names, with their hashes or without."""
    others = [other for other in path.parent.glob("step-*.safetensors") if other != path]
    suffixes = (".safetensors", ".sha256") if draw.random() < 0.5 else (".safetensors",)
    for suffix in suffixes if others else ():
        first, second = path.with_suffix(suffix), others[0].with_suffix(suffix)
        content = first.read_bytes()
        first.write_bytes(second.read_bytes())
        second.write_bytes(content)


def _replace(path: Path, stranger: Path, draw: random.Random) -> None:
    """Put a checkpoint of a run with another seed in its place, hash and all."""
    del draw
    for suffix in (".safetensors", ".sha256"):
        shutil.copyfile(stranger.with_suffix(suffix), path.with_suffix(suffix))


def _rewrite(path: Path, change: Callable[[dict[str, str], Any], None]) -> None:
    """Change header and state of a checkpoint, as if another version had written it."""
    content = path.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    metadata = header["__metadata__"]
    state = json.loads(metadata["state"])
    change(metadata, state)
    metadata["state"] = json.dumps(state)
    text = json.dumps(header).encode()
    content = len(text).to_bytes(8, "little") + text + content[end:]
    path.write_bytes(content)
    path.with_suffix(".sha256").write_text(hashlib.sha256(content).hexdigest())


def _future(path: Path, _: Path, draw: random.Random) -> None:
    """Let a later version have written it: a higher number, a new kind of value, other names."""

    def number(metadata: dict[str, str], _: Any) -> None:
        metadata["format"] = "99"

    def value(_: dict[str, str], state: Any) -> None:
        state["dict"].append(["new", {"set": [1, 2]}])

    def name(_: dict[str, str], state: Any) -> None:
        pair = draw.choice(state["dict"])
        pair[0] = f"{pair[0]}_2"

    _rewrite(path, draw.choice((number, value, name)))


DAMAGES: dict[str, Damage] = {
    "bit flip": _flip,
    "bit flip in the header": _flip_header,
    "bit flip in the hash": _flip_hash,
    "truncated": _truncate,
    "empty": _empty,
    "zero bytes": _zero,
    "no hash": _lose_hash,
    "swapped": _swap,
    "of another run": _replace,
    "of a future version": _future,
}

KIND = Kind("damaged checkpoint", tuple(PLACES), attempt)
