"""The base of all benchmarks: contenders measured in rounds, compared by ratios, shown and written.

Every measurement runs in a fresh child process. A round measures each case once, so a slow minute
of the machine affects all of them; ratios are taken within a round. Tables show medians over the
rounds, and the quartiles of ratios in brackets.

A benchmark is one module with a table of `Contender`s, a `Case` and a `Benchmark` whose instance is
called `BENCHMARK`.
"""

import importlib
import importlib.metadata
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from rich.console import Console
from rich.table import Table

from imsvd.errors import InputError
from imsvd.progress import progress_bar
from imsvd.provenance import environment

Numbers = dict[str, float]
"""One measurement of a case."""
Row = dict[str, Any]
"""One line of a table: fields of the case, numbers, ratios, and why it was skipped, if it was."""
T = TypeVar("T")
C = TypeVar("C", bound="Case")
Tables = dict[str, list[list[str]]]
"""Lines of cells by title; the first line has the names of the columns."""


@dataclass(frozen=True)
class Contender(Generic[T]):
    """What is compared: its name in tables, how it works, and the packages it needs."""

    label: str
    make: T
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Case:
    """A contender, by its key; subclasses add conditions, as numbers, strings and tuples."""

    contender: str


class Ratio(NamedTuple):
    """A number of a case divided by that of its reference case in the same round.

    Attributes:
        key: name of the ratio in a row.
        number: name of the number to divide.
        reference: fields in which the reference case differs.
    """

    key: str
    number: str
    reference: Mapping[str, Any]


class Column(NamedTuple):
    """A column: its title, the key of a row and the format of the value."""

    title: str
    key: str
    form: str = ".2f"

    def cell(self, row: Row) -> str:
        """Return the formatted value, followed by the quartiles of a ratio."""
        if row.get(self.key) is None:
            return ""
        low, high = row.get(f"{self.key}_quartiles", (0, 0))
        spread = "" if low == high else f" ({low:{self.form}}–{high:{self.form}})"
        return f"{row[self.key]:{self.form}}{spread}"


class Benchmark(ABC, Generic[C]):
    """What is measured and how it is shown.

    Attributes:
        case: type of the cases.
        contenders: what is compared.
        heading: heading of the page.
        first_column: title of the column of contenders.
        columns: columns after the first.
        ratios: ratios of every row.
        largest: numbers shown as the largest of all rounds instead of the median.
        hidden: fields of a case that its row leaves out.
        packages: packages whose versions are recorded.
    """

    case: type[C]
    contenders: Mapping[str, Contender[Any]]
    heading: str
    first_column: str
    columns: Sequence[Column]
    ratios: Sequence[Ratio] = ()
    largest: Sequence[str] = ()
    hidden: Sequence[str] = ()
    packages: Sequence[str] = ()

    @abstractmethod
    def measure(self, case: C) -> Numbers:
        """Measure a case in this process."""

    @abstractmethod
    def title(self, row: Row) -> str:
        """Return the title of the table that shows a row."""

    def tables(self, row: Row) -> Mapping[str, Sequence[Column]]:
        """Return titles and columns of all tables that show a row."""
        return {self.title(row): self.columns}

    def label(self, case: C) -> str:
        """Return the contender's name in tables."""
        return self.contenders[case.contender].label

    def reason_to_skip(self, case: C) -> str:
        """Return why a case cannot be measured, or an empty string."""
        needs = self.contenders[case.contender].needs
        missing = [name for name in needs if importlib.util.find_spec(name) is None]
        return f"{' and '.join(missing)} not installed" if missing else ""

    def variables(self, _case: C) -> Mapping[str, str]:
        """Return environment variables of the child process."""
        return {"OMP_NUM_THREADS": str(os.cpu_count() or 1)}

    def processes(self, _case: C) -> int:
        """Return how many child processes measure a case together."""
        return 1

    def derive(self, found: dict[C, Numbers]) -> dict[C, Numbers]:
        """Return the numbers to show, from those that one round measured."""
        return found

    def facts(self, _rows: Sequence[Row]) -> dict[str, str]:
        """Return what a reader of the page needs to know beside machine and versions."""
        return {}

    def run(
        self, cases: Sequence[C], repeats: int, console: Console | None, output: Path | None
    ) -> list[Row]:
        """Measure `repeats` rounds, show the tables, and write `output` as .json and .md if given."""
        console = console or Console()
        if repeats < 1:
            raise InputError(f"repeats = {repeats}: choose at least 1.")
        skipped = {case: reason for case in cases if (reason := self.reason_to_skip(case))}
        rounds = self._measure([case for case in cases if case not in skipped], repeats, console)
        rows = [
            self._row(case, rounds, skipped.get(case, ""))
            for case in cases
            if case in rounds[0] or case in skipped
        ]
        tables = self._tables(rows)
        show_tables(tables, console)
        if output is not None:
            facts = environment() | _versions(self.packages) | self.facts(rows)
            write_tables(output, self.heading, facts, rows, tables)
        return rows

    def _measure(
        self, cases: Sequence[C], repeats: int, console: Console
    ) -> list[dict[C, Numbers]]:
        """Measure every case once a round; every other round runs backward, against slow drifts."""
        rounds = []
        with progress_bar(console) as progress:
            task = progress.add_task("", total=repeats * len(cases))
            for number in range(repeats):
                found = {}
                for case in cases if number % 2 == 0 else reversed(cases):
                    progress.update(task, description=self.label(case))
                    found[case] = measure_in_child(self, case)
                    progress.advance(task)
                rounds.append(self.derive(found))
        return rounds

    def _row(self, case: C, rounds: Sequence[dict[C, Numbers]], skipped: str) -> Row:
        row = {key: value for key, value in asdict(case).items() if key not in self.hidden}
        row |= {"label": self.label(case), "skipped": skipped}
        if skipped:
            return row
        for key in rounds[0][case]:
            summarize = max if key in self.largest else statistics.median
            row[key] = summarize([found[case][key] for found in rounds])
        for key, number, changes in self.ratios:
            reference = replace(case, **changes)
            if reference not in rounds[0]:
                continue
            values = [found[case][number] / found[reference][number] for found in rounds]
            row[key] = statistics.median(values)
            if len(values) > 1:
                low, _, high = statistics.quantiles(values, n=4, method="inclusive")
                row[f"{key}_quartiles"] = [low, high]
        return row

    def _tables(self, rows: Sequence[Row]) -> Tables:
        tables: Tables = {}
        for row in rows:
            for title, columns in self.tables(row).items():
                names = [self.first_column, *(column.title for column in columns)]
                cells = [column.cell(row) for column in columns]
                if row["skipped"]:
                    cells = [f"skipped: {row['skipped']}", *[""] * (len(columns) - 1)]
                tables.setdefault(title, [names]).append([row["label"], *cells])
        return tables


