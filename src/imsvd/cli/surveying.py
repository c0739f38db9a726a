"""Commands about all images of an index: outliers, coverage, select, drift."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from imsvd.cli.app import app, argument, console, option, print_path
from imsvd.cli.indexing import IndexFolder, is_index
from imsvd.errors import InputError

if TYPE_CHECKING:
    from imsvd.index import Index

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
PathsFile = Annotated[
    Path | None,
    option("FILE", "Write the paths to this file, which `imsvd` reads as DATA.", "--paths"),
]
Level = Annotated[float, option("P", "Chance of a false finding that is accepted.")]
_ROWS = 20
"""Rows that are printed; --json has all."""


@app.command()
def outliers(
    index: IndexFolder,
    count: Annotated[int, option("N", "Number of images.", min=1)] = 20,
    as_json: AsJson = False,
    paths: PathsFile = None,
) -> None:
    """Show images whose units are jointly rare, with the units that make them so."""
    from imsvd.index import Index  # noqa: PLC0415

    found = Index(index).outliers(count, console=_progress(as_json))
    _write_paths(paths, [item.path for item in found.items])
    if as_json:
        return _print_json([asdict(item) for item in found.items])
    return _show(
        ("image", "bits", "sd above mean", "reasons"),
        [
            (item.path, f"{item.score:.1f}", f"{item.deviations:.1f}", "; ".join(item.reasons))
            for item in found.items
        ],
    )


@app.command()
def coverage(
    index: IndexFolder,
    level: Level = 0.05,
    count: Annotated[int, option("N", "Rows of each table.", min=1)] = _ROWS,
    as_json: AsJson = False,
    picture: Annotated[Path | None, option("FILE", "Draw the largest gaps to a PNG file.")] = None,
) -> None:
    """Show units and pairs of units that are missing or crowded, against even use and independence."""
    from imsvd.index import Index  # noqa: PLC0415

    gaps = Index(index).coverage(level=level, console=_progress(as_json))
    rows = gaps.rows()
    if picture is not None:
        from imsvd.figures import draw_gaps  # noqa: PLC0415

        draw_gaps(rows, picture)
    if as_json:
        return _print_json(rows)
    tested = {"Units": gaps.found.tested_units, "Pairs of units": gaps.found.tested_pairs}
    singles = len(gaps.found.units)
    for (title, tests), part in zip(tested.items(), (rows[:singles], rows[singles:]), strict=True):
        for kind, chosen in (
            ("missing", [row for row in part if row["ratio"] < 1]),
            ("crowded", [row for row in part if row["ratio"] > 1]),
        ):
            _show(
                ("units", "images", "expected", "ratio", "p"),
                [
                    (
                        row["units"],
                        f"{row['images']:,}",
                        f"{row['expected']:,.1f}",
                        f"{row['ratio']:.2f}",
                        f"{row['p_value']:.2g}",
                    )
                    for row in chosen[:count]
                ],
                f"{title}, {kind}: {len(chosen):,} of {tests:,}",
            )
    return None


@app.command()
def select(
    index: IndexFolder,
    count: Annotated[int, option("N", "Number of images to label.", min=1)],
    labeled: Annotated[
        Path | None, option("FILE", "List of images that have labels already, one path a line.")
    ] = None,
    seed: Annotated[int, option("N", "Seed of the sample that stands for many images.")] = 0,
    as_json: AsJson = False,
    paths: PathsFile = None,
) -> None:
    """Choose images to label that represent all others, most useful first."""
    from imsvd.index import Index  # noqa: PLC0415

    given = [] if labeled is None else _read_paths(labeled)
    plan = Index(index).select(count, labeled=given, seed=seed, console=_progress(as_json))
    _write_paths(paths, [item.path for item in plan.items])
    if as_json:
        return _print_json([asdict(item) for item in plan.items])
    if paths is not None:
        return print_path(f"{count:,} images to label", paths)
    for item in plan.items:
        typer.echo(item.path)
    return None


@app.command()
def drift(
    first: Annotated[str, argument("A", "Index, or images as for `imsvd index`: the set before.")],
    second: Annotated[str, argument("B", "Index, or images: the set after.")],
    run: Annotated[
        str | None, option("RUN", "Run folder that encodes A or B if they are images.")
    ] = None,
    level: Level = 0.05,
    permutations: Annotated[int, option("N", "Random rearrangements of the images.")] = 999,
    appearances: Annotated[
        int, option("N", "Images of each set to read for brightness, color, …; 0: none.", min=0)
    ] = 2000,
    page: Annotated[Path | None, option("FILE", "Write a page with pictures, .html.")] = None,
    as_json: AsJson = False,
) -> None:
    """Test whether two sets of images differ, and show what moved.

    One verdict at the level, and the variables, units and properties that moved. The exit code is 0
    with and without drift.
    """
    progress = _progress(as_json)
    with contextlib.ExitStack() as stack:
        indexes = [stack.enter_context(_opened(item, run, progress)) for item in (first, second)]
        found = indexes[0].drift(
            indexes[1],
            level=level,
            permutations=permutations,
            appearances=appearances,
            console=progress,
        )
        from imsvd.drift_page import verdict, write_drift_page  # noqa: PLC0415

        if page is not None:
            write_drift_page(found, page)
        rows = found.rows()
        if as_json:
            return _print_json(
                {
                    "drift": found.found.drifted,
                    "p_value": found.found.p_value,
                    "level": level,
                    "families": found.found.families,
                    "note": found.note,
                    "variables": rows,
                    "typical": [
                        found.paths(positions, bool(side))
                        for side, positions in enumerate(found.found.typical)
                    ],
                }
            )
        console.print(escape(verdict(found)), highlight=False)
        if found.note:
            console.print(f"Appearance was not compared: {escape(found.note)}.", highlight=False)
        moved = [row for row in rows if row["p_value"] <= level] or rows[:5]
        _show(
            ("variable", "most changed unit", "before", "after", "moved", "p"),
            [
                (
                    row["variable"],
                    row["unit"],
                    *(f"{100 * row[key]:.1f} %" for key in ("before", "after", "moved")),
                    f"{row['p_value']:.3g}",
                )
                for row in moved[:_ROWS]
            ],
        )
        return None if page is None else print_path("Page", page)


@contextlib.contextmanager
def _opened(item: str, run: str | None, progress: Console) -> Iterator[Index]:
    """Open an index, or make one of images for as long as it is needed."""
    from imsvd.index import Index  # noqa: PLC0415

    if is_index(Path(item)):
        yield Index(item)
        return
    if run is None:
        raise InputError(f"{item} is not an index; give --run RUN to encode its images.")
    with tempfile.TemporaryDirectory() as folder:
        name = Path(item).name or "images"
        yield Index.build(run, item, Path(folder) / name, console=progress)


def _progress(as_json: bool) -> Console:
    # JSON is for programs: nothing else may reach standard output.
    return Console(stderr=True) if as_json else console


def _print_json(content: Any) -> None:
    typer.echo(json.dumps(content, indent=1, ensure_ascii=False))


def _show(names: Sequence[str], rows: Sequence[Sequence[str]], title: str | None = None) -> None:
    table = Table(title=title, title_justify="left")
    for name in names:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*map(escape, row))
    console.print(table)


def _write_paths(file: Path | None, paths: Sequence[str]) -> None:
    from imsvd.files import write_atomically  # noqa: PLC0415

    if file is not None:
        write_atomically(
            file, "".join(f"{path}\n" for path in paths).encode("utf-8", "surrogateescape")
        )


def _read_paths(file: Path) -> list[str]:
    try:
        text = file.read_text("utf-8", errors="surrogateescape")
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}.") from error
    return [line for line in text.splitlines() if line.strip()]
