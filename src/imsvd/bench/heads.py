"""`imsvd bench heads`: projector and loss of IMSVD against those of VICReg and Barlow Twins.

Every measurement runs in a fresh process; repeats go round all heads and the backbone in turn, so
that a slow minute of the machine falls on all of them. The tables show medians and ratios. What a
whole step costs is put together from the parts: the backbone's seconds are those of a few images,
multiplied.
"""

import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from imsvd.bench.heads_case import BACKBONE, HEADS, Case, Measurement
from imsvd.bench.rounds import (
    TableContent,
    measure_afresh,
    measure_in_turn,
    show_table,
    write_tables,
)
from imsvd.errors import InputError
from imsvd.methods import IMSVDSettings
from imsvd.methods.vicreg import VICRegSettings
from imsvd.paper_numbers import paper_tables
from imsvd.provenance import environment

FEATURES = 2048
"""Width of a ResNet-50's features."""
PROCESSES = 32
"""GPUs that the paper's batch was divided between."""
WIDTHS = IMSVDSettings().projector, VICRegSettings().projector
"""Projector of IMSVD, and that of VICReg and Barlow Twins."""


class BackboneCase(NamedTuple):
    """How many images of how many pixels a side the backbone is timed on."""

    images: int = 8
    size: int = 224


class Row(NamedTuple):
    """One head; seconds are medians, ratios are to IMSVD.

    Attributes:
        head: key of `HEADS`.
        batch: images of all processes together.
        widths: features and layers of the projector.
        backbone: seconds of the backbone for an image.
        projector: seconds of the projector for the whole batch.
        loss: seconds of the loss of the whole batch.
        step: their sum.
        step_ratio: over IMSVD's.
        peak_mib: largest peak memory of weights, features, activations and gradients.
        whole: seconds with the backbone's, everything computed once.
        whole_ratio: over IMSVD's.
        process: seconds of one of `PROCESSES`: its share of backbone and projector, all of the loss.
        process_ratio: over IMSVD's.
        paper_hours: of 100 epochs in the paper.
        paper_ratio: over IMSVD's.
    """

    head: str
    batch: int
    widths: tuple[int, ...]
    backbone: float
    projector: float
    loss: float
    step: float
    peak_mib: float
    whole: float
    process: float
    paper_hours: float
    step_ratio: float = 1
    whole_ratio: float = 1
    process_ratio: float = 1
    paper_ratio: float = 1


def run(
    batch: int = 2048,
    widths: tuple[tuple[int, ...], tuple[int, ...]] = WIDTHS,
    repeats: int = 1,
    console: Console | None = None,
    output: Path | None = None,
    *,
    backbone: BackboneCase | None = None,
    units: int = 80,
) -> list[Row]:
    """Measure, show the tables, and write `output` as .json and .md if given.

    Args:
        batch: images of all processes together.
        widths: layers of IMSVD's projector and of the others'.
        repeats: fresh processes per case.
        console: where progress and the tables go.
        output: path of the results, whose suffix is replaced.
        backbone: what the backbone is timed on.
        units: units per variable.
    """
    console = console or Console()
    backbone = backbone or BackboneCase()
    _check(batch, widths, repeats, units)
    threads = os.cpu_count() or 1
    layers = {head: (FEATURES, *widths[head != "imsvd"]) for head in HEADS}
    cases = {
        head: Case(head, batch, layers[head], units, PROCESSES, backbone.size, threads)
        for head in HEADS
    }
    cases[BACKBONE] = Case(BACKBONE, backbone.images, (), units, 1, backbone.size, threads)
    measured = measure_in_turn(list(cases.values()), repeats, _measure, _describe, console)
    seconds = statistics.median(one.seconds for one in measured[cases.pop(BACKBONE)])
    per_image = seconds / backbone.images
    rows = _with_ratios([_row(case, measured[case], per_image) for case in cases.values()])
    for table in _tables(rows):
        show_table(table, console)
    if output is not None:
        write(rows, backbone, output)
    return rows


def _check(batch: int, widths: Sequence[Sequence[int]], repeats: int, units: int) -> None:
    if repeats < 1:
        raise InputError(f"repeats = {repeats}: choose at least 1.")
    if batch < 2 * PROCESSES or batch % PROCESSES:
        raise InputError(
            f"batch = {batch} does not give each of {PROCESSES} processes the same number of images, "
            f"2 or more; choose a multiple of {PROCESSES} from {2 * PROCESSES} on."
        )
    if any(width < 1 for layers in widths for width in layers):
        raise InputError(f"widths = {widths}: every layer needs a width of at least 1.")
    if widths[0][-1] % units:
        raise InputError(f"Width {widths[0][-1]} is not divisible by units {units}.")


