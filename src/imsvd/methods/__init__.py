"""Methods: network + loss. `METHODS` is the whole table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from imsvd.methods.barlow_twins import BarlowTwins, BarlowTwinsSettings
from imsvd.methods.base import Method, MethodOutput, MethodSettings
from imsvd.methods.byol import BYOL, BYOLSettings
from imsvd.methods.corinfomax import CorInfoMax, CorInfoMaxSettings
from imsvd.methods.dissl import DISSL, DISSLSettings
from imsvd.methods.imsvd import IMSVD, IMSVDSettings
from imsvd.methods.la import LA, LASettings
from imsvd.methods.moco_v2 import MoCoV2, MoCoV2Settings
from imsvd.methods.npid import NPID, NPIDSettings
from imsvd.methods.pcl import PCL, PCLSettings
from imsvd.methods.simclr import SimCLR, SimCLRSettings
from imsvd.methods.simsiam import SimSiam, SimSiamSettings
from imsvd.methods.swav import SwAV, SwAVSettings
from imsvd.methods.vicreg import VICReg, VICRegSettings
from imsvd.methods.wmse import WMSE, WMSESettings

METHODS: dict[str, tuple[type[MethodSettings], Callable[[Any, nn.Module, int], Method]]] = {
    "imsvd": (IMSVDSettings, IMSVD),
    "npid": (NPIDSettings, NPID),
    "vicreg": (VICRegSettings, VICReg),
    "simclr": (SimCLRSettings, SimCLR),
    "byol": (BYOLSettings, BYOL),
    "simsiam": (SimSiamSettings, SimSiam),
    "barlow_twins": (BarlowTwinsSettings, BarlowTwins),
    "moco_v2": (MoCoV2Settings, MoCoV2),
    "corinfomax": (CorInfoMaxSettings, CorInfoMax),
    "la": (LASettings, LA),
    "wmse": (WMSESettings, WMSE),
    "pcl": (PCLSettings, PCL),
    "swav": (SwAVSettings, SwAV),
    "dissl": (DISSLSettings, DISSL),
}


def build_method(settings: MethodSettings, backbone: nn.Module, num_samples: int) -> Method:
    """Put the method that `settings` name around `backbone`, to be trained on `num_samples` images."""
    _, method = METHODS[settings.name]
    return method(settings, backbone, num_samples)


__all__ = [
    "BYOL",
    "DISSL",
    "IMSVD",
    "LA",
    "METHODS",
    "NPID",
    "PCL",
    "WMSE",
    "BYOLSettings",
    "BarlowTwins",
    "BarlowTwinsSettings",
    "CorInfoMax",
    "CorInfoMaxSettings",
    "DISSLSettings",
    "IMSVDSettings",
    "LASettings",
    "Method",
    "MethodOutput",
    "MethodSettings",
    "MoCoV2",
    "MoCoV2Settings",
    "NPIDSettings",
    "PCLSettings",
    "SimCLR",
    "SimCLRSettings",
    "SimSiam",
    "SimSiamSettings",
    "SwAV",
    "SwAVSettings",
    "VICReg",
    "VICRegSettings",
    "WMSESettings",
    "build_method",
]
