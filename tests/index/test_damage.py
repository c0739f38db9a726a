"""Every kind of damage, met by every command: one sentence that names the file, never an answer."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from imsvd.index import Index, storage
from imsvd.index.storage import MANIFEST
from tests.index.made_up import made_up_index, rows
from tests.pretraining.tiny import CommandLine


def _segment(index: Index) -> Path:
    return index.path / index.manifest.segments[0].file


def _removed(index: Index) -> Path:
    (path,) = index.path.glob("removed-*.roaring")
    return path


def truncated(index: Index) -> Path:
    path = _segment(index)
    path.write_bytes(path.read_bytes()[:-100])
    return path


def emptied(index: Index) -> Path:
    path = _segment(index)
    path.write_bytes(b"")
    return path


def foreign(index: Index) -> Path:
    path = _segment(index)
    path.write_bytes(b"\x89PNG\r\n\x1a\n".ljust(path.stat().st_size, b"x"))
    return path


def missing(index: Index) -> Path:
    path = _segment(index)
    path.unlink()
    return path


def a_folder_instead(index: Index) -> Path:
    path = _segment(index)
    path.unlink()
    path.mkdir()
    return path


def of_another_encoder(index: Index) -> Path:
    path = _segment(index)
    path.write_bytes(path.read_bytes().replace(b"0123456789ab", b"ba9876543210"))
    return path


def of_another_index(index: Index) -> Path:
    other = made_up_index(index.path.parent / "other.index", rows(40, seed=3))
    path = _segment(index)
    path.write_bytes(_segment(other).read_bytes())
    return path


def removed_images_truncated(index: Index) -> Path:
    path = _removed(index)
    path.write_bytes(path.read_bytes()[:-1])
    return path


def removed_images_missing(index: Index) -> Path:
    path = _removed(index)
    path.unlink()
    return path


def manifest_truncated(index: Index) -> Path:
    path = index.path / MANIFEST
    path.write_bytes(path.read_bytes()[:-50])
    return path


def manifest_edited(index: Index) -> Path:
    path = index.path / MANIFEST
    content = json.loads(path.read_bytes())
    content["encoder"] = "another"
    path.write_text(json.dumps(content))
    return path


def manifest_foreign(index: Index) -> Path:
    path = index.path / MANIFEST
    path.write_bytes(b"\xff\xfe\x00 not JSON")
    return path


DAMAGE: list[Callable[[Index], Path]] = [
    truncated,
    emptied,
    foreign,
    missing,
    a_folder_instead,
    of_another_encoder,
    of_another_index,
    removed_images_truncated,
    removed_images_missing,
    manifest_truncated,
    manifest_edited,
    manifest_foreign,
]
COMMANDS = {
    "search": ["0.1"],
    "duplicates": ["--within", "0"],
    "outliers": [],
    "coverage": [],
    "select": ["--count", "3"],
    "info": [],
    "remove": ["00003.jpg"],
    "add": ["shapes:2"],
    "name": ["0.1", "stripes"],
}


@pytest.mark.parametrize("large", [False, True], ids=["small files", "as large files"])
@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
def test_damage_is_one_sentence_for_every_command(
    command: CommandLine,
    tmp_path: Path,
    damage: Callable[[Index], Path],
    large: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if large:  # only their sizes and headers are compared when they are opened
        monkeypatch.setattr(storage, "HASHED_ON_OPENING", 0)
    index = made_up_index(tmp_path / "a.index", rows(40))
    index.remove("00007.jpg")
    path = damage(index)
    before = contents(index.path)
    for verb, arguments in COMMANDS.items():
        command.refuses([verb, str(index.path), *arguments], str(path))
    command.refuses(["drift", str(index.path), str(index.path)], str(path))
    assert contents(index.path) == before


def contents(folder: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in folder.iterdir() if file.is_file()}


def test_names_of_another_run_are_refused_where_they_do_not_fit(
    command: CommandLine, tmp_path: Path
) -> None:
    index = made_up_index(tmp_path / "a.index", rows(40))
    run = Path(index.manifest.run)
    run.mkdir()
    (run / "names.json").write_text('{"99.3": "stripes"}')
    assert command(["search", str(index.path), "stripes"]) == 2
    assert "no variable 99" in command.err
    (run / "names.json").write_text('{"0.1": 3}')
    command.refuses(["search", str(index.path), "0.1"], str(run / "names.json"))


def test_images_deleted_since_are_marked_and_never_read_as_others(
    command: CommandLine, tmp_path: Path
) -> None:
    index = made_up_index(tmp_path / "a.index", rows(40))  # none of its files exists
    assert command(["search", str(index.path), "", "--like", "00003.jpg", "--json"]) == 0
    assert {item["state"] for item in json.loads(command.out)["items"]} == {"deleted"}
    command.refuses(["search", str(index.path), "--like", "/photos/none.jpg"], "none.jpg")
    assert command(["duplicates", str(index.path), "--within", "6", "--json"]) == 0
    found = json.loads(command.out)["groups"]
    assert {copy["state"] for group in found for copy in group} == {"deleted"}
    assert command(["remove", str(index.path), "--missing"]) == 0
    assert len(Index(index.path)) == 0
