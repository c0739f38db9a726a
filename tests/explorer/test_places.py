"""Folders in place of runs and indexes: what is inside is opened, the rest is told."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from imsvd.errors import InputError
from imsvd.explorer import ExplainedRun, create_app
from imsvd.explorer.opened_index import OpenedIndex
from imsvd.explorer.places import open_places
from imsvd.index import Index
from tests.explorer.conftest import BASE


def test_a_folder_opens_what_is_directly_inside(
    explained: Path, trained: Path, planted: Index, tmp_path: Path
) -> None:
    shutil.copytree(explained, tmp_path / "b-run")
    shutil.copytree(planted.path, tmp_path / "c.index")
    shutil.copytree(trained, tmp_path / "a-unexplained")
    (tmp_path / "notes.txt").write_text("no run")
    found = open_places([tmp_path])
    run, index = found.opened
    assert isinstance(run, ExplainedRun)
    assert run.run.path == tmp_path / "b-run"
    assert isinstance(index, OpenedIndex)
    [skipped] = found.skipped
    assert skipped.path == tmp_path / "a-unexplained"
    assert f"imsvd explain {skipped.path}" in skipped.reason
    with TestClient(create_app(found), base_url=BASE) as client:
        record = client.get("/api/places").json()
    assert record == {
        "folders": [{"path": str(tmp_path), "holds_images": False}],
        "skipped": [{"path": str(skipped.path), "reason": skipped.reason}],
    }


def test_a_run_that_is_named_must_open(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has not been explained yet"):
        open_places([trained])
    with pytest.raises(InputError, match="is not a run folder"):
        open_places([tmp_path / "none"])


def test_an_empty_folder_and_a_folder_of_photographs_are_told_apart(
    photographs: Path, tmp_path: Path
) -> None:
    found = open_places([tmp_path, photographs / "left"])
    assert not found.opened
    assert not found.skipped
    assert [folder.holds_images for folder in found.folders] == [False, True]
    with TestClient(create_app(found), base_url=BASE) as client:
        assert client.get("/api/runs").json() == {"runs": []}
        assert client.get("/api/indexes").json() == {"indexes": []}
