import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from rich.console import Console

from imsvd.bench import comparison
from imsvd.bench import knn as bench
from imsvd.bench.comparison import Numbers
from imsvd.bench.knn import SEARCHES, SearchCase
from imsvd.errors import InputError


@pytest.mark.parametrize("name", list(SEARCHES))
def test_every_search_finds_the_same(name: str) -> None:
    features = F.normalize(torch.randn(400, 8, generator=torch.Generator().manual_seed(0)))
    expected = (features[:20] @ features.T).topk(7, dim=1).values
    found = SEARCHES[name].make(features, features[:20], 7, 1)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_table_and_results_of_fresh_processes(tmp_path: Path) -> None:
    console = Console(record=True, width=120)
    rows = bench.run(70, 3000, 16, 5, 1, console, tmp_path / "deep" / "knn")
    assert [row["contender"] for row in rows] == list(SEARCHES)
    assert rows[0]["times_ours"] == 1
    assert all(row["seconds"] > 0 and row["total_mib"] > row["extra_mib"] >= 0 for row in rows)
    assert "The 5 nearest of 3,000 features" in console.export_text()
    content = json.loads((tmp_path / "deep" / "knn.json").read_text())
    assert [row["contender"] for row in content["rows"]] == list(SEARCHES)
    assert "| faiss IndexFlatIP | " in (tmp_path / "deep" / "knn.md").read_text()


def test_searches_that_disagree_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    def made_up(_: object, case: SearchCase) -> Numbers:
        return {"seconds": 1, "mean_similarity": 0.51 if case.contender == "faiss" else 0.5}

    monkeypatch.setattr(comparison, "measure_in_child", made_up)
    with pytest.raises(RuntimeError, match="disagree"):
        bench.run(repeats=1, console=Console(quiet=True))


@pytest.mark.parametrize(("queries", "neighbors"), [(0, 3), (5, 0), (5, 11)])
def test_senseless_numbers_are_refused(queries: int, neighbors: int) -> None:
    with pytest.raises(InputError, match="at least 1"):
        bench.run(queries, 10, 4, neighbors)
