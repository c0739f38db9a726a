"""Lightning Fabric, without a package that it imports but does not need here.

Where torchmetrics is installed, Fabric imports it for its version number, and with it scipy and
matplotlib: 90 MiB and a second or two for every command.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def _hidden(package: str) -> Iterator[None]:
    """Let imports of `package` fail for a moment, unless it is there already."""
    if package in sys.modules:
        yield
        return
    sys.modules[package] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[package]


with _hidden("torchmetrics"):
    from lightning_fabric import Fabric
    from lightning_fabric.strategies.ddp import DDPStrategy
    from lightning_fabric.utilities.exceptions import MisconfigurationException

# Its notices (devices in use, advice on tensor cores) are no results; warnings still appear.
logging.getLogger("lightning_fabric").setLevel(logging.WARNING)

__all__ = ["DDPStrategy", "Fabric", "MisconfigurationException"]
