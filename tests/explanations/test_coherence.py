"""Coherence of units: numbers against the oracle, the judge, resuming, and the report."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from imsvd.datasets import ShapesSource
from imsvd.encoder import Encoder
from imsvd.errors import Interrupted
from imsvd.evaluation.features import center_crop
from imsvd.explanations import coherence as part
from imsvd.explanations import explain, subject
from imsvd.explanations.coherence import JudgeCollector, coherence
from imsvd.explanations.encodings import Encodings, EncodingsCollector
from imsvd.explanations.sections import Findings
from imsvd.explanations.subject import Judge, Subject, read_images
from tests.explanations import made_up
from tests.export.networks import encoder
from tests.oracles import code_measures as oracle
from tests.pretraining.test_pretrain import write_images
from tests.pretraining.tiny import CommandLine

UNITS = (2, 3)


def drawn(count: int = 60) -> Encodings:
    random = np.random.default_rng(0)
    codes = random.integers(0, UNITS, (count, 2))
    features = random.normal(0.2, 1, (count, 4)) + np.eye(4)[codes[:, 0]]
    found = made_up.encodings(codes, features)
    return found._replace(top_images=np.tile(np.arange(12), (5, 1)))


class TestRecord:
    def test_values_are_those_of_the_definitions(self) -> None:
        encodings, source = drawn(), ShapesSource("train", count=60)
        record = coherence(encodings, UNITS, source)
        assert source.labels is not None
        labels = source.labels.tolist()
        features = encodings.features.astype(np.float64)
        sets = oracle.image_sets(encodings.codes.astype(np.int64), UNITS)
        for unit, images in zip(record["units"], sets, strict=True):
            assert unit["images"] == len(images)
            alike = oracle.similarity(images, features)
            assert unit["monosemanticity"] == pytest.approx(alike, abs=1e-4)
            assert unit["purity"] == pytest.approx(oracle.purity(images, labels), abs=1e-4)
            found = [source.classes[labels[image]] for image in images]
            assert found.count(unit["label"]) == max(map(found.count, found))
        numbers = [(unit["variable"], unit["unit"]) for unit in record["units"]]
        assert numbers == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]
        overall = record["scores"]["monosemanticity"]
        everything = oracle.similarity(set(range(60)), features)
        assert overall["by_chance"] == pytest.approx(everything, abs=1e-4)

    def test_a_sample_of_features_measures_only_its_images(self) -> None:
        whole = drawn()
        rows = np.arange(0, 60, 2)
        sampled = whole._replace(feature_rows=rows, features=whole.features[rows])
        record = coherence(sampled, UNITS, ShapesSource("train", count=60))
        half = {int(i) for i in np.flatnonzero(whole.codes[rows, 0] == 0)}
        expected = oracle.similarity(half, whole.features[rows].astype(np.float64))
        assert record["units"][0]["monosemanticity"] == pytest.approx(expected, abs=1e-4)
        assert record["units"][0]["images"] == int((whole.codes[:, 0] == 0).sum())
        assert (record["images"], record["sample"]) == (60, 30)

    def test_units_are_ranked_by_the_judge_if_there_is_one(self) -> None:
        encodings = drawn()
        # The judge sees only the second variable, the encoder only the first.
        own = np.eye(4)[encodings.codes[:, 0]]
        other = np.eye(4)[encodings.codes[:, 1]]
        encodings = encodings._replace(features=own.astype(np.float16))
        source = ShapesSource("train", count=60)
        judged: dict[str, NDArray[Any]] = {
            "images": encodings.images,
            "features": other.astype(np.float16),
        }
        alone, both = (
            coherence(encodings, UNITS, source),
            coherence(encodings, UNITS, source, judged),
        )
        assert {each["place"] for each in alone["most_alike"]} == {0, 1}
        assert {each["place"] for each in both["most_alike"]} <= {2, 3, 4}
        assert {each["place"] for each in both["least_alike"]} == {0, 1}
        assert both["units"][0]["monosemanticity"] == 1
        assert both["units"][2]["judged_monosemanticity"] == 1
        assert both["units"][0]["judged_monosemanticity"] < 0.6

    def test_an_image_the_encodings_lack_is_left_out(self) -> None:
        encodings = drawn()
        features = np.random.default_rng(1).normal(size=(60, 3)).astype(np.float16)
        judged: dict[str, NDArray[Any]] = {"images": np.arange(60), "features": features}
        without = encodings._replace(
            images=encodings.images[1:],
            codes=encodings.codes[1:],
            feature_rows=np.arange(59),
            features=encodings.features[1:],
        )
        record = coherence(without, UNITS, ShapesSource("train", count=60), judged)
        images = {int(i) for i in np.flatnonzero(encodings.codes[:, 0] == 0)} - {0}
        expected = oracle.similarity(images, features.astype(np.float64))
        assert record["units"][0]["judged_monosemanticity"] == pytest.approx(expected, abs=1e-4)

    def test_small_and_empty_units_are_not_examples(self) -> None:
        codes = np.zeros((50, 1), dtype=np.int64)
        codes[:3] = 1
        codes[3:20] = 2
        features = np.random.default_rng(0).normal(size=(50, 4))
        encodings = made_up.encodings(codes, features)._replace(top_images=np.full((4, 12), -1))
        record = coherence(encodings, (4,), ShapesSource("train", count=50))
        shown = [each["place"] for name in ("most_alike", "least_alike") for each in record[name]]
        assert sorted(shown) == [0, 2]
        assert record["units"][3]["monosemanticity"] is None
        assert record["units"][3]["label"] is None
        json.dumps(record, allow_nan=False)


def other_encoder(size: int = 48) -> Encoder:
    torch.manual_seed(5)
    return encoder(size=size, stem="stride_1", options={"channels": [8] * 4, "layers": [1] * 4})


def judged_subject(folder: Path) -> Subject:
    return made_up.subject(folder)._replace(judge=Judge("other", other_encoder(), "0123abcd"))


class TestJudge:
    def test_sees_whole_images_at_its_own_size(self, tmp_path: Path) -> None:
        explained = judged_subject(tmp_path)
        assert explained.judge is not None
        found = read_images(explained, [EncodingsCollector, JudgeCollector])[JudgeCollector]
        assert found["images"].tolist() == list(range(20))
        crop = center_crop(explained.source.read(7), 48)
        with torch.no_grad():
            expected = explained.judge.encoder(crop[None])[0]
        expected = expected / expected.norm()
        np.testing.assert_allclose(found["features"][7], expected.numpy(), atol=2e-3)

    def test_sees_only_a_sample_and_no_unreadable_images(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(JudgeCollector, "sample", 5)
        explained = judged_subject(tmp_path)
        explained = explained._replace(source=made_up.WithGaps("train", count=20))
        found = read_images(explained, [EncodingsCollector, JudgeCollector])[JudgeCollector]
        assert found["images"].tolist() == [4, 8, 12, 16]
        assert len(found["features"]) == 4

    def test_of_other_weights_does_not_find_the_stored_features(self, tmp_path: Path) -> None:
        explained = judged_subject(tmp_path)
        assert explained.judge is not None
        read_images(explained, [JudgeCollector])
        assert JudgeCollector.stored(explained) is not None
        changed = explained._replace(judge=explained.judge._replace(key="other"))
        assert JudgeCollector.stored(changed) is None


def read(run: Path, name: str) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((run / "explanations" / name).read_text())
    return record


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


@pytest.fixture
def other(trained: Path, tmp_path: Path) -> str:
    """An encoder with other weights than the run's."""
    return f"untrained:{shutil.copytree(trained, tmp_path / 'other')}"


