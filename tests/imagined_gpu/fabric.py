"""Lightning Fabric on the imagined GPU."""

from __future__ import annotations

from typing import Any

import torch
from lightning_fabric import Fabric
from lightning_fabric.accelerators.cpu import CPUAccelerator
from lightning_fabric.plugins import MixedPrecision, Precision
from lightning_fabric.strategies.single_device import SingleDeviceStrategy


class _Accelerator(CPUAccelerator):
    def setup_device(self, device: torch.device) -> None: ...


def imagined_fabric(device: torch.device, *, mixed: bool = False) -> Fabric:
    """Return a launched Fabric with one imagined GPU."""
    precision: Any = MixedPrecision("bf16-mixed", device.type) if mixed else Precision()
    strategy = SingleDeviceStrategy(device, accelerator=_Accelerator(), precision=precision)
    fabric = Fabric(strategy=strategy)
    fabric.launch()
    return fabric
