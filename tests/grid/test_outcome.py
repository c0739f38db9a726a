from pathlib import Path

import pytest

from imsvd.grid.outcome import read_outcome, write_outcome
from tests.grid import made_up


def test_an_outcome_is_read_as_it_was_written(tmp_path: Path) -> None:
    outcome = made_up.outcome(peak_memory=None)
    write_outcome(tmp_path, outcome)
    assert read_outcome(tmp_path, made_up.DATA) == outcome


def test_other_images_have_no_outcome(tmp_path: Path) -> None:
    write_outcome(tmp_path, made_up.outcome())
    assert read_outcome(tmp_path, "others") is None


@pytest.mark.parametrize("content", [None, b"", b"{", b"[]", b'{"hold_out": 1}', b"\xff"])
def test_a_damaged_outcome_is_none(content: bytes | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "outcome.json").write_bytes(content)
    assert read_outcome(tmp_path, made_up.DATA) is None
