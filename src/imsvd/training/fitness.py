"""Whether a method can be trained with its views on this device, found out before any data are read."""

from __future__ import annotations

import torch

from imsvd.config import Config
from imsvd.errors import InputError
from imsvd.methods import Method
from imsvd.networks import feature_width


def check_view_sizes(method: Method, config: Config) -> None:
    """Let one empty image of each size through, and refuse a size that the backbone cannot take."""
    for size in {view.size for view in config.views.every} | {config.views.whole_image_size}:
        try:
            with torch.no_grad():
                features = method.backbone.eval()(torch.zeros(1, 3, size, size))
            if features.shape != (1, feature_width(method.backbone)):
                raise RuntimeError(f"it gives {tuple(features.shape)} instead of a vector")
        except (RuntimeError, AssertionError) as error:
            raise InputError(
                f"backbone {config.backbone.name!r} cannot take images of {size} pixels "
                f"({str(error).splitlines()[0].rstrip('.')}); change views or backbone.options."
            ) from error
    method.backbone.train()


def check_precision(method: Method, config: Config, device: torch.device) -> None:
    """Refuse a method that computes in float64 on Apple's GPUs, which have none."""
    if device.type == "mps" and any(buffer.dtype == torch.float64 for buffer in method.buffers()):
        raise InputError(
            f"{config.method.name} computes in float64, which this GPU cannot; "
            "add --set compute.accelerator=cpu."
        )
