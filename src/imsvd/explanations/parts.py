"""`imsvd explain`: every part of an explanation, each written when it is done and not repeated."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.table import Table

from imsvd.datasets import open_source
from imsvd.datasets.opening import absolute
from imsvd.encoder import load
from imsvd.errors import InputError, Interrupted
from imsvd.explanations import part_making as parts
from imsvd.explanations.report import FILE_NAME, write_report
from imsvd.explanations.subject import Progress, Subject, explanation_key
from imsvd.files import remove_leftovers, write_atomically
from imsvd.progress import progress_bar
from imsvd.runs import RunFolder

FOLDER = "explanations"
SUMMARY = "summary.json"
SPLITS = ("train", "test")


class Part(NamedTuple):
    """One part: what makes it, and the files it leaves."""

    make: Callable[[Subject, Progress], dict[str, Any]]
    files: tuple[str, ...]


PARTS = {
    "joint": Part(
        parts.explain_joint,
        (
            "joint_matrix.png",
            "joint_matrix.npy",
            "mutual_information.png",
            "mutual_information.npy",
            "properties.json",
        ),
    ),
    "embeddings": Part(parts.explain_embeddings, ("embeddings.png",)),
    "discreteness": Part(parts.explain_discreteness, ("discreteness.png", "discreteness.json")),
    "galleries": Part(parts.explain_galleries, ("galleries.json",)),
    "grad_cam": Part(parts.explain_grad_cam, ("grad_cam.png",)),
    "faithfulness": Part(parts.explain_faithfulness, ("faithfulness.png", "faithfulness.json")),
    "meaning": Part(parts.explain_meaning, ("meaning.json",)),
    "retrieval": Part(parts.explain_retrieval, ("retrieval.json",)),
}
"""In the order in which they are made."""


def explain(
    run: str | Path,
    data: str | Path,
    *,
    split: str = "train",
    only: Sequence[str] = (),
    console: Console | None = None,
) -> dict[str, Any]:
    """Measure and draw what the variables of a run are, and return the summary.

    Args:
        run: the run folder; results go to its `explanations/`.
        data: images; labels and attributes are used where they exist.
        split: train (everything, where there is no test part) or test.
        only: names of `PARTS`; all of them by default.
        console: where to show progress.

    Raises:
        Interrupted: after Ctrl-C; the parts that were finished are kept.
    """
    console = console or Console(quiet=True)
    chosen = _check(split, only)
    with console.status("opening encoder and images"):
        subject = _open(RunFolder(run), data, split)
    for folder in (subject.folder, subject.folder / "galleries"):
        remove_leftovers(folder)
    summary = _summary(subject, data, split)
    try:
        for number, name in enumerate(chosen, start=1):
            if _is_done(subject, summary, name):
                console.print(f"{name}: already there", highlight=False)
                continue
            summary["parts"][name] = _make(name, f"{number} of {len(chosen)}", subject, console)
            _write(subject, summary)
            console.print(f"{name}: {_headline(summary['parts'][name])}", highlight=False)
    except KeyboardInterrupt:
        write_report(subject, summary)
        console.print("Interrupted; the same command goes on where it was.")
        raise Interrupted(signal.SIGINT) from None
    _write(subject, summary)
    with console.status("writing the report"):
        write_report(subject, summary)
    return summary


def report_path(run: str | Path) -> Path:
    """Where the report of a run is."""
    return Path(run) / FOLDER / FILE_NAME


def properties_table(summary: Mapping[str, Any]) -> Table | None:
    """The theorem's five properties as a table, if the joint matrix has been measured."""
    joint = summary["parts"].get("joint")
    if joint is None:
        return None
    table = Table("property", "measured as", title="What the theorem promises, and what is so")
    for title in ("measured", "ideal", "floor*", "verdict"):
        table.add_column(title, justify="right")
    for row in joint["properties"]:
        numbers = (f"{row[name]:.3g}" for name in ("measured", "ideal", "floor"))
        table.add_row(row["name"].replace("_", " "), row["meaning"], *numbers, row["verdict"])
    table.caption = "* what variables as sure as these would show on so few images if it held"
    return table


def _check(split: str, only: Sequence[str]) -> list[str]:
    """Return the names of the parts to make, in their order."""
    if split not in SPLITS:
        raise InputError(f"--split {split!r} is not possible; choose {' or '.join(SPLITS)}.")
    for name in only:
        if name not in PARTS:
            raise InputError(f"--only {name!r} is no part; choose from {', '.join(PARTS)}.")
    return [name for name in PARTS if not only or name in only]


def _open(run: RunFolder, data: str | Path, split: str) -> Subject:
    encoder = load(run.path)
    if not encoder.description.units:
        raise InputError(
            f"{run.path} has nothing to explain: an encoder trained with "
            f"{encoder.description.method!r} has no discrete variables."
        )
    config = run.config()
    source = open_source(data, "test" if split == "test" else "train")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return Subject(
        encoder.to(device),
        source,
        config.views,
        config.seed,
        run.path / FOLDER,
        explanation_key(encoder.description, encoder.state_dict(), source),
    )


def _summary(subject: Subject, data: str | Path, split: str) -> dict[str, Any]:
    """The summary of an earlier call with the same encoder and images, or a new one."""
    try:
        existing = json.loads((subject.folder / SUMMARY).read_text())
    except (OSError, ValueError):
        existing = None
    if isinstance(existing, dict) and existing.get("key") == subject.key:
        # The same images may have been moved since.
        place = {"run": str(subject.folder.parent), "data": absolute(data), "split": split}
        return {**existing, **place}
    return {
        "key": subject.key,
        "version": version("imsvd"),
        "run": str(subject.folder.parent),
        "data": absolute(data),
        "split": split,
        "images": len(subject.source),
        "units": list(subject.units),
        "parts": {},
    }


def _write(subject: Subject, summary: Mapping[str, Any]) -> None:
    content = json.dumps(summary, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    write_atomically(subject.folder / SUMMARY, content.encode())


def _is_done(subject: Subject, summary: Mapping[str, Any], name: str) -> bool:
    files = [subject.folder / file for file in PARTS[name].files]
    return name in summary["parts"] and all(file.exists() for file in files)


def _make(name: str, place: str, subject: Subject, console: Console) -> dict[str, Any]:
    with progress_bar(console) as bar:
        task = bar.add_task(f"{name} ({place})", total=None)
        return PARTS[name].make(
            subject, lambda done, total: bar.update(task, completed=done, total=total)
        )


def _headline(record: Mapping[str, Any]) -> str:
    """The plain numbers of a part's summary in one line."""
    numbers = {
        name.replace("_", " "): value
        for name, value in record.items()
        if isinstance(value, int | float | str)
    }
    return ", ".join(
        f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in numbers.items()
    )
