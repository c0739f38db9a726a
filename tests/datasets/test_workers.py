import multiprocessing
import signal

import pytest

from imsvd.datasets.workers import load_batches
from imsvd.errors import InputError


def read(keys: list[int]) -> list[tuple[int, bool, bool]]:
    """Each key, and whether Ctrl-C and SIGTERM are ignored where it is read; -7 is refused."""
    if -7 in keys:
        raise InputError("-7 cannot be read.")
    numbers = signal.SIGINT, signal.SIGTERM
    first, second = (signal.getsignal(number) == signal.SIG_IGN for number in numbers)
    return [(key, first, second) for key in keys]


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_come_in_order_and_only_workers_ignore_signals(workers: int) -> None:
    # A shell starts its background jobs with Ctrl-C ignored, these tests among them.
    here = (
        signal.getsignal(number) == signal.SIG_IGN for number in (signal.SIGINT, signal.SIGTERM)
    )
    ignored = (True, True) if workers else tuple(here)
    expected = [[(key, *ignored) for key in keys] for keys in ([0, 1], [2], [3, 4])]
    assert list(load_batches(read, [[0, 1], [2], [3, 4]], workers)) == expected


@pytest.mark.parametrize("workers", [0, 1])
def test_the_error_of_a_worker_is_its_sentence_alone(workers: int) -> None:
    batches = load_batches(read, [[0], [-7]], workers)
    next(batches)
    with pytest.raises(InputError) as caught:
        next(batches)
    assert str(caught.value) == "-7 cannot be read."


def test_workers_end_with_the_batches() -> None:
    before = set(multiprocessing.active_children())
    batches = load_batches(read, [[key] for key in range(100)], 2)
    next(batches)
    started = set(multiprocessing.active_children()) - before
    assert len(started) == 2
    batches.close()
    assert not any(worker.is_alive() for worker in started)
