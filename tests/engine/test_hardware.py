import logging
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning_utilities.core.rank_zero import rank_zero_info

from imsvd.config import ComputeSettings, Config, override
from imsvd.engine.hardware import (
    launch,
    require_single_process,
    set_up_device,
    worker_count,
)
from imsvd.errors import InputError


@pytest.mark.parametrize(
    ("device", "cores", "ranks", "cheap", "expected"),
    [
        ("cpu", 2, 1, False, 1),
        ("cpu", 2, 1, True, 1),
        ("cpu", 12, 1, False, 6),
        ("cpu", 12, 1, True, 2),
        ("cpu", 12, 6, True, 1),
        ("cuda", 4, 1, True, 4),
        ("cuda", 64, 1, False, 16),
        ("cuda", 64, 1, True, 8),
        ("cuda", 64, 8, False, 8),
    ],
)
def test_workers_leave_the_cores_to_those_who_need_them(
    device: str, cores: int, ranks: int, cheap: bool, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(cores), raising=False)
    monkeypatch.setattr("imsvd.processors.cgroup_quota", lambda: None)
    fabric: Any = SimpleNamespace(device=torch.device(device), world_size=ranks)
    assert worker_count(ComputeSettings(), fabric, cheap=cheap) == expected


def test_a_rank_that_slurm_binds_to_its_cores_may_use_them_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8), raising=False)
    monkeypatch.setattr("imsvd.processors.cgroup_quota", lambda: None)
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "8")
    fabric: Any = SimpleNamespace(device=torch.device("cuda"), world_size=8)
    assert (
        worker_count(ComputeSettings(), fabric) == 1
    )  # torchrun's ranks in one task share its cores
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "8")
    assert worker_count(ComputeSettings(), fabric) == 8


TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "x",
    "WORLD_SIZE": "2",
    "RANK": "1",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
}
SRUN = {
    "SLURM_NTASKS": "8",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "3",
    "SLURM_NODEID": "0",
    "SLURM_JOB_ID": "1",
    "SLURM_JOB_NAME": "x",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_NTASKS_PER_NODE": "8",
}


@pytest.mark.parametrize("environment", [TORCHRUN, SRUN], ids=["torchrun", "srun"])
def test_nobody_trains_alone_beside_others(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    config = override(Config(), ["compute.accelerator=cpu"])
    number = environment.get("WORLD_SIZE") or environment["SLURM_STEP_NUM_TASKS"]
    with pytest.raises(InputError, match=f"launcher started {number} processes, .* is 1; set both"):
        launch(config.compute)
    with pytest.raises(InputError, match=f"voc07 runs in one process, .* started {number}"):
        require_single_process("voc07")


def test_a_launcher_that_disagrees_with_the_devices_gets_a_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in (SRUN | {"SLURM_NTASKS_PER_NODE": "1", "SLURM_NTASKS": "1"}).items():
        monkeypatch.setenv(name, value)
    config = override(Config(), ["compute.accelerator=cpu", "compute.devices=8"])
    with pytest.raises(InputError, match=r"compute\.devices=8"):
        launch(config.compute)


def test_one_process_needs_no_launcher() -> None:
    assert launch(ComputeSettings(accelerator="cpu")).world_size == 1
    require_single_process("voc07")


def test_a_number_that_is_asked_for_is_taken() -> None:
    fabric: Any = SimpleNamespace(device=torch.device("cpu"), world_size=1)
    config = override(Config(), ["compute.workers=5"])
    assert worker_count(config.compute, fabric, cheap=True) == 5


@pytest.mark.slow
def test_fabric_is_imported_without_torchmetrics() -> None:
    pytest.importorskip("torchmetrics")
    code = (
        "import sys, imsvd.engine.fabric; assert 'torchmetrics' not in sys.modules; "
        "import torchmetrics, lightning_fabric"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_fabric_prints_warnings_but_no_notices(caplog: pytest.LogCaptureFixture) -> None:
    rank_zero_info("GPU available: True")
    logging.getLogger("lightning_fabric.strategies").warning("a warning")
    assert [record.message for record in caplog.records] == ["a warning"]


def test_settings_of_the_whole_process_are_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    found = []
    try:
        for compute in (ComputeSettings(cudnn_benchmark=True, tf32=True), ComputeSettings()):
            set_up_device(compute)
            found.append((torch.backends.cudnn.benchmark, torch.get_float32_matmul_precision()))
    finally:
        torch.set_float32_matmul_precision("highest")
    assert found == [(True, "high"), (False, "highest")]


@pytest.mark.parametrize("views", [False, True])
def test_gradients_can_live_in_the_buffers_that_are_sent(
    views: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}

    class Stop(Exception):  # noqa: N818
        pass

    def fabric(**options: Any) -> None:
        given.update(options)
        raise Stop

    monkeypatch.setattr("imsvd.engine.hardware.Fabric", fabric)
    with pytest.raises(Stop):
        launch(ComputeSettings(accelerator="cpu", devices=2, gradient_views=views))
    assert given["strategy"]._ddp_kwargs == {"gradient_as_bucket_view": views}
