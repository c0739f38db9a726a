"""The encoder thread runs one task at a time and limits its queue."""

import asyncio
import threading
import time

import pytest

from imsvd.explorer import explorer
from imsvd.explorer.explorer import BusyError, EncoderThread


def test_tasks_run_one_at_a_time_in_another_thread() -> None:
    inside: list[int] = []
    names: set[str] = set()

    def work() -> int:
        inside.append(1)
        names.add(threading.current_thread().name)
        time.sleep(0.002)
        at_once = len(inside)
        inside.pop()
        return at_once

    async def many() -> list[int]:
        return await asyncio.gather(*(encoders.run(work) for _ in range(10)))

    encoders = EncoderThread()
    assert asyncio.run(many()) == [1] * 10
    assert len(names) == 1
    assert threading.current_thread().name not in names
    encoders.close()


def test_a_full_queue_is_refused_and_later_work_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(explorer, "MAX_WAITING", 3)
    encoders = EncoderThread()

    def fail() -> None:
        raise ValueError

    async def many() -> list[object]:
        waiting = [encoders.run(lambda: time.sleep(0.01)) for _ in range(5)]
        first = await asyncio.gather(*waiting, return_exceptions=True)
        # Tasks that fail free their place in the queue too.
        second = [
            await asyncio.gather(encoders.run(fail), return_exceptions=True) for _ in range(5)
        ]
        return [*first, *(answer[0] for answer in second)]

    kinds = [type(answer) for answer in asyncio.run(many())]
    assert kinds == [type(None)] * 3 + [BusyError] * 2 + [ValueError] * 5
    encoders.close()
