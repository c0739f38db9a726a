"""Backbones: any timm model by name, with a stem for small images if requested."""

from __future__ import annotations

import difflib
import functools
from typing import Any, Literal, Self

import timm
import torch
import torchvision
from pydantic import Field, JsonValue
from timm.layers.norm_act import convert_sync_batchnorm
from timm.models import group_parameters
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from imsvd.errors import InputError
from imsvd.networks.graph import GraphBackbone, GraphShape
from imsvd.settings import Settings

Stem = Literal["native", "stride_1", "stride_2"]
_AUXILIARY = {"googlenet": ("aux1", "aux2"), "inception_v3": ("AuxLogits",)}
"""Auxiliary classifiers of torchvision's networks."""


class BackboneSettings(Settings):
    """The network that turns images into features."""

    library: Literal["timm", "torchvision", "onnx"] = Field(
        "timm",
        description="library that builds the network: timm or torchvision; onnx for the frozen graph "
        "of `imsvd discretize`",
    )
    name: str = Field(
        "resnet50",
        description="any model name of the library, such as resnet18 or vit_small_patch16_224",
    )
    stem: Stem = Field(
        "native",
        description="first layers of a ResNet: native (7×7 stride 2 and max-pool), "
        "stride_1 (3×3, no pool: 32-px images) or stride_2 (3×3 stride 2, no pool)",
    )
    zero_init_residual: bool = Field(
        True, description="start every residual block of a ResNet as identity"
    )
    options: dict[str, JsonValue] = Field(
        default_factory=dict,
        description="further keyword arguments for timm, such as channels or drop_path_rate",
    )


def build_backbone(settings: BackboneSettings) -> nn.Module:
    """Build a network mapping (batch, 3, height, width) to pooled features (batch, num_features)."""
    if settings.library == "torchvision":
        return _build_torchvision(settings)
    if settings.library == "onnx":
        return _build_graph(settings)
    if not timm.is_model(settings.name):
        raise InputError(_unknown_backbone(settings.name))
    _require_rgb(settings)
    options: dict[str, Any] = dict(settings.options)
    if _is_resnet(settings.name):
        options["zero_init_last"] = settings.zero_init_residual
    try:
        backbone: nn.Module = timm.create_model(
            settings.name, pretrained=False, num_classes=0, **options
        )
    except (TypeError, ValueError, AssertionError, KeyError, AttributeError, RuntimeError) as error:
        raise InputError(
            f"backbone.options {settings.options} do not fit {settings.name!r}: {error}"
        ) from error
    if settings.stem != "native":
        _replace_stem(backbone, settings)
    return backbone


def _build_torchvision(settings: BackboneSettings) -> nn.Module:
    """Build a network of torchvision; stems and options are for timm's."""
    name = settings.name.partition(".")[0]
    if name not in torchvision.models.list_models(module=torchvision.models):
        raise InputError(f"backbone.name={settings.name!r} is not a torchvision model.")
    if settings.stem != "native" or settings.options:
        raise InputError(
            f"backbone.stem and backbone.options are for timm's networks, not torchvision's {name}; "
            "leave them out."
        )
    network = torchvision_network(name)
    take_off_heads(name, network)
    return network


def torchvision_network(name: str, weights: Any = None) -> nn.Module:
    """Build a network of torchvision as its published weights need it."""
    options: dict[str, Any] = {}
    if name in _AUXILIARY:
        # Published weights expect another normalization, which torchvision applies if they are
        # downloaded, but not if the same weights come from a file.
        options = {"transform_input": True, "aux_logits": True}
        if weights is None:
            options["init_weights"] = False  # which takes a minute
    network: nn.Module = torchvision.models.get_model(name, weights=weights, **options)
    return network


def _build_graph(settings: BackboneSettings) -> nn.Module:
    """Build the place for a graph, whose bytes are loaded like weights."""
    sizes = [settings.options.get(name) for name in GraphShape._fields]
    if not all(isinstance(size, int) for size in sizes):
        raise InputError(
            "backbone.library=onnx cannot be trained; give the file to `imsvd discretize FILE.onnx`."
        )
    return GraphBackbone(GraphShape._make(sizes))


def take_off_heads(name: str, network: nn.Module) -> tuple[str, ...]:
    """Replace the classifier of a torchvision network by the identity; return names of removed layers.

    Auxiliary classifiers, which only training uses, are removed too.
    """
    auxiliary = _AUXILIARY.get(name, ())
    for head in auxiliary:
        setattr(network, head, None)
    if auxiliary:
        network.aux_logits = False  # type: ignore[assignment]
    linears = [
        (path, module) for path, module in network.named_modules() if isinstance(module, nn.Linear)
    ]
    if not linears or linears[-1][1].out_features != 1000:
        raise InputError(
            f"torchvision:{name} does not end in a linear classifier, so its features cannot be found; "
            "choose another network."
        )
    path: str
    path, classifier = linears[-1]
    parent, _, attribute = path.rpartition(".")
    setattr(network.get_submodule(parent), attribute, nn.Identity())
    network.num_features = classifier.in_features  # type: ignore[assignment]  # as timm's have
    return (path, *auxiliary)


def _require_rgb(settings: BackboneSettings) -> None:
    """Raise for a network with another number of channels: every image is read as RGB."""
    channels = settings.options.get("in_chans", 3)
    if channels != 3:
        raise InputError(
            f"backbone.options.in_chans={channels!r} is not possible, because all images, gray "
            "ones included, are read as RGB; leave it out."
        )


