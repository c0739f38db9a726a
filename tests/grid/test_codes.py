"""Codes of test images: what is measured, what is kept, and how seeds are compared."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from imsvd.encoder import Encoder
from imsvd.evaluation import Features
from imsvd.explanations.encodings import read_arrays, write_arrays
from imsvd.grid import codes as grid_codes
from imsvd.grid.codes import FILE_NAME, measure_codes, with_stability
from imsvd.grid.comparison import COLUMNS, ComparedRun, ComparisonRow, columns_of, header, notes
from tests.explanations.made_up import red_finder
from tests.grid import made_up
from tests.grid.test_comparison import COMPARISON
from tests.oracles import code_measures as oracle

UNITS = (3, 2)


def one_variable() -> tuple[Encoder, Features]:
    """An encoder with two units, logits 60 r and 20 b, and the features (r, b) of images."""
    random = torch.Generator().manual_seed(0)
    features = torch.rand(30, 2, generator=random) * 0.1
    labels = (features[:, 0] > 0.06).long()
    return red_finder(), Features(features, labels, {})


def test_codes_are_measured_as_defined_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grid_codes, "CHUNK", 7)
    encoder, test = one_variable()
    found = measure_codes(encoder, test, tmp_path, "some data")
    logits = test.features.double() * torch.tensor([60.0, 20.0]).double()
    taken = logits.argmax(1).numpy()
    largest = logits.softmax(1).amax(1)
    assert found["share_decided"] == pytest.approx(float((largest > 0.9).double().mean()))
    assert found["shared_nats"] == 0  # there is only one variable
    assert test.labels is not None
    features, labels = test.features.double().numpy(), test.labels.tolist()
    sets = oracle.image_sets(taken[:, None], (2,))
    similar = sum(len(each) * oracle.similarity(each, features) for each in sets) / 30
    everything = oracle.similarity(set(range(30)), features)
    assert found["monosemanticity"] == pytest.approx(similar, abs=1e-5)
    assert found["monosemanticity_above_chance"] == pytest.approx(similar - everything, abs=1e-5)
    pure = sum(len(each) * oracle.purity(each, labels) for each in sets) / 30
    assert found["purity"] == pytest.approx(pure)
    assert 0 < found["purity_above_chance"] < found["purity"]
    kept = read_arrays(tmp_path / FILE_NAME, "some data")
    assert kept is not None
    np.testing.assert_array_equal(kept["codes"], taken[:, None])
    assert kept["codes"].dtype == np.uint8
    assert kept["units"].tolist() == [2]


def test_what_cannot_be_measured_is_left_out(tmp_path: Path) -> None:
    encoder, test = one_variable()
    one = Features(test.features[:1], torch.tensor([1]), {})
    assert "monosemanticity" not in measure_codes(encoder, one, tmp_path, "some data")
    encoder.description = encoder.description.model_copy(update={"units": ()})
    (tmp_path / FILE_NAME).unlink()
    assert measure_codes(encoder, test, tmp_path, "some data") == {}
    assert not (tmp_path / FILE_NAME).exists()


def write(out: Path, seed: int, codes: NDArray[np.int64], data: str = made_up.DATA) -> ComparedRun:
    """A finished run whose test images have these codes."""
    folder = out / f"run{seed}"
    folder.mkdir(exist_ok=True)
    write_arrays(folder / FILE_NAME, data, {"codes": codes, "units": np.array(UNITS)})
    return ComparedRun("imsvd", 0.1, seed, folder.name, made_up.outcome())


def drawn(seed: int) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(0, UNITS, (40, 2))


def stabilities(runs: list[ComparedRun], out: Path) -> list[float | None]:
    found = with_stability(runs, out)
    return [run.outcome.metrics.get("stability") if run.outcome else None for run in found]


def test_stability_is_the_mean_over_pairs_of_seeds(tmp_path: Path) -> None:
    codes = drawn(0)
    renamed = np.stack([(codes[:, 0] + 1) % 3, 1 - codes[:, 1]], 1)
    half = np.stack([codes[:, 0], drawn(1)[:, 1]], 1)
    runs = [write(tmp_path, seed, each) for seed, each in enumerate((codes, renamed, half))]
    sets = [oracle.image_sets(each, UNITS) for each in (codes, renamed, half)]

    def share(a: int, b: int) -> float:
        return sum(value >= 0.5 for value in oracle.best_matching(sets[a], sets[b])) / 5

    assert share(0, 1) == 1
    assert share(0, 2) < 1
    expected = [(share(0, 1) + share(0, 2)) / 2, (share(0, 1) + share(1, 2)) / 2, share(0, 2)]
    assert stabilities(runs, tmp_path) == [pytest.approx(value) for value in expected]


def test_runs_without_usable_codes_have_no_stability(tmp_path: Path) -> None:
    first = write(tmp_path, 0, drawn(0))
    assert stabilities([first], tmp_path) == [None]
    other_images = write(tmp_path, 1, drawn(0), data="other images")
    fewer = write(tmp_path, 2, drawn(0)[:-1])
    old = ComparedRun("imsvd", 0.1, 3, "run3", made_up.outcome())
    failed = ComparedRun("imsvd", 0.1, 4, "run4", failure="it broke")
    damaged = write(tmp_path, 5, drawn(0))
    (tmp_path / "run5" / FILE_NAME).write_bytes(b"damaged")
    runs = [first, other_images, fewer, old, failed, damaged]
    assert with_stability(runs, tmp_path) == tuple(runs)


def test_codes_written_anew_are_matched_anew(tmp_path: Path) -> None:
    runs = [write(tmp_path, seed, drawn(0)) for seed in (0, 1)]
    assert stabilities(runs, tmp_path) == [1, 1]
    write(tmp_path, 1, drawn(2))
    os.utime(tmp_path / "run1" / FILE_NAME, ns=(1, 1))
    changed = stabilities(runs, tmp_path)
    assert changed[0] is not None
    assert changed[0] < 1


def test_methods_without_codes_and_old_results_have_a_dash() -> None:
    measured = {
        "share_decided": 0.731,
        "shared_nats": 0.0941,
        "purity": 0.402,
        "monosemanticity": 0.6,
        "monosemanticity_above_chance": 0.1234,
        "stability": 0.25,
    }
    new = ComparedRun("imsvd", 0.1, 0, "runs/a", made_up.outcome(metrics=measured))
    old = ComparedRun("vicreg", 0.1, 0, "runs/b", made_up.outcome())
    rows = [ComparisonRow(run.method, 0.1, (run,)) for run in (new, old)]
    columns = columns_of(rows)
    titles = header(columns)
    shown, dashes = (dict(zip(titles, row.cells(columns), strict=True)) for row in rows)
    names = ("decided, %", "shared nats", "purity, %", "monosemanticity", "stability, %")
    assert [shown[name] for name in names] == ["73.1", "0.094", "40.2", "0.123", "25.0"]
    assert {dashes[name] for name in names} == {"–"}
    assert not {column.name for column in columns_of(rows[1:]) if column.of_codes}
    assert [column.title for column in COLUMNS if column.of_codes] == list(names)
    assert not any("Monosemanticity" in note for note in notes(COMPARISON))
    explained = notes(COMPARISON._replace(every=rows))
    assert any("Monosemanticity: mean cosine similarity" in note for note in explained)
