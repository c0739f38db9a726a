"""`imsvd explain`: the registry of parts, and the command that makes each part once.

A new part is one module that defines `PART`, and one line in `PARTS`.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from imsvd.datasets import open_source
from imsvd.datasets.opening import absolute
from imsvd.encoder import encoder_key, encoding_device, load, open_encoder
from imsvd.errors import InputError, Interrupted
from imsvd.explanations import report
from imsvd.explanations.coherence import PART as COHERENCE
from imsvd.explanations.discreteness import PART as DISCRETENESS
from imsvd.explanations.embeddings import PART as EMBEDDINGS
from imsvd.explanations.faithfulness import PART as FAITHFULNESS
from imsvd.explanations.galleries import PART as GALLERIES
from imsvd.explanations.grad_cam import PART as GRAD_CAM
from imsvd.explanations.joint import BY_CHANCE, TABLE_TITLE, property_numbers
from imsvd.explanations.joint import PART as JOINT
from imsvd.explanations.meaning import PART as MEANING
from imsvd.explanations.retrieval import PART as RETRIEVAL
from imsvd.explanations.subject import (
    PARTIAL_NAME,
    Collector,
    Judge,
    PartialPass,
    Progress,
    Results,
    Subject,
    explanation_key,
    read_images,
)
from imsvd.files import remove_leftovers, write_atomically
from imsvd.progress import progress_bar
from imsvd.runs import RunFolder

FOLDER = "explanations"
SUMMARY = "summary.json"
SPLITS = ("train", "test")

PARTS = {
    "joint": JOINT,
    "embeddings": EMBEDDINGS,
    "discreteness": DISCRETENESS,
    "galleries": GALLERIES,
    "coherence": COHERENCE,
    "grad_cam": GRAD_CAM,
    "faithfulness": FAITHFULNESS,
    "meaning": MEANING,
    "retrieval": RETRIEVAL,
}
"""In the order of the report."""


def explain(
    run: str | Path,
    data: str | Path,
    *,
    split: str = "train",
    only: Sequence[str] = (),
    judge: str | Path | None = None,
    console: Console | None = None,
) -> dict[str, Any]:
    """Measure and draw what the variables of a run respond to, and return the summary.

    Args:
        run: the run folder; results go to its `explanations/`.
        data: images; labels and attributes are used where they exist.
        split: "train" (all images, if there is no test split) or "test".
        only: names of `PARTS`; all of them by default.
        judge: another encoder, as for `open_encoder`, under whose features the images of a unit are
            compared too; it encodes up to 20,000 images.
        console: where to show progress.

    Raises:
        Interrupted: after Ctrl-C; finished parts are kept, and the same call resumes.
    """
    console = console or Console(quiet=True)
    chosen = _check(split, only, judge)
    with console.status("opening encoder and images"):
        subject = _open(RunFolder(run), data, split)
        if judge is not None:
            subject = subject._replace(judge=_open_judge(judge))
    for folder in (subject.folder, subject.folder / "galleries"):
        remove_leftovers(folder)
    summary = _summary(subject, data, split)
    left = [name for name in chosen if not _is_done(subject, summary, name)]
    try:
        with progress_bar(console) as bar:
            kinds = _kinds(subject, chosen, left)
            results = read_images(subject, kinds, _shown(bar, "reading images"))
        for number, name in enumerate(chosen, start=1):
            if name in left:
                place = f"{number} of {len(chosen)}"
                _make_part(name, place, subject, results, summary, console)
            else:
                console.print(f"{name}: already finished", highlight=False)
    except KeyboardInterrupt:
        report.write_report(subject, summary, PARTS)
        console.print("Interrupted; run the same command to resume.")
        raise Interrupted(signal.SIGINT) from None
    _write(subject, summary)
    PartialPass(subject.folder / PARTIAL_NAME, subject.key).remove()
    with console.status("writing the report"):
        report.write_report(subject, summary, PARTS)
    return summary


def report_path(run: str | Path) -> Path:
    """Return the path of a run's report."""
    return Path(run) / FOLDER / report.FILE_NAME


