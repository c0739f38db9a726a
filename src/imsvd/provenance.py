"""Provenance of measured numbers: command, commit, hardware, versions and date."""

import os
import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import torch


def environment() -> dict[str, str]:
    """Return the command, commit, processor, versions and date of this process."""
    program = Path(sys.argv[0]).name.replace("__main__.py", "imsvd")
    return {
        "command": shlex.join([program, *sys.argv[1:]]),
        "commit": _commit(),
        "cpu": f"{_cpu()}, {os.cpu_count()} cores",
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }


def _commit() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _cpu() -> str:
    linux = Path("/proc/cpuinfo")
    for line in linux.read_text().splitlines() if linux.exists() else []:
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
