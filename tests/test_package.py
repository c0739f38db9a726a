"""The package as people install it: extras, versions, completion, and what starting it loads."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
START = "import sys; sys.argv = ['imsvd', *sys.argv[1:]]; from imsvd.cli import main; main()"
HEAVY = {"huggingface_hub", "matplotlib", "numpy", "pydantic", "scipy", "sklearn", "timm", "torch"}


def started(code: str, *arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("code", "most"),
    [
        ("import imsvd", 150),
        (f"import atexit, sys; sys.argv.append('--help'); {START.partition('; ')[2]}", 600),
    ],
    ids=["import", "help"],
)
def test_starting_loads_little(code: str, most: int) -> None:
    """Modules are counted, because times depend on the machine: 0.1 s and 0.3 s on an idle one."""
    count = "import atexit, sys; atexit.register(lambda: print('LOADED', *sys.modules)); "
    loaded = started(count + code).rpartition("LOADED")[2].split()
    assert not HEAVY & set(loaded)
    assert len(loaded) < most


def test_extras_that_are_named_exist() -> None:
    extras = PROJECT["optional-dependencies"]
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("src/**/*.py")]
    named = {
        extra.strip(): page
        for page in pages
        for group in re.findall(r"(?:imsvd|\.)\[([a-z, ]+)\]", page.read_text())
        for extra in group.split(",")
    }
    assert {"data", "onnx", "sklearn"} <= named.keys()
    for extra, page in named.items():
        assert extra in extras, f"{page}: {extra}"


def test_all_contains_every_extra_for_users() -> None:
    extras = PROJECT["optional-dependencies"]
    (everything,) = extras["all"]
    chosen = re.fullmatch(r"imsvd\[(.*)\]", everything)
    assert chosen is not None
    assert set(chosen[1].split(",")) == extras.keys() - {"all", "bench", "dev", "docs"}


def test_the_citation_is_of_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == PROJECT["version"]
    assert citation["license"] == PROJECT["license"]
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert citation["preferred-citation"]["url"].endswith("2501.03469")


def test_the_version_is_shown() -> None:
    assert started(START, "--version").strip() == f"imsvd {PROJECT['version']}"


@pytest.mark.parametrize("form", ["bug", "idea"])
def test_issue_forms_are_valid(form: str) -> None:
    content = yaml.safe_load((ROOT / f".github/ISSUE_TEMPLATE/{form}.yml").read_text())
    assert {"name", "description", "body"} <= content.keys()
    for part in content["body"]:
        assert part["type"] in ("textarea", "input", "markdown", "dropdown", "checkboxes")
        assert part["attributes"]["label"]


@pytest.mark.parametrize(
    ("shell", "environment"),
    [
        ("bash", {"COMP_WORDS": "imsvd evaluate lin", "COMP_CWORD": "2"}),
        ("zsh", {"_TYPER_COMPLETE_ARGS": "imsvd evaluate lin"}),
        (
            "fish",
            {
                "_TYPER_COMPLETE_ARGS": "imsvd evaluate lin",
                "_TYPER_COMPLETE_FISH_ACTION": "get-args",
            },
        ),
    ],
)
def test_shells_complete_commands(shell: str, environment: dict[str, str]) -> None:
    script = started(START, _IMSVD_COMPLETE=f"source_{shell}")
    assert f"complete_{shell}" in script
    proposed = started(START, _IMSVD_COMPLETE=f"complete_{shell}", **environment)
    assert "linear-probe" in proposed
    assert "knn" not in proposed


def test_bash_completes_with_the_script(tmp_path: Path) -> None:
    """A real bash reads the script and completes a command with it."""
    program = tmp_path / "imsvd"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{START}" "$@"\n')
    program.chmod(0o755)
    (tmp_path / "script").write_text(started(START, _IMSVD_COMPLETE="source_bash"))
    ask = (
        f"source {tmp_path}/script; COMP_WORDS=(imsvd exp); COMP_CWORD=1; "
        '_imsvd_completion imsvd; echo "${COMPREPLY[@]}"'
    )
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", ask],
        env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert set(done.stdout.split()) == {"explain", "explore", "export"}
