from pathlib import Path

import pytest

from imsvd.datasets.patterns import expand, is_pattern
from imsvd.errors import InputError


def names(pattern: str) -> list[str]:
    return [path.name for path in expand(pattern)]


def test_ranges_choices_and_stars(tmp_path: Path) -> None:
    for name in ("a-08.tar", "a-09.tar", "a-10.tar", "b-09.tar"):
        (tmp_path / name).touch()
    assert names(f"{tmp_path}/a-{{08..10}}.tar") == ["a-08.tar", "a-09.tar", "a-10.tar"]
    assert names(f"{tmp_path}/{{a,b}}-09.tar") == ["a-09.tar", "b-09.tar"]
    assert names(f"{tmp_path}/{{a,b}}-0*.tar") == ["a-08.tar", "a-09.tar", "b-09.tar"]


@pytest.mark.parametrize("pattern", ["{5..3}.tar", "{0..99999999999}.tar", "x/*.tar"])
def test_what_stands_for_nothing_gets_a_sentence(tmp_path: Path, pattern: str) -> None:
    with pytest.raises(InputError):
        expand(f"{tmp_path}/{pattern}")


@pytest.mark.parametrize(
    ("name", "expected"), [("a.tar", False), ("a*.tar", True), ("{1..2}", True)]
)
def test_what_is_a_pattern(name: str, expected: bool) -> None:
    assert is_pattern(name) is expected
