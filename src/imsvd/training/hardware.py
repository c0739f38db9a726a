"""Which processor, how many processes, which precision: decided here, run by Lightning Fabric."""

from __future__ import annotations

import os
import warnings
from typing import Any

import torch
from lightning_fabric import Fabric
from lightning_fabric.utilities.exceptions import MisconfigurationException

from imsvd.config import Config
from imsvd.errors import InputError


def launch(config: Config) -> Fabric:
    """Start the processes that `config.compute` asks for; torchrun and SLURM are recognized."""
    compute = config.compute
    accelerator = compute.accelerator
    if accelerator == "auto" and not (
        torch.cuda.is_available() or torch.backends.mps.is_available()
    ):
        accelerator = "cpu"
    devices: int | str = compute.devices
    if devices == "auto" and (accelerator == "cpu" or "LOCAL_WORLD_SIZE" in os.environ):
        devices = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # torchrun's processes
    options: dict[str, Any] = {}
    if devices not in (1, "auto") or compute.nodes > 1:
        options["strategy"] = "ddp"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            fabric = Fabric(
                accelerator=accelerator,
                devices=devices,
                num_nodes=compute.nodes,
                precision=_precision(compute.precision, accelerator),
                **options,
            )
            fabric.launch()
        except (ValueError, RuntimeError, MisconfigurationException) as error:
            raise InputError(
                f"this machine and launcher cannot run compute.accelerator={accelerator}, "
                f"compute.devices={devices}, compute.nodes={compute.nodes}, "
                f"compute.precision={compute.precision}: {error}"
            ) from error
    _require_all_processes(fabric)
    return fabric


def _require_all_processes(fabric: Fabric) -> None:
    """Refuse to train alone beside others that a launcher has started for the same run."""
    started = _started_processes()
    if started > 1 and started != fabric.world_size:
        raise InputError(
            f"the launcher started {started} processes, but compute.nodes × compute.devices is "
            f"{fabric.world_size}; set both to what the launcher was told."
        )


def require_single_process(name: str) -> None:
    """Refuse to do the same work several times over, where a launcher has started several processes."""
    started = _started_processes()
    if started > 1:
        raise InputError(
            f"{name} is the work of one process, and the launcher started {started}; "
            "start it without torchrun or srun."
        )


def _started_processes() -> int:
    """How many processes torchrun or srun has started; 1 where neither started this."""
    torchrun = "TORCHELASTIC_RUN_ID" in os.environ
    number = os.environ.get("WORLD_SIZE" if torchrun else "SLURM_STEP_NUM_TASKS", "")
    return int(number) if number.isdecimal() else 1


# On two cores of an EPYC, 224-pixel views of ImageNet's photographs: some 250 pictures a second and
# core through `views.photographs`, 70 through torchvision.
_CHEAPER = 3
# Eight workers then make 2,000 a second, about what a fast GPU takes with a ResNet-50 and two views
# (an estimate: no GPU was at hand). Pictures that are made more slowly are worth more workers.
_MOST_CHEAP, _MOST = 8, 16


def worker_count(config: Config, fabric: Fabric, *, cheap: bool = False) -> int:
    """Return how many processes per rank prepare images.

    Args:
        config: of the run, whose `compute.workers` is taken at its word.
        fabric: tells the device and how many ranks share the cores.
        cheap: whether images take the fast path of `samples`.
    """
    if config.compute.workers != "auto":
        return config.compute.workers
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    per_rank = cores // max(1, fabric.world_size // config.compute.nodes)
    if os.environ.get("SLURM_STEP_NUM_TASKS") == str(fabric.world_size):
        # Where SLURM starts the ranks and binds them to cores, those seen here are this one's alone.
        own = os.environ.get("SLURM_CPUS_PER_TASK", "")
        per_rank = max(per_rank, min(cores, int(own) if own.isdecimal() else 0))
    if fabric.device.type == "cpu":
        # The training itself needs the cores, and it is slower than any worker: half of them at
        # most, and so much fewer as the views are cheaper.
        wanted = per_rank // (2 * _CHEAPER if cheap else 2)
    else:
        # The cores are free for images, but a worker beyond what the GPU takes only holds memory.
        wanted = min(per_rank, _MOST_CHEAP if cheap else _MOST)
    return max(1, min(wanted, _MOST))


def _precision(wanted: str, accelerator: str) -> Any:
    if wanted != "auto":
        return wanted
    if accelerator != "cpu" and torch.cuda.is_available():
        return (
            "bf16-mixed" if torch.cuda.is_bf16_supported(including_emulation=False) else "16-mixed"
        )
    return "32-true"
