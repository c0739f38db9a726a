import os
import subprocess
import sys
from pathlib import Path

import pytest

from imsvd import processors
from imsvd.datasets.reading import load_batches


def _cgroups(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / "mounted" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "mounted"


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        ("0::/\n", {"cpu.max": "250000 100000\n"}, 2.5),
        ("0::/\n", {"cpu.max": "max 100000\n"}, None),
        ("0::/a/b\n", {"a/cpu.max": "100000 100000\n", "a/b/cpu.max": "400000 100000\n"}, 1.0),
        ("0::/not/mounted\n", {"cpu.max": "300000 100000\n"}, 3.0),
        (
            "4:cpu,cpuacct:/job\n0::/\n",
            {"cpu/job/cpu.cfs_quota_us": "150000\n", "cpu/job/cpu.cfs_period_us": "100000\n"},
            1.5,
        ),
        (
            "1:cpu:/\n",
            {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"},
            None,
        ),
        ("0::/\n", {}, None),
    ],
)
def test_the_least_quota_of_all_levels_counts(
    own: str, files: dict[str, str], expected: float | None, tmp_path: Path
) -> None:
    (tmp_path / "own").write_text(own)
    assert processors.cgroup_quota(_cgroups(tmp_path, files), tmp_path / "own") == expected


def test_without_cgroups_there_is_no_quota(tmp_path: Path) -> None:
    assert processors.cgroup_quota(tmp_path, tmp_path / "missing") is None


@pytest.mark.parametrize(
    ("affinity", "quota", "expected"), [(8, None, 8), (8, 2.5, 3), (2, 6.0, 2), (4, 0.5, 1)]
)
def test_affinity_and_quota_bound_the_processors(
    affinity: int, quota: float | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(affinity), raising=False)
    monkeypatch.setattr(processors, "cgroup_quota", lambda: quota)
    assert processors.usable_processors() == expected


def _openmp_as_loaded(**changes: str) -> str:
    """What OpenMP says of itself when PyTorch loads it after imsvd."""
    names = ("OMP_WAIT_POLICY", "OMP_NUM_THREADS", "GOMP_SPINCOUNT")
    kept = {name: value for name, value in os.environ.items() if name not in names}
    done = subprocess.run(
        [sys.executable, "-c", "import imsvd.information"],
        env=kept | {"OMP_DISPLAY_ENV": "TRUE"} | changes,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stderr


def test_threads_of_openmp_sleep_while_they_wait() -> None:
    shown = _openmp_as_loaded()
    if "OMP_WAIT_POLICY" not in shown:
        pytest.skip("this PyTorch has another OpenMP")
    assert "OMP_WAIT_POLICY = 'PASSIVE'" in shown
    assert "OMP_WAIT_POLICY = 'ACTIVE'" in _openmp_as_loaded(OMP_WAIT_POLICY="ACTIVE")


@pytest.mark.parametrize(("given", "expected"), [({}, "2"), ({"OMP_NUM_THREADS": "5"}, "5")])
def test_a_quota_limits_the_threads_unless_the_user_has_set_them(
    given: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", dict(given))
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8), raising=False)
    monkeypatch.setattr(processors, "cgroup_quota", lambda: 2.0)
    processors.share_processors()
    assert os.environ["OMP_NUM_THREADS"] == expected


def niceness(key: int) -> int:
    return key + os.nice(0)


def test_workers_stand_back() -> None:
    own = os.nice(0)
    assert list(load_batches(niceness, [0], workers=0)) == [own]
    assert list(load_batches(niceness, [0], workers=1)) == [min(19, own + 5)]
