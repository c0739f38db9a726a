"""Names and stars over HTTP: kept in the run folder, guarded, limited."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from imsvd.explorer import create_app
from imsvd.files import write_atomically
from imsvd.index import Index
from imsvd.index.names import FILE_NAME, Notes, read_notes
from imsvd.index.storage import write_manifest
from tests.explorer.conftest import BASE

NOTES = "/api/runs/0/notes"


@pytest.fixture
def run(explained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(explained, tmp_path / "run"))


@pytest.fixture
def client(run: Path) -> Iterator[TestClient]:
    with TestClient(create_app([run]), base_url=BASE) as made:
        yield made


def change(client: TestClient, status: int = 200, **wanted: Any) -> dict[str, Any]:
    answer = client.post(NOTES, json=wanted)
    assert answer.status_code == status, answer.text
    record: dict[str, Any] = answer.json()
    return record


def test_names_and_stars_are_kept_in_the_run_folder(client: TestClient, run: Path) -> None:
    assert client.get(NOTES).json() == {"names": {}, "starred": []}
    change(client, place="3.1", name="stripes")
    change(client, place="3", starred=True)
    found = change(client, place="3", name="texture")
    assert found == {"names": {"3": "texture", "3.1": "stripes"}, "starred": ["3"]}
    assert client.get(NOTES).json() == found
    assert read_notes(run) == Notes(found["names"], ("3",))
    change(client, place="3", name="", starred=False)
    assert read_notes(run) == Notes({"3.1": "stripes"}, ())


@pytest.mark.parametrize(
    ("wanted", "status", "sentence"),
    [
        ({"place": "9.0", "name": "x"}, 409, "no variable 9"),
        ({"place": "../../x", "name": "x"}, 409, "not a variable or unit"),
        ({"place": "1.1", "name": "a\u202eb"}, 409, "control characters"),
        ({"place": "1.1", "name": 'a"b'}, 409, "quotes"),
        ({"place": "1.1", "name": "x" * 81}, 409, "at most 80"),
        ({"place": "1.1", "name": "x" * 1001}, 422, "at most 1000"),
        ({"place": "1.1", "name": "x" * 5000}, 413, "shorter name"),
        ({"place": "1.1"}, 422, "Send a name or a star"),
        ({"place": "1.1", "starred": "yes"}, 422, "starred"),
        ({"place": "1.1", "name": "x", "path": "/etc"}, 422, "path"),
    ],
)
def test_hostile_changes_are_refused_with_a_sentence(
    client: TestClient, run: Path, wanted: dict[str, Any], status: int, sentence: str
) -> None:
    assert sentence in change(client, status, **wanted)["error"]
    assert not (run / FILE_NAME).exists()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "http://evil.example"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Host": "evil.example"}, 400),
        ({"Content-Type": "text/plain"}, 415),
        ({}, 200),
    ],
)
def test_only_the_own_page_may_write(
    client: TestClient, run: Path, headers: dict[str, str], status: int
) -> None:
    body = json.dumps({"place": "1.1", "starred": True})
    sent = {"Content-Type": "application/json", **headers}
    assert client.post(NOTES, content=body, headers=sent).status_code == status
    assert (run / FILE_NAME).exists() is (status == 200)


def test_writing_requires_the_token(run: Path) -> None:
    app = create_app([run], token="a-token-of-some-length")
    with TestClient(app, base_url=BASE) as client:
        change(client, 401, place="1.1", starred=True)
        assert not (run / FILE_NAME).exists()
        assert client.get(NOTES).status_code == 401


def test_a_read_only_folder_is_told_in_a_sentence(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def into_nowhere(_: Path, content: bytes) -> None:
        write_atomically(Path("/proc/imsvd/names.json"), content)

    monkeypatch.setattr("imsvd.index.names.write_atomically", into_nowhere)
    said = change(client, 409, place="1.1", starred=True)["error"]
    assert "could not be written" in said
    assert said.endswith("make it writable or use a copy of it.")
    assert client.get(NOTES).json()["starred"] == []


def test_searches_know_a_new_name_at_once(planted: Index, run: Path, tmp_path: Path) -> None:
    index = Path(shutil.copytree(planted.path, tmp_path / "photos.index"))
    write_manifest(index, planted.manifest.model_copy(update={"run": str(run)}))
    with TestClient(create_app([run, index]), base_url=BASE) as client:

        def total(query: str) -> Any:
            return client.get("/api/indexes/0/search", params={"q": query}).json().get("total")

        assert total("zebra") is None
        change(client, place="0.1", name="zebra")
        change(client, place="0", name="animal")
        assert total("zebra") == 60
        change(client, place="0.1", name="")
        change(client, place="1.2", name="zebra")
        assert total("zebra") == total("1.2") != 60
        names = client.get("/api/indexes").json()["indexes"][0]["names"]
        assert names["0"] == "animal"
        assert total("animal") is None
