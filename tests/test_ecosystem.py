"""The snippets of docs/ecosystem.md run as they are written, in order, beside a run and some images."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.pretraining.test_pretrain import write_images

ROOT = Path(__file__).parents[1]
SNIPPETS = re.findall(
    r"```python\n(.*?)```", (ROOT / "docs/ecosystem.md").read_text(), flags=re.DOTALL
)


@pytest.fixture(scope="module")
def workplace(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the page says is there, `hubconf.py` included."""
    folder = tmp_path_factory.mktemp("ecosystem")
    shutil.copytree(trained, folder / "runs/a")
    write_images(folder / "photos", 20)
    (folder / "hubconf.py").symlink_to(ROOT / "hubconf.py")
    return folder


@pytest.mark.parametrize("snippet", SNIPPETS, ids=lambda text: text.splitlines()[-1][:30])
def test_snippets_run(snippet: str, workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workplace)
    names: dict[str, Any] = {}
    exec(snippet, names)
