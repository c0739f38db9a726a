"""3 × 3 convolutions with a quarter of the multiplications, after Lavin and Gray (arXiv:1509.09308).

`use_winograd` lets a network train with them on a CPU. PyTorch uses the direct form there; a step of
ResNet-18 takes 1.2 to 1.4 times as long with it (`imsvd bench step`).

Six by six pixels give four by four results. Pixels and weights are transformed so that each of the
36 values of a tile is multiplied on its own: one matrix product over the channels for each, instead
of nine per pixel in the direct form. The transforms are small matrix products along the rows and
then along the columns; their share of the cost falls with the number of channels. Results equal
those of the direct form up to rounding, with an error a few times as large: about 1e-5 of the
results' standard deviation.

Tensors named `images` below are (n, height, width, channels), with both sides multiples of four;
they are padded with one row of zeros all around.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

# With fewer channels, the direct form is as fast or faster on a CPU with AVX2.
_LEAST_CHANNELS = 64
TILE = 4
"""Side of the results of one tile."""
_INPUT = TILE + 2
_VALUES = _INPUT**2

_PIXELS = (
    (4.0, 0, -5, 0, 1, 0),
    (0, -4, -4, 1, 1, 0),
    (0, 4, -4, -1, 1, 0),
    (0, -2, -1, 2, 1, 0),
    (0, 2, -1, -2, 1, 0),
    (0, 4, 0, -5, 0, 1),
)
_WEIGHTS = (
    (1 / 4, 0, 0),
    (-1 / 6, -1 / 6, -1 / 6),
    (-1 / 6, 1 / 6, -1 / 6),
    (1 / 24, 1 / 12, 1 / 6),
    (1 / 24, -1 / 12, 1 / 6),
    (0, 0, 1),
)
_RESULTS = (
    (1.0, 1, 1, 1, 1, 0),
    (0, 1, -1, 2, -2, 0),
    (0, 1, 1, 4, 4, 0),
    (0, 1, -1, 8, -8, 1),
)
# Small enough that transformed images stay in the cache, large enough to read the weights rarely.
_BLOCK_TILES = 256


class WinogradConv2d(nn.Conv2d):
    """A convolution that trains faster, with the same weights, results and gradients up to rounding.

    It falls back to its base class without gradients, for sides that are no multiple of four, and
    for anything but float32 in channels_last on a CPU. The choice depends on shapes alone, so runs
    are reproducible.
    """

    @staticmethod
    def fits(module: nn.Module) -> bool:
        """Return whether a module is a convolution that can become one of these."""
        return (
            type(module) is nn.Conv2d
            and module.bias is None
            and module.groups == 1
            and module.padding_mode == "zeros"
            and not isinstance(module.padding, str)
            and (module.kernel_size, module.stride) == ((3, 3), (1, 1))
            and (module.padding, module.dilation) == ((1, 1), (1, 1))
            and min(module.in_channels, module.out_channels) >= _LEAST_CHANNELS
        )

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - the name that nn.Conv2d gives it
        """(n, in_channels, height, width) to (n, out_channels, height, width)."""
        if (
            torch.is_grad_enabled()
            and self.weight.requires_grad
            and input.device.type == "cpu"
            and not torch.is_autocast_enabled("cpu")
            and input.dtype == self.weight.dtype == torch.float32
            and input.is_contiguous(memory_format=torch.channels_last)
            and input.shape[2] % TILE == input.shape[3] % TILE == 0
        ):
            result: Tensor = _Winograd.apply(input, self.weight)
            return result
        return super().forward(input)


def use_winograd(network: nn.Module) -> None:
    """Replace every convolution that trains faster on a CPU; weights and their names stay."""
    for module in network.modules():
        if WinogradConv2d.fits(module):
            # Both classes have the same state.
            module.__class__ = WinogradConv2d


class _Winograd(torch.autograd.Function):
    """The convolution and its gradients, between tensors in PyTorch's order of dimensions."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(images, weight)
        return convolve(images.permute(0, 2, 3, 1), transform_weight(weight)).permute(0, 3, 1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor]:
        images, weight = ctx.saved_tensors
        rows = gradient.permute(0, 2, 3, 1).contiguous()
        of_images = None
        if ctx.needs_input_grad[0]:
            of_images = convolve(rows, transform_weight_backward(weight)).permute(0, 3, 1, 2)
        of_weight = weight_gradient(images.permute(0, 2, 3, 1), rows)
        return of_images, of_weight.contiguous(memory_format=torch.channels_last)


