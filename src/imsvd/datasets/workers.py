"""Batches prepared by worker processes that end with the training, neither before nor after it."""

from __future__ import annotations

import signal
from collections.abc import Callable, Generator, Iterable
from typing import Generic, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from imsvd.errors import InputError

Key = TypeVar("Key")
Batch = TypeVar("Batch")


def load_batches(
    read: Callable[[Key], Batch],
    keys: Iterable[Key],
    workers: int,
    *,
    pin_memory: bool = False,
) -> Generator[Batch, None, None]:
    """Yield `read(key)` for every key, in order.

    Args:
        read: makes a whole batch; must be picklable.
        keys: identify the batches.
        workers: number of processes; 0 reads in this one.
        pin_memory: whether to place batches in memory that is fast to copy to a GPU.
    """
    loader = DataLoader(
        _Reading(read),
        sampler=keys,
        batch_size=None,
        num_workers=workers,
        collate_fn=_unchanged,
        worker_init_fn=_ignore_signals,
        pin_memory=pin_memory,
        # Otherwise a loader draws from the global generator, once more after every resumption.
        generator=torch.Generator(),
    )
    iterator = iter(loader)
    try:
        yield from iterator
    except InputError as error:
        # A worker's error arrives with its traceback; its last line is the message.
        message = str(error).strip().splitlines()[-1]
        raise InputError(message.removeprefix("imsvd.errors.InputError: ")) from error
    finally:
        # Workers ignore SIGTERM, so without this they would keep the program from exiting.
        if isinstance(iterator, _MultiProcessingDataLoaderIter):
            iterator._shutdown_workers()


class _Reading(Dataset[Batch], Generic[Key, Batch]):
    """A function in the form that `DataLoader` requires."""

    def __init__(self, read: Callable[[Key], Batch]) -> None:
        self.read = read

    def __getitem__(self, key: Key) -> Batch:
        return self.read(key)


def _unchanged(batch: Batch) -> Batch:
    return batch


def _ignore_signals(worker: int) -> None:
    """Keep Ctrl-C, which reaches the whole process group, from ending a worker before the save."""
    del worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
