"""Views as bytes, and how bytes become what a network takes.

A view is made of bytes and stays so until its batch is complete: a quarter of the memory to fill, to
hand from one process to another and to copy to a GPU. Then one pass normalizes the whole batch.
"""

from functools import lru_cache

import torch
from torch import Tensor

from imsvd.views.settings import ViewSettings

_CACHED = 2**18
"""Values that a processor works on at a time: in its cache they need not be fetched twice."""


def normalize(levels: Tensor, settings: ViewSettings) -> Tensor:
    """(x / 255 - mean) / std for every channel.

    Args:
        levels: (n, 3, size, size) uint8 in channels_last memory format, on any device.
        settings: of the view.

    Returns:
        float32 of the same shape, format and device.
    """
    count, channels, height, width = levels.shape
    scale, shift = _scale_and_shift(settings.mean, settings.std, width, levels.device)
    rows = levels.permute(0, 2, 3, 1).reshape(count, height, width * channels)
    normalized = torch.empty(rows.shape, dtype=torch.float32, device=levels.device)
    on_processor = levels.device.type == "cpu"
    step = max(1, _CACHED // (height * width * channels) if on_processor else count)
    for source, target in zip(torch.split(rows, step), torch.split(normalized, step), strict=True):
        torch.addcmul(shift, target.copy_(source), scale, out=target)
    return normalized.view(count, height, width, channels).permute(0, 3, 1, 2)


@lru_cache(maxsize=32)
def _scale_and_shift(
    mean: tuple[float, ...], std: tuple[float, ...], width: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """(3 width,) each: what normalizes one row of pixels; whole rows go fast, triples do not."""
    means, stds = torch.tensor(mean), torch.tensor(std)
    scale, shift = 1 / (255.0 * stds), -means / stds
    return scale.repeat(width).to(device), shift.repeat(width).to(device)
