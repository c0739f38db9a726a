"""`imsvd bench step`: a whole step of training, by our loop and by one written with lightly.

Every measurement runs in fresh processes; repeats go round all contenders in turn, so that a slow
minute of the machine falls on all of them. The table shows medians. What each loop does, and what
was done for the rivals' speed, is told in `step_loops`.
"""

import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from imsvd.bench.rounds import (
    TableContent,
    cells_of,
    check_duration,
    measure_afresh,
    measure_in_turn,
    missing_packages,
    package_versions,
    show_table,
    write_tables,
)
from imsvd.bench.step_case import NETWORKS, Case, Measurement, Network
from imsvd.bench.step_loops import CONTENDERS
from imsvd.errors import InputError
from imsvd.provenance import environment

TITLES: dict[Network, str] = {
    "small": "Small ResNet of cifar10-cpu: 24-pixel views, batch 128 (ms per image)",
    "resnet18": "ResNet-18, stride-1 stem: 32-pixel views, batch 64 (ms per image)",
}


class Row(NamedTuple):
    """One line of the table; the parts are milliseconds per image.

    Attributes:
        network: key of `NETWORKS`.
        contender: key of `CONTENDERS`.
        images_per_second: median, each image in two views, or None if skipped.
        views: spent waiting for views.
        loss: of the loss, forward and backward, timed by itself.
        rest: of the network, forward and backward, and the optimizer: what remains.
        times_ours: images a second of ours over those of this one, or None.
        skipped: why it was not measured, or empty.
    """

    network: Network
    contender: str
    images_per_second: float | None = None
    views: float | None = None
    loss: float | None = None
    rest: float | None = None
    times_ours: float | None = None
    skipped: str = ""


def run(
    networks: Sequence[str] = tuple(NETWORKS),
    seconds: float = 5.0,
    repeats: int = 3,
    console: Console | None = None,
    output: Path | None = None,
    *,
    contenders: Sequence[str] = tuple(CONTENDERS),
) -> list[Row]:
    """Measure, show the tables, and write `output` as .json and .md if given.

    Args:
        networks: keys of `NETWORKS`.
        seconds: least duration of one measurement, after two steps to warm up.
        repeats: fresh processes per contender and network.
        console: where progress and the tables go.
        output: path of the results, whose suffix is replaced.
        contenders: keys of `CONTENDERS`.
    """
    console = console or Console()
    chosen = _check(networks, seconds, repeats)
    cores = os.cpu_count() or 1
    cases = [
        Case(contender, network, cores, seconds) for network in chosen for contender in contenders
    ]
    reasons = {case: _reason_to_skip(case) for case in cases}
    measured = measure_in_turn(
        [case for case in cases if not reasons[case]], repeats, _measure, _describe, console
    )
    rows = _with_ratios([_row(case, measured.get(case), reasons[case]) for case in cases])
    for table in _tables(rows):
        show_table(table, console)
    if output is not None:
        write(rows, output)
    return rows


def _check(networks: Sequence[str], seconds: float, repeats: int) -> list[Network]:
    check_duration(seconds, repeats)
    unknown = [name for name in networks if name not in NETWORKS]
    if unknown or not networks:
        name = unknown[0] if unknown else ""
        raise InputError(f"network {name!r} is not measured; choose among {', '.join(NETWORKS)}.")
    return [network for network in NETWORKS if network in networks]


def _reason_to_skip(case: Case) -> str:
    return missing_packages(CONTENDERS[case.contender].needs)


def _describe(case: Case) -> str:
    return f"{CONTENDERS[case.contender].label}, {case.network}"


def _measure(case: Case) -> Measurement:
    variables = {"OMP_NUM_THREADS": str(case.cores)}
    return Measurement(**measure_afresh("imsvd.bench.step_case", case._asdict(), variables))


def _row(case: Case, measurements: list[Measurement] | None, reason: str) -> Row:
    row = Row(case.network, case.contender, skipped=reason)
    if not measurements:
        return row
    views = 1000 * statistics.median(one.views / one.images for one in measurements)
    loss = 1000 * statistics.median(one.loss / one.images for one in measurements)
    rate = statistics.median(one.images / one.seconds for one in measurements)
    return row._replace(
        images_per_second=rate, views=views, loss=loss, rest=max(0.0, 1000 / rate - views - loss)
    )


def _with_ratios(rows: Sequence[Row]) -> list[Row]:
    ours = {row.network: row.images_per_second for row in rows if row.contender == "ours"}

    def ratio(row: Row) -> float | None:
        reference = ours.get(row.network)
        return reference / row.images_per_second if reference and row.images_per_second else None

    return [row._replace(times_ours=ratio(row)) for row in rows]


_COLUMNS = (
    "loop",
    "images/s",
    "views/s",
    "ms waiting for views",
    "ms network and optimizer",
    "ms loss",
    "ours is faster by",
)


def _cells(row: Row) -> list[str]:
    rate = row.images_per_second or 0
    parts = [f"{part or 0:.3f}" for part in (row.views, row.rest, row.loss)]
    ratio = "" if row.times_ours is None or row.contender == "ours" else f"{row.times_ours:.2f} x"
    values = [f"{rate:,.0f}", f"{2 * rate:,.0f}", *parts, ratio]
    return cells_of(CONTENDERS[row.contender].label, values, row.skipped)


def _tables(rows: Sequence[Row]) -> list[TableContent]:
    measured = {row.network for row in rows}
    return [
        TableContent(title, _COLUMNS, [_cells(row) for row in rows if row.network == network])
        for network, title in TITLES.items()
        if network in measured
    ]


def write(rows: Sequence[Row], path: Path) -> None:
    """Write the results as `path` with suffix .json and as Markdown tables with suffix .md."""
    facts = {**environment(), **package_versions(["lightly"])}
    content = [row._asdict() for row in rows]
    write_tables(path, "A whole step of training", facts, content, _tables(rows))
