"""Batches prepared by worker processes that neither outlive the training nor end before it."""

from __future__ import annotations

import signal
from collections.abc import Callable, Generator, Iterable
from typing import Any, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from imsvd.errors import InputError

Sample = TypeVar("Sample")
Batch = TypeVar("Batch")


def load_batches(
    dataset: Dataset[Sample],
    keys: Iterable[list[Any]],
    collate: Callable[[list[Sample]], Batch],
    workers: int,
    *,
    pin_memory: bool = False,
) -> Generator[Batch, None, None]:
    """Yield one batch for each list of keys.

    Args:
        dataset: gives the sample of a key.
        keys: those of every batch in turn.
        collate: makes a batch of samples.
        workers: processes that do both; 0 does it in this one.
        pin_memory: whether batches are to be copied to a GPU.
    """
    loader = DataLoader(
        dataset,
        batch_sampler=keys,
        num_workers=workers,
        collate_fn=collate,
        worker_init_fn=_leave_signals_to_the_trainer,
        pin_memory=pin_memory,
        # Else a loader draws from the global generator, once more with every resumption.
        generator=torch.Generator(),
    )
    iterator = iter(loader)
    try:
        yield from iterator
    except InputError as error:
        # A worker's error arrives with its traceback; the last line is the sentence.
        sentence = str(error).strip().splitlines()[-1]
        raise InputError(sentence.removeprefix("imsvd.errors.InputError: ")) from error
    finally:
        # Workers ignore SIGTERM: unless told to end, they would keep the program from ending.
        if isinstance(iterator, _MultiProcessingDataLoaderIter):
            iterator._shutdown_workers()


def _leave_signals_to_the_trainer(worker: int) -> None:
    """Keep Ctrl-C, which reaches the whole process group, from ending a worker before all is saved."""
    del worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
