"""What README.md shows must work as it is written."""

import re
from pathlib import Path
from typing import Any

import pytest
import typer

from imsvd import cli

README = (Path(__file__).parents[1] / "README.md").read_text()
SNIPPETS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
COMMANDS = re.findall(r"^imsvd ([a-z][a-z -]*?)(?= [^a-z]| [a-z]+/|$)", README, flags=re.MULTILINE)
SHAPES = re.compile(r"^(\S.*?)\s+# (\([\d, ]+\))", flags=re.MULTILINE)


@pytest.mark.parametrize("snippet", SNIPPETS, ids=lambda text: text.splitlines()[-1][:20])
def test_python_snippets_run_and_give_the_shapes_they_name(
    snippet: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(snippet, names)
    for expression, shape in SHAPES.findall(snippet):
        assert str(tuple(eval(expression, names).shape)) == shape, expression


def test_commands_exist() -> None:
    assert COMMANDS
    for words in COMMANDS:
        node: Any = typer.main.get_command(cli.app)
        for word in words.split():
            node = getattr(node, "commands", {}).get(word, node)
        assert not hasattr(node, "commands"), f"imsvd {words}"


def test_there_are_snippets_to_run() -> None:
    assert len(SNIPPETS) >= 2
