"""`imsvd bench codes` as a person uses it: results are kept, added to and never mixed."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import imsvd.discretizing.run as discretizing
from imsvd.bench.codes import autoencoder, rivals
from imsvd.bench.codes import run as bench
from imsvd.bench.codes.inputs import Split
from imsvd.bench.codes.rivals import RIVALS, choose_options
from imsvd.discretizing import capacity
from tests.pretraining.test_pretrain import write_images
from tests.pretraining.tiny import CommandLine

SMALL = ("method.projector=[8, 16]", "compute.workers=0", "compute.accelerator=cpu")


@pytest.fixture(autouse=True)
def _short_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autoencoder, "STEPS", 3)
    monkeypatch.setattr(autoencoder, "BATCH", 32)


def arguments(encoder: Path, out: Path, *more: str, data: str | Path = "") -> list[str]:
    sets = [part for setting in SMALL for part in ("--set", setting)]
    small = (
        "--bits",
        "8",
        "--units",
        "4",
        "--steps",
        "4",
        "--views",
        "2",
        "--methods",
        "imsvd,itq",
    )
    folder = ("--cache", str(out.parent / "cache"), "--out", str(out))
    images = str(data or out.parent / "images")
    return ["bench", "codes", str(encoder), images, *folder, *small, *sets, *more]


def modified(out: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in (out / "results").iterdir()}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with images, in which all tests keep their features."""
    folder = tmp_path_factory.mktemp("codes")
    write_images(folder / "images" / "train", 320, classes=4)
    write_images(folder / "images" / "test", 40, classes=4)
    return folder


@pytest.fixture
def out(shared: Path, request: pytest.FixtureRequest) -> Path:
    return shared / str(abs(hash(request.node.name)))


def test_every_code_is_measured_and_reported(
    trained: Path, out: Path, command: CommandLine
) -> None:
    methods = ",".join(bench.METHODS)
    assert command(arguments(trained, out, "--methods", methods, "--seeds", "2")) == 0, command.err
    content = json.loads((out / "codes.json").read_text())
    assert len(content["results"]) == 1 + 2 * len(bench.METHODS)
    for result in content["results"][1:]:
        found = result["measures"]
        for name, value in found.items():
            if name.endswith(("p1", "p10", "knn20", "recall", "agreeing", "purity")):
                assert 0 <= value <= 100, (result["method"], name)
        assert ("decided" in found) == (result["method"] == "imsvd")
        assert 0 <= found["properties"] <= 5
        assert found["purity"] >= found["purity_by_chance"] - 20
        units = np.load(out / "units" / f"{result['method']}-8-{result['seed']}.npy")
        assert len(units) == 40
    assert content["results"][0]["measures"]["symmetric_recall"] == pytest.approx(100)
    assert [len(part["percent"]) for part in content["stability"]] == [1] * len(bench.METHODS)
    found = [(lead["rival"] == "directed", lead["measure"]) for lead in content["leads"]]
    assert found == [(part, measure) for part in (False, True) for measure in bench_leads()]
    page = (out / "codes.md").read_text()
    assert "## 8 bits: neighbors" in page
    assert "| cosine of floats | " in page
    assert "- judge of similarity: the encoder itself" in page
    assert (out / "codes.png").stat().st_size > 1000
    assert "standard deviation of the difference" in " ".join(command.out.split())


def bench_leads() -> tuple[str, ...]:
    return ("symmetric_p10", "symmetric_knn20", "asymmetric_p10", "asymmetric_knn20")


def test_a_rerun_computes_only_what_is_missing(
    trained: Path, out: Path, command: CommandLine
) -> None:
    assert command(arguments(trained, out, "--seeds", "1")) == 0, command.err
    before = modified(out)
    assert set(before) == {"cosine-0-0.json", "imsvd-8-0.json", "itq-8-0.json"}
    (out / "results" / "itq-8-0.json").write_text("{ cut off")
    assert command(arguments(trained, out, "--seeds", "2")) == 0, command.err
    after = modified(out)
    assert set(after) - set(before) == {"imsvd-8-1.json", "itq-8-1.json"}
    unchanged = {name for name in before if before[name] == after[name]}
    assert unchanged == {"cosine-0-0.json", "imsvd-8-0.json"}
    assert "2 results of" in command.out


