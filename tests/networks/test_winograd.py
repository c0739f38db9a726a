import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from imsvd.networks import BackboneSettings, build_backbone, winograd
from imsvd.networks.winograd import WinogradConv2d, use_winograd


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


def pair(inputs: int, outputs: int) -> tuple[nn.Conv2d, nn.Conv2d]:
    torch.manual_seed(0)
    plain = nn.Conv2d(inputs, outputs, 3, 1, 1, bias=False).to(memory_format=torch.channels_last)
    faster = copy.deepcopy(plain)
    use_winograd(faster)
    return plain, faster


def trained(layer: nn.Conv2d, side: int) -> tuple[Tensor, Tensor, Tensor]:
    """Results, and the gradients of images and weights."""
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(5, layer.in_channels, side, side, generator=generator)
    images = images.to(memory_format=torch.channels_last).requires_grad_()
    made = layer(images)
    made.backward(torch.randn(made.shape, generator=generator))
    assert images.grad is not None
    assert layer.weight.grad is not None
    return made.detach(), images.grad, layer.weight.grad


@pytest.mark.parametrize("shape", [(64, 64, 8), (128, 136, 4), (64, 64, 6)], ids=str)
def test_a_layer_has_the_results_and_gradients_of_pytorchs(shape: tuple[int, int, int]) -> None:
    inputs, outputs, side = shape
    plain, faster = pair(inputs, outputs)
    assert type(faster) is WinogradConv2d
    for found, expected in zip(trained(faster, side), trained(plain, side), strict=True):
        assert found.is_contiguous(memory_format=torch.channels_last)
        assert (found - expected).abs().max() < 1e-4 * expected.std()


@pytest.mark.parametrize(("side", "used"), [(8, True), (6, False)])
def test_only_whole_tiles_use_winograd(side: int, used: bool) -> None:
    _, faster = pair(64, 64)
    images = torch.zeros(2, 64, side, side).to(memory_format=torch.channels_last)
    assert ("_Winograd" in type(faster(images).grad_fn).__name__) == used


def test_without_gradients_or_in_other_formats_it_is_pytorchs_own() -> None:
    plain, faster = pair(128, 128)
    images = torch.randn(2, 128, 8, 8).to(memory_format=torch.channels_last)
    with torch.no_grad():
        assert torch.equal(faster(images), plain(images))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(faster(images), plain(images))
    planes = images.contiguous()
    assert torch.equal(faster(planes), plain(planes))
    assert torch.equal(faster.double()(images.double()), plain.double()(images.double()))


def test_an_input_without_gradient_gets_none() -> None:
    _, faster = pair(64, 64)
    images = torch.randn(2, 64, 4, 4).to(memory_format=torch.channels_last)
    faster(images).sum().backward()
    assert faster.weight.grad is not None


def test_only_what_can_be_faster_is_replaced_and_weights_keep_their_names() -> None:
    backbone = build_backbone(BackboneSettings(name="resnet18", stem="stride_1"))
    before = {name: weight.data_ptr() for name, weight in backbone.named_parameters()}
    use_winograd(backbone)
    assert {name: weight.data_ptr() for name, weight in backbone.named_parameters()} == before
    kept = {name for name, module in backbone.named_modules() if type(module) is nn.Conv2d}
    assert kept == {
        "conv1",
        *(f"layer{stage}.0.{name}" for stage in (2, 3, 4) for name in ("conv1", "downsample.0")),
    }
    others = nn.ModuleList(
        [
            nn.Conv2d(64, 64, 3, padding=1),
            nn.Conv2d(64, 64, 3, padding=1, groups=2, bias=False),
            nn.Conv2d(64, 64, 3, padding=1, dilation=2, bias=False),
            nn.Conv2d(64, 64, 3, padding="same", bias=False),
            nn.Conv2d(64, 64, 3, padding=1, padding_mode="reflect", bias=False),
            nn.Conv2d(64, 64, 3, stride=2, padding=1, bias=False),
            nn.Conv2d(64, 64, 5, padding=1, bias=False),
            nn.Conv2d(64, 64, 3, bias=False),
            nn.Conv2d(32, 64, 3, padding=1, bias=False),
        ]
    )
    use_winograd(others)
    assert {type(module) for module in others} == {nn.Conv2d}
