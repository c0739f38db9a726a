"""Processors that this process may use, and manners toward others that use them too.

`imsvd/__init__.py` calls `share_processors` before anything loads PyTorch: OpenMP reads its
environment variables once, when its library is loaded.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

WORKER_NICENESS = 5
"""How far processes that read images stand back behind others; see nice(1)."""

# On two cores of an EPYC, 224-pixel views of ImageNet photographs: about 250 images per second and
# core on the fast path, 70 through torchvision.
_CHEAPER = 3
# Eight workers on the fast path give 2,000 images per second, about what a fast GPU consumes with a
# ResNet-50 and two views (an estimate, not measured on a GPU). The slow path needs more workers.
_MOST_CHEAP, _MOST = 8, 16

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUPS = Path("/proc/self/cgroup")


def usable_processors() -> int:
    """Return how many processors this process may use: bound by its affinity and its cgroup."""
    affine = hasattr(os, "sched_getaffinity")
    allowed = len(os.sched_getaffinity(0)) if affine else os.cpu_count() or 1
    quota = cgroup_quota()
    return allowed if quota is None else max(1, min(allowed, math.ceil(quota)))


def reading_processes(device: str, processors: int | None = None, *, cheap: bool = False) -> int:
    """Return how many processes should read images.

    Args:
        device: kind of the device that computes, such as "cpu".
        processors: those that reading and computing share; by default all that may be used.
        cheap: whether images take the fast path for JPEGs.
    """
    processors = usable_processors() if processors is None else processors
    if device == "cpu":
        # The network needs the cores itself and is slower than any worker.
        wanted = processors // (2 * _CHEAPER if cheap else 2)
    else:
        # The cores are free for images, but workers that outpace the GPU only hold memory.
        wanted = min(processors, _MOST_CHEAP if cheap else _MOST)
    return max(1, min(wanted, _MOST))


def cgroup_quota(root: Path = _CGROUPS, own: Path = _OWN_CGROUPS) -> float | None:
    """Return the processors that cgroups grant, the least of all levels; None without a limit.

    Containers, SLURM and systemd limit processes this way, which affinity does not show.

    Args:
        root: where cgroups are mounted.
        own: the file that lists the cgroups of this process.
    """
    try:
        lines = own.read_text().splitlines()
    except OSError:  # not Linux
        return None
    quotas = []
    for line in lines:
        _, controllers, place = line.split(":", 2)
        if controllers == "":
            quotas += [_read_quota(folder / "cpu.max") for folder in _levels(root, place)]
        elif "cpu" in controllers.split(","):
            for folder in _levels(root / "cpu", place):
                quotas.append(
                    _read_quota(folder / "cpu.cfs_quota_us", folder / "cpu.cfs_period_us")
                )
    return min((quota for quota in quotas if quota is not None), default=None)


def _levels(root: Path, place: str) -> list[Path]:
    """Return the folders of a cgroup and of all that contain it; a container may not see its own."""
    inner = root / place.lstrip("/")
    return [inner, *(folder for folder in inner.parents if folder.is_relative_to(root))]


def _read_quota(*files: Path) -> float | None:
    """Return quota / period from the words of `files`; None if there is no limit."""
    try:
        quota, period = " ".join(file.read_text() for file in files).split()
        return float(quota) / float(period) if float(quota) > 0 else None
    except (OSError, ValueError):  # "max" is no limit
        return None


def share_processors() -> None:
    """Set up OpenMP for a machine that others use too; variables set by the user are kept.

    Threads of OpenMP otherwise spin while they wait for one another. As soon as another process needs
    a core, each of them holds up all others: training fell from 357 to 55 images/s beside one busy
    process on two cores, and to 212 with threads that sleep.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    quota = cgroup_quota()
    if quota is not None and usable_processors() < (os.cpu_count() or 1):
        os.environ.setdefault("OMP_NUM_THREADS", str(usable_processors()))


def stand_back() -> None:
    """Let other processes go first; for processes that read images."""
    if hasattr(os, "nice"):
        os.nice(WORKER_NICENESS)