def properties_table(summary: Mapping[str, Any]) -> Table | None:
    """Return the theorem's five properties as a table, if they have been measured."""
    joint = summary["parts"].get("joint")
    if joint is None:
        return None
    table = Table("property", "measured as", title=TABLE_TITLE)
    for title in ("measured", "predicted", "by chance*", "verdict"):
        table.add_column(title, justify="right")
    for row in joint["properties"]:
        name = row["name"].replace("_", " ")
        table.add_row(name, row["meaning"], *property_numbers(row), row["verdict"])
    table.caption = f"* {BY_CHANCE}"
    return table


def _check(split: str, only: Sequence[str], judge: str | Path | None) -> list[str]:
    """Return the names of the parts to make, in order."""
    if split not in SPLITS:
        raise InputError(f"--split {split!r} does not exist; choose {' or '.join(SPLITS)}.")
    for name in only:
        if name not in PARTS:
            raise InputError(f"--only {name!r} is not a part; choose from {', '.join(PARTS)}.")
    chosen = [name for name in PARTS if not only or name in only]
    judged = [name for name, part in PARTS.items() if part.judge is not None]
    if judge is not None and not set(judged) & set(chosen):
        raise InputError(
            f"--judge {judge} has nothing to judge; add {' or '.join(judged)} to --only, or leave it out."
        )
    return chosen


def _open(run: RunFolder, data: str | Path, split: str) -> Subject:
    encoder = load(run.path)
    if not encoder.description.units:
        raise InputError(
            f"{run.path} has nothing to explain: an encoder trained with "
            f"{encoder.description.method!r} has no discrete variables."
        )
    config = run.config()
    source = open_source(data, "test" if split == "test" else "train")
    key = explanation_key(encoder.description, encoder.state_dict(), source)
    encoder = encoder.to(encoding_device())
    return Subject(encoder, source, config.views, config.seed, run.path / FOLDER, key)


def _open_judge(spec: str | Path) -> Judge:
    encoder = open_encoder(spec)
    key = encoder_key(encoder.description, encoder.state_dict())
    return Judge(str(spec), encoder.to(encoding_device()), key)


def _summary(subject: Subject, data: str | Path, split: str) -> dict[str, Any]:
    """Return the summary of an earlier call with the same encoder and images, or a new one."""
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


def _kinds(subject: Subject, chosen: Sequence[str], left: Sequence[str]) -> list[type[Collector]]:
    """Return what to gather from the images; the explorer needs encodings even if no part does."""
    reads = {name: PARTS[name].reads for name in chosen}
    needed = [kind for name, kind in reads.items() if name in left or kind.writes_file]
    if subject.judge is not None:
        needed += [kind for name in left if (kind := PARTS[name].judge) is not None]
    return list(dict.fromkeys(needed))


def _make_part(
    name: str,
    place: str,
    subject: Subject,
    results: Results,
    summary: dict[str, Any],
    console: Console,
) -> None:
    """Make one part, note it in the summary and print its headline."""
    part = PARTS[name]
    with progress_bar(console) as bar:
        progress = _shown(bar, f"{name} ({place})")
        summary["parts"][name] = part.make(subject, results[part.reads], progress)
    if part.judge is not None:
        summary["judge"] = None if subject.judge is None else subject.judge.key
    _write(subject, summary)
    tiles = part.tiles(summary["parts"][name])
    said = "; ".join(f"{tile.number} {tile.text}" for tile in tiles) or "done"
    console.print(f"{name}: {said}", highlight=False)


def _shown(bar: Any, title: str) -> Progress:
    task = bar.add_task(title, total=None)
    return lambda done, total: bar.update(task, completed=done, total=total)


def _is_done(subject: Subject, summary: Mapping[str, Any], name: str) -> bool:
    part, judge = PARTS[name], subject.judge
    if part.judge is not None and judge is not None and summary.get("judge") != judge.key:
        return False
    return name in summary["parts"] and all((subject.folder / file).exists() for file in part.files)


def _write(subject: Subject, summary: Mapping[str, Any]) -> None:
    content = json.dumps(summary, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    write_atomically(subject.folder / SUMMARY, content.encode())
