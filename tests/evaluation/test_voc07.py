import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from imsvd.datasets.drawn.drawing import SHAPES
from imsvd.datasets.drawn.scene_files import write_scenes
from imsvd.datasets.voc import open_voc
from imsvd.encoder import load
from imsvd.errors import InputError
from imsvd.evaluation import protocols
from imsvd.evaluation.svm import SVMSettings, classify
from imsvd.evaluation.voc07 import LabeledFeatures, run_voc07, voc07
from tests.oracles import average_precision as oracle
from tests.training.tiny import CommandLine

QUICK = SVMSettings(costs=(0.1, 10), max_iterations=50, jobs=1)


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scenes") / "voc"
    return write_scenes(folder, images=60, size=64, layout="voc")


def spoilt(scenes: Path, folder: Path) -> Path:
    """A copy whose lists and images may be changed."""
    return Path(shutil.copytree(scenes, folder / "voc")) / "VOCdevkit" / "VOC2007"


def random_split(count: int, seed: int) -> LabeledFeatures:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(count, 5, generator=generator)
    noise = torch.randn(count, 2, generator=generator)
    targets = torch.where(features[:, :2] + noise > 0, 1, -1).to(torch.int8)
    targets[torch.rand(count, 2, generator=generator) < 0.15] = 0
    return LabeledFeatures(features, targets)


def test_the_mean_is_over_classes_without_their_difficult_images() -> None:
    train, test = random_split(80, 0), random_split(50, 1)
    metrics, details = voc07(train, test, ("cat", "dog"), QUICK)
    found = classify(train.features.numpy(), train.targets.numpy(), test.features.numpy(), QUICK)
    expected = []
    for number, result in enumerate(found):
        labels = test.targets[:, number].tolist()
        pairs = [(s, y) for s, y in zip(result.scores, labels, strict=True) if y != 0]
        scores, positives = [s for s, _ in pairs], [y == 1 for _, y in pairs]
        expected.append(100 * oracle.eleven_point(scores, positives))
        assert len(pairs) < len(labels)
    assert metrics["voc07/cat"] == pytest.approx(expected[0], abs=1e-9)
    assert metrics["voc07_map"] == pytest.approx(np.mean(expected), abs=1e-9)
    assert set(metrics) == {"voc07_map", "voc07_map_all_points", "voc07/cat", "voc07/dog"}
    assert details["costs"] == {"cat": found[0].cost, "dog": found[1].cost}


def test_separable_classes_are_told_apart_perfectly() -> None:
    train, test = random_split(80, 0), random_split(50, 1)
    train, test = (
        LabeledFeatures(torch.eye(2)[(split.targets[:, 0] > 0).long()], split.targets[:, :1])
        for split in (train, test)
    )
    metrics, _ = voc07(train, test, ("cat",), QUICK)
    assert metrics["voc07_map"] == metrics["voc07_map_all_points"] == 100


def test_a_run_is_evaluated_from_the_command_line(
    command: CommandLine,
    trained: Path,
    scenes: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    # The paper's grid takes long to converge on features as poor as a tiny run's.
    monkeypatch.setattr(
        protocols, "SVMSettings", lambda jobs: QUICK.model_copy(update={"jobs": jobs})
    )
    assert command(["evaluate", "voc07", str(run), str(scenes), "--jobs", "1"]) == 0
    assert "voc07_map" in command.out
    (record,) = [json.loads(line) for line in (run / "results.jsonl").read_text().splitlines()]
    assert record["protocol"] == "voc07"
    assert set(record["metrics"]) == {
        "voc07_map",
        "voc07_map_all_points",
        *(f"voc07/{name}" for name in SHAPES),
    }
    details = record["details"]
    assert (details["train_images"], details["test_images"], details["skipped"]) == (60, 30, 0)
    assert record["metrics"]["voc07_map"] > details["chance"]


def test_unreadable_images_are_left_out_with_their_targets(
    trained: Path, scenes: Path, tmp_path: Path
) -> None:
    base = spoilt(scenes, tmp_path)
    for name in ("000001", "000070"):
        (base / "JPEGImages" / f"{name}.jpg").write_bytes(b"not an image")
    console = Console(record=True, quiet=False, file=(tmp_path / "said").open("w"))
    broken = run_voc07(load(trained), open_voc(base), console, QUICK)
    assert broken.details["skipped"] == 2
    assert "1 unreadable images of trainval were left out" in console.export_text()
    for split, name in (("trainval", "000001"), ("test", "000070")):
        for path in (base / "ImageSets" / "Main").glob(f"*{split}.txt"):
            kept = [line for line in path.read_text().splitlines() if not line.startswith(name)]
            path.write_text("\n".join(kept))
    without = run_voc07(load(trained), open_voc(base), Console(quiet=True), QUICK)
    assert broken.metrics == pytest.approx(without.metrics, abs=1e-6)


@pytest.mark.parametrize(
    ("split", "label", "phrases"),
    [
        ("trainval", -1, ["trainval has 0 images with the class 'star', and 3 are needed"]),
        ("trainval", 1, ["trainval has 0 images without the class 'star'"]),
        ("test", -1, ["test has 0 images with the class 'star', and 1 are needed"]),
    ],
)
def test_an_empty_class_is_refused_before_anything_is_encoded(
    split: str,
    label: int,
    phrases: list[str],
    command: CommandLine,
    trained: Path,
    scenes: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = spoilt(scenes, tmp_path) / "ImageSets" / "Main" / f"star_{split}.txt"
    lines = [f"{line.split()[0]} {label}" for line in path.read_text().splitlines()]
    path.write_text("\n".join(lines))
    monkeypatch.setattr("imsvd.evaluation.voc07.extract_features", None)
    command.refuses(["evaluate", "voc07", str(trained), str(tmp_path / "voc")], *phrases)


def test_wrong_folders_are_one_sentence(
    command: CommandLine, trained: Path, scenes: Path, tmp_path: Path
) -> None:
    command.refuses(["evaluate", "voc07", str(trained), str(tmp_path)], "not in VOC's layout")
    command.refuses(["evaluate", "voc07", str(tmp_path), str(scenes)], "is not a run folder")


def test_features_of_two_encoders_or_with_nan_are_refused() -> None:
    train, test = random_split(80, 0), random_split(50, 1)
    with pytest.raises(InputError, match="same encoder"):
        voc07(train, test._replace(features=test.features[:, :3]), ("cat", "dog"), QUICK)
    with pytest.raises(InputError, match="NaN or infinity"):
        voc07(train._replace(features=train.features / 0), test, ("cat", "dog"), QUICK)
