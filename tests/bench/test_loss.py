import json
from pathlib import Path

import pytest
import torch
from rich.console import Console

from imsvd.bench import loss as bench
from imsvd.bench.loss import FORMS
from imsvd.errors import InputError

ALLOWANCE = 64 * 2**20


def test_dense_form_is_the_same_loss() -> None:
    values = torch.randn(2, 6, 12, generator=torch.Generator().manual_seed(0))
    gradients = []
    for form in ("dense", "ours"):
        first, second = (view.clone().requires_grad_() for view in values)
        FORMS[form].make(first, second, 4)
        assert first.grad is not None
        assert second.grad is not None
        gradients.append(torch.stack([first.grad, second.grad]))
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("form", ["vicreg", "barlow", "floor", "vicreg-lightly", "barlow-lightly"])
def test_every_form_leaves_gradients(form: str) -> None:
    for package in FORMS[form].needs:
        pytest.importorskip(package)
    first, second = (torch.randn(6, 8).requires_grad_() for _ in range(2))
    FORMS[form].make(first, second, 4)
    for view in (first, second):
        assert view.grad is not None
        assert view.grad.isfinite().all()


def test_table_results_and_memory_of_fresh_processes(tmp_path: Path) -> None:
    console = Console(record=True, width=120)
    rows = bench.run(
        [(64, 320)], [1, 2], 1, console, forms=["floor", "ours"], output=tmp_path / "deep" / "loss"
    )
    measured = [(row["contender"], row["ranks"]) for row in rows]
    assert measured == [("floor", 1), ("ours", 1), ("ours", 2)]
    assert all(row["seconds"] > 0 and row["times_floor"] > 0 for row in rows)
    assert rows[1]["extra_mib"] * 2**20 <= 6 * 4 * 64 * 320 + ALLOWANCE
    assert "IMSVD, ours" in console.export_text()
    content = json.loads((tmp_path / "deep" / "loss.json").read_text())
    assert content["environment"]["torch"] == torch.__version__
    assert len(content["rows"]) == 3
    page = (tmp_path / "deep" / "loss.md").read_text()
    assert "## Batch 64, width 320\n" in page
    assert "| IMSVD, ours | 2 |" in page


def test_what_cannot_fit_is_skipped_and_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "available_memory", lambda: 2**30)
    console = Console(record=True, width=160)
    (row,) = bench.run([(512, 65280)], [1], 1, console, forms=["dense"])
    assert "seconds" not in row
    assert "needs about" in row["skipped"]
    assert "skipped" in console.export_text()


def test_bad_arguments_get_a_sentence() -> None:
    with pytest.raises(InputError, match="does not divide the batch"):
        bench.run([(8, 80)], [3])
    with pytest.raises(InputError, match="not divisible by units 80"):
        bench.run([(8, 81)])
