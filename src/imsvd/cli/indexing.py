"""Commands that put codes to work: index, add, remove, name, search, duplicates."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from imsvd.cli.app import Data, Spec, app, argument, console, option, print_path
from imsvd.errors import InputError
from imsvd.progress import counted

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
    unit: Annotated[str, argument("UNIT", "Variable and unit, such as 12.3.")],
    text: Annotated[str, argument("NAME", 'Name for searches; "" removes it.')],
) -> None:
    """Name a unit, so that searches can use the name: `imsvd name runs/a 12.3 "stripes"`."""
    from imsvd.encoder import read_description  # noqa: PLC0415
    from imsvd.index import Index  # noqa: PLC0415
    from imsvd.index.names import named, parse_unit, read_names, write_names  # noqa: PLC0415
    from imsvd.runs import RunFolder  # noqa: PLC0415

    if is_index(place):
        Index(place).name(unit, text)
    else:
        parse_unit(unit, read_description(RunFolder(place)).units)
        write_names(place, named(read_names(place), unit, text))
    print_path(f"{unit} is now {text!r}" if text else f"{unit} has no name now", place)


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
