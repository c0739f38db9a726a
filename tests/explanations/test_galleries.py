from typing import Any

import numpy as np

from imsvd.explanations.galleries import choose_units, common_values, listed_units
from imsvd.explanations.meaning import Attribute


def _listing(units: list[tuple[int, int, int, list[int], float]]) -> dict[str, Any]:
    return {
        "variables": [
            {
                "variable": variable,
                "units": [
                    {
                        "unit": unit,
                        "images_taking_it": taking,
                        "top": [{"index": index, "score": score} for index in images],
                    }
                ],
            }
            for variable, unit, taking, images, score in units
        ]
    }


def test_chosen_units_are_confident_and_different() -> None:
    listing = _listing(
        [
            (0, 1, 5, [0, 1, 2, 3], 0.9),
            (0, 2, 5, [4, 5, 6, 7], 0.8),  # the variable has had its turn
            (1, 3, 5, [2, 3, 8, 9], 0.95),  # the most confident
            (2, 0, 5, [2, 3, 10, 11], 0.7),  # half of it was shown
            (3, 0, 5, [3, 12, 13, 14], 0.6),  # a quarter may be
            (4, 0, 0, [20, 21, 22, 23], 0.99),  # no image takes it
            (5, 0, 5, [], 0.99),
        ]
    )
    chosen = choose_units(listed_units(listing), 12)
    assert [(unit.variable, unit.unit) for unit in chosen] == [(1, 3), (0, 2), (3, 0)]
    assert len(choose_units(listed_units(listing), 1)) == 1


def test_common_values_are_those_beyond_their_share() -> None:
    values = np.array([0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, -1])
    attributes = {"kind": Attribute(values, ("rare", "frequent"))}
    assert common_values(attributes, [0, 1, 3, 2]) == [("kind", "rare", 3)]
    assert common_values(attributes, [3, 4, 5, 6]) == []  # frequent everywhere
    assert common_values(attributes, [11]) == []
    assert common_values({"kind": Attribute(values, ())}, [0, 1]) == [("kind", "0", 2)]
