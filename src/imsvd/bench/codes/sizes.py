"""`imsvd bench capacity`: is the size that is chosen without labels a good one?

Every size of the ladder is trained in full and measured with labels on test images. The size that
short trials choose on held-out training images should be about as good as the best one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from imsvd.bench.codes.inputs import Request, read_inputs
from imsvd.bench.codes.measures import measure
from imsvd.bench.codes.ours import HeadCode, HeadOptions, configure_head, head_config
from imsvd.discretizing.capacity import CodeSize, ladder, read_trials
from imsvd.discretizing.run import SharedFeatures, choose_by_trials, open_frozen, train_head
from imsvd.encoder import load
from imsvd.engine.hardware import launch
from imsvd.evaluation.features import labeled_source
from imsvd.files import write_atomically
from imsvd.progress import progress_bar
from imsvd.provenance import environment
from imsvd.runs import RunFolder

COLUMNS = {
    "size": "variables × units",
    "bits": "bits",
    "lasting_nats": "lasting nats",
    "symmetric_knn20": "kNN-20, code",
    "asymmetric_knn20": "kNN-20, float",
    "symmetric_p10": "P@10, code",
    "asymmetric_p10": "P@10, float",
    "properties": "properties",
    "note": "",
}
JUDGED = "symmetric_knn20"
"""The measure that tells which size is best."""

Row = dict[str, Any]


def compare_sizes(
    encoder: str,
    data: str,
    out: Path,
    *,
    size: int | None = None,
    cache: Path | None = None,
    head: HeadOptions | None = None,
    console: Console | None = None,
) -> list[Row]:
    """Train and measure every size, show the table and write it; finished sizes are kept.

    Args:
        encoder: a run folder, `timm:NAME[:FILE]` or `torchvision:NAME[:FILE]`.
        data: labeled images with a training and a test split.
        out: folder of the results.
        size: side of the images; the encoder's own if left out.
        cache: folder of the features; `out/features` if left out.
        head: how heads are trained.
        console: where to show progress.
    """
    console, head = console or Console(), head or HeadOptions()
    frozen = open_frozen(encoder, size)
    sizes = ladder(None, None, len(labeled_source(data, "train")))
    config = configure_head(frozen, encoder, data, head, sizes[0], 0)
    fabric = launch(config.compute)
    views = (config.views, head.views)
    place = (cache or out / "features", out / "images")
    request = Request(frozen, encoder, data, None, *views, config.compute, *place)
    inputs = read_inputs(request, fabric, console)
    shared = SharedFeatures(frozen, inputs.source, fabric, console, lambda: inputs.train.features)
    configured = partial(head_config, inputs, head, seed=0)
    trials_run = RunFolder(out / "trials")
    trials_run.begin(config)
    chosen = choose_by_trials(shared, trials_run, sizes, configured, head.settings)
    lasting = {trial.size: trial.lasting for trial in read_trials(trials_run.capacity)}
    rows: list[Row] = []
    with progress_bar(console) as bar:
        for each in bar.track(sizes, description="sizes"):
            run = RunFolder(out / "heads" / f"{each.variables}x{each.units}")
            train_head(configured(each), shared, run, Console(quiet=True))
            trained = load(run.path)
            code = HeadCode(trained.projector, trained.description.units)
            rows.append(_row(each, lasting.get(each), measure(code, inputs, 0)[0]))
    _mark(rows, chosen)
    _show(rows, console)
    _write(rows, encoder, data, out)
    return rows


def _row(size: CodeSize, lasting: float | None, found: Row) -> Row:
    kept = {name: found[name] for name in COLUMNS if name in found}
    return {"size": str(size), "bits": size.bits, "lasting_nats": lasting, **kept, "note": ""}


def _mark(rows: Sequence[Row], chosen: CodeSize) -> None:
    best = max(rows, key=lambda row: float(row[JUDGED]))
    best["note"] = "best"
    for row in rows:
        if row["size"] == str(chosen):
            behind = best[JUDGED] - row[JUDGED]
            row["note"] = f"chosen; {behind:.1f} behind the best" if behind else "chosen; best"


def _cells(row: Row) -> list[str]:
    return [
        f"{row[name]:.1f}" if isinstance(row[name], float) else str(row[name] or "")
        for name in COLUMNS
    ]


def _show(rows: Sequence[Row], console: Console) -> None:
    table = Table(title="Sizes of a code, measured with labels on test images")
    for title in COLUMNS.values():
        table.add_column(title, justify="right")
    for row in rows:
        table.add_row(*_cells(row))
    console.print(table)


def _write(rows: Sequence[Row], encoder: str, data: str, out: Path) -> None:
    facts = environment() | {"encoder": encoder, "data": data}
    lines = ["# Sizes of a code", "", *(f"- {name}: {value}" for name, value in facts.items()), ""]
    lines += [f"| {' | '.join(COLUMNS.values())} |", "|" + "---|" * len(COLUMNS)]
    lines += [f"| {' | '.join(_cells(row))} |" for row in rows]
    write_atomically(out / "capacity.md", ("\n".join(lines) + "\n").encode())
    content = json.dumps({"environment": facts, "sizes": rows}, indent=2)
    write_atomically(out / "capacity.json", (content + "\n").encode())
