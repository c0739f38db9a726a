import numpy as np
import pytest

from imsvd.errors import InputError
from imsvd.population import select_images
from tests.oracles.population import facility_location, greedy
from tests.population.made_up import dependent


def as_tuples(codes: np.ndarray) -> list[tuple[int, ...]]:
    return [tuple(code) for code in codes.tolist()]


def test_choices_are_those_of_the_plain_greedy_rule() -> None:
    codes = np.unique(dependent(60, 6, 4), axis=0)
    found = select_images(codes, (4,) * 6, 8)
    expected = greedy(as_tuples(codes), 8)
    for number in range(1, 9):
        value = facility_location(as_tuples(codes), found.images[:number])
        best = facility_location(as_tuples(codes), expected[:number])
        assert value == pytest.approx(best, rel=1e-4)
        assert found.represented[number - 1] == pytest.approx(value / len(codes), rel=1e-4)


def test_a_beginning_of_a_plan_is_the_smaller_plan() -> None:
    codes = dependent(200, 8, 4)
    assert select_images(codes, (4,) * 8, 30).images[:7] == select_images(codes, (4,) * 8, 7).images


def test_labeled_images_are_neither_chosen_nor_represented_twice() -> None:
    codes = np.repeat(np.eye(4, dtype=np.uint8), [40, 30, 20, 10], axis=0)
    first = select_images(codes, (2,) * 4, 2)
    assert [int(codes[image].argmax()) for image in first.images] == [0, 1]
    more = select_images(codes, (2,) * 4, 2, given=first.images)
    assert [int(codes[image].argmax()) for image in more.images] == [2, 3]
    assert more.represented[-1] == pytest.approx(1)


def test_samples_of_many_images_represent_all(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = dependent(3000, 8, 4)
    whole = facility_location(as_tuples(codes), select_images(codes, (4,) * 8, 20).images)
    monkeypatch.setattr("imsvd.population.selection.REPRESENTED", 500)
    monkeypatch.setattr("imsvd.population.selection.CANDIDATES", 500)
    sampled = select_images(codes, (4,) * 8, 20)
    assert len(set(sampled.images)) == 20
    assert max(sampled.images) > 1000
    assert facility_location(as_tuples(codes), sampled.images) > 0.9 * whole
    assert select_images(codes, (4,) * 8, 20, seed=1).images != sampled.images


@pytest.mark.parametrize("count", [0, 6])
def test_more_images_than_there_are_cannot_be_chosen(count: int) -> None:
    with pytest.raises(InputError, match="between 1 and 5"):
        select_images(dependent(7, 3, 4), (4,) * 3, count, given=(0, 3))
