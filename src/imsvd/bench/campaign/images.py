"""Images that vanish or rot while a command reads them."""

from __future__ import annotations

import random
import shutil
import time
from pathlib import Path

from imsvd.bench.campaign.stage import Ended, Stage, Started
from imsvd.bench.campaign.tries import Kind, Outcome, judge, tail

CHANGES = ("vanished", "cut off", "overwritten")
BAD_IMAGES = "bad_images.jsonl"
_REPORTS = ("unreadable", "cannot be read", "images changed", "images are not those")


def attempt(stage: Stage, name: str, draw: random.Random) -> Outcome:
    """Change images at a random moment; put them back and run the command again."""
    reference = stage.reference(name)
    stage.reset(name)
    images = stage.world.images.parent
    kept = stage.world.folder / "images-kept"
    if not kept.exists():
        shutil.copytree(images, kept)
    started = stage.start(name)
    _await_first_file(stage.world.work, started)  # by then it has listed the images
    started.ended_within(draw.uniform(0, 0.8 * reference.seconds))
    read = stage.world.mixed if "readers" in name else stage.world.images
    files = sorted(read.rglob("*.png"))
    chosen = draw.sample(files, draw.choice((1, 1, len(files) // 2)))
    change = draw.choice(CHANGES)
    for path in chosen:
        spoil(path, change, draw)
    try:
        ended = started.wait()
    finally:
        for path in chosen:
            shutil.copy2(kept / path.relative_to(images), path)
    done = f"{len(chosen)} {change}"
    if ended.code not in (0, 2) or (ended.code == 2 and not ended.sentence):
        return Outcome("lost", f"{done}: no single sentence: {tail(ended)}")
    if ended.code == 0:
        return _reported(ended, done) if stage.differences(name) else Outcome("same", done)
    again = stage.start(name).wait()
    for listed in stage.world.work.rglob(BAD_IMAGES):
        listed.unlink()  # a list of what was unreadable once
    found = judge(stage, name, again, done)
    return found._replace(verdict="refused") if found.verdict == "same" else found


def _await_first_file(work: Path, started: Started) -> None:
    before = set(work.rglob("*"))
    while set(work.rglob("*")) == before and not started.ended_within(0):
        time.sleep(0.005)


def spoil(path: Path, change: str, draw: random.Random) -> None:
    """Delete an image, cut it off, or overwrite part of it."""
    content = path.read_bytes()
    if change == "vanished":
        path.unlink()
    elif change == "cut off":
        path.write_bytes(content[: draw.randrange(len(content))])
    else:
        start = draw.randrange(len(content) // 2)
        path.write_bytes(content[:start] + draw.randbytes(len(content) // 2) + content[start:])


def _reported(ended: Ended, done: str) -> Outcome:
    """Judge a command that ended well without the images: it must have said so."""
    if any(phrase in ended.said for phrase in _REPORTS):
        return Outcome("refused", f"{done}: reported as unreadable")
    return Outcome("wrong", f"{done}: other results without a word: {tail(ended)}")


KIND = Kind(
    "images vanish or rot",
    ("pretrain, readers", "discretize", "linear", "explain", "index"),
    attempt,
)
