"""Tries of a campaign: what a kind of bad day is, how a try is judged, and the record of all."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from imsvd.bench.campaign.processes import HangingError
from imsvd.bench.campaign.stage import Ended, Stage

Verdict = Literal["same", "refused", "wrong", "lost"]
LOSSES: tuple[Verdict, ...] = ("wrong", "lost")


WELL = Ended(0, "")
"""The end of a command that has done its work; a second call may refuse to do it again."""


class Outcome(NamedTuple):
    """How a try ended.

    Attributes:
        verdict: "same", if the results have the bits of an undisturbed run; "refused", if the command
            ended with one sentence and nothing was lost; "wrong", if it ended well with other results;
            "lost", for everything else: a traceback, a hang, work that cannot be resumed.
        detail: what was done, and what was seen.
    """

    verdict: Verdict
    detail: str


class Kind(NamedTuple):
    """A kind of bad day.

    Attributes:
        title: its name in the table.
        subjects: what it happens to, mostly keys of `COMMANDS`.
        attempt: tries once, on a subject, with random numbers of the try.
        obstacle: returns why it cannot be tried on this machine, or an empty string.
        most: tries of a subject that are enough, however many are asked for.
    """

    title: str
    subjects: Sequence[str]
    attempt: Callable[[Stage, str, random.Random], Outcome]
    obstacle: Callable[[], str] = lambda: ""
    most: int | None = None


class Try(NamedTuple):
    """A line of the record."""

    kind: str
    subject: str
    number: int
    verdict: Verdict
    detail: str
    seconds: float
    commit: str


def judge(stage: Stage, name: str, ended: Ended, done: str) -> Outcome:
    """Judge the last call of a command, which must end with the bits of an undisturbed run."""
    if ended.code:
        return Outcome("lost", f"{done}: exit code {ended.code}: {tail(ended)}")
    found = stage.differences(name)
    return Outcome("wrong", f"{done}: {found}") if found else Outcome("same", done)


def refused_well(name: str, ended: Ended) -> bool:
    """Return whether a command has ended with one sentence; a comparison lists failed runs instead."""
    if name == "compare" and ended.code == 1 and "Traceback" not in ended.said:
        return True
    return bool(ended.sentence)


def tail(ended: Ended) -> str:
    """Return the end of what a command printed."""
    return " ".join(ended.said[-600:].split())


def guarded(kind: Kind, stage: Stage, subject: str, seed: str) -> Outcome:
    """Try once; a command that hangs is lost."""
    try:
        return kind.attempt(stage, subject, random.Random(seed))
    except HangingError as error:
        return Outcome("lost", str(error))


class Record:
    """All tries so far, one JSON line each."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.tries: list[Try] = []
        lines = path.read_text().splitlines() if path.exists() else []
        for line in lines:
            try:
                self.tries.append(Try(**json.loads(line)))
            except ValueError:  # cut off by a kill
                continue

    def has(self, kind: str, subject: str, number: int) -> bool:
        """Return whether a try has been made."""
        return any(
            (one.kind, one.subject, one.number) == (kind, subject, number) for one in self.tries
        )

    def add(self, one: Try) -> None:
        """Append a try."""
        self.tries.append(one)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write("\n" * self._is_cut() + json.dumps(one._asdict()) + "\n")

    def _is_cut(self) -> bool:
        content = self._path.read_bytes() if self._path.exists() else b""
        return bool(content) and not content.endswith(b"\n")


def rows(tries: Sequence[Try], titles: dict[str, str]) -> list[dict[str, Any]]:
    """Count the verdicts of every kind and subject."""
    found = []
    for kind, subject in dict.fromkeys((one.kind, one.subject) for one in tries):
        own = [one for one in tries if (one.kind, one.subject) == (kind, subject)]
        counts = {
            verdict: sum(one.verdict == verdict for one in own)
            for verdict in ("same", "refused", "wrong", "lost")
        }
        losses = [one.detail for one in own if one.verdict in LOSSES]
        found.append(
            {
                "kind": kind,
                "bad day": titles[kind],
                "subject": subject,
                "tries": len(own),
                **counts,
                "seconds": sum(one.seconds for one in own) / len(own),
                "first loss": losses[0] if losses else "",
            }
        )
    return found
