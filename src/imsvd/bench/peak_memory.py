"""Peak memory of this process, as the kernel counts it (Linux only)."""

from pathlib import Path


def reset_peak() -> int:
    """Let the kernel forget the peak so far; resident bytes now."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def peak() -> int:
    """Most resident bytes since `reset_peak`."""
    return _status("VmHWM")


def _status(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {key}; memory is measured on Linux only.")
