import copy

import pytest
import torch
from torch import Tensor, nn

from imsvd.networks import BackboneSettings, build_backbone, convolution
from imsvd.networks.convolution import ProcessorConv2d, use_processor_convolutions

Shape = tuple[int, int, int, int, int]
"""Channels in and out, side, side of the weights, stride."""


def pair(inputs: int, outputs: int, kernel: int, stride: int) -> tuple[nn.Conv2d, nn.Conv2d]:
    torch.manual_seed(0)
    plain = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
    plain = plain.to(memory_format=torch.channels_last)
    faster = copy.deepcopy(plain)
    use_processor_convolutions(faster)
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


@pytest.mark.parametrize(
    "shape",
    [
        (64, 64, 6, 3, 1),
        (64, 64, 8, 3, 1),
        (64, 128, 7, 3, 2),
        (64, 64, 9, 5, 2),
        (128, 128, 8, 3, 1),
        (128, 136, 4, 3, 1),
    ],
    ids=str,
)
@pytest.mark.parametrize("block_bytes", [2**24, 2**16])
def test_results_and_gradients_are_those_of_pytorch(
    shape: Shape, block_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convolution, "_BLOCK_BYTES", block_bytes)
    inputs, outputs, side, kernel, stride = shape
    plain, faster = pair(inputs, outputs, kernel, stride)
    assert type(faster) is ProcessorConv2d
    for found, expected in zip(trained(faster, side), trained(plain, side), strict=True):
        assert found.is_contiguous(memory_format=torch.channels_last)
        assert (found - expected).abs().max() < 1e-4 * expected.std()


@pytest.mark.parametrize(
    ("side", "stride", "way"), [(8, 1, "_Winograd"), (6, 1, "_Direct"), (8, 2, "_Direct")]
)
def test_the_shape_decides_which_way_is_taken(side: int, stride: int, way: str) -> None:
    _, faster = pair(64, 64, 3, stride)
    images = torch.zeros(2, 64, side, side).to(memory_format=torch.channels_last)
    assert way in type(faster(images).grad_fn).__name__


def test_without_gradients_or_in_other_formats_it_is_pytorchs_own() -> None:
    plain, faster = pair(128, 128, 3, 1)
    images = torch.randn(2, 128, 8, 8).to(memory_format=torch.channels_last)
    with torch.no_grad():
        assert torch.equal(faster(images), plain(images))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(faster(images), plain(images))
    planes = images.contiguous()
    assert torch.equal(faster(planes), plain(planes))
    assert torch.equal(faster.double()(images.double()), plain.double()(images.double()))


def test_an_input_without_gradient_gets_none() -> None:
    for side in (4, 6):
        _, faster = pair(64, 64, 3, 1)
        images = torch.randn(2, 64, side, side).to(memory_format=torch.channels_last)
        faster(images).sum().backward()
        assert faster.weight.grad is not None


def test_only_what_can_be_faster_is_replaced_and_weights_keep_their_names() -> None:
    backbone = build_backbone(BackboneSettings(name="resnet18", stem="stride_1"))
    before = {name: weight.data_ptr() for name, weight in backbone.named_parameters()}
    use_processor_convolutions(backbone)
    assert {name: weight.data_ptr() for name, weight in backbone.named_parameters()} == before
    kept = {name for name, module in backbone.named_modules() if type(module) is nn.Conv2d}
    assert kept == {
        "conv1",
        "layer2.0.downsample.0",
        "layer3.0.downsample.0",
        "layer4.0.downsample.0",
    }
    others = nn.ModuleList(
        [
            nn.Conv2d(64, 64, 3, padding=1),
            nn.Conv2d(64, 64, 3, groups=2, bias=False),
            nn.Conv2d(64, 64, 3, dilation=2, bias=False),
            nn.Conv2d(64, 64, 3, padding="same", bias=False),
            nn.Conv2d(64, 64, 3, padding=1, padding_mode="reflect", bias=False),
            nn.Conv2d(32, 64, 3, bias=False),
        ]
    )
    use_processor_convolutions(others)
    assert {type(module) for module in others} == {nn.Conv2d}
