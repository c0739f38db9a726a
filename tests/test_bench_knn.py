import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from rich.console import Console

from imsvd.bench import knn as bench
from imsvd.bench.knn_case import Case, Measurement
from imsvd.bench.knn_searches import SEARCHES
from imsvd.errors import InputError


@pytest.mark.parametrize("name", list(SEARCHES))
def test_every_search_finds_the_same(name: str) -> None:
    features = F.normalize(torch.randn(400, 8, generator=torch.Generator().manual_seed(0)))
    expected = (features[:20] @ features.T).topk(7, dim=1).values
    found = SEARCHES[name].find(features, features[:20], 7, 1)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_table_and_results_of_fresh_processes(tmp_path: Path) -> None:
    console = Console(record=True, width=120)
    rows = bench.run(70, 3000, 16, 5, 1, console, tmp_path / "deep" / "knn")
    assert [row.search for row in rows] == list(SEARCHES)
    assert rows[0].times_ours == 1
    assert all(row.seconds and row.total_mib and row.extra_mib is not None for row in rows)
    assert "The 5 nearest of 3,000 features" in console.export_text()
    content = json.loads((tmp_path / "deep" / "knn.json").read_text())
    assert [row["search"] for row in content["rows"]] == list(SEARCHES)
    assert "| faiss IndexFlatIP | " in (tmp_path / "deep" / "knn.md").read_text()


def made_up(similarity: dict[str, float]) -> object:
    seconds = {"ours": iter([1.0, 9.0, 2.0]), "faiss": iter([4.0, 3.0, 99.0])}

    def measure(case: Case) -> Measurement:
        spent = next(seconds.get(case.search, iter([8.0])))
        return Measurement(spent, 2**20, 2**21, similarity.get(case.search, 0.5))

    return measure


def test_medians_and_ratios_are_taken_over_the_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "_measure", made_up({}))
    ours, faiss, sklearn = bench.run(repeats=3, console=Console(quiet=True))
    assert (ours.seconds, faiss.seconds, sklearn.seconds) == (2.0, 4.0, 8.0)
    assert (faiss.times_ours, sklearn.times_ours) == (2.0, 4.0)
    assert (ours.extra_mib, ours.total_mib) == (1.0, 2.0)


def test_searches_that_disagree_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "_measure", made_up({"faiss": 0.51}))
    with pytest.raises(RuntimeError, match="disagree"):
        bench.run(repeats=1, console=Console(quiet=True))


def test_a_missing_package_is_skipped_and_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("faiss", "scikit-learn"):
        monkeypatch.setitem(SEARCHES, name, SEARCHES[name]._replace(needs="a_package_nobody_has"))
    monkeypatch.setattr(bench, "_measure", made_up({}))
    console = Console(record=True, width=160)
    rows = bench.run(repeats=1, console=console)
    assert [bool(row.skipped) for row in rows] == [False, True, True]
    assert "a_package_nobody_has not installed" in console.export_text()


@pytest.mark.parametrize(("queries", "neighbors", "repeats"), [(5, 3, 0), (0, 3, 1), (5, 11, 1)])
def test_senseless_numbers_are_refused(queries: int, neighbors: int, repeats: int) -> None:
    with pytest.raises(InputError, match="at least 1"):
        bench.run(queries, 10, 4, neighbors, repeats)