def test_a_judge_is_added_to_a_finished_explanation(
    run: Path, other: str, command: CommandLine
) -> None:
    explain(run, "shapes:64", only=["coherence"])
    before = read(run, "coherence.json")
    assert before["judge"] is None
    stored = run / "explanations" / "encodings.safetensors"
    made = stored.stat().st_mtime_ns
    base = ["explain", str(run), "shapes:64", "--only", "coherence"]
    assert command([*base, "--judge", other]) == 0
    assert "already finished" not in command.out
    after = read(run, "coherence.json")
    assert after["judge"] == other
    assert after["scores"]["monosemanticity"] == before["scores"]["monosemanticity"]
    own, judged = (
        after["scores"][name]["mean"] for name in ("monosemanticity", "judged_monosemanticity")
    )
    assert own != judged
    assert stored.stat().st_mtime_ns == made
    for judge in ([], ["--judge", other]):  # kept, and not repeated
        assert command([*base, *judge]) == 0
        assert "coherence: already finished" in command.out
    command.refuses([*base, "--judge", "timm:resnet51"], "is not a model of timm")
    command.refuses([*base[:-1], "joint", "--judge", other], "nothing to judge", "add coherence")
    page = (run / "explanations" / "report.html").read_text()
    assert "those of a judge" in page


