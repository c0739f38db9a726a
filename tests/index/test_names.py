"""Names and stars in a run folder."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from imsvd.errors import InputError
from imsvd.index.names import FILE_NAME, Notes, note, read_names, read_notes, with_names_of

UNITS = (4, 3, 32)


def test_a_run_without_notes_has_none(tmp_path: Path) -> None:
    assert read_notes(tmp_path) == Notes({}, ())


def test_names_and_stars_are_kept_in_one_file(tmp_path: Path) -> None:
    note(tmp_path, "2.10", UNITS, name="  red \n dots ")
    note(tmp_path, "2.9", UNITS, starred=True)
    note(tmp_path, "02", UNITS, name="color", starred=True)
    content = json.loads((tmp_path / FILE_NAME).read_text())
    assert content == {"2": "color", "2.10": "red dots", "starred": ["2", "2.9"]}
    assert list(read_names(tmp_path)) == ["2", "2.10"]
    note(tmp_path, "2.10", UNITS, name="")
    assert note(tmp_path, "2", UNITS, starred=False) == Notes({"2": "color"}, ("2.9",))


def test_a_removed_name_is_not_taken_from_the_copy_in_an_index(tmp_path: Path) -> None:
    copied = {"1.1": "old", "1.2": "stripes"}
    note(tmp_path, "1.1", UNITS, name="new")
    note(tmp_path, "1.2", UNITS, name="stripes")
    assert note(tmp_path, "1.2", UNITS, name="").names == {"1.1": "new"}
    assert read_names(tmp_path) == {"1.1": "new"}
    assert with_names_of(tmp_path, copied) == {"1.1": "new"}
    before = (tmp_path / FILE_NAME).read_bytes()
    note(tmp_path, "1.0", UNITS, name="")  # had no name
    assert (tmp_path / FILE_NAME).read_bytes() == before


def test_files_of_earlier_versions_are_read(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text('{"1.2": "stripes"}')
    assert read_notes(tmp_path) == Notes({"1.2": "stripes"}, ())


@pytest.mark.parametrize(
    ("place", "name", "sentence"),
    [
        ("3", "x", "no variable 3"),
        ("1.3", "x", "no unit 3"),
        ("../1", "x", "not a variable or unit"),
        ("starred", "x", "not a variable or unit"),
        ("١.٢", "x", "not a variable or unit"),
        ("1.2", "1.2", "looks like a unit"),
        ("1.2", 'a"b', "quotes or control"),
        ("1.2", "a\x1b[31m", "quotes or control"),
        ("1.2", "gnp.\u202efdp", "quotes or control"),
        ("1.2", "\ud800", "quotes or control"),
        ("1.2", "x" * 81, "at most 80"),
    ],
)
def test_hostile_notes_are_refused(tmp_path: Path, place: str, name: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        note(tmp_path, place, UNITS, name=name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        "{",
        '{"a": "b"}',
        '{"١": "b"}',
        '{"1": 2}',
        '{"starred": "1"}',
        '{"starred": [1]}',
        "[" * 99_999,
    ],
)
def test_damaged_files_are_named(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE_NAME).write_text(content)
    with pytest.raises(InputError, match=FILE_NAME):
        note(tmp_path, "1", UNITS, starred=True)
    assert (tmp_path / FILE_NAME).read_text() == content


def test_changes_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda unit: note(tmp_path, f"2.{unit}", UNITS, name="x"), range(32)))
    assert len(read_names(tmp_path)) == 32


def test_a_folder_that_cannot_be_written_is_told_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    # The tests may run as root, whom no file permission stops.
    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(
        InputError, match=r"Permission denied; .*make it writable or use a copy of it\.$"
    ):
        note(tmp_path, "1", UNITS, starred=True)
    assert list(tmp_path.iterdir()) == []
