import io
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from imsvd.explanations import encodings
from imsvd.explanations import subject as subjects
from imsvd.explanations.encodings import Pictures, TopImages
from imsvd.explanations.subject import Subject
from imsvd.information import max_probabilities
from tests.explanations.made_up import UNITS, WithGaps, encode, subject
from tests.oracles import explanations as oracle


@pytest.mark.parametrize("chunk", [7, 64])
def test_one_pass_gives_what_all_of_q_would(
    chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subjects, "BATCH", chunk)
    monkeypatch.setattr(encodings, "SAMPLE_IMAGES", 6)
    explained = subject(tmp_path)
    found = encode(explained)
    images = torch.stack([explained.source.read(index) for index in range(20)])
    with torch.no_grad():
        q = explained.encoder.probabilities(images)
        features = explained.encoder.features(images)
    largest = max_probabilities(q, UNITS)
    np.testing.assert_array_equal(found.codes, explained.encoder.codes(images))
    np.testing.assert_allclose(found.confidence, largest, atol=1e-3)
    np.testing.assert_allclose(found.marginals, q.mean(0), atol=1e-6)
    assert found.histogram.sum() == 20 * 3
    assert found.above.tolist() == [int((largest > level).sum()) for level in (0.9, 0.99)]
    assert found.top_images.tolist() == oracle.top_images(q.double().numpy(), 12)
    assert found.feature_rows.tolist() == [0, 3, 6, 10, 13, 16]
    np.testing.assert_allclose(found.features, features[found.feature_rows], rtol=2e-3, atol=1e-3)


def test_unreadable_images_have_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subjects, "BATCH", 4)  # nothing in the first batch can be read
    found = encode(subject(tmp_path, WithGaps("train", count=12)))
    assert found.images.tolist() == [4, 5, 6, 7, 8, 10, 11]
    assert set(found.top_images[0].tolist()) == {4, 5, 6, 7, 8, 10, 11, -1}
    assert len(found.codes) == len(found.features) == 7


def test_a_pass_is_not_repeated_unless_encoder_or_data_change(tmp_path: Path) -> None:
    explained = subject(tmp_path)
    first = encode(explained)
    told: list[int] = []
    again = encode(explained, lambda done, total: told.append(done))
    assert told == []
    for before, after in zip(first, again, strict=True):
        np.testing.assert_array_equal(before, after)
    encode(explained._replace(key="another"), lambda done, total: told.append(done))
    assert told == [0, 20]
    (tmp_path / encodings.FILE_NAME).write_bytes(b"damaged")
    assert len(encode(explained).images) == 20


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 30), st.integers(1, 4), st.integers(1, 6), st.integers(1, 9), st.data())
def test_a_stream_gives_what_sorting_everything_gives_ties_included(
    images: int, width: int, count: int, batch: int, data: st.DataObject
) -> None:
    # Few distinct values, so that ties are everywhere.
    values = st.sampled_from([0.0, 1e-30, 0.25, 0.5, 1.0])
    rows = st.lists(values, min_size=width, max_size=width)
    q = np.array(data.draw(st.lists(rows, min_size=images, max_size=images)))
    top = TopImages(width, count)
    for start in range(0, images, batch):
        part = torch.from_numpy(q[start : start + batch])
        top.add(part, torch.arange(start, start + len(part)))
    found = top.best()
    expected = oracle.top_images(q.astype(np.float32).astype(np.float64), count)
    for unit in range(width):
        kept = min(images, count)
        assert found.images[unit, :kept].tolist() == expected[unit]
        assert found.images[unit, kept:].tolist() == [-1] * (count - kept)
        scores = -np.expm1(-q[expected[unit], unit].astype(np.float32))
        np.testing.assert_allclose(found.scores[unit, :kept], scores, rtol=1e-6)


def test_the_order_in_which_images_come_does_not_matter() -> None:
    q = torch.rand(50, 3).mul(4).round() / 4
    forwards, backwards = TopImages(3, 7), TopImages(3, 7)
    forwards.add(q, torch.arange(50))
    for index in range(49, -1, -1):
        backwards.add(q[index : index + 1], torch.tensor([index]))
    assert torch.equal(forwards.best().images, backwards.best().images)


@pytest.mark.parametrize("side", [32, 200])
def test_pictures_are_kept_without_being_read_again(side: int, tmp_path: Path) -> None:
    crop = torch.arange(side, dtype=torch.uint8).expand(3, side, side)
    content = encodings.encode_picture(crop)
    picture = Image.open(io.BytesIO(content))
    assert picture.width == min(side, encodings.PICTURE_SIDE)
    assert picture.format == ("PNG" if side == 32 else "JPEG")
    if side == 32:
        np.testing.assert_array_equal(np.array(picture), crop.permute(1, 2, 0))


def test_kept_pictures_are_the_images_and_others_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subjects, "BATCH", 7)
    monkeypatch.setattr(encodings, "SAMPLE_IMAGES", 2)
    monkeypatch.setattr(encodings, "GALLERY_IMAGES", 1)
    explained = subject(tmp_path)
    found = encode(explained)
    kept = {*found.top_images.flatten().tolist(), *found.feature_rows.tolist()}
    assert len(kept) < 20
    expected = [explained.crop(index) for index in range(20)]
    read: list[int] = []

    def crop(_: Subject, index: int) -> torch.Tensor:
        read.append(index)
        return expected[index]

    monkeypatch.setattr(Subject, "crop", crop)
    pictures = Pictures(explained)
    for index in range(20):
        assert torch.equal(pictures.crop(index), expected[index])
        assert pictures.thumbnail(index).size == (48, 48)
    assert set(read) == set(range(20)) - kept


def test_only_crops_larger_than_kept_pictures_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encodings, "PICTURE_SIDE", 16)
    explained = subject(tmp_path)
    encode(explained)
    read: list[int] = []

    def crop(found: Subject, index: int) -> torch.Tensor:
        read.append(index)
        return found.source.read(index)

    monkeypatch.setattr(Subject, "crop", crop)
    pictures = Pictures(explained)
    assert pictures.thumbnail(3).size == (48, 48)
    assert read == []
    assert torch.equal(pictures.crop(3), explained.source.read(3))
    assert read == [3]
