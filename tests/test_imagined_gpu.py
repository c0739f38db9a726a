"""Everything on a GPU that does not exist, in a process of its own: its device stays registered."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.imagined_gpu.faults import FAULTS, Fault, is_found

FOLDER = Path(__file__).parent / "imagined_gpu"
"""Its tests are not named test_*.py, so that no other process collects them."""


@pytest.mark.parametrize("file", ["steps.py", "commands.py"])
def test_training_and_commands_on_an_imagined_gpu(file: str) -> None:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")
    }
    options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=short"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(FOLDER / file)],
        cwd=FOLDER.parents[1],
        env=environment | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_of_the_gpu_path_is_found(fault: Fault) -> None:
    assert is_found(fault)
