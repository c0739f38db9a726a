"""`hubconf.py`, as torch.hub reads it."""

import os
import subprocess
import sys
from pathlib import Path

import torch

from imsvd.encoder import load
from tests.test_encoder import pictures

ROOT = Path(__file__).parents[1]

# Hides an installed imsvd, so that only what torch.hub has downloaded is there.
UNINSTALLED = """
import importlib.metadata, sys
from pathlib import Path

import torch

sys.path = [place for place in sys.path if place and not (Path(place) / "imsvd").is_dir()]

def version(name, known=importlib.metadata.version):
    if name == "imsvd":
        raise importlib.metadata.PackageNotFoundError(name)
    return known(name)

importlib.metadata.version = version
root, run = sys.argv[1:]
encoder = torch.hub.load(root, "encoder", run, source="local")
sys.path.append(root)
import hubconf, imsvd
assert Path(imsvd.__file__).is_relative_to(root), imsvd.__file__
needless = [name for name in hubconf.dependencies if name not in sys.modules]
print(imsvd.__version__, tuple(encoder(torch.zeros(1, 3, 32, 32)).shape), needless)
"""


def test_torch_hub_loads_an_encoder(trained: Path) -> None:
    found = torch.hub.load(str(ROOT), "encoder", str(trained), source="local")  # type: ignore[no-untyped-call]
    assert torch.equal(found.codes(pictures()), load(trained).codes(pictures()))


def test_it_needs_no_installation(trained: Path, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", UNINSTALLED, str(ROOT), str(trained)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "unknown (1, 8) []", done.stderr
