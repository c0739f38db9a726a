import json
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import nn

from imsvd.bench import comparison
from imsvd.bench import heads as bench
from imsvd.bench.comparison import Numbers
from imsvd.bench.heads import BACKBONE, BENCHMARK, HEADS, HeadCase, head_step
from imsvd.losses.imsvd import IMSVDLoss
from imsvd.networks import projector
from tests.pretraining.tiny import CommandLine

UNITS = 4
TINY = (8, UNITS * 3), (8, 8, 12)


def gradients(head: str) -> list[torch.Tensor]:
    torch.manual_seed(0)
    network = projector((6, 8, 12))
    views = [torch.randn(16, 6).requires_grad_() for _ in range(2)]
    seconds, loss = head_step(network, views, HEADS[head].make, UNITS)
    assert 0 < loss < seconds
    return [value.grad for value in (*network.parameters(), *views) if value.grad is not None]


def test_a_step_cut_at_the_embeddings_has_the_gradients_of_a_whole_one() -> None:
    torch.manual_seed(0)
    network = projector((6, 8, 12))
    views = [torch.randn(16, 6).requires_grad_() for _ in range(2)]
    loss = IMSVDLoss(UNITS)(network(views[0]), network(views[1])).loss
    expected = torch.autograd.grad(loss, [*network.parameters(), *views])
    found = gradients("imsvd")
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_both_forms_of_vicreg_are_the_same_loss() -> None:
    for one, other in zip(gradients("vicreg"), gradients("vicreg-plain"), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


def test_a_second_step_does_not_add_to_the_gradients_of_the_first() -> None:
    network = nn.Linear(3, 2)
    views = [torch.ones(4, 3).requires_grad_() for _ in range(2)]
    network.weight.grad = torch.full_like(network.weight, 100)
    head_step(network, views, HEADS["barlow"].make, UNITS)
    assert network.weight.grad.abs().max() < 50


def test_parts_add_up_and_ratios_are_to_imsvd(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {"imsvd": 10.0, "vicreg": 20.0, BACKBONE: 4.0}

    def made_up(_: object, case: HeadCase) -> Numbers:
        return {
            "seconds": seconds.get(case.contender, 30.0),
            "loss": 6.0,
            "share": 0.5,
            "peak_mib": 1024.0,
        }

    monkeypatch.setattr(comparison, "measure_in_child", made_up)
    ours, vicreg, *_, barlow = bench.run(64, TINY, 1, Console(quiet=True), units=UNITS)
    assert ours["backbone"] == 0.5  # four seconds of eight images
    assert [ours[key] for key in ("projector", "loss", "step", "peak_mib")] == [4, 6, 10, 1024]
    assert (ours["whole"], vicreg["whole"]) == (10 + 64 * 0.5, 20 + 64 * 0.5)
    assert ours["process"] == 0.5 + 6 + 2 * 0.5
    assert (vicreg["step_ratio"], vicreg["whole_ratio"]) == (2, 52 / 42)
    assert [row["paper_hours"] for row in (ours, vicreg, barlow)] == [8.5, 11, 12]
    assert vicreg["paper_ratio"] == pytest.approx(11 / 8.5)


def test_every_head_is_measured_with_its_own_projector(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    widths = {}

    def here(_: object, case: HeadCase) -> Numbers:
        widths[case.contender] = case.widths
        return BENCHMARK.measure(case)

    monkeypatch.setattr(comparison, "measure_in_child", here)
    console = Console(record=True, width=160)
    output = tmp_path / "deep" / "heads"
    rows = bench.run(64, TINY, 1, console, output, images=2, size=32, units=UNITS)
    assert widths.pop(BACKBONE) == ()
    assert widths.pop("imsvd") == (2048, *TINY[0])
    assert set(widths.values()) == {(2048, *TINY[1])}
    assert [row["contender"] for row in rows] == list(HEADS)
    assert all(0 < row["loss"] < row["step"] < row["whole"] for row in rows)
    content = json.loads(output.with_suffix(".json").read_text())
    assert [row["widths"] for row in content["rows"][:2]] == [[2048, 8, 12], [2048, 8, 8, 12]]
    page = output.with_suffix(".md").read_text()
    assert "IMSVD's projector is 2048→8→12, the others' 2048→8→8→12" in page
    assert "(two views, forward and backward) in a batch of 2" in page
    assert "| VICReg, ours | " in page
    assert "Barlow Twins, D x D matrix" in console.export_text()


def test_a_fresh_process_counts_weights_and_gradients_in_its_peak() -> None:
    case = HeadCase("vicreg", 64, (2048, 4096, 80), 80, 32)
    found = comparison.measure_in_child(BENCHMARK, case)
    weights = 4 * 4096 * (2048 + 80) / 2**20
    assert 2 * weights < found["peak_mib"] < 2 * weights + 128
    assert 0 < found["share"] < found["seconds"]


@pytest.mark.parametrize(
    ("options", "phrase"),
    [
        (["--batch", "100"], "choose a multiple of 32, at least 64"),
        (["--batch", "32"], "at least 2"),
        (["--repeats", "0"], "repeats = 0: choose at least 1"),
        (["--widths", "80"], "'80' is not two lists of widths"),
        (["--widths", "80,0 80"], "every layer needs a width of at least 1"),
        (["--widths", "80,81 80"], "Width 81 is not divisible by units 80"),
    ],
)
def test_bad_arguments_get_a_sentence(
    options: list[str], phrase: str, command: CommandLine
) -> None:
    assert command(["bench", "heads", *options]) == 2
    assert phrase in " ".join(command.err.split())
