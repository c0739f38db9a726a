import pytest
import torch

from imsvd.datasets.drawn.shapes import ShapesSource
from imsvd.datasets.sources import Subset


def test_a_subset_is_the_chosen_pictures_with_all_that_is_known_of_them() -> None:
    whole = ShapesSource(count=20)
    part = Subset(whole, [7, 3, 11])
    assert len(part) == 3
    assert torch.equal(part.read(1), whole.read(3))
    assert torch.equal(torch.stack(part.read_many([2, 0])), whole.render([11, 7]))
    assert whole.labels is not None
    assert part.labels is not None
    assert part.labels.tolist() == whole.labels[[7, 3, 11]].tolist()
    assert part.attributes["color"].tolist() == whole.attributes["color"][[7, 3, 11]].tolist()
    assert part.identity(0) == "shapes/train/7"
    assert part.size(0) == (32, 32)


def test_another_choice_has_another_fingerprint() -> None:
    whole = ShapesSource(count=20)
    prints = {Subset(whole, chosen).fingerprint() for chosen in ([1, 2], [2, 1], [1, 2, 3])}
    assert len(prints) == 3


def test_an_index_beyond_the_end_is_an_error() -> None:
    with pytest.raises(IndexError):
        Subset(ShapesSource(count=20), [1, 2]).read(2)
