"""The parts of the documentation site that are written from the code."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

import imsvd
from imsvd.config import setting_keys
from tests.pages import ROOT
from website.formulas import draw_formulas
from website.hooks import REMOTE, on_page_markdown
from website.notebooks import notebook_page
from website.reference import command_page, python_page, settings_page
from website.theory import draw_all

NOTEBOOK = ROOT / "docs/tutorials/code_in_five_minutes.ipynb"


def test_the_page_of_commands_has_all_of_them_with_options_and_defaults() -> None:
    page = command_page()
    for command in ("demo", "pretrain", "evaluate knn", "bench loss", "reproduce plan", "drift"):
        assert f"\n### imsvd {command}\n" in page
    assert "imsvd pretrain DATA [OPTIONS]" in page
    assert "| `--views N` | Augmented views" in page
    assert "Default: `4`." in page


def test_the_page_of_settings_has_every_key_with_its_default() -> None:
    page = settings_page()
    for key in setting_keys():
        assert f"| `{key}` |" in page, key
    assert "| `training.batch_size` | `2048` |" in page


def test_the_page_of_python_has_every_public_name() -> None:
    page = python_page()
    for name in imsvd.__all__:
        assert name.startswith("__") or f"\n::: imsvd.{name}\n" in page


def test_formulas_are_drawn_and_can_be_read_aloud() -> None:
    page = draw_formulas(r'a <span class="arithmatex">\(x &lt; \frac{1}{2}\)</span> b')
    assert page.startswith('a <span class="formula"><svg')
    assert page.endswith("</svg></span> b")
    assert r'aria-label="x &lt; \frac{1}{2}"' in page
    assert "currentColor" in page
    block = draw_formulas('<div class="arithmatex">\\[\nx\n\\]</div>')
    assert block.startswith('<div class="formula"><svg')


def test_a_formula_that_cannot_be_drawn_is_named() -> None:
    with pytest.raises(ValueError, match=r"x\^2\^3"):
        draw_formulas(r"""<span class="arithmatex">\(x^2^3\)</span>""")


def test_a_notebook_becomes_text_code_and_outputs(tmp_path: Path) -> None:
    outputs = [{"text": ["3\n"]}, {"data": {"image/png": "QUJD", "text/plain": "<Figure>"}}]
    cells = [
        {"cell_type": "markdown", "source": ["# Title\n", "text"]},
        {"cell_type": "code", "source": "print(3)", "outputs": outputs},
    ]
    (tmp_path / "a.ipynb").write_text(json.dumps({"cells": cells}))
    page = notebook_page(tmp_path / "a.ipynb")
    assert page.startswith("# Title\ntext\n")
    assert "(a.ipynb)" in page
    assert "```python\nprint(3)\n```\n\n```text\n3\n```\n" in page
    assert 'src="data:image/png;base64,QUJD"' in page
    assert "<Figure>" not in page


def test_the_theory_pages_use_the_figures_that_the_command_draws(tmp_path: Path) -> None:
    theory = "".join(page.read_text() for page in (ROOT / "docs/theory").glob("*.md"))
    for file in draw_all(tmp_path):
        assert f"../images/{file.name})" in theory
        assert (ROOT / "docs/images" / file.name).exists()


@pytest.mark.parametrize(
    ("text", "remote"),
    [
        ('<script src="https://cdn.example/a.js"></script>', True),
        ('<link rel="stylesheet" href="//fonts.example/a.css">', True),
        ('<script src="../assets/a.js"></script><a href="https://arxiv.org">paper</a>', False),
    ],
)
def test_a_page_that_loads_something_from_the_internet_is_refused(text: str, remote: bool) -> None:
    assert bool(REMOTE.search(text)) == remote


def test_links_through_the_repository_become_links_through_the_site() -> None:
    def mended(place: str, text: str) -> str:
        page = SimpleNamespace(file=SimpleNamespace(src_uri=place))
        return on_page_markdown(text, page=page)  # type: ignore[arg-type]

    assert (
        mended("theory/loss.md", "[a](../../benchmarks/codes.md#x)")
        == "[a](../benchmarks/codes.md#x)"
    )
    assert mended("benchmarks/codes.md", "[a](../docs/data.md)") == "[a](../data.md)"
    assert mended("project/changelog.md", "[a](docs/data.md)") == "[a](../data.md)"
    assert (
        mended("index.md", "[a](../README.md) [b](https://x.y)") == "[a](index.md) [b](https://x.y)"
    )
    notebook = "[a](code_in_five_minutes.ipynb)"
    assert mended("tutorials/README.md", notebook) == "[a](code_in_five_minutes.md)"


@pytest.mark.slow
def test_the_notebook_runs(tmp_path: Path) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    notebook = nbformat.read(NOTEBOOK, 4)
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=900, resources=resources).execute()
    printed = [
        output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", [])
    ]
    assert any("8 variables of 2 units" in text for text in printed)
