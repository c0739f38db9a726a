"""Commands that put codes to work: index, add, remove, name, search, duplicates."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Column, Table

from imsvd.cli.app import Data, Spec, app, argument, console, option, print_path
from imsvd.errors import InputError
from imsvd.progress import counted

if TYPE_CHECKING:
    from imsvd.index import Duplicates, Matches

IndexFolder = Annotated[Path, argument("INDEX", "Index, as written by `imsvd index`.")]
RunCopy = Annotated[
    Path | None,
    option(
        "FOLDER",
        "Run folder that the index was made with, if it has been moved. Default: where it was.",
        "--run",
    ),
]


@app.command()
def index(
    run: Spec,
    data: Data,
    out: Annotated[Path, option("FOLDER", "Index to make, such as photos.index.")],
    split: Annotated[str, option("SPLIT", "train, test, or all that there are.")] = "all",
    features: Annotated[
        bool,
        typer.Option(
            "--features", help="Also keep the features, for finer answers; 2 bytes per number."
        ),
    ] = False,
) -> None:
    """Encode all images once into an index that can be searched and extended.

    Safe to interrupt; run the same command to resume.
    """
    from imsvd.index import Index  # noqa: PLC0415

    made = Index.build(run, data, out, split=split, features=features, console=console)
    size = made.num_bytes / len(made)
    print_path(f"Index of {len(made):,} images, {size:.0f} bytes each", out)


@app.command()
def add(
    index: IndexFolder,
    data: Annotated[
        list[str], argument("DATA", "Images to add: files, folders, archives or dataset names.")
    ],
    run: RunCopy = None,
) -> None:
    """Add images to an index; those that are in it are encoded again only if they have changed.

    Safe to interrupt: nothing is added until all images are encoded. Run the same command to resume.
    """
    from imsvd.index import Index  # noqa: PLC0415

    opened = Index(index)
    if run is not None:
        opened.use_run(run)
    done = opened.add(*data, console=console)
    counts = f"{done.added:,} added, {done.replaced:,} replaced, {done.unchanged:,} unchanged"
    print_path(f"{counts}; {len(opened):,} images", index)


@app.command()
def remove(
    index: IndexFolder,
    paths: Annotated[
        list[str] | None, argument("PATH", "Paths or names of images, or folders of them.")
    ] = None,
    missing: Annotated[
        bool, typer.Option("--missing", help="Remove all images whose files no longer exist.")
    ] = False,
) -> None:
    """Remove images from an index; their files are not touched."""
    from imsvd.index import Index  # noqa: PLC0415

    if not paths and not missing:
        raise InputError("give the images to remove, or --missing for those that no longer exist.")
    opened = Index(index)
    count = opened.remove(*paths or ())
    count += opened.remove_missing() if missing else 0
    print_path(f"{counted(count, 'image')} removed; {len(opened):,} left", index)


@app.command()
def name(
    place: Annotated[Path, argument("RUN", "Run folder, or an index.")],
    unit: Annotated[
        str, argument("UNIT", "Unit such as 12.3 (variable 12, unit 3), or variable such as 12.")
    ],
    text: Annotated[
        str | None, argument("NAME", 'Name for searches and the explorer; "" removes it.')
    ] = None,
    star: Annotated[
        bool | None, typer.Option("--star/--no-star", help="Mark it as a favorite, or not.")
    ] = None,
) -> None:
    """Name or star a unit or a variable: `imsvd name runs/a 12.3 "stripes" --star`."""
    from imsvd.encoder import read_description  # noqa: PLC0415
    from imsvd.index import Index  # noqa: PLC0415
    from imsvd.index.names import note  # noqa: PLC0415
    from imsvd.runs import RunFolder  # noqa: PLC0415

    if text is None and star is None:
        raise InputError(f'give a NAME, as in `imsvd name {place} {unit} "stripes"`, or --star.')
    if not is_index(place):
        note(place, unit, read_description(RunFolder(place)).units, name=text, starred=star)
    elif star is not None:
        raise InputError(f"{place} is an index; stars are kept in run folders.")
    else:
        Index(place).name(unit, text or "")
    said = []
    if text is not None:
        said.append(f"is now {text!r}" if text else "has no name now")
    if star is not None:
        said.append("is starred" if star else "is not starred")
    print_path(f"{unit} {' and '.join(said)}", place)


@app.command()
def search(  # noqa: PLR0913, PLR0917 - independent options
    index: IndexFolder,
    query: Annotated[
        str,
        argument(
            "QUERY", "Units, names and labels: '12.3 & !(4.7 | 5.1)', '12.3>0.9', 'label:cat'."
        ),
    ] = "",
    like: Annotated[
        list[str] | None,
        option("IMAGE", "Order by likeness to an image of the index or another file; repeatable."),
    ] = None,
    unlike: Annotated[
        list[str] | None, option("IMAGE", "Prefer images that are unlike this one; repeatable.")
    ] = None,
    count: Annotated[int, option("N", "Most results; 0 gives all.", min=0)] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    sheet: Annotated[Path | None, option("FILE", "Write a contact sheet to this PNG file.")] = None,
    paths: Annotated[
        Path | None,
        option("FILE", "Write the paths to this .txt file, which imsvd reads as DATA."),
    ] = None,
    run: RunCopy = None,
) -> None:
    """Find images by units, names and labels, by likeness to other images, or both."""
    from imsvd.index import Index, QueryError, sheets  # noqa: PLC0415

    opened = Index(index)
    if run is not None:
        opened.use_run(run)
    try:
        found = opened.search(query, like=like or (), unlike=unlike or (), count=count)
    except QueryError as error:
        typer.echo(error.pointed(), err=True)
        raise
    if as_json:
        typer.echo(json.dumps(asdict(found), indent=1))
    else:
        _show_matches(found)
    if sheet is not None:
        captions = [
            (item.position, (Path(item.path).name, *item.reasons[:2])) for item in found.items
        ]
        sheets.contact_sheet(opened, captions, sheet)
    if paths is not None:
        sheets.write_paths(opened, [item.position for item in found.items], paths)
    if not as_json:
        for title, path in (("Contact sheet", sheet), ("List", paths)):
            if path is not None:
                print_path(title, path)


@app.command()
def duplicates(  # noqa: PLR0913, PLR0917 - independent options
    index: IndexFolder,
    other: Annotated[
        Path | None, argument("OTHER", "Second index: find only duplicates between the two.")
    ] = None,
    between: Annotated[
        tuple[str, str] | None,
        option("A B", "Find only duplicates between two splits or queries, such as train test."),
    ] = None,
    within: Annotated[
        int | None,
        option("N", "Most variables in which codes may differ. Default: measured.", min=0),
    ] = None,
    cosine: Annotated[
        float | None, option("C", "Least cosine of the features. Default: measured.")
    ] = None,
    confirm: Annotated[
        bool,
        typer.Option("--confirm", help="Encode candidates again if the index has no features."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    sheet: Annotated[Path | None, option("FILE", "Write a contact sheet to this PNG file.")] = None,
    paths: Annotated[
        Path | None,
        option("FILE", "Write the paths of all copies but those to keep to this .txt file."),
    ] = None,
    run: RunCopy = None,
) -> None:
    """Find equal files and edited copies, and say which copy to keep."""
    from imsvd.index import Index, sheets  # noqa: PLC0415
    from imsvd.progress import progress_bar  # noqa: PLC0415

    opened, second = Index(index), None if other is None else Index(other)
    if second is not None and (sheet is not None or paths is not None):
        raise InputError("--sheet and --paths are for one index.")
    if run is not None:
        opened.use_run(run)
    with progress_bar(console) as bar:
        task = bar.add_task("comparing", total=None, visible=not as_json)
        found = opened.duplicates(
            second,
            between=between,
            within=within,
            cosine=cosine,
            confirm=confirm,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    if as_json:
        typer.echo(json.dumps(asdict(found), indent=1))
    else:
        _show_duplicates(found)
    copies = [copy for group in found.groups for copy in group]
    if sheet is not None:
        captions = [
            (
                copy.position,
                (Path(copy.path).name, f"group {copy.group}{', keep' if copy.keep else ''}"),
            )
            for copy in copies
        ]
        sheets.contact_sheet(opened, captions, sheet)
    if paths is not None:
        sheets.write_paths(opened, [copy.position for copy in copies if not copy.keep], paths)


def _show_duplicates(found: Duplicates) -> None:
    image = Column("image", overflow="fold")  # a path that is cut is of no use
    table = Table("group", "", image, "kind", "likeness", "bytes")
    for group in found.groups:
        for copy in group:
            name = escape(printable(copy.path))
            size = f"{copy.size:,}" if copy.size else ""
            mark = "keep" if copy.keep else ""
            kind = "" if copy.keep else copy.kind
            name += f"\n[red]({copy.state} since)[/red]" if copy.state else ""
            table.add_row(str(copy.group), mark, name, kind, f"{copy.likeness:.3f}", size)
    if found.groups:
        console.print(table)
    limit = "" if found.cosine is None else f", cosine of features at least {found.cosine:.3f}"
    reduced = found.wanted_distance - found.distance
    note = f" ({reduced} fewer than measured, to bound the time)" if reduced else ""
    how = f"codes within {found.distance} variables{note}{limit}."
    if found.distance < 0:
        how = "only equal files: codes alone do not tell copies from similar images here; add --confirm."
    console.print(f"{counted(len(found.groups), 'group')}; {how}", highlight=False, soft_wrap=True)
    if found.changed:
        console.print(
            f"Left out {counted(found.changed, 'image')} changed since; update the index with `imsvd add`.",
            style="yellow",
            highlight=False,
            soft_wrap=True,
        )


def _show_matches(found: Matches) -> None:
    image = Column("image", overflow="fold")  # a path that is cut is of no use
    title = f"{len(found)} of {found.total:,} images"
    table = Table("score", image, "because", title=title)
    for item in found.items:
        state = f"\n[red]({item.state} since)[/red]" if item.state else ""
        table.add_row(
            f"{item.score:.3f}",
            escape(printable(item.path)) + state,
            escape("; ".join(item.reasons)),
        )
    console.print(table)


def printable(path: str) -> str:
    """Return a path with undecodable bytes escaped."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def is_index(folder: Path) -> bool:
    """Return whether a folder is an index."""
    return (folder / "manifest.json").exists()  # without importing imsvd.index, which loads torch


