"""Device, processes, precision, workers and memory layout: decided here, run by Lightning Fabric."""

from __future__ import annotations

import ctypes
import os
import sys
import warnings
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import nn

from imsvd.config import ComputeSettings
from imsvd.engine.fabric import DDPStrategy, Fabric, MisconfigurationException
from imsvd.errors import InputError
from imsvd.networks import synchronize_norms
from imsvd.networks.winograd import use_winograd
from imsvd.processors import reading_processes, usable_processors

Network = TypeVar("Network", bound=nn.Module)


def launch(compute: ComputeSettings) -> Fabric:
    """Start the processes that `compute` describes; torchrun and SLURM are recognized."""
    accelerator = compute.accelerator
    if accelerator == "auto" and not (
        torch.cuda.is_available() or torch.backends.mps.is_available()
    ):
        accelerator = "cpu"
    devices: int | str = compute.devices
    if devices == "auto" and (accelerator == "cpu" or "LOCAL_WORLD_SIZE" in os.environ):
        devices = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # torchrun's processes
    options: dict[str, Any] = {}
    several = torch.cuda.device_count() > 1 if devices == "auto" else devices != 1
    if several or compute.nodes > 1:
        # A host that is lost without a word is noticed by this alone.
        patience = timedelta(minutes=compute.timeout_minutes)
        options["strategy"] = DDPStrategy(
            timeout=patience, gradient_as_bucket_view=compute.gradient_views
        )
    set_up_device(compute)
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


def set_up_device(compute: ComputeSettings) -> None:
    """Apply the settings that PyTorch keeps for the whole process."""
    torch.backends.cudnn.benchmark = compute.cudnn_benchmark
    torch.set_float32_matmul_precision("high" if compute.tf32 else "highest")


def _require_all_processes(fabric: Fabric) -> None:
    """Raise if a launcher has started more processes than take part: each would train alone."""
    started = _started_processes()
    if started > 1 and started != fabric.world_size:
        raise InputError(
            f"the launcher started {started} processes, but compute.nodes × compute.devices is "
            f"{fabric.world_size}; set both to match the launcher."
        )


def require_single_process(name: str) -> None:
    """Raise if a launcher has started several processes for what one process does."""
    started = _started_processes()
    if started > 1:
        raise InputError(
            f"{name} runs in one process, and the launcher started {started}; "
            "start it without torchrun or srun."
        )


def _started_processes() -> int:
    """Return how many processes torchrun or srun has started; 1 without a launcher."""
    torchrun = "TORCHELASTIC_RUN_ID" in os.environ
    number = os.environ.get("WORLD_SIZE" if torchrun else "SLURM_STEP_NUM_TASKS", "")
    return int(number) if number.isdecimal() else 1


def worker_count(compute: ComputeSettings, fabric: Fabric, *, cheap: bool = False) -> int:
    """Return how many processes per rank prepare images.

    Args:
        compute: settings of the run; a number of workers given there is used as it is.
        fabric: knows the device and how many ranks share the cores.
        cheap: whether images take the fast path for JPEGs.
    """
    if compute.workers != "auto":
        return compute.workers
    cores = usable_processors()
    per_rank = cores // max(1, fabric.world_size // compute.nodes)
    if os.environ.get("SLURM_STEP_NUM_TASKS") == str(fabric.world_size):
        # SLURM binds each rank to cores of its own: all cores seen here belong to this rank.
        own = os.environ.get("SLURM_CPUS_PER_TASK", "")
        per_rank = max(per_rank, min(cores, int(own) if own.isdecimal() else 0))
    return reading_processes(fabric.device.type, per_rank, cheap=cheap)


def _precision(wanted: str, accelerator: str) -> Any:
    if wanted != "auto":
        return wanted
    if accelerator != "cpu" and torch.cuda.is_available():
        return (
            "bf16-mixed" if torch.cuda.is_bf16_supported(including_emulation=False) else "16-mixed"
        )
    return "32-true"


def lay_out(network: Network, fabric: Fabric, *, synchronized: bool = True) -> Network:
    """Lay convolution weights out for speed and share BatchNorm statistics between GPUs."""
    network = network.to(memory_format=torch.channels_last)
    return share_norms(network, fabric) if synchronized else network


def share_norms(network: Network, fabric: Fabric) -> Network:
    """Share BatchNorm statistics between GPUs; CPU processes keep their own."""
    if fabric.world_size > 1 and fabric.device.type == "cuda":
        shared = synchronize_norms(network)
        assert isinstance(shared, type(network))
        return shared
    return network


def use_processor_well(network: nn.Module) -> None:
    """Prepare a network in channels_last for training on a CPU; results change by rounding only.

    PyTorch's fused optimizers would save another 3 %, but with them a run that is interrupted and
    resumed does not end with the same weights.
    """
    keep_freed_memory()
    use_winograd(network)


# From glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
_NEVER, _NONE = 2**31 - 1, 0


def keep_freed_memory() -> bool:
    """Make this process reuse freed memory instead of returning it; return whether malloc supports that.

    Every step needs as much memory as the one before. By default glibc returns large blocks at once,
    and the system zeroes their pages again at the next step, which costs more than many layers.
    """
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # not in every C library
    if mallopt is None:
        return False
    return bool(mallopt(_MMAP_MAX, _NONE)) and bool(mallopt(_TRIM_THRESHOLD, _NEVER))