def _describe(case: Case) -> str:
    return "ResNet-50" if case.head == BACKBONE else HEADS[case.head].label


def _measure(case: Case) -> Measurement:
    variables = {"OMP_NUM_THREADS": str(case.threads)}
    return Measurement(**measure_afresh("imsvd.bench.heads_case", case._asdict(), variables))


def _row(case: Case, measurements: Sequence[Measurement], per_image: float) -> Row:
    step = statistics.median(one.seconds for one in measurements)
    loss = statistics.median(one.loss for one in measurements)
    share = statistics.median(one.share for one in measurements)
    return Row(
        case.head,
        case.batch,
        case.widths,
        per_image,
        projector=step - loss,
        loss=loss,
        step=step,
        peak_mib=max(one.peak_bytes for one in measurements) / 2**20,
        whole=step + case.batch * per_image,
        process=share + loss + case.batch // case.processes * per_image,
        paper_hours=paper_tables()["cost"].rows[HEADS[case.head].method]["hours"],
    )


def _with_ratios(rows: Sequence[Row]) -> list[Row]:
    ours = next(row for row in rows if row.head == "imsvd")
    return [
        row._replace(
            step_ratio=row.step / ours.step,
            whole_ratio=row.whole / ours.whole,
            process_ratio=row.process / ours.process,
            paper_ratio=row.paper_hours / ours.paper_hours,
        )
        for row in rows
    ]


_PARTS = ("head", "projector s", "loss s", "both s", "x IMSVD", "peak MiB")
_WHOLE = (
    "head",
    "all in one process s",
    "x IMSVD",
    f"one of {PROCESSES} processes s",
    "x IMSVD",
    "paper h",
    "x IMSVD",
)


def _tables(rows: Sequence[Row]) -> list[TableContent]:
    return [
        TableContent("Projector and loss", _PARTS, [_part_cells(row) for row in rows]),
        TableContent("A whole step, put together", _WHOLE, [_whole_cells(row) for row in rows]),
    ]


def _part_cells(row: Row) -> list[str]:
    seconds = [f"{part:.2f}" for part in (row.projector, row.loss, row.step)]
    return [HEADS[row.head].label, *seconds, f"{row.step_ratio:.2f}", f"{row.peak_mib:,.0f}"]


def _whole_cells(row: Row) -> list[str]:
    pairs = (
        (f"{row.whole:,.1f}", row.whole_ratio),
        (f"{row.process:,.2f}", row.process_ratio),
        (f"{row.paper_hours:g}", row.paper_ratio),
    )
    cells = [cell for value, ratio in pairs for cell in (value, f"{ratio:.2f}")]
    return [HEADS[row.head].label, *cells]


def explanations(rows: Sequence[Row], backbone: BackboneCase) -> dict[str, str]:
    """What the numbers are, and which of them were not measured as such."""
    ours, others = ("→".join(map(str, row.widths)) for row in rows[:2])
    batch, milliseconds = rows[0].batch, 1000 * rows[0].backbone
    return {
        "projector and loss": (
            f"forward and backward of both views of {batch:,} images, gradients of the features "
            f"included, no optimizer; IMSVD's projector is {ours}, the others' {others}"
        ),
        "ours": (
            "the loss that `imsvd pretrain` uses, which compares samples with samples where that is less "
            "work; D x D: the matrices of the published formulas are built"
        ),
        "peak memory": "weights, features, activations and gradients",
        "exactness": "all but IMSVD have the same projector; how far its seconds differ shows it",
        "whole step": (
            "not measured as a whole: the above, and the backbone, a ResNet-50 at "
            f"{backbone.size} pixels, whose {milliseconds:,.0f} ms an image (two views, forward and "
            f"backward) were measured on a batch of {backbone.images} and multiplied"
        ),
        "one process": (
            f"of {PROCESSES}, as in the paper: backbone and projector of {batch // PROCESSES} images (the "
            f"projector measured at that size) and the loss of all {batch:,}, computed by every process "
            "for itself; that `imsvd pretrain` divides IMSVD's loss between processes is not counted, nor "
            "is communication"
        ),
        "paper": "its table of running times: 100 epochs on 32 V100",
    }


def write(rows: Sequence[Row], backbone: BackboneCase, path: Path) -> None:
    """Write the results as `path` with suffix .json and as Markdown tables with suffix .md."""
    facts = {**environment(), **explanations(rows, backbone)}
    write_tables(path, "Projector and loss", facts, [row._asdict() for row in rows], _tables(rows))
