"""Keys tell encoders and images apart; one pass decodes each image once, and resumes."""

import time
from pathlib import Path

import numpy as np
import pytest
import torch

from imsvd.datasets import ShapesSource, open_source
from imsvd.encoder import load
from imsvd.errors import InputError
from imsvd.explanations import subject as subjects
from imsvd.explanations.embeddings import PairSample
from imsvd.explanations.encodings import EncodingsCollector
from imsvd.explanations.faithfulness import CropSample
from imsvd.explanations.joint import JointCollector, JointMatrix
from imsvd.explanations.subject import (
    PARTIAL_NAME,
    Collector,
    PartialPass,
    Progress,
    ReadBatch,
    Subject,
    explanation_key,
    is_of_encoder,
    read_images,
    view_probabilities,
)
from imsvd.views import batch_views
from tests.explanations.made_up import UNITS, WithGaps, subject
from tests.pretraining.test_pretrain import write_images

EVERY = (JointCollector, PairSample, EncodingsCollector, CropSample)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_images(tmp_path / "images", 5)


def key(run: Path, images: Path) -> str:
    encoder = load(run)
    return explanation_key(encoder.description, encoder.state_dict(), open_source(images))


def test_other_images_of_the_same_names_have_another_key(
    trained: Path, folder: Path, tmp_path: Path
) -> None:
    before = key(trained, folder)
    moved = folder.rename(tmp_path / "moved")
    assert key(trained, moved) == before
    first, *_, last = sorted(moved.iterdir())
    last.write_bytes(first.read_bytes())
    assert key(trained, moved) != before


