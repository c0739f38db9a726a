"""Measurements during training: gathered over an epoch, written once, and what training has cost."""

from __future__ import annotations

import json
import os
import resource
import socket
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # type: ignore[import-untyped]
from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-untyped]
from tensorboard.summary.writer.record_writer import RecordWriter  # type: ignore[import-untyped]
from torch import Tensor

from imsvd.config import Config
from imsvd.distributed import all_gather, mean_over_ranks, own_row
from imsvd.errors import InputError
from imsvd.information import effective_rank
from imsvd.methods import Method, MethodOutput
from imsvd.runs import RunFolder


class EpochMetrics:
    """Running means over an epoch, kept on the device so that no step waits for them."""

    def __init__(self) -> None:
        self.steps = 0
        self.sums: dict[str, dict[str, Tensor]] = {"terms": {}, "statistics": {}}
        self._of_all_ranks: dict[str, dict[str, Tensor]] | None = None

    def update(self, output: MethodOutput, statistics: Mapping[str, Tensor]) -> None:
        """Add one step."""
        self.steps += 1
        self._of_all_ranks = None
        self._add("terms", {"loss": output.loss.detach(), **output.terms})
        self._add("statistics", statistics)

    def summarize(self, method: Method, features: Tensor | None) -> dict[str, Any]:
        """Return the epoch's record; `features` of its last batch, if given, give the effective rank."""
        terms = mean_over_ranks(
            {name: total / self.steps for name, total in self.sums["terms"].items()}
        )
        statistics = mean_over_ranks(
            {name: total / self.steps for name, total in self.sums["statistics"].items()}
        )
        return {
            "loss": float(terms.pop("loss")),
            "terms": {name: float(value) for name, value in terms.items()},
            "health": method.summarize(statistics)
            | ({} if features is None else {"effective_rank": float(effective_rank(features))}),
        }

    def gather(self) -> None:
        """Let every rank know the sums of all, for a checkpoint; all ranks call this."""
        self._of_all_ranks = self._each(lambda value: all_gather(value[None]))

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint inside an epoch must keep; sums have a row for every rank."""
        sums = self._of_all_ranks or self._each(lambda value: value[None])
        return {"steps": self.steps, "sums": sums}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue an epoch that was interrupted."""
        self.steps = state["steps"]
        self.sums = state["sums"]
        self.sums = self._each(own_row)

    def _each(self, change: Callable[[Tensor], Tensor]) -> dict[str, dict[str, Tensor]]:
        return {
            group: {name: change(value) for name, value in sums.items()}
            for group, sums in self.sums.items()
        }

    def _add(self, group: str, values: Mapping[str, Tensor]) -> None:
        sums = self.sums[group]
        for name, value in values.items():
            sums[name] = sums[name].to(value.device) + value if name in sums else value.clone()


class Board:
    """A file of events for TensorBoard.

    `SummaryWriter` writes from a thread, which prints a traceback of its own when the disk is full.

    Args:
        folder: where TensorBoard looks for files.
        first_epoch: it and later ones of an interrupted run are not shown.
    """

    def __init__(self, folder: Path, first_epoch: int) -> None:
        name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}"
        self.path = folder / name
        folder.mkdir(parents=True, exist_ok=True)
        started = SessionLog(status=SessionLog.START)
        self._append(Event(wall_time=time.time(), file_version="brain.Event:2"))
        self._append(Event(wall_time=time.time(), step=first_epoch, session_log=started))

    def write(self, values: Mapping[str, float], epoch: int) -> None:
        """Append the numbers of an epoch."""
        listed = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._append(Event(wall_time=time.time(), step=epoch, summary=Summary(value=listed)))

    def _append(self, event: Event) -> None:
        with named_errors(self.path), self.path.open("ab") as file:
            RecordWriter(file).write(event.SerializeToString())


@contextmanager
def named_errors(path: Path) -> Iterator[None]:
    """Give errors of a file that is open its name, which the system does not."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


class MetricsLog:
    """Writes each epoch to metrics.jsonl, TensorBoard and, if enabled, Weights & Biases."""

    def __init__(self, run: RunFolder, config: Config, first_epoch: int) -> None:
        self.run = run
        # An interrupted run may have logged epochs that it now trains again.
        run.rewrite_metrics([record for record in run.metrics() if record["epoch"] <= first_epoch])
        self.board = Board(run.tensorboard, first_epoch + 1)
        self.wandb = _start_wandb(run, config) if config.compute.wandb else None

    def write(self, record: dict[str, Any]) -> None:
        """Append one epoch."""
        with named_errors(self.run.metrics_file), self.run.metrics_file.open("a") as file:
            file.write(json.dumps(record) + "\n")
            file.flush()
            os.fsync(file.fileno())
        flat = dict(_scalars(record))
        self.board.write(flat, record["epoch"])
        if self.wandb is not None:
            self.wandb.log(flat, step=record["epoch"])

    def close(self) -> None:
        """Close every writer."""
        if self.wandb is not None:
            self.wandb.finish()


def _scalars(record: Mapping[str, Any], prefix: str = "") -> list[tuple[str, float]]:
    found: list[tuple[str, float]] = []
    for name, value in record.items():
        if isinstance(value, Mapping):
            found += _scalars(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and name != "epoch":
            found.append((f"{prefix}{name}", float(value)))
    return found


def _start_wandb(run: RunFolder, config: Config) -> Any:
    try:
        import wandb  # noqa: PLC0415 - an optional dependency
    except ImportError as error:
        raise InputError(
            "compute.wandb=true needs wandb; install it with `pip install 'imsvd[wandb]'`."
        ) from error
    return wandb.init(
        project="imsvd", dir=str(run.path), config=config.model_dump(mode="json"), resume="allow"
    )


def peak_memory() -> int:
    """Return the most bytes this process has held so far, on its GPU if it used one, else resident."""
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return torch.cuda.max_memory_allocated()
    status = Path("/proc/self/status")
    if status.exists():
        # Not ru_maxrss: on Linux it starts at the memory of the parent process.
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def largest_peak(records: Sequence[Mapping[str, Any]]) -> int | None:
    """Return the largest peak memory that the epochs of a run record, if any."""
    return max(
        (record["peak_memory"] for record in records if "peak_memory" in record), default=None
    )


def median_epoch_seconds(records: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the median seconds per epoch, which a pause in one of them does not change.

    Differences of totals are used: `seconds` of an interrupted epoch only cover its last part.
    """
    totals = [0.0, *(record["total_seconds"] for record in records)]
    return statistics.median(b - a for a, b in pairwise(totals)) if records else None
