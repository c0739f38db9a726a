"""Convolutions that train faster on a CPU than PyTorch's.

PyTorch leaves them to oneDNN, which with AVX2 is fast forward and backward to the pixels, but finds
the gradient of the weights at half that speed. Here one matrix product finds it. Where the picture
is made of whole tiles, `winograd` does everything with fewer multiplications. Which way is taken
depends on shapes alone, so that a run can be repeated.
"""

from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from imsvd.networks import winograd

WAYS = ("winograd", "products")
"""The faster ways; `imsvd bench step --convolutions` measures what each of them gains."""
# On two cores of an EPYC with AVX2: below, oneDNN is as fast or faster.
_LEAST_CHANNELS = 64
# Copies of the pixels that each weight has met, for a part of the batch; best near the cache's size.
_BLOCK_BYTES = 16 * 2**20


class ProcessorConv2d(nn.Conv2d):
    """A convolution with the same weights, results and gradients, but for rounding.

    Without gradients, with other data than float32 of a CPU in channels_last, or with few channels
    it is its base class.
    """

    ways: Sequence[str] = WAYS

    @staticmethod
    def fits(module: nn.Module) -> bool:
        """Whether a module is a convolution that can become one of these."""
        return (
            type(module) is nn.Conv2d
            and module.bias is None
            and module.groups == 1
            and module.dilation == (1, 1)
            and module.padding_mode == "zeros"
            and not isinstance(module.padding, str)
            and module.kernel_size != (1, 1)
            and min(module.in_channels, module.out_channels) >= _LEAST_CHANNELS
        )

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - the name that nn.Conv2d gives it
        """(n, in_channels, height, width) to (n, out_channels, …)."""
        if not self._trains_here(input) or torch.is_autocast_enabled("cpu"):
            return super().forward(input)
        if "winograd" in self.ways and self._has_tiles(input):
            convolution: type[_Winograd | _Direct] = _Winograd
        elif "products" in self.ways:
            convolution = _Direct
        else:
            return super().forward(input)
        result: Tensor = convolution.apply(input, self.weight, self.stride, self.padding)
        return result

    def _trains_here(self, images: Tensor) -> bool:
        return (
            torch.is_grad_enabled()
            and self.weight.requires_grad
            and images.device.type == "cpu"
            and images.dtype == self.weight.dtype == torch.float32
            and images.is_contiguous(memory_format=torch.channels_last)
        )

    def _has_tiles(self, images: Tensor) -> bool:
        return (self.kernel_size, self.stride, self.padding) == (
            (3, 3),
            (1, 1),
            (1, 1),
        ) and images.shape[2] % winograd.TILE == images.shape[3] % winograd.TILE == 0


def use_processor_convolutions(network: nn.Module, ways: Sequence[str] = WAYS) -> None:
    """Let every convolution that can train faster on a CPU do so; weights and their names stay."""
    for module in network.modules():
        if ProcessorConv2d.fits(module):
            # It has the same state and differs in what it does only.
            module.__class__ = ProcessorConv2d
            cast(ProcessorConv2d, module).ways = ways


class _Direct(torch.autograd.Function):
    """PyTorch's convolution, but for the gradient of its weights."""

    @staticmethod
    def forward(
        ctx: Any, images: Tensor, weight: Tensor, stride: tuple[int, int], padding: tuple[int, int]
    ) -> Tensor:
        ctx.save_for_backward(images, weight)
        ctx.stride, ctx.padding = stride, padding
        return F.conv2d(images, weight, None, stride, padding)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        images, weight = ctx.saved_tensors
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        of_images = None
        if ctx.needs_input_grad[0]:
            of_images, _, _ = torch.ops.aten.convolution_backward(
                gradient,
                images,
                weight,
                None,
                ctx.stride,
                ctx.padding,
                (1, 1),
                False,
                (0, 0),
                1,
                (True, False, False),
            )
        return of_images, _weight_gradient(images, gradient, weight, ctx), None, None


def _weight_gradient(images: Tensor, gradient: Tensor, weight: Tensor, ctx: Any) -> Tensor:
    """Each result's gradient times the pixels that made it, summed: (outputs, inputs, rows, columns)."""
    outputs, inputs, rows, columns = weight.shape
    count, _, height, width = gradient.shape
    total = gradient.new_zeros((outputs, rows * columns * inputs))
    down, across = ctx.padding
    step = max(
        1, _BLOCK_BYTES // (height * width * rows * columns * inputs * images.element_size())
    )
    for start in range(0, count, step):
        block = images[start : start + step].permute(0, 2, 3, 1)
        padded = F.pad(block, (0, 0, across, across, down, down))
        image, row, column, _ = padded.stride()
        met = padded.as_strided(
            (len(block), height, width, rows, columns, inputs),
            (image, ctx.stride[0] * row, ctx.stride[1] * column, row, column, 1),
        ).reshape(-1, rows * columns * inputs)
        results = gradient[start : start + step].permute(0, 2, 3, 1).reshape(-1, outputs)
        total.addmm_(results.T, met)
    return total.view(outputs, rows, columns, inputs).permute(0, 3, 1, 2)


class _Winograd(torch.autograd.Function):
    """The same for 3 × 3 weights and whole tiles; all three products by `winograd`."""

    @staticmethod
    def forward(
        ctx: Any, images: Tensor, weight: Tensor, stride: tuple[int, int], padding: tuple[int, int]
    ) -> Tensor:
        del stride, padding  # both one
        ctx.save_for_backward(images, weight)
        made = winograd.convolve(images.permute(0, 2, 3, 1), winograd.transform_weight(weight))
        return made.permute(0, 3, 1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        images, weight = ctx.saved_tensors
        rows = gradient.permute(0, 2, 3, 1).contiguous()
        of_images = None
        if ctx.needs_input_grad[0]:
            backward = winograd.transform_weight_backward(weight)
            of_images = winograd.convolve(rows, backward).permute(0, 3, 1, 2)
        of_weight = winograd.weight_gradient(images.permute(0, 2, 3, 1), rows)
        return of_images, of_weight.contiguous(memory_format=torch.channels_last), None, None