def test_the_encoder_is_known_without_the_images(trained: Path, folder: Path) -> None:
    encoder = load(trained)
    made = key(trained, folder)
    weights = encoder.state_dict()
    assert is_of_encoder(made, encoder.description, weights)
    changed = {name: value + 1 for name, value in weights.items()}
    assert not is_of_encoder(made, encoder.description, changed)


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read 4 images at a time and save after each batch."""
    monkeypatch.setattr(subjects, "SAVE_INTERVAL", 0.0)
    monkeypatch.setattr(subjects, "_SAVE_COST", float("inf"))
    monkeypatch.setattr(subjects, "BATCH", 4)


def stop_at(number: int) -> Progress:
    def progress(done: int, _: int) -> None:
        if done >= number:
            raise KeyboardInterrupt

    return progress


def assert_same(found: object, expected: object) -> None:
    """Compare results of collectors."""
    if isinstance(found, JointMatrix):
        assert isinstance(expected, JointMatrix)
        assert found.count == expected.count
        for name, value in expected.sums.items():
            assert torch.equal(found.sums[name], value)
    elif isinstance(found, Collector):
        assert isinstance(expected, Collector)
        for name in expected.rows:
            np.testing.assert_array_equal(found.joined(name), expected.joined(name))
    elif isinstance(found, torch.Tensor):
        assert torch.equal(found, expected)  # type: ignore[arg-type]
    else:
        for one, other in zip(found, expected, strict=True):  # type: ignore[call-overload]
            np.testing.assert_array_equal(one, other)


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("kinds", [EVERY, (JointCollector,), (EncodingsCollector,)])
def test_a_stopped_pass_resumes_and_ends_as_if_it_had_not_been_stopped(
    kinds: tuple[type[Collector], ...], tmp_path: Path
) -> None:
    whole = read_images(subject(tmp_path / "whole"), kinds)
    stopped = subject(tmp_path / "stopped")
    with pytest.raises(KeyboardInterrupt):
        read_images(stopped, kinds, stop_at(12))
    assert (stopped.folder / PARTIAL_NAME).exists()
    progress: list[int] = []
    resumed = read_images(stopped, kinds, lambda done, _: progress.append(done))
    assert progress == [12, 16, 20]
    for kind in kinds:
        assert_same(resumed[kind], whole[kind])


@pytest.mark.usefixtures("small_batches")
def test_results_in_memory_survive_an_interruption_after_the_pass(tmp_path: Path) -> None:
    explained = subject(tmp_path)
    first = read_images(explained, EVERY)
    progress: list[int] = []
    again = read_images(
        explained, (JointCollector, EncodingsCollector), lambda done, _: progress.append(done)
    )
    assert progress == [20]
    for kind in again:
        assert_same(again[kind], first[kind])


@pytest.mark.usefixtures("small_batches")
def test_a_pass_for_other_parts_starts_anew(tmp_path: Path) -> None:
    explained = subject(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        read_images(explained, [JointCollector], stop_at(8))
    progress: list[int] = []
    found = read_images(explained, EVERY, lambda done, _: progress.append(done))
    assert progress[0] == 0
    assert found[JointCollector].count == 20


def test_only_wanted_images_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CropSample, "sample", 5)
    read: list[int] = []

    class Counting(ShapesSource):
        def read_many(self, indices: object) -> list[torch.Tensor]:
            read.extend(indices)  # type: ignore[arg-type]
            return super().read_many(indices)  # type: ignore[arg-type]

    found = read_images(subject(tmp_path, Counting("train", count=20)), [CropSample])
    assert read == [0, 4, 8, 12, 16]
    assert found[CropSample].shape == (5, 3, 32, 32)


def test_unreadable_images_are_left_out_of_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subjects, "BATCH", 4)  # nothing in the first batch can be read
    found = read_images(subject(tmp_path, WithGaps("train", count=12)), EVERY)
    assert found[JointCollector].count == 7
    assert found[PairSample].joined("images").tolist() == [4, 5, 6]
    assert len(found[CropSample]) == len(found[EncodingsCollector].images) == 7


def test_nothing_readable_is_one_sentence(tmp_path: Path) -> None:
    data = write_images(tmp_path / "data", 3)
    for path in data.iterdir():
        path.write_bytes(b"")
    with pytest.raises(InputError, match="none of the 3 images"):
        read_images(subject(tmp_path / "out", open_source(data)), EVERY)


class Views(Collector):
    """Keeps all batches."""

    name = "views"
    uses_views = True

    def __init__(self, explained: Subject) -> None:
        super().__init__(explained)
        self.batches: list[ReadBatch] = []

    def take(self, batch: ReadBatch) -> None:
        self.batches.append(batch)


@pytest.mark.parametrize("batch_size", [3, 7])
def test_views_are_those_of_training_in_batches_of_any_size(
    batch_size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subjects, "BATCH", batch_size)
    explained = subject(tmp_path, ShapesSource("train", count=7))
    images = torch.stack([explained.source.read(index) for index in range(7)])
    expected = batch_views(images, explained.views, seed=0, epoch=0, indices=np.arange(7))
    batches = read_images(explained, [Views])[Views].batches
    assert [index for batch in batches for index in batch.indices] == list(range(7))
    for view in (0, 1):
        made = torch.cat([batch.views[view] for batch in batches])
        torch.testing.assert_close(made, expected[view], rtol=0, atol=1e-5)


class OddOnes(ShapesSource):
    """Some images have another size than their headers promise."""

    def read(self, index: int) -> torch.Tensor:
        image = super().read(index)
        return image[:, :20] if index % 3 == 1 else image

    def read_many(self, indices: object) -> list[torch.Tensor]:
        return [self.read(index) for index in indices]  # type: ignore[attr-defined]


def test_views_stay_in_the_order_of_the_images(tmp_path: Path) -> None:
    odd = read_images(subject(tmp_path, OddOnes("train", count=7)), [Views])[Views].batches
    plain = read_images(subject(tmp_path, ShapesSource("train", count=7)), [Views])[Views].batches
    assert odd[0].indices == list(range(7))
    for index in (0, 2, 3, 5, 6):
        torch.testing.assert_close(odd[0].views[0][index], plain[0].views[0][index])


def test_the_joint_matrix_of_a_dataset_equals_the_dense_one(tmp_path: Path) -> None:
    explained = subject(tmp_path)
    progress: list[tuple[int, int]] = []
    found = read_images(
        explained, [JointCollector, Views], lambda done, total: progress.append((done, total))
    )
    (batch,) = found[Views].batches
    with torch.no_grad():
        q1, q2 = (view_probabilities(explained.encoder, view).double() for view in batch.views)
    dense = q1.T @ q2 / 20
    rows = found[JointCollector].rows(0, sum(UNITS))
    np.testing.assert_allclose(rows, dense, rtol=0, atol=1e-7)
    assert progress[-1] == (20, 20)


def test_the_state_of_others_and_damaged_ones_are_not_used(tmp_path: Path) -> None:
    path = tmp_path / "state.npz"
    saved = PartialPass(path, "mine")
    assert saved.read() is None
    saved.save({"done": np.array(3)})
    state = saved.read()
    assert state is not None
    assert list(state) == ["done"]
    assert int(state["done"]) == 3
    assert PartialPass(path, "other").read() is None
    content = path.read_bytes()
    for damaged in (b"", content[: len(content) // 2], b"nothing of the kind"):
        path.write_bytes(damaged)
        assert saved.read() is None
    saved.remove()
    saved.remove()


def test_saving_keeps_to_its_interval_and_its_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr(subjects, "SAVE_INTERVAL", 15.0)
    monkeypatch.setattr(subjects, "_SAVE_COST", 0.05)
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    saved = PartialPass(tmp_path / "state.npz", "key")
    made: list[float] = []

    def slow_state() -> dict[str, np.ndarray]:
        made.append(clock[0])
        clock[0] += 2.0
        return {"done": np.array(0)}

    for _ in range(60):
        clock[0] += 1.0
        saved.save_when_due(slow_state)
    # The first after 15 s; it took 2 s, and 2 s are 5 % of 40 s.
    assert made == [115.0, 157.0]
