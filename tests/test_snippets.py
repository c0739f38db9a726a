"""Commands and code of pages run as they are written, in order, beside what a page takes for granted."""

import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file

from imsvd import pretrained
from imsvd.datasets import open_source
from tests.pages import ROOT, Block, blocks, command_lines, pages
from tests.pretraining.tiny import CommandLine
from tests.trained import train_tiny

ELSEWHERE = ("docs/ecosystem.md", "docs/theory/")
"""Pages whose code is run by tests of their own."""
NOT_RUN = {
    "from litdata import optimize": "litdata empties folders outside the test's own",
    "torchvision.models.resnet50": "needs an exported ResNet-50; tests/export loads one",
}
"""Code that is only compiled, and why."""
PHOTOS, TEST_PHOTOS = 120, 40


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def runnable(page: Path) -> list[Block]:
    return [block for block in blocks(page) if block.language in ("sh", "python")]


def cases() -> list[Any]:
    """Return the pages with something to run; those that train or encode photographs are slow."""
    found = [page for page in pages() if runnable(page) and not name(page).startswith(ELSEWHERE)]
    slow = ("README.md", "docs/get-started.md", "docs/searching.md", "docs/tutorials/")
    return [
        pytest.param(
            page, id=name(page), marks=[pytest.mark.slow] if name(page).startswith(slow) else []
        )
        for page in found
    ]


@pytest.mark.parametrize("page", cases())
def test_a_page_does_what_it_says(
    page: Path, place: Path, command: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setattr(pretrained, "_download", build_instead)
    names: dict[str, Any] = {}
    for block in runnable(page):
        if any(mark in block.text for mark in NOT_RUN):
            continue
        if block.language == "python":
            exec(block.text, names)
            continue
        for line in command_lines(block.text):
            run(line, command)


def build_instead(spec: pretrained.BackboneSpec, build: Any) -> Any:
    """Build a network with random weights, for small images, where others download one."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return build(spec.name, False)._replace(size=64)


def run(line: str, command: CommandLine) -> None:
    """Run a line of a shell: `imsvd` in this process, everything else in a shell."""
    words = shlex.split(line, comments=True)
    if words[0] == "imsvd":
        assert command(words[1:]) == 0, f"{line}\n{command.out}\n{command.err}"
    elif words[:2] != [".", ".venv/bin/activate"]:
        subprocess.run(line, shell=True, check=True)


@pytest.fixture
def place(page: Path, tmp_path: Path) -> Path:
    """A folder with photographs, a run, an index and weights, as far as the page does not make them."""
    text = "\n".join(block.text for block in runnable(page))
    draw_photos(tmp_path / "photos/train", "train", PHOTOS)
    draw_photos(tmp_path / "photos/test", "test", TEST_PHOTOS)
    draw_photos(tmp_path / "new", "test", 4, first=100)
    for file in ("photo.jpg", "other.jpg"):
        shutil.copy(next((tmp_path / "new").rglob("*.jpg")), tmp_path / file)
    for run_folder in ("runs/a", "runs/photos"):
        if run_folder in text and f"--out {run_folder}" not in text:
            sizes = ("method.projector=[16,128]", "method.units=8")
            train_tiny(tmp_path / run_folder, *sizes)
    if "lite0.safetensors" in text:
        network = timm.create_model("tf_efficientnet_lite0", pretrained=False)
        save_file(network.state_dict(), tmp_path / "lite0.safetensors")
    make_rest(tmp_path, text)
    return tmp_path


def make_rest(folder: Path, text: str) -> None:
    """Make what single pages take for granted."""
    if "flowers" in text:
        shutil.copytree(folder / "photos", folder / "flowers")
        (folder / "shards").mkdir()
        subprocess.run("tar -czf shards/a.tar.gz photos", shell=True, check=True, cwd=folder)
    if "data.parquet" in text:
        import pyarrow as pa  # noqa: PLC0415 - only one page needs it
        import pyarrow.parquet as pq  # noqa: PLC0415

        pq.write_table(pa.table({"label": [0, 1]}), folder / "data.parquet")
    for title in ("old", "before", "after"):
        if f"{title}/" in text or f"{title}.index" in text:
            shutil.copytree(folder / "photos/test", folder / title)


def draw_photos(folder: Path, split: Any, count: int, first: int = 0) -> None:
    """Draw small images of two classes as JPEG files."""
    source = open_source("shapes:500", split)
    for index in range(first, first + count):
        file = folder / ("cat", "dog")[index % 2] / f"{index:03}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(source.read(index).permute(1, 2, 0).numpy()).save(file, quality=95)


@pytest.fixture(autouse=True)
def _keep_threads() -> Any:
    """Keep the number of threads, which commands may set."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
