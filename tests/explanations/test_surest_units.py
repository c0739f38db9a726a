from typing import Any

import numpy as np

from imsvd.explanations.encodings import Encodings
from imsvd.explanations.part_making import surest_units

UNITS = (2, 3, 2)


def encodings(scores: list[float], images: list[list[int]]) -> Encodings:
    """Seven units, each with the same score for all of its best images."""
    found: dict[str, Any] = dict.fromkeys(Encodings._fields, np.zeros(0))
    found["top_scores"] = np.array(scores, dtype=np.float32)[:, None].repeat(2, axis=1)
    found["top_images"] = np.array(images)
    return Encodings(**found)


def test_the_surest_unit_of_each_variable_surest_first() -> None:
    apart = [[2 * place, 2 * place + 1] for place in range(7)]
    found = surest_units(encodings([0.1, 0.5, 0.2, 0.9, 0.3, 0.7, 0.6], apart), UNITS, 3)
    assert found == [(1, 1, 3), (2, 0, 5), (0, 1, 1)]
    assert surest_units(encodings([0.5] * 7, apart), UNITS, 2) == [(0, 0, 0), (1, 0, 2)]


def test_a_unit_that_shows_images_again_gives_way_to_another_of_its_variable() -> None:
    scores = [0.9, 0.1, 0.8, 0.2, 0.1, 0.7, 0.1]
    images = [[0, 1], [9, 9], [1, 2], [3, 4], [9, 9], [5, -1], [9, 9]]
    found = surest_units(encodings(scores, images), UNITS, 3)
    assert found == [(0, 0, 0), (2, 0, 5), (1, 1, 3)]


def test_where_all_show_the_same_images_they_are_shown_nevertheless() -> None:
    found = surest_units(encodings([0.9, 0.1, 0.8, 0.2, 0.1, 0.7, 0.1], [[0, 1]] * 7), UNITS, 3)
    assert found == [(0, 0, 0), (1, 0, 2), (2, 0, 5)]
