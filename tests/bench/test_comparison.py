import json
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from imsvd.bench import comparison
from imsvd.bench.comparison import Benchmark, Case, Column, Contender, Numbers, Ratio, Row
from imsvd.errors import InputError

CONTENDERS = {
    "ours": Contender("imsvd", 2.0),
    "other": Contender("another", 6.0),
    "absent": Contender("a third", 1.0, ("no_such_package",)),
}


@dataclass(frozen=True)
class SizedCase(Case):
    size: int
    shape: tuple[int, ...] = ()


class _Sized(Benchmark[SizedCase]):
    case = SizedCase
    contenders = CONTENDERS
    heading = "Sizes"
    first_column = "who"
    columns = (Column("seconds", "seconds"), Column("time / ours", "times_ours"))
    ratios = (Ratio("times_ours", "seconds", {"contender": "ours"}),)
    largest = ("memory",)
    hidden = ("shape",)
    packages = ("numpy", "no-such-distribution")

    def title(self, row: Row) -> str:
        return f"Size {row['size']}"

    def measure(self, case: SizedCase) -> Numbers:
        seconds = CONTENDERS[case.contender].make * case.size
        return {"seconds": seconds, "memory": float(sum(case.shape))}


BENCHMARK = _Sized()
OURS, OTHER = SizedCase("ours", 1), SizedCase("other", 1)


def measured(monkeypatch: pytest.MonkeyPatch, seconds: dict[str, list[float]]) -> list[str]:
    """Let children report these seconds; return the order in which they are asked, as it grows."""
    order: list[str] = []
    left = {name: iter(values) for name, values in seconds.items()}

    def report(_: object, case: SizedCase) -> Numbers:
        order.append(case.contender)
        return {"seconds": (value := next(left[case.contender])), "memory": value}

    monkeypatch.setattr(comparison, "measure_in_child", report)
    return order


def test_ratios_are_medians_of_the_ratios_within_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    # The machine is ten times as slow in the second round.
    order = measured(monkeypatch, {"ours": [1, 10, 3], "other": [2, 20, 9]})
    ours, other = BENCHMARK.run([OURS, OTHER], 3, Console(quiet=True), None)
    assert order == ["ours", "other", "other", "ours", "ours", "other"]
    assert (ours["seconds"], ours["times_ours"], ours["memory"]) == (3, 1, 10)
    assert (other["seconds"], other["times_ours"]) == (9, 2)
    assert other["times_ours_quartiles"] == [2, 2.5]


def test_tables_and_files_show_the_rows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    measured(monkeypatch, {"ours": [1, 1, 1], "other": [2, 3, 4]})
    console = Console(record=True, width=100)
    cases = [OURS, OTHER, SizedCase("absent", 2)]
    rows = BENCHMARK.run(cases, 3, console, tmp_path / "deep" / "sizes.md")
    assert "another" in console.export_text()
    content = json.loads((tmp_path / "deep" / "sizes.json").read_text())
    assert content["rows"] == rows
    assert content["environment"]["torch"] == torch.__version__
    assert content["environment"]["no-such-distribution"] == "not installed"
    assert "shape" not in rows[0]
    page = (tmp_path / "deep" / "sizes.md").read_text()
    assert page.startswith("# Sizes\n\n- command: ")
    assert "## Size 1\n\n| who | seconds | time / ours |\n|---|---|---|\n" in page
    assert "| another | 3.00 | 3.00 (2.50–3.50) |" in page
    assert "| a third | skipped: no_such_package not installed |  |" in page


def test_without_its_reference_a_case_has_no_ratio(monkeypatch: pytest.MonkeyPatch) -> None:
    measured(monkeypatch, {"other": [2]})
    (row,) = BENCHMARK.run([OTHER], 1, Console(quiet=True), None)
    assert "times_ours" not in row


def test_nothing_is_measured_when_all_is_skipped() -> None:
    (row,) = BENCHMARK.run([SizedCase("absent", 1)], 2, Console(quiet=True), None)
    assert row["skipped"] == "no_such_package not installed"


def test_a_child_measures_a_case_with_tuples() -> None:
    numbers = comparison.measure_in_child(BENCHMARK, replace(OTHER, size=3, shape=(4, 5)))
    assert numbers == {"seconds": 18, "memory": 9}


def test_a_child_that_fails_is_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError, match="ended with exit code 1"):
        comparison.measure_in_child(BENCHMARK, SizedCase("nobody", 1))
    assert "KeyError" in capfd.readouterr().err


def test_no_rounds_are_refused() -> None:
    with pytest.raises(InputError, match="repeats = 0: choose at least 1"):
        BENCHMARK.run([OURS], 0, None, None)
