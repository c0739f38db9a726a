import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from imsvd.networks import winograd


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def literal_gradients(
    images: Tensor, weight: Tensor, gradient: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The direct form in float64: results, and the gradients of images and weights."""
    pixels, weights = (
        each.double().requires_grad_() for each in (images.permute(0, 3, 1, 2), weight)
    )
    made = F.conv2d(pixels, weights, padding=1)
    of_images, of_weight = torch.autograd.grad(
        made, (pixels, weights), gradient.permute(0, 3, 1, 2).double()
    )
    return made.detach().permute(0, 2, 3, 1), of_images.permute(0, 2, 3, 1), of_weight


def close(found: Tensor, expected: Tensor) -> None:
    assert found.shape == expected.shape
    assert (found - expected).abs().max() < 1e-4 * expected.std()


@pytest.mark.parametrize("shape", [(3, 4, 4, 8, 16), (2, 8, 12, 16, 8), (1, 16, 4, 5, 3)], ids=str)
@pytest.mark.parametrize("in_blocks", [False, True])
def test_results_and_gradients_are_those_of_the_direct_form(
    shape: tuple[int, int, int, int, int], in_blocks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, height, width, inputs, outputs = shape
    if in_blocks:
        monkeypatch.setattr(winograd, "_BLOCK_TILES", 2)
    images, weight = drawn(count, height, width, inputs), drawn(outputs, inputs, 3, 3)
    gradient = drawn(count, height, width, outputs)
    results, of_images, of_weight = literal_gradients(images, weight, gradient)
    close(winograd.convolve(images, winograd.transform_weight(weight)), results)
    close(winograd.convolve(gradient, winograd.transform_weight_backward(weight)), of_images)
    close(winograd.weight_gradient(images, gradient), of_weight)


def test_blocks_cover_a_batch_once_in_nearly_equal_parts() -> None:
    images = torch.empty(64, 16, 16, 128)
    parts = [range(64)[block] for block in winograd._blocks(images)]
    assert [index for part in parts for index in part] == list(range(64))
    assert len(parts) > 1
    assert min(map(len, parts)) > max(map(len, parts)) - len(parts)
