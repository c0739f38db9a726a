"""Measure how easy the source tree is to follow; ARCHITECTURE.md shows the results.

`python benchmarks/house.py` counts files and lines, and traces one tiny run of `imsvd pretrain` and of
`imsvd explain`. A *hop* is a pair of files of which one hands the other a batch (or an image) in a call or gets
it back; each pair counts once.
"""

from __future__ import annotations

import contextlib
import io
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

import numpy as np
import torch

import imsvd
from imsvd import cli

ROOT = str(Path(imsvd.__file__).parent) + "/"
BATCH = 24
SETTINGS = (
    "backbone.options={layers: [1, 1, 1, 1], channels: [8, 8, 8, 8], stem_type: deep, stem_width: 8}",
    "method.projector=[40, 40]",
    "method.units=4",
    "optimizer.warmup_epochs=1",
    "training.epochs=2",
    f"training.batch_size={BATCH}",
    "training.knn_every=0",
    "compute.accelerator=cpu",
)

Shape = tuple[int, ...]


def main() -> None:
    """Print all measurements."""
    counts = [len(path.read_text().splitlines()) for path in Path(ROOT).rglob("*.py")]
    show(f"files {len(counts)}   lines {sum(counts):,}   per file {statistics.mean(counts):.0f}")
    show(f"longest file {max(counts)}   files under 50 lines {sum(n < 50 for n in counts)}")
    with tempfile.TemporaryDirectory() as folder:
        sets = [word for setting in SETTINGS for word in ("--set", setting)]
        run = f"{folder}/run"
        pretrain = ["pretrain", "shapes:72", "--recipe", "shapes", "--out", run, *sets]
        for name, command, is_wanted in (
            ("batch", pretrain, is_batch),
            ("image", ["explain", run, "shapes:72"], is_image),
        ):
            with traced(is_wanted) as hops, contextlib.redirect_stdout(io.StringIO()):
                run_command(command)
            files = {file for hop in hops for file in hop}
            show(f"{name}: {len(hops)} hops between {len(files)} files")
            for caller, callee in hops:
                show(f"    {caller} > {callee}")


def is_batch(shape: Shape) -> bool:
    """Return whether a tensor holds something of every image of a batch."""
    return len(shape) >= 2 and shape[0] == BATCH


def is_image(shape: Shape) -> bool:
    """Return whether a tensor is an image or a batch of images."""
    if len(shape) == 3:
        return 3 in (shape[0], shape[-1]) and max(shape) >= 16
    return len(shape) == 4 and 3 in (shape[1], shape[3]) and max(shape) >= 16


@contextlib.contextmanager
def traced(is_wanted: Callable[[Shape], bool]) -> Iterator[dict[tuple[str, str], None]]:
    """Collect the hops of whatever `is_wanted` recognizes by its shape."""
    hops: dict[tuple[str, str], None] = {}

    def profile(frame: FrameType, event: str, value: Any) -> None:
        code = frame.f_code
        if not code.co_filename.startswith(ROOT) or event not in ("call", "return"):
            return
        hop = caller_file(frame), code.co_filename.removeprefix(ROOT)
        if hop[0] == hop[1] or hop in hops:
            return
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        values = [frame.f_locals.get(name) for name in names] if event == "call" else [value]
        if any(holds(item, is_wanted) for item in values):
            hops[hop] = None

    sys.setprofile(profile)
    try:
        yield hops
    finally:
        sys.setprofile(None)


def caller_file(frame: FrameType) -> str:
    """Return the nearest file of the package above a call."""
    above = frame.f_back
    while above is not None and not above.f_code.co_filename.startswith(ROOT):
        above = above.f_back
    return "" if above is None else above.f_code.co_filename.removeprefix(ROOT)


def holds(value: Any, is_wanted: Callable[[Shape], bool], depth: int = 0) -> bool:
    """Return whether a value is, or contains, a wanted tensor or array."""
    if isinstance(value, torch.Tensor | np.ndarray):
        return is_wanted(tuple(value.shape))
    if isinstance(value, dict):
        value = tuple(value.values())
    few = value[:4] if isinstance(value, list | tuple) and depth < 3 else ()
    return any(holds(item, is_wanted, depth + 1) for item in few)


def run_command(arguments: Sequence[str]) -> None:
    """Run `imsvd` in this process."""
    with mock.patch.object(sys, "argv", ["imsvd", *arguments]), contextlib.suppress(SystemExit):
        cli.main()


def show(line: str) -> None:
    """Print a line, whatever the output of commands was redirected to."""
    sys.__stdout__.write(line + "\n") if sys.__stdout__ else None


if __name__ == "__main__":
    main()
