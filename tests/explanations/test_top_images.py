import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from imsvd.explanations.top_images import TopImages
from tests.oracles import explanations as oracle


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
        scores = q[expected[unit], unit].astype(np.float32)
        np.testing.assert_array_equal(found.scores[unit, :kept], scores)


def test_the_order_in_which_images_come_does_not_matter() -> None:
    q = torch.rand(50, 3).mul(4).round() / 4
    forwards, backwards = TopImages(3, 7), TopImages(3, 7)
    forwards.add(q, torch.arange(50))
    for index in range(49, -1, -1):
        backwards.add(q[index : index + 1], torch.tensor([index]))
    assert torch.equal(forwards.best().images, backwards.best().images)