def test_other_settings_of_the_head_replace_its_result_only(
    trained: Path, out: Path, command: CommandLine
) -> None:
    assert command(arguments(trained, out, "--seeds", "1")) == 0, command.err
    before = modified(out)
    changed = arguments(
        trained,
        out,
        "--seeds",
        "1",
        "--set",
        "method.off_diagonal_weight=1",
        "--methods",
        "itq,imsvd",
    )
    assert command(changed) == 0, command.err
    after = modified(out)
    assert {name for name in before if before[name] != after[name]} == {"imsvd-8-0.json"}
    assert len(list((out / "heads").iterdir())) == 2


def test_an_interrupted_head_is_finished(
    trained: Path, out: Path, command: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run folder of a head is kept, so that only measuring is repeated."""

    def fail(*_: object) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(bench, "measure", fail)
        with pytest.raises(RuntimeError, match="killed"):
            command(arguments(trained, out, "--seeds", "1", "--methods", "imsvd"))
    (head,) = (out / "heads").iterdir()
    trained_at = (head / "encoder.safetensors").stat().st_mtime_ns
    assert command(arguments(trained, out, "--seeds", "1", "--methods", "imsvd")) == 0, command.err
    assert (head / "encoder.safetensors").stat().st_mtime_ns == trained_at


def test_another_encoder_can_judge(trained: Path, out: Path, command: CommandLine) -> None:
    other = out.parent / "other"
    shutil.copytree(trained, other, dirs_exist_ok=True)
    judge = ("--judge", f"untrained:{other}", "--methods", "lsh", "--seeds", "1")
    assert command(arguments(trained, out, *judge)) == 0, command.err
    assert f"- judge of similarity: untrained:{other}" in (out / "codes.md").read_text()
    # Without it, similarities would be by another measure.
    command.refuses(arguments(trained, out, "--methods", "lsh"), "other inputs (different: judge)")


def test_results_of_other_images_are_refused(
    trained: Path, out: Path, command: CommandLine
) -> None:
    lsh = ("--methods", "lsh", "--seeds", "1")
    assert command(arguments(trained, out, *lsh)) == 0, command.err
    other = shutil.copytree(out.parent / "images", out.parent / "other-images")
    (other / "train" / "class0" / "0000.png").unlink()
    command.refuses(
        arguments(trained, out, *lsh, data=other),
        "holds results of other inputs (different: train",
        "give a new folder to --out",
    )


@pytest.mark.parametrize(
    ("options", "phrase"),
    [
        (["--bits", "12"], "--bits 12 is not a multiple of 8"),
        (["--bits", "0"], "--bits 0 is not a multiple of 8"),
        (["--bits", "many"], "'many' is not a list of integers"),
        (["--methods", "imsvd,opq"], "--methods opq is unknown; choose from imsvd, itq, pq"),
        (["--methods", ","], "--methods is empty"),
        (["--seeds", "0"], "--seeds must be a number of seeds"),
        (["--seeds", "-1,2"], "--seeds must be a number of seeds"),
        (["--bits", "16"], "PCA + ITQ gives at most 8 bits"),
        (["--units", "3"], "--units 3 is not a power of two"),
        (["--size", "4"], "--size 4 is too small"),
        (["--views", "1"], "frozen.views"),
        (["--judge", "/nowhere"], "/nowhere"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_options_get_a_sentence(
    options: list[str], phrase: str, trained: Path, out: Path, command: CommandLine
) -> None:
    command.refuses(arguments(trained, out, *options), phrase)
    assert not (out / "results").exists()


@pytest.mark.parametrize("method", ["pq", "kmeans", "residual"])
def test_too_few_images_to_cluster_are_refused_before_anything_is_computed(
    method: str, trained: Path, out: Path, command: CommandLine
) -> None:
    wanted = arguments(trained, out, "--methods", f"lsh,{method}", data="shapes:200")
    command.refuses(wanted, "200 training images", "at least 300")
    assert not (out / "results").exists()


def test_a_package_that_is_not_installed_is_named(
    trained: Path, out: Path, command: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(RIVALS, "pq", RIVALS["pq"]._replace(needs="not_there"))
    command.refuses(
        arguments(trained, out, "--methods", "pq"),
        "--methods pq cannot be measured without not_there",
    )


def clustered(normalized_is_better: bool) -> Split:
    """Classes that differ in direction, or only in length."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(400) % 4
    if normalized_is_better:
        directions = torch.eye(16)[labels]
        points = directions * (1 + 60 * torch.rand(400, 1, generator=generator))
    else:
        points = torch.ones(400, 16) * (1 + 3.0 * labels[:, None])
    points = points + 0.2 * torch.randn(400, 16, generator=generator)
    return Split(points[:, None].numpy().astype(np.float16), labels)


@pytest.mark.parametrize("better", [True, False])
def test_options_are_those_that_find_more_images_of_a_class(better: bool) -> None:
    choice = choose_options(RIVALS["lsh"], 16, clustered(better))
    assert choice.options["normalize"] is better
    best = max(entry["p10"] for entry in choice.tried)
    chosen = next(entry for entry in choice.tried if entry["options"] == choice.options)
    assert chosen["p10"] == best


def test_held_out_images_are_not_fitted(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    rows_to_fit = Split.rows_to_fit

    def record(split: Split, images: np.ndarray, **options: object) -> torch.Tensor:
        seen.append(set(images.tolist()))
        return rows_to_fit(split, images, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Split, "rows_to_fit", record)
    choose_options(RIVALS["lsh"], 8, clustered(True))
    rest, held_out = rivals._split(400)
    assert len(held_out) == 40
    assert set(rest.tolist()).isdisjoint(held_out.tolist())
    assert all(images == set(rest.tolist()) for images in seen)


def test_views_are_fitted_beside_plain_images() -> None:
    features = np.arange(5 * 3 * 2, dtype=np.float16).reshape(5, 3, 2)
    split = Split(features, torch.zeros(5, dtype=torch.long))
    images = np.array([1, 3])
    plain = split.rows_to_fit(images, views=False, seed=0)
    assert plain.tolist() == features[[1, 3], -1].tolist()
    views = split.rows_to_fit(images, views=True, seed=0)
    assert views.tolist() == features[[1, 3]].reshape(6, 2).tolist()


def test_the_chosen_size_is_compared_with_the_best(
    trained: Path, out: Path, command: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capacity, "BITS", (4, 8))
    monkeypatch.setattr(discretizing, "TRIAL_STEPS", 3)
    images = str(out.parent / "images")
    words = ["bench", "capacity", str(trained), images, "--out", str(out), "--steps", "4"]
    words += ["--views", "2", "--cache", str(out.parent / "cache")]
    words += [part for setting in SMALL[1:] for part in ("--set", setting)]
    assert command(words) == 0, command.err
    rows = json.loads((out / "capacity.json").read_text())["sizes"]
    assert [row["size"] for row in rows] == ["4 × 2", "2 × 4", "8 × 2", "4 × 4", "3 × 8"]
    (chosen,) = (row for row in rows if "chosen" in row["note"])
    assert chosen["lasting_nats"] == max(row["lasting_nats"] for row in rows)
    best = max(rows, key=lambda row: row["symmetric_knn20"])
    behind = best["symmetric_knn20"] - chosen["symmetric_knn20"]
    assert chosen["note"] == (f"chosen; {behind:.1f} behind the best" if behind else "chosen; best")
    assert (out / "capacity.md").read_text().count("\n| ") == len(rows) + 1
