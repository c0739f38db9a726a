"""Methods: network + loss. `METHODS` is the whole table."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from torch import nn

from imsvd.methods.base import Method, MethodOutput
from imsvd.methods.imsvd import IMSVD, IMSVDSettings
from imsvd.methods.settings import MethodSettings

_CLASSES = {
    "imsvd": "IMSVD",
    "npid": "NPID",
    "vicreg": "VICReg",
    "simclr": "SimCLR",
    "byol": "BYOL",
    "simsiam": "SimSiam",
    "barlow_twins": "BarlowTwins",
    "moco_v2": "MoCoV2",
    "corinfomax": "CorInfoMax",
    "la": "LA",
    "wmse": "WMSE",
    "pcl": "PCL",
    "swav": "SwAV",
    "dissl": "DISSL",
    "lejepa": "LeJEPA",
    "visreg": "VISReg",
    "sem": "SEM",
}
"""Name of every method, which is also the name of its module, and its class there.

The settings of class `X` are the class `XSettings` of the same module.
"""


def _load(name: str, method: str) -> tuple[type[MethodSettings], Callable[..., Method]]:
    module = import_module(f"{__name__}.{name}")
    return getattr(module, f"{method}Settings"), getattr(module, method)


METHODS: dict[str, tuple[type[MethodSettings], Callable[[Any, nn.Module, int], Method]]] = {
    name: _load(name, method) for name, method in _CLASSES.items()
}
"""Settings and class of every method, by name."""


def build_method(settings: MethodSettings, backbone: nn.Module, num_samples: int) -> Method:
    """Build the method of `settings` around `backbone`, for training on `num_samples` images."""
    _, method = METHODS[settings.name]
    return method(settings, backbone, num_samples)


__all__ = [
    "IMSVD",
    "METHODS",
    "IMSVDSettings",
    "Method",
    "MethodOutput",
    "MethodSettings",
    "build_method",
]