class _Transforms(NamedTuple):
    """Matrices that transform one direction of a tile."""

    pixels: Tensor
    """(6, 6)"""
    weights: Tensor
    """(6, 3)"""
    results: Tensor
    """(4, 6)"""


@lru_cache(maxsize=1)
def _transforms() -> _Transforms:
    return _Transforms(*(torch.tensor(rows) for rows in (_PIXELS, _WEIGHTS, _RESULTS)))


def _both_ways(matrix: Tensor, values: Tensor) -> Tensor:
    """Apply an (after, before) matrix to both directions: (before², n) to (after, after, n)."""
    after, before = matrix.shape
    rows = torch.mm(matrix, values.reshape(before, -1))
    return torch.bmm(matrix.expand(after, after, before), rows.view(after, before, -1))


def transform_weight(weight: Tensor) -> Tensor:
    """Transform (outputs, inputs, 3, 3) to the (36, outputs, inputs) of `convolve`."""
    outputs, inputs = weight.shape[:2]
    flat = weight.permute(2, 3, 0, 1).reshape(9, -1)
    return _both_ways(_transforms().weights, flat).view(_VALUES, outputs, inputs)


def transform_weight_backward(weight: Tensor) -> Tensor:
    """Transform (outputs, inputs, 3, 3) to (36, inputs, outputs), for the gradient of the pixels.

    That gradient is a convolution too, with the weights rotated by 180 degrees.
    """
    outputs, inputs = weight.shape[:2]
    flat = weight.permute(2, 3, 0, 1).reshape(9, -1)
    turned = _both_ways(_transforms().weights.flip(1), flat)
    return turned.view(_VALUES, outputs, inputs).transpose(1, 2)


def convolve(images: Tensor, weights: Tensor) -> Tensor:
    """Convolve (n, height, width, inputs) with (36, outputs, inputs): (n, height, width, outputs)."""
    count, height, width, _ = images.shape
    outputs = weights.shape[1]
    made = images.new_empty((count, height, width, outputs))
    down, across = height // TILE, width // TILE
    for block in _blocks(images):
        products = torch.bmm(_tiles(images[block]), weights.transpose(1, 2))
        results = _both_ways(_transforms().results, products.view(_VALUES, -1))
        tiled = results.view(TILE, TILE, -1, down, across, outputs).permute(2, 3, 0, 4, 1, 5)
        made[block].view(-1, down, TILE, across, TILE, outputs).copy_(tiled)
    return made


def weight_gradient(images: Tensor, gradient: Tensor) -> Tensor:
    """Return the gradient of the weights, (outputs, inputs, 3, 3).

    Args:
        images: (n, height, width, inputs), the input of the convolution.
        gradient: (n, height, width, outputs), the gradient of its results.
    """
    _, height, width, inputs = images.shape
    outputs = gradient.shape[-1]
    total = images.new_zeros((_VALUES, outputs, inputs))
    for block in _blocks(images):
        tiled = gradient[block].view(-1, height // TILE, TILE, width // TILE, TILE, outputs)
        results = tiled.permute(2, 4, 0, 1, 3, 5).reshape(TILE**2, -1)
        products = _both_ways(_transforms().results.T, results).view(_VALUES, -1, outputs)
        total.baddbmm_(products.transpose(1, 2), _tiles(images[block]))
    weights = _both_ways(_transforms().weights.T, total.view(_VALUES, -1))
    return weights.view(3, 3, outputs, inputs).permute(2, 3, 0, 1)


def _tiles(images: Tensor) -> Tensor:
    """Return the transformed tiles of images, (36, tiles, channels)."""
    count, height, width, channels = images.shape
    padded = F.pad(images, (0, 0, 1, 1, 1, 1))
    image, row, column, _ = padded.stride()
    overlapping = padded.as_strided(
        (_INPUT, _INPUT, count, height // TILE, width // TILE, channels),
        (row, column, image, TILE * row, TILE * column, 1),
    )
    values = _both_ways(_transforms().pixels, overlapping.reshape(_VALUES, -1))
    return values.view(_VALUES, -1, channels)


def _blocks(images: Tensor) -> Iterator[slice]:
    """Divide a batch into nearly equal parts: a small last one would read all weights for few images."""
    count, height, width, _ = images.shape
    parts = -(-count * height * width // (TILE**2 * _BLOCK_TILES))
    step = -(-count // parts)
    return (slice(start, start + step) for start in range(0, count, step))