def test_the_pass_of_a_judge_resumes(
    run: Path, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "BATCH", 8)
    monkeypatch.setattr(subject, "SAVE_INTERVAL", 0.0)
    monkeypatch.setattr(subject, "_SAVE_COST", float("inf"))
    seen: list[int] = []
    original = ShapesSource.read_many

    def stop_once(source: ShapesSource, indices: Sequence[int]) -> list[torch.Tensor]:
        seen.extend(indices)
        if seen.count(24) == 1 and indices[0] == 24:
            raise KeyboardInterrupt
        return original(source, indices)

    monkeypatch.setattr(ShapesSource, "read_many", stop_once)
    with pytest.raises(Interrupted):
        explain(run, "shapes:40", only=["coherence"], judge=other)
    seen[:] = [24]
    explain(run, "shapes:40", only=["coherence"], judge=other)
    assert seen[1:] == list(range(24, 40))
    resumed = read(run, "coherence.json")
    shutil.rmtree(run / "explanations")
    explain(run, "shapes:40", only=["coherence"], judge=other)
    assert read(run, "coherence.json") == resumed


def test_without_labels_there_is_no_purity(run: Path, tmp_path: Path) -> None:
    data = write_images(tmp_path / "data", 30)
    summary = explain(run, data, only=["coherence"])
    assert set(summary["parts"]["coherence"]) == {"monosemanticity", "monosemanticity_by_chance"}
    assert "purity" not in read(run, "coherence.json")["units"][0]
    page = (run / "explanations" / "report.html").read_text()
    assert "Coherence of units" in page
    assert ">purity<" not in page


def test_an_explanation_without_the_part_has_no_section(run: Path) -> None:
    explain(run, "shapes:32", only=["discreteness"])
    summary = read(run, "summary.json")
    assert "judge" not in summary
    explained = made_up.subject(run / "explanations")
    assert part.PART.section(Findings(explained, summary)) is None
    assert "Coherence of units" not in (run / "explanations" / "report.html").read_text()


def test_examples_are_shown_with_label_and_similarity(run: Path) -> None:
    explain(run, "shapes:128", only=["coherence"])
    record = read(run, "coherence.json")
    page = (run / "explanations" / "report.html").read_text()
    assert "Units whose images are most alike" in page
    best = record["units"][record["most_alike"][0]["place"]]
    worst = record["units"][record["least_alike"][0]["place"]]
    for unit in (best, worst):
        note = f"taken by {unit['images']:,} images · monosemanticity {unit['monosemanticity']:.2f}"
        assert note in page
        assert f"Variable {unit['variable']}, unit {unit['unit']}" in page
    assert best["monosemanticity"] > worst["monosemanticity"]
