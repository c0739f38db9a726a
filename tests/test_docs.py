"""What pages say is so: settings exist, links lead somewhere, commands are understood, code runs."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from imsvd import cli
from imsvd.config import Config, setting_keys
from imsvd.methods import METHODS
from imsvd.recipes import recipe
from tests.pages import ROOT, Block, anchors, blocks, commands, pages

FILES = (".json", ".md", ".parquet", ".png", ".py")
OPTIMIZERS = {"lars": "LARS", "sgd": "SGD", "adamw": "AdamW"}
LAUNCHERS = re.compile(r"^(?:torchrun|srun|python3?)\b.*? -m imsvd ")
PLACEHOLDER = re.compile(r"…|\bPROTOCOL\b|\bOPTIONS\b")


def summary(config: Config) -> str:
    widths = "-".join(map(str, config.method.head_widths))
    optimizer, batch = OPTIMIZERS[config.optimizer.name], config.training.batch_size
    return (
        f"{widths}; {optimizer}, {config.peak_lr:g} at {batch}, {config.optimizer.weight_decay:g}"
    )


@pytest.mark.parametrize("method", METHODS)
def test_a_method_has_a_page_and_a_true_row_in_the_table(method: str) -> None:
    assert (ROOT / f"docs/methods/{method}.md").exists()
    table = (ROOT / "docs/methods/README.md").read_text()
    if f"| [{method}]" not in table:
        pytest.skip(f"docs/methods/README.md has no row for {method} yet")
    cells = [summary(recipe(name, method)) for name in ("cifar10-cpu", "cifar10", "imagenet")]
    line = f"| [{method}]({method}.md) | {' | '.join(cells)} |"
    assert line in table.splitlines()


def test_the_readme_counts_the_methods() -> None:
    assert f"with {len(METHODS)} methods under one engine" in (ROOT / "README.md").read_text()


def test_settings_that_pages_name_exist() -> None:
    known = {*setting_keys()}
    groups = {key.partition(".")[0] for key in known if "." in key}
    for page in pages():
        # Both views have the same settings.
        text = page.read_text().replace("views.views.1.", "views.views.0.")
        named = re.findall(r"--set ([a-z_0-9.]+)=|`([a-z]+\.[a-z_0-9.]+)`", text)
        for key in (first or second for first, second in named):
            if key.partition(".")[0] in groups and not key.endswith((*FILES, ".")):
                # Options are timm's own.
                allowed = key in known or key in groups or key.startswith("backbone.options.")
                assert allowed, f"{page}: {key}"


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_a_file_and_a_heading(page: Path) -> None:
    for address, _, heading in re.findall(r"\]\(([^)#\s]*)(#([^)\s]*))?\)", page.read_text()):
        if "://" in address or address.startswith("reference/"):  # `make docs` writes and checks it
            continue
        target = page.parent / address if address else page
        assert target.exists(), f"{page}: {address}"
        if heading and target.suffix == ".md":
            assert heading in anchors(target), f"{page}: {address}#{heading}"


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_exist_and_take_the_arguments_and_options_that_pages_give_them(page: Path) -> None:
    for part in re.split(r" && |; |\n", "\n".join(commands(page))):
        command = LAUNCHERS.sub("imsvd ", part).removeprefix(".venv/bin/")
        if command.startswith("imsvd ") and not PLACEHOLDER.search(command):
            parse(shlex.split(command, comments=True)[1:])


def parse(words: list[str]) -> None:
    """Parse a command as the program would; `exists` and similar checks of values do not count."""
    node: Any = typer.main.get_command(cli.app)
    context, path = None, "imsvd"
    while hasattr(node, "list_commands"):
        context = node.make_context(path, [], parent=context, resilient_parsing=True)
        assert words, f"{path} needs a command"
        name, *words = words
        node = node.get_command(context, name)
        assert node is not None, f"{path} has no command {name}"
        path = f"{path} {name}"
    node.make_context(path, words, parent=context)


def python_blocks() -> list[Block]:
    return [block for page in pages() for block in blocks(page) if block.language == "python"]


@pytest.mark.parametrize("block", python_blocks(), ids=str)
def test_python_code_compiles(block: Block) -> None:
    compile(block.text, str(block), "exec")


@pytest.mark.parametrize(
    "block", [block for block in python_blocks() if "docs/theory" in str(block)], ids=str
)
def test_code_of_the_theory_pages_runs(block: Block) -> None:
    exec(block.text, {})