def show_index(folder: Path, verify: bool) -> None:
    """Print what is in an index, after hashing all its files if wanted."""
    from imsvd.index import Index, storage  # noqa: PLC0415
    from imsvd.progress import progress_bar  # noqa: PLC0415

    opened = Index(folder)
    if verify:
        with progress_bar(console) as bar:
            task = bar.add_task("bytes", total=None)
            storage.verify(
                folder, lambda done, total: bar.update(task, completed=done, total=total)
            )
    units = sorted(set(opened.units))
    table = Table(show_header=False, box=None)
    table.add_row("images", f"{len(opened):,} in {counted(len(opened.segments), 'segment')}")
    table.add_row("variables", f"{len(opened.units)} of {', '.join(map(str, units))} units")
    table.add_row("run", opened.manifest.run)
    for root in opened.manifest.roots:
        table.add_row("data", f"{root.data} ({root.split})" if root.split else root.data)
    for facet, values in opened.facets.items():
        table.add_row(facet, ", ".join(values[:10]) + (", …" if len(values) > 10 else ""))
    kept = opened.manifest.features
    table.add_row("features", f"{kept} half floats per image" if kept else "not kept")
    per_image = opened.num_bytes / max(1, len(opened))
    table.add_row("size", f"{opened.num_bytes:,} bytes, {per_image:.0f} per image")
    if verify:
        table.add_row("verified", "all files are as they were written")
    console.print(table)
