from pathlib import Path

import numpy as np
import pytest
import torch

from imsvd.datasets import ShapesSource, UnreadableImage, open_source
from imsvd.errors import InputError
from imsvd.explanations import encodings
from imsvd.explanations.encodings import encode
from imsvd.information import max_probabilities
from tests.explanations.made_up import UNITS, subject
from tests.oracles import explanations as oracle
from tests.test_api import write_images


@pytest.mark.parametrize("chunk", [7, 64])
def test_one_pass_gives_what_all_of_q_would(
    chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encodings, "_CHUNK", chunk)
    monkeypatch.setattr(encodings, "FEATURE_IMAGES", 6)
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


class WithGaps(ShapesSource):
    """Some pictures cannot be read."""

    gaps = frozenset({0, 1, 2, 3, 9})

    def read(self, index: int) -> torch.Tensor:
        if index in self.gaps:
            raise UnreadableImage(self.identity(index), "truncated")
        return super().read(index)

    def read_many(self, indices: object) -> list[torch.Tensor]:
        return [self.read(index) for index in indices]  # type: ignore[attr-defined]


def test_unreadable_images_have_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encodings, "_CHUNK", 4)  # nothing in the first chunk can be read
    found = encode(subject(tmp_path, WithGaps("train", count=12)))
    assert found.images.tolist() == [4, 5, 6, 7, 8, 10, 11]
    assert set(found.top_images[0].tolist()) == {4, 5, 6, 7, 8, 10, 11, -1}
    assert len(found.codes) == len(found.features) == 7


def test_nothing_readable_is_one_sentence(tmp_path: Path) -> None:
    data = write_images(tmp_path / "data", 3)
    for path in data.iterdir():
        path.write_bytes(b"")
    with pytest.raises(InputError, match="none of the 3 images"):
        encode(subject(tmp_path / "out", open_source(data)))


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
