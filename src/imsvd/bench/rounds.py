"""What benchmarks share: cases in turn, each in a fresh process; tables shown and written."""

import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from rich.console import Console
from rich.table import Table

from imsvd.errors import InputError
from imsvd.progress import progress_bar

Case = TypeVar("Case", bound=Hashable)
Measurement = TypeVar("Measurement")


def check_duration(seconds: float, repeats: int) -> None:
    """Refuse to measure nothing."""
    if repeats < 1 or seconds <= 0:
        raise InputError("repeats must be at least 1 and seconds more than 0.")


def measure_in_turn(
    cases: Sequence[Case],
    repeats: int,
    measure: Callable[[Case], Measurement],
    describe: Callable[[Case], str],
    console: Console,
) -> dict[Case, list[Measurement]]:
    """Measure each case `repeats` times, going round, so that a slow minute falls on all of them."""
    measured: dict[Case, list[Measurement]] = {case: [] for case in cases}
    with progress_bar(console) as progress:
        task = progress.add_task("", total=repeats * len(cases))
        for case in list(cases) * repeats:
            progress.update(task, description=describe(case))
            measured[case].append(measure(case))
            progress.advance(task)
    return measured


def measure_afresh(
    module: str, case: Mapping[str, Any], variables: Mapping[str, str]
) -> dict[str, Any]:
    """Run one case in a process of its own.

    Args:
        module: started with the case as JSON; its last line of output is the measurement as JSON.
        case: what to measure.
        variables: of the environment, beside those of this process.
    """
    command = [sys.executable, "-m", module, json.dumps(case)]
    ended = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, **variables}, check=False
    )
    if ended.returncode:
        raise RuntimeError(
            f"{case} ended with exit code {ended.returncode}; its error is printed above."
        )
    measurement: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return measurement


def missing_packages(needs: Sequence[str]) -> str:
    """Why a case is skipped: what is not installed, or nothing."""
    missing = [name for name in needs if importlib.util.find_spec(name) is None]
    return f"{' and '.join(missing)} not installed" if missing else ""


def package_versions(names: Sequence[str]) -> dict[str, str]:
    """The version of each package."""
    found = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


class TableContent(NamedTuple):
    """A table, whose first column names the contenders."""

    title: str
    columns: Sequence[str]
    lines: Sequence[Sequence[str]]


def cells_of(label: str, values: Sequence[str], skipped: str) -> list[str]:
    """One line: the values of a contender, or in their place why it was skipped."""
    if skipped:
        return [label, f"skipped: {skipped}", *[""] * (len(values) - 1)]
    return [label, *values]


def show_table(content: TableContent, console: Console) -> None:
    """Print a table."""
    table = Table(title=content.title)
    for number, column in enumerate(content.columns):
        table.add_column(column, justify="right" if number else "left")
    for line in content.lines:
        table.add_row(*line)
    console.print(table)


def write_tables(
    path: Path,
    heading: str,
    facts: Mapping[str, str],
    rows: Sequence[Mapping[str, Any]],
    tables: Sequence[TableContent],
) -> None:
    """Write rows as `path` with suffix .json, and tables as Markdown with suffix .md.

    Args:
        path: whose suffix is replaced.
        heading: of the Markdown page.
        facts: where and how the numbers came about.
        rows: the numbers.
        tables: the same for people.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"environment": dict(facts), "rows": list(rows)}
    path.with_suffix(".json").write_text(json.dumps(content, indent=2) + "\n")
    lines = [f"# {heading}", "", *(f"- {name}: {value}" for name, value in facts.items())]
    for title, columns, cells in tables:
        lines += ["", f"## {title}", "", f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
        lines += [f"| {' | '.join(line)} |" for line in cells]
    path.with_suffix(".md").write_text("\n".join(lines) + "\n")