def _versions(packages: Sequence[str]) -> dict[str, str]:
    found = {}
    for name in packages:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def show_tables(tables: Tables, console: Console) -> None:
    """Print tables; columns after the first hold numbers."""
    for title, (names, *lines) in tables.items():
        table = Table(title=title)
        for number, name in enumerate(names):
            table.add_column(name, justify="right" if number else "left")
        for line in lines:
            table.add_row(*line)
        console.print(table)


def write_tables(
    path: Path,
    heading: str,
    facts: Mapping[str, str],
    rows: Sequence[Row],
    tables: Tables,
) -> None:
    """Write rows to `path` as .json, and tables as .md."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"environment": dict(facts), "rows": list(rows)}
    path.with_suffix(".json").write_text(json.dumps(content, indent=2) + "\n")
    lines = [f"# {heading}", "", *(f"- {name}: {value}" for name, value in facts.items())]
    for title, (names, *cells) in tables.items():
        lines += ["", f"## {title}", "", f"| {' | '.join(names)} |", "|" + "---|" * len(names)]
        lines += [f"| {' | '.join(line)} |" for line in cells]
    path.with_suffix(".md").write_text("\n".join(lines) + "\n")


def measure_in_child(benchmark: Benchmark[C], case: C) -> Numbers:
    """Measure a case in fresh processes, and return what the first of them found.

    Several processes read their number and where to meet from `RANK` and `MEETING_POINT`.
    """
    module = type(benchmark).__module__
    command = [sys.executable, "-m", __name__, module, json.dumps(asdict(case))]
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in range(benchmark.processes(case)):
            meeting = {"RANK": str(rank), "MEETING_POINT": f"{folder}/meeting-point"}
            variables = {**os.environ, **benchmark.variables(case), **meeting}
            children.append(
                subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=variables)
            )
        outputs = [child.communicate()[0] for child in children]
    failed = [child.returncode for child in children if child.returncode]
    if failed:
        raise RuntimeError(f"{case} ended with exit code {failed[0]}; its error is printed above.")
    numbers: Numbers = json.loads(outputs[0].splitlines()[-1])
    return numbers


def main() -> None:
    """Measure the case on the command line; the last line printed is its numbers as JSON."""
    benchmark = importlib.import_module(sys.argv[1]).BENCHMARK
    fields = json.loads(sys.argv[2])
    case = benchmark.case(**{k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()})
    sys.stdout.write(json.dumps(benchmark.measure(case)) + "\n")


def reset_peak() -> int:
    """Reset the kernel's record of this process's peak memory; return the bytes resident now."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def peak() -> int:
    """Return the most bytes resident since `reset_peak` (Linux only)."""
    return _status("VmHWM")


def _status(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {key}; memory is measured on Linux only.")


if __name__ == "__main__":
    main()
