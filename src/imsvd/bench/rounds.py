"""How every benchmark measures: all cases in turn, as often as asked, with a bar and the time left."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from rich.console import Console

from imsvd.progress import progress_bar

Case = TypeVar("Case")
Measurement = TypeVar("Measurement")


def measure_in_turn(
    cases: Sequence[Case],
    repeats: int,
    measure: Callable[[Case], Measurement],
    describe: Callable[[Case], str],
    console: Console,
) -> dict[Case, list[Measurement]]:
    """Measure each case `repeats` times, going round, so that a slow minute falls on all of them."""
    measured: dict[Case, list[Measurement]] = {case: [] for case in cases}
    with progress_bar(console) as progress:
        task = progress.add_task("", total=repeats * len(cases))
        for case in list(cases) * repeats:
            progress.update(task, description=describe(case))
            measured[case].append(measure(case))
            progress.advance(task)
    return measured
