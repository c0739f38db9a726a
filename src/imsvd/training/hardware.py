"""Which processor, how many processes, which precision: decided here, run by Lightning Fabric."""

from __future__ import annotations

import os
import warnings
from typing import Any

import torch
from lightning_fabric import Fabric

from imsvd.config import Config
from imsvd.errors import InputError


def launch(config: Config) -> Fabric:
    """Start the processes that `config.compute` asks for; torchrun and SLURM are recognised."""
    compute = config.compute
    accelerator = compute.accelerator
    if accelerator == "auto" and not (
        torch.cuda.is_available() or torch.backends.mps.is_available()
    ):
        accelerator = "cpu"
    devices: int | str = compute.devices
    if devices == "auto" and accelerator == "cpu":
        devices = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
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
        except (ValueError, RuntimeError) as error:
            raise InputError(
                f"this machine cannot run compute.accelerator={accelerator}, "
                f"compute.devices={devices}, compute.precision={compute.precision}: {error}"
            ) from error
    fabric.launch()
    return fabric


def worker_count(config: Config, fabric: Fabric) -> int:
    """Return how many processes per rank prepare images."""
    if config.compute.workers != "auto":
        return config.compute.workers
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    per_rank = cores // max(1, fabric.world_size // config.compute.nodes)
    # On a CPU the training itself needs the cores; on a GPU they are free for images.
    return max(1, min(per_rank // 2 if fabric.device.type == "cpu" else per_rank, 16))


def _precision(wanted: str, accelerator: str) -> Any:
    if wanted != "auto":
        return wanted
    if accelerator != "cpu" and torch.cuda.is_available():
        return (
            "bf16-mixed" if torch.cuda.is_bf16_supported(including_emulation=False) else "16-mixed"
        )
    return "32-true"
