"""Methods: network + loss. `METHODS` is the whole table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from imsvd.methods.base import Method, MethodOutput
from imsvd.methods.imsvd import IMSVD, IMSVDSettings

MethodSettings = IMSVDSettings

METHODS: dict[str, tuple[type[MethodSettings], Callable[[Any, nn.Module], Method]]] = {
    "imsvd": (IMSVDSettings, IMSVD),
}


def build_method(settings: MethodSettings, backbone: nn.Module) -> Method:
    """Put the method that `settings` name around `backbone`."""
    _, method = METHODS[settings.name]
    return method(settings, backbone)


__all__ = [
    "IMSVD",
    "METHODS",
    "IMSVDSettings",
    "Method",
    "MethodOutput",
    "MethodSettings",
    "build_method",
]
