"""Run an installed imsvd as a new user would, outside the source tree; `make package` calls this.

It needs no test packages: only what `pip install imsvd` brings.
"""

import re
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

PROGRAM = str(Path(sys.executable).with_name("imsvd"))
SHORT = ("data.source=shapes:256", "training.epochs=2", "optimizer.warmup_epochs=1")


def run(folder: str, *arguments: str) -> str:
    """Run `imsvd` in `folder` and return what it printed."""
    command = [PROGRAM, *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"imsvd {' '.join(arguments)} failed:\n{done.stdout}\n{done.stderr}")
    return done.stdout


def main() -> None:
    """Train a little, explain, and export what was trained."""
    home = Path(__file__).parents[1]
    with tempfile.TemporaryDirectory() as folder:
        where = "import imsvd; print(imsvd.__file__)"
        found = subprocess.run(
            [sys.executable, "-c", where], cwd=folder, capture_output=True, text=True, check=True
        ).stdout.strip()
        if Path(found).is_relative_to(home / "src"):
            sys.exit(f"imsvd is not installed: {found} is the source tree.")
        declared = re.search(
            r'^version = "(.*)"', (home / "pyproject.toml").read_text(), re.MULTILINE
        )
        assert declared is not None
        assert (
            run(folder, "--version").strip()
            == f"imsvd {version('imsvd')}"
            == f"imsvd {declared[1]}"
        )
        assert "pretrain" in run(folder, "--help")
        run(folder, "demo", "--out", "run", *(part for key in SHORT for part in ("--set", key)))
        assert (Path(folder) / "run/explanations/report.html").stat().st_size > 10_000
        run(folder, "export", "run", "--format", "huggingface", "--out", "shared")
        assert "loss" in (Path(folder) / "shared/README.md").read_text()
    sys.stdout.write(f"imsvd {version('imsvd')} works as installed.\n")


if __name__ == "__main__":
    main()
