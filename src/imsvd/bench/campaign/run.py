"""Running a campaign: every kind of bad day, many times, resumable, with a table at the end."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from imsvd.bench.campaign import (
    clocks,
    damage,
    full_disk,
    hosts,
    images,
    kills,
    memory,
    read_only,
)
from imsvd.bench.campaign.processes import ForkServer
from imsvd.bench.campaign.stage import Stage
from imsvd.bench.campaign.tries import LOSSES, Kind, Record, Try, guarded, rows
from imsvd.bench.comparison import Tables, show_tables, write_tables
from imsvd.errors import InputError
from imsvd.progress import progress_bar
from imsvd.provenance import environment

KINDS: dict[str, Kind] = {
    "kills": kills.KIND,
    "checkpoints": damage.KIND,
    "disk": full_disk.KIND,
    "read-only": read_only.KIND,
    "images": images.KIND,
    "memory": memory.KIND,
    "clock": clocks.KIND,
    "hosts": hosts.KIND,
    "across": hosts.ACROSS,
}
VERDICTS = {
    "same": "same bits",
    "refused": "refused or reported",
    "wrong": "wrong results",
    "lost": "lost runs",
}


def run_campaign(
    out: Path,
    *,
    tries: int = 50,
    only: Sequence[str] = (),
    commands: Sequence[str] = (),
    seed: int = 0,
    console: Console | None = None,
) -> list[dict[str, Any]]:
    """Try every kind of bad day `tries` times on each command, continuing what `out` holds.

    Args:
        out: folder for the record (tries.jsonl), the table (campaign.md, .json) and the working files.
        tries: tries of each kind on each of its subjects.
        only: keys of `KINDS`; all by default.
        commands: subjects to try; all by default.
        seed: of the moments and damages.
        console: where to show progress.

    Returns:
        The rows of the table, over all tries in `out`.
    """
    console = console or Console()
    chosen = _choose(only, commands, tries)
    record = Record(out / "tries.jsonl")
    skipped = {name: reason for name in chosen if (reason := KINDS[name].obstacle())}
    left = [
        (name, subject, number)
        for number in range(tries)
        for name, subjects in chosen.items()
        for subject in subjects
        if number < (KINDS[name].most or tries)
        and name not in skipped
        and not record.has(name, subject, number)
    ]
    if left:
        _try_all(left, record, _world(out), seed, out, console)
    tables = _tables(record, skipped)
    show_tables(tables, console)
    return _write(record, tables, out)


def _try_all(
    left: Sequence[tuple[str, str, int]],
    record: Record,
    stage_folder: Path,
    seed: int,
    out: Path,
    console: Console,
) -> None:
    commit = environment()["commit"]
    with ForkServer() as server, progress_bar(console) as bar:
        task = bar.add_task("", total=len(left))
        stage = Stage(stage_folder, server)
        stage.prepare()
        for name, subject, number in left:
            bar.update(task, description=f"{name}: {subject}")
            before = time.monotonic()
            outcome = guarded(KINDS[name], stage, subject, f"{seed} {name} {subject} {number}")
            seconds = round(time.monotonic() - before, 2)
            record.add(Try(name, subject, number, *outcome, seconds, commit))
            if outcome.verdict in LOSSES:
                bar.console.print(f"{name}: {subject}: {outcome.detail}", markup=False)
            bar.advance(task)
            _write(record, _tables(record, {}), out)


def _choose(only: Sequence[str], commands: Sequence[str], tries: int) -> dict[str, tuple[str, ...]]:
    """Return the subjects of every chosen kind."""
    if tries < 1:
        raise InputError(f"--tries {tries} tries nothing; choose at least 1.")
    for name in only:
        if name not in KINDS:
            raise InputError(f"--only {name!r} is not tried; choose among {', '.join(KINDS)}.")
    known = {subject: None for kind in KINDS.values() for subject in kind.subjects}
    for name in commands:
        if name not in known:
            raise InputError(f"--commands {name!r} is not tried; choose among {', '.join(known)}.")
    return {
        name: tuple(s for s in kind.subjects if not commands or s in commands)
        for name, kind in KINDS.items()
        if not only or name in only
    }


def _world(out: Path) -> Path:
    """Return the working folder for this version of the code, whose results are its references."""
    package = Path(__file__).parents[2]
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        if "bench" not in path.parts or path.name in ("commands.py", "digests.py"):
            digest.update(path.read_bytes())
    return out.absolute() / f"world-{digest.hexdigest()[:8]}"


def _tables(record: Record, skipped: dict[str, str]) -> Tables:
    names = ["bad day", "to", "tries", *VERDICTS.values(), "s per try"]
    lines = [
        [
            row["bad day"],
            row["subject"],
            str(row["tries"]),
            *(str(row[verdict]) for verdict in VERDICTS),
            f"{row['seconds']:.1f}",
        ]
        for row in rows(record.tries, {name: kind.title for name, kind in KINDS.items()})
    ]
    for name, reason in skipped.items():
        lines.append([KINDS[name].title, f"skipped: {reason}", *[""] * (len(names) - 2)])
    return {"Tries and losses": [names, *lines]}


def _write(record: Record, tables: Tables, out: Path) -> list[dict[str, Any]]:
    found = rows(record.tries, {name: kind.title for name, kind in KINDS.items()})
    commits = ", ".join(dict.fromkeys(one.commit for one in record.tries))
    facts = environment() | {"commit": commits, "tries": str(len(record.tries))}
    write_tables(out / "campaign", "A campaign of bad days", facts, found, tables)
    return found
