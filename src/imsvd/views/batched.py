"""Views of a whole batch of small images at once, on whatever device the batch is on.

For images of one size up to about 96 pixels, kept in memory as bytes: nothing is done sample by
sample, no decision waits for the device. A sample's view does not depend on its batch-mates.
Nothing is rounded to whole levels between operations, so results differ from torchvision on bytes
by about a level for each operation, and from torchvision on floats by hundredths of a level.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from imsvd.views.color import jitter_, plan_jitter, solarize_, to_gray_
from imsvd.views.parameters import Flags, ViewParameters, sample_parameters
from imsvd.views.resampling import blur_matrices, resize_matrices
from imsvd.views.settings import ViewSettings, ViewsSettings

_BLOCK_PIXELS = 256 * 32 * 32  # per thread


def crop_planes(images: Tensor, parameters: ViewParameters, settings: ViewSettings) -> Tensor:
    """Crop, resize and flip, with channels outermost.

    Args:
        images: (n, 3, height, width) uint8.
        parameters: of the same n samples.
        settings: of the view.

    Returns:
        (3, n, size, size) float32, 0 to 255.
    """
    count, _, height, width = images.shape
    size, kind, device = settings.size, settings.interpolation, images.device
    across = resize_matrices(
        parameters.left, parameters.width, width, size, kind, device, reverse=parameters.flip
    )
    down = resize_matrices(parameters.top, parameters.height, height, size, kind, device)
    rows = images.to(torch.float32).view(count, 3 * height, width)
    narrowed = torch.bmm(rows, across.transpose(1, 2)).view(count, 3, height, size)
    if kind == "bicubic":
        narrowed.clamp_(0.0, 255.0)  # as bytes would be, between the two passes
    planes = torch.empty((3, count, size, size), dtype=torch.float32, device=device)
    for channel, plane in enumerate(planes):
        torch.bmm(down, narrowed[:, channel], out=plane)
    return planes.clamp_(0.0, 255.0) if kind == "bicubic" else planes


def blur_(planes: Tensor, rows: Tensor, matrices: Tensor) -> None:
    """Blur some samples in place.

    Args:
        planes: (3, n, size, size).
        rows: (m,) int64 rising, the samples to blur.
        matrices: (m, size, size), one per blurred sample.
    """
    everyone = len(rows) == planes.shape[1]
    for plane in planes:
        sharp = plane if everyone else plane.index_select(0, rows)
        blurred = torch.bmm(torch.bmm(matrices, sharp), matrices.transpose(1, 2), out=sharp)
        if not everyone:
            plane.index_copy_(0, rows, blurred)


def _rows(flags: Flags, device: torch.device) -> Tensor | None:
    rows = np.flatnonzero(flags)
    return torch.from_numpy(rows).to(device) if rows.size else None


def _make_block(
    images: Tensor, parameters: ViewParameters, settings: ViewSettings, out: Tensor
) -> None:
    """Make the views of (n, 3, height, width) images into out, (n, size, size, 3)."""
    device, size = images.device, settings.size
    plan = plan_jitter(parameters)
    permutation = torch.from_numpy(plan.permutation).to(device)
    inverse = torch.from_numpy(np.argsort(plan.permutation)).to(device)
    parameters = parameters.select(plan.permutation)
    planes = crop_planes(images.index_select(0, permutation), parameters, settings)
    flat = planes.view(3, -1, size * size)
    jitter_(flat, plan)
    if (rows := _rows(parameters.gray, device)) is not None:
        to_gray_(flat, rows)
    if (rows := _rows(parameters.blur, device)) is not None:
        blur_(planes, rows, blur_matrices(parameters.blur_sigma[parameters.blur], size, device))
    if (rows := _rows(parameters.solarize, device)) is not None:
        solarize_(flat, rows)
    mean, std = (
        torch.tensor(channels)[:, None, None] for channels in (settings.mean, settings.std)
    )
    flat.mul_((1 / (255.0 * std)).to(device)).sub_((mean / std).to(device))
    torch.index_select(planes.permute(1, 2, 3, 0).contiguous(), 0, inverse, out=out)


def _block_size(images: Tensor, size: int) -> int:
    """How many samples to work on at a time.

    On a CPU the temporaries of one block should stay in the cache, yet be large enough to hide the
    cost of each call. An accelerator is best served with everything at once.
    """
    if images.device.type != "cpu":
        return max(1, len(images))
    pixels = max(size * size, images.shape[2] * images.shape[3])
    return max(1, _BLOCK_PIXELS * torch.get_num_threads() // pixels)


def make_views_batched(
    images: Tensor, parameters: ViewParameters, settings: ViewSettings
) -> Tensor:
    """One view of every image.

    Args:
        images: (n, 3, height, width) uint8, on any device.
        parameters: of the same n samples.
        settings: of the view.

    Returns:
        (n, 3, size, size) float32, normalized, in channels_last memory format.
    """
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != 3:
        raise ValueError(
            f"images must be bytes of shape (n, 3, height, width), not {images.dtype} of shape "
            f"{tuple(images.shape)}"
        )
    count, size = len(images), settings.size
    views = torch.empty((count, size, size, 3), dtype=torch.float32, device=images.device)
    step = _block_size(images, size)
    # Half precision has too few digits for 256 levels, so a caller's autocast must not reach here.
    with torch.autocast(images.device.type, enabled=False):
        for start in range(0, count, step):
            block = slice(start, start + step)
            _make_block(images[block], parameters.select(block), settings, out=views[block])
    return views.permute(0, 3, 1, 2)


def batch_views(
    images: Tensor,
    settings: ViewsSettings,
    *,
    seed: int,
    epoch: int,
    indices: npt.NDArray[np.integer[Any]],
) -> list[Tensor]:
    """Every view of every image: a list of (n, 3, size, size) float32, one entry per view.

    Args:
        images: (n, 3, height, width) uint8, on any device.
        settings: of all views.
        seed: of the run.
        epoch: of the run.
        indices: (n,) positions in the dataset, which key the randomness.
    """
    heights = np.full(len(images), images.shape[2])
    widths = np.full(len(images), images.shape[3])
    made = []
    for number, view in enumerate(settings.every):
        parameters = sample_parameters(
            view, heights, widths, seed=seed, epoch=epoch, indices=indices, view=number
        )
        made.append(make_views_batched(images, parameters, view))
    return made