def feature_width(backbone: nn.Module) -> int:
    """Return the number of features per image."""
    # Some heads, such as MobileNetV3's, widen the features after pooling.
    width = getattr(backbone, "head_hidden_size", None) or backbone.num_features
    assert isinstance(width, int)
    return width


class FixedStatistics(nn.Module):
    """What a BatchNorm becomes that always normalizes with the running statistics it has."""

    def train(self, mode: bool = True) -> Self:
        """Stay in evaluation mode."""
        del mode
        return super().train(mode=False)


def fix_statistics(network: nn.Module) -> None:
    """Make every BatchNorm of `network` keep its running statistics, which it then always uses.

    Scale and shift still learn. A change of class survives copies and keeps names and weights.
    """
    for module in network.modules():
        if isinstance(module, _BatchNorm) and not isinstance(module, FixedStatistics):
            module.__class__ = _fixed(type(module))  # type: ignore[assignment,arg-type]
            module.eval()


@functools.cache
def _fixed(kind: type[nn.Module]) -> type[nn.Module]:
    return type(f"Fixed{kind.__name__}", (FixedStatistics, kind), {})


def freeze_stages(backbone: nn.Module, count: int) -> None:
    """Fix weights and BatchNorm statistics of the first `count` stages, as timm divides the network.

    The first stage is the stem.
    """
    if count == 0:
        return
    matcher = getattr(backbone, "group_matcher", None)
    if matcher is None:
        raise InputError(
            f"init.frozen_stages={count} is for networks of timm, which know their stages; set it to 0."
        )
    stages = group_parameters(backbone, matcher(coarse=True))
    if count >= len(stages):
        raise InputError(
            f"init.frozen_stages={count} leaves nothing to train: the network has {len(stages)} stages, "
            f"its stem included; choose at most {len(stages) - 1}."
        )
    frozen = {name for stage in range(count) for name in stages[stage]}
    for name, parameter in backbone.named_parameters():
        if name in frozen:
            parameter.requires_grad = False
    for module in backbone.modules():
        own = list(module.parameters())
        if own and not any(parameter.requires_grad for parameter in own):
            fix_statistics(module)


class EqualBatches(nn.Module):
    """What a synchronized BatchNorm becomes of which no rank ever has an empty batch.

    PyTorch's leaves out the statistics of empty batches, for which the host waits for the GPU three
    times a layer, except while a CUDA graph is captured. This is the path that it then takes.
    """

    def forward(self, images: Tensor) -> Tensor:
        """Normalize `images`."""
        is_capturing = torch.cuda.is_current_stream_capturing
        torch.cuda.is_current_stream_capturing = lambda: True
        try:
            normalized: Tensor = super().forward(images)
        finally:
            torch.cuda.is_current_stream_capturing = is_capturing
        return normalized


@functools.cache
def _of_equal_batches(kind: type[nn.Module]) -> type[nn.Module]:
    return type(f"EqualBatches{kind.__name__}", (EqualBatches, kind), {})


def synchronize_norms(network: nn.Module) -> nn.Module:
    """Return `network` with BatchNorm statistics shared by all ranks, except where they are fixed.

    `nn.SyncBatchNorm.convert_sync_batchnorm` would drop the activations that timm fuses into its
    norms and thereby train another network.
    """
    modules = network.named_modules()
    fixed = [name for name, module in modules if isinstance(module, FixedStatistics)]
    synchronized: nn.Module = convert_sync_batchnorm(network)  # type: ignore[no-untyped-call]
    for module in synchronized.modules():
        if isinstance(module, nn.SyncBatchNorm):
            module.__class__ = _of_equal_batches(type(module))  # type: ignore[assignment,arg-type]
    for name in fixed:
        fix_statistics(synchronized.get_submodule(name))
    return synchronized


def _is_resnet(name: str) -> bool:
    return str(timm.model_entrypoint(name).__module__) == "timm.models.resnet"


def _unknown_backbone(name: str) -> str:
    close = difflib.get_close_matches(name, timm.list_models(), n=3)
    hint = f"did you mean {', '.join(close)}?" if close else "timm.list_models() lists the names."
    return f"backbone.name={name!r} is not a timm model; {hint}"


def _replace_stem(backbone: nn.Module, settings: BackboneSettings) -> None:
    """Keep the resolution of small images: a 3×3 first convolution and no max-pool."""
    if not _is_resnet(settings.name):
        raise InputError(
            f"backbone.stem={settings.stem!r} is for timm's ResNets, not {settings.name!r}; "
            "set backbone.stem=native, and use backbone.options (such as patch_size) instead."
        )
    stride = 1 if settings.stem == "stride_1" else 2
    stem = backbone.conv1
    # timm's deep stems let `stem_width` set the width; one convolution of that width is much faster.
    last = stem[-1] if isinstance(stem, nn.Sequential) else stem
    first = stem[0] if isinstance(stem, nn.Sequential) else stem
    assert isinstance(first, nn.Conv2d)
    assert isinstance(last, nn.Conv2d)
    convolution = nn.Conv2d(
        first.in_channels, last.out_channels, kernel_size=3, stride=stride, padding=1, bias=False
    )
    nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
    backbone.conv1 = convolution
    backbone.maxpool = nn.Identity()
