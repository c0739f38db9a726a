from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

from imsvd.explanations import explain
from imsvd.explorer import ExplainedRun, create_app, open_run
from imsvd.index import Index
from tests.explorer.browsing import CHROMIUM, OPTIONS, opened_page
from tests.explorer.indexed import planted_index

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

BASE = "http://127.0.0.1"
PARTS = ("joint", "discreteness", "coherence", "meaning", "retrieval")


@pytest.fixture(scope="session")
def explained(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny run explained with shapes; copy it before changing anything in it."""
    run = Path(shutil.copytree(trained, tmp_path_factory.mktemp("explored") / "run"))
    explain(run, "shapes:128", only=PARTS)
    return run


@pytest.fixture(scope="session")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six labeled photographs that are not square and carry a secret in their EXIF data."""
    folder = tmp_path_factory.mktemp("photographs")
    random = np.random.default_rng(0)
    for number in range(6):
        path = folder / ("left", "right")[number % 2] / f"{number}.jpg"
        path.parent.mkdir(exist_ok=True)
        small = random.integers(0, 256, (6, 9, 3)).astype(np.uint8)
        exif = Image.Exif()
        exif[0x010E] = "secret place"
        picture = Image.fromarray(small).resize((300, 200), Image.Resampling.BICUBIC)
        picture.save(path, exif=exif, quality=95)
    return folder


@pytest.fixture(scope="session")
def explained_photographs(
    trained: Path, photographs: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The same run explained with photographs, one of them unreadable."""
    folder = tmp_path_factory.mktemp("explored-photographs")
    data = Path(shutil.copytree(photographs, folder / "data"))
    (data / "left" / "0.jpg").write_bytes(b"no image at all")
    run = Path(shutil.copytree(trained, folder / "run"))
    explain(run, data, only=("discreteness",))
    return run


@pytest.fixture(scope="session")
def opened(explained: Path) -> ExplainedRun:
    return open_run(explained)


@pytest.fixture(scope="session")
def client(explained: Path, explained_photographs: Path) -> Iterator[TestClient]:
    """Run 0 has shapes, run 1 photographs."""
    with TestClient(create_app([explained, explained_photographs]), base_url=BASE) as made:
        yield made


class Api:
    """Fetches JSON and checks the status."""

    def __init__(self, client: TestClient) -> None:
        self.client = client

    def __call__(self, path: str, status: int = 200) -> dict[str, Any]:
        answer = self.client.get(f"/api/{path}")
        assert answer.status_code == status, answer.text
        record: dict[str, Any] = json.loads(answer.content)
        return record

    def error(self, path: str, status: int) -> str:
        """Return the message of an error response."""
        record = self(path, status)
        assert list(record) == ["error"]
        sentence: str = record["error"]
        assert sentence.endswith(".")
        return sentence


@pytest.fixture(scope="session")
def api(client: TestClient) -> Api:
    return Api(client)


@pytest.fixture(scope="session")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Index:
    """An index of 120 images; copy it before changing anything in it."""
    return planted_index(tmp_path_factory.mktemp("indexed"))


@pytest.fixture(scope="session")
def ask(planted: Index) -> Iterator[Api]:
    """An explorer of two indexes and no run: one and the same index, under numbers 0 and 1."""
    with TestClient(create_app([planted.path, planted.path]), base_url=BASE) as made:
        yield Api(made)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    browsing = pytest.importorskip("playwright.sync_api")
    with browsing.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        yield opened
        opened.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page that must have no errors."""
    with opened_page(browser) as (made, problems):
        yield made
        assert problems == []
