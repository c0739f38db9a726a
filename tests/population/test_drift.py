import numpy as np
import pytest

from imsvd.errors import InputError
from imsvd.population import ImageSet, measure_drift
from imsvd.population.drift import WEIGHTS, unit_shifts
from tests.population.made_up import independent

UNITS = (4,) * 6


def looks(images: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(images, 8)).astype(np.float32)


def test_a_moved_unit_is_named_with_images_that_show_it() -> None:
    first, second = independent(400, UNITS), independent(300, UNITS, 1)
    second[:100, 3] = 2
    drift = measure_drift(ImageSet(first), ImageSet(second), UNITS)
    assert drift.drifted
    assert drift.images == (400, 300)
    assert [shift.name for shift in drift.moved] == ["3"]
    variable, unit = unit_shifts(drift)[0]
    assert (variable.name, unit.name, unit.gained) == ("3", "3.2", True)
    assert unit.shares[1] == pytest.approx((second[:, 3] == 2).mean())
    assert variable.moved == pytest.approx(
        sum(abs(b - a) for a, b in (u.shares for u in variable.units)) / 2
    )
    assert len(unit.examples) == 12
    assert (second[list(unit.examples), 3] == 2).all()
    lost = next(unit for unit in variable.units if not unit.gained)
    assert (first[list(lost.examples), 3] == int(lost.name[2:])).all()
    # Images that are not shown are not looked up.
    assert not any(unit.examples for shift in drift.variables[1:] for unit in shift.units)


def test_images_typical_of_a_lost_group_come_first() -> None:
    first, second = independent(500, UNITS), independent(500, UNITS, 1)
    first[:60] = 1
    drift = measure_drift(ImageSet(first), ImageSet(second), UNITS)
    assert drift.drifted
    assert set(drift.typical[0]) <= set(range(60))
    moved = next(unit for _, unit in unit_shifts(drift) if not unit.gained)
    assert set(moved.examples) <= set(range(60))


def test_a_change_of_appearance_alone_is_found_and_named() -> None:
    a, b = looks(200, 0), looks(150, 1)
    b[:, 5] -= 0.8
    places = np.arange(0, 600, 4)
    drift = measure_drift(
        ImageSet(independent(200, UNITS), a, np.arange(200)),
        ImageSet(independent(600, UNITS, 1), b, places),
        UNITS,
    )
    assert drift.families["codes"] > 0.05
    assert drift.p_value == pytest.approx(drift.families["appearance"] / WEIGHTS["appearance"])
    assert [shift.name for shift in drift.moved] == ["sharpness"]
    _, unit = unit_shifts(drift)[0]
    assert unit.name in ("sharpness: lowest quarter", "sharpness: highest quarter")
    lowest = next(unit for unit in drift.moved[0].units if "lowest" in unit.name)
    assert lowest.gained
    assert all(image in places for image in lowest.examples)
    shown = b[np.searchsorted(places, lowest.examples), 5]
    assert (shown < np.quantile(np.concatenate([a, b])[:, 5], 0.25)).all()


def test_no_alarm_names_anything_and_alarms_are_rare() -> None:
    alarms = 0
    for seed in range(120):
        sets = [
            ImageSet(
                independent(50, UNITS, 2 * seed + k), looks(50, 900 + 2 * seed + k), np.arange(50)
            )
            for k in range(2)
        ]
        drift = measure_drift(sets[0], sets[1], UNITS, level=0.1, permutations=199, seed=seed)
        alarms += drift.drifted
        if not drift.drifted:
            assert not drift.moved
            assert not unit_shifts(drift)
    assert 3 <= alarms <= 22


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [({"level": 0.0}, "level = 0"), ({"level": 0.05, "permutations": 50}, "choose at least 200")],
)
def test_a_level_that_cannot_be_reached_is_refused(
    settings: dict[str, float], sentence: str
) -> None:
    codes = ImageSet(independent(20, UNITS))
    with pytest.raises(InputError, match=sentence):
        measure_drift(codes, codes, UNITS, **settings)  # type: ignore[arg-type]
