"""The size of a code, chosen without labels."""

from pathlib import Path

import pytest

from imsvd.discretizing.capacity import CodeSize, Trial, choose_size, ladder, read_trials
from imsvd.discretizing.held_out import fewest_images
from imsvd.discretizing.run import measurable_sizes
from imsvd.errors import InputError


def test_the_ladder_has_every_size_that_the_images_can_fill() -> None:
    assert ladder(None, None, 10_000)[:2] == [CodeSize(5, 8), CodeSize(16, 2)]
    assert {size.units for size in ladder(None, None, 10_000)} == {2, 4, 8}
    assert {size.units for size in ladder(None, None, 63)} == {2, 4}
    assert [size.bits for size in ladder(None, 4, 10_000)] == [16, 32, 64, 128]


def test_bits_that_are_given_are_kept_exactly() -> None:
    assert ladder(64, None, 10_000) == [CodeSize(64, 2), CodeSize(32, 4)]
    assert ladder(48, None, 10_000) == [CodeSize(48, 2), CodeSize(24, 4), CodeSize(16, 8)]
    assert ladder(64, 16, 10) == [CodeSize(16, 16)]


@pytest.mark.parametrize(("bits", "units"), [(0, None), (1, None), (4096, None), (10, 16), (8, 3)])
def test_sizes_that_do_not_exist_are_refused(bits: int, units: int | None) -> None:
    with pytest.raises(InputError, match=r"--bits|--units"):
        ladder(bits, units, 10_000)


def test_too_few_images_for_any_code_are_refused() -> None:
    with pytest.raises(InputError, match=r"3 images cannot .* give at least 4 images\.$"):
        ladder(None, None, 3)
    with pytest.raises(InputError, match="give at least 16 images or fewer --units"):
        ladder(None, 4, 15)
    with pytest.raises(InputError, match="give at least 64 images or fewer --units"):
        ladder(None, 8, 63)


def test_the_size_with_most_that_lasts_is_chosen(tmp_path: Path) -> None:
    trials = {
        CodeSize(8, 2): Trial(CodeSize(8, 2), 3.0, 1.0),
        CodeSize(16, 2): Trial(CodeSize(16, 2), 5.0, 0.9),
        CodeSize(32, 2): Trial(CodeSize(32, 2), 9.0, 0.4),
    }
    path = tmp_path / "capacity.json"
    assert choose_size(list(trials), trials.__getitem__, path, "a") == CodeSize(16, 2)
    assert read_trials(path) == list(trials.values())


def test_small_codes_are_not_tried_once_they_say_less(tmp_path: Path) -> None:
    """All sizes of one number of bits are tried; the first number that says less is the last."""
    lasting = {
        CodeSize(16, 2): 9.0,
        CodeSize(32, 2): 3.0,
        CodeSize(21, 8): 4.0,
        CodeSize(32, 4): 5.0,
        CodeSize(43, 8): 4.5,
        CodeSize(64, 4): 2.0,
    }
    made: list[CodeSize] = []

    def attempt(size: CodeSize) -> Trial:
        made.append(size)
        return Trial(size, lasting[size], 1.0)

    path = tmp_path / "capacity.json"
    assert choose_size(list(lasting), attempt, path, "a") == CodeSize(32, 4)
    assert set(made) == set(lasting) - {CodeSize(16, 2)}
    assert {trial.size for trial in read_trials(path)} == set(made)


def test_an_interrupted_choice_does_not_repeat_its_trials(tmp_path: Path) -> None:
    sizes, path = [CodeSize(8, 2), CodeSize(16, 2)], tmp_path / "capacity.json"
    made: list[CodeSize] = []

    def attempt(size: CodeSize) -> Trial:
        if size.variables == 8 and not made.count(size):
            made.append(size)
            raise KeyboardInterrupt
        made.append(size)
        return Trial(size, 1.0 / size.variables, 1.0)

    with pytest.raises(KeyboardInterrupt):
        choose_size(sizes, attempt, path, "a")
    assert choose_size(sizes, attempt, path, "a") == CodeSize(8, 2)
    assert made.count(CodeSize(16, 2)) == 1
    choose_size(sizes, attempt, path, "other settings")
    assert made.count(CodeSize(16, 2)) == 2


def test_sizes_that_too_few_images_can_measure_are_left_out() -> None:
    small, large = CodeSize(16, 2), CodeSize(32, 4)
    assert measurable_sizes([small, large], fewest_images(96)) == [small, large]
    assert measurable_sizes([small, large], fewest_images(96) - 1) == [small]
    assert measurable_sizes([large, small], 10) == [small]
