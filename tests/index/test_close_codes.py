"""All close pairs are found, whatever the plan."""

import numpy as np
import pytest

from imsvd.index import close_codes
from imsvd.index.close_codes import PackedCodes, Plan, close_pairs, make_plan
from imsvd.index.columns import Numbers


def codes_with_neighbors(count: int, units: list[int], seed: int = 0) -> Numbers:
    random = np.random.default_rng(seed)
    codes = random.integers(0, units, (count, len(units))).astype(np.uint16)
    for row in range(0, count, 3):  # every third is another with a few variables changed
        codes[row] = codes[random.integers(0, count)]
        changed = random.choice(len(units), random.integers(0, 6), replace=False)
        codes[row, changed] = random.integers(0, np.array(units)[changed])
    return np.unique(codes, axis=0)


@pytest.mark.parametrize("units", [[4] * 20, [2, 3, 300] * 8, [5] * 70])
def test_pairs_by_keys_are_those_of_comparing_all(
    units: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    codes = codes_with_neighbors(240, units)
    all_distances = (codes[:, None] != codes[None]).sum(2)
    first, second = np.triu_indices(len(codes), 1)
    assert (
        PackedCodes(codes, units).distances(first, second) == all_distances[first, second]
    ).all()
    for few in (0, 3000):
        monkeypatch.setattr(close_codes, "FEW_CODES", few)
        monkeypatch.setattr(close_codes, "_CHUNK", 16)
        for distance, equal in ((0, 1), (1, 1), (3, 2), (4, 3)):
            pairs, distances = close_pairs(codes, units, Plan(distance, equal, 0))
            near = all_distances[first, second] <= distance
            assert pairs.tolist() == np.stack([first[near], second[near]], 1).tolist()
            assert distances.tolist() == all_distances[first[near], second[near]].tolist()
            assert len(pairs) > 5 or distance < 2


def test_plans_reduce_distances_that_would_take_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    codes = random.integers(0, 4, (4000, 32)).astype(np.uint8)
    assert make_plan(codes, 5).distance == 5
    monkeypatch.setattr(close_codes, "MOST_WORK", make_plan(codes, 3).work)
    assert make_plan(codes, 5).distance == 3
    assert make_plan(codes[:100], 40).distance == 31
    # Where short keys are shared by many codes, longer ones are worth their sorts.
    monkeypatch.undo()
    coarse = random.integers(0, 2, (60_000, 32)).astype(np.uint8)
    assert make_plan(coarse, 4).equal_blocks > 1
    assert make_plan(coarse[:4000], 4).equal_blocks == 1
