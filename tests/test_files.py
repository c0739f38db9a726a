from pathlib import Path

import pytest

from imsvd.errors import InputError
from imsvd.files import complete_or_absent, remove_leftovers


def test_a_file_appears_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.txt"
    with complete_or_absent(path) as temporary:
        temporary.write_text("whole")
        assert not path.exists()
    assert path.read_text() == "whole"
    assert [entry.name for entry in path.parent.iterdir()] == ["a.txt"]


def test_a_failure_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")

    def write_half(temporary: Path) -> None:
        temporary.write_text("half")
        raise RuntimeError

    with pytest.raises(RuntimeError), complete_or_absent(path) as temporary:
        write_half(temporary)
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.txt"]


def test_a_folder_comes_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    def write(temporary: Path, fail: bool) -> None:
        temporary.mkdir()
        (temporary / "a").write_text("1")
        if fail:
            raise RuntimeError

    with pytest.raises(RuntimeError), complete_or_absent(tmp_path / "folder") as temporary:
        write(temporary, fail=True)
    assert list(tmp_path.iterdir()) == []
    with complete_or_absent(tmp_path / "folder") as temporary:
        write(temporary, fail=False)
    assert (tmp_path / "folder" / "a").read_text() == "1"


def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(InputError, match="could not be written"),
        complete_or_absent(tmp_path / "file" / "a") as temporary,
    ):
        temporary.write_text("")


def test_leftovers_that_cannot_be_removed_are_one_sentence(tmp_path: Path) -> None:
    (tmp_path / ".a.1.tmp").write_text("half")
    remove_leftovers(tmp_path)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / ".b.1.tmp").mkdir()  # as on a disk that cannot be written
    with pytest.raises(InputError, match="could not be removed"):
        remove_leftovers(tmp_path)
