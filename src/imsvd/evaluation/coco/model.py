"""Mask R-CNN C4 around an encoder: conv1 to conv4 see the image, conv5 every region.

https://arxiv.org/abs/1703.06870, with the changes of https://arxiv.org/abs/1911.05722 for encoders
that were pretrained without labels; see `settings`. The parts are torchvision's.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.generalized_rcnn import GeneralizedRCNN
from torchvision.models.detection.rpn import RPNHead
from torchvision.models.detection.transform import GeneralizedRCNNTransform

from imsvd.encoder import Encoder
from imsvd.errors import InputError
from imsvd.evaluation.coco.heads import REGION_SIZE, ProposalNetwork, RegionAlign, SharedHeads
from imsvd.evaluation.coco.settings import DetectionSettings
from imsvd.networks import build_backbone

_STAGES = ("layer1", "layer2", "layer3")
_PARTS = ("conv1", "bn1", "maxpool", *_STAGES, "layer4")


class MaskRCNN(GeneralizedRCNN):  # type: ignore[misc]
    """A detector; takes a list of images (3, height, width) in [0, 1] and, in training, targets."""

    def __init__(self, *parts: nn.Module, frozen_norm: bool) -> None:
        super().__init__(*parts)
        self.frozen_norm = frozen_norm
        if frozen_norm:
            for norm in batch_norms(self):
                norm.requires_grad_(False)

    def train(self, mode: bool = True) -> MaskRCNN:
        """Switch to training or back; frozen norms stay as they were pretrained."""
        super().train(mode)
        if self.frozen_norm:
            for norm in batch_norms(self):
                norm.eval()
        return self


def build_detector(encoder: Encoder, num_categories: int, settings: DetectionSettings) -> MaskRCNN:
    """Put a Mask R-CNN around the encoder's backbone, whose stages become parts of it.

    Args:
        encoder: a ResNet of ours, of timm or of torchvision.
        num_categories: without background.
        settings: sizes, anchors, norms.
    """
    trunk, conv5 = split_resnet(_network(encoder, settings))
    channels, stride, region_channels = _measure(trunk, conv5)
    if settings.norm == "trained":
        conv5.append(nn.BatchNorm2d(region_channels))
    description = encoder.description
    anchors = AnchorGenerator((settings.anchor_sizes,), (settings.anchor_ratios,))
    (anchors_per_place,) = anchors.num_anchors_per_location()
    proposing = ProposalNetwork(
        anchors,
        RPNHead(channels, anchors_per_place),
        fg_iou_thresh=0.7,
        bg_iou_thresh=0.3,
        batch_size_per_image=settings.anchors_per_image,
        positive_fraction=0.5,
        pre_nms_top_n=dict(zip(("training", "testing"), settings.candidates, strict=True)),
        post_nms_top_n=dict(zip(("training", "testing"), settings.proposals, strict=True)),
        nms_thresh=0.7,
    )
    heads = SharedHeads(
        conv5,
        region_channels,
        num_categories + 1,
        settings.mask_channels,
        RegionAlign(stride, settings.sampling_ratio),
        fg_iou_thresh=0.5,
        bg_iou_thresh=0.5,
        batch_size_per_image=settings.regions_per_image,
        positive_fraction=0.25,
        score_thresh=0.05,
        nms_thresh=0.5,
        detections_per_img=100,
    )
    # Anchors are laid out by dividing the image's size by that of the features: it must be exact.
    preparing = GeneralizedRCNNTransform(
        settings.sizes,
        settings.max_size,
        list(description.mean),
        list(description.std),
        size_divisible=stride,
    )
    frozen = settings.norm == "frozen"
    return MaskRCNN(trunk, proposing, heads, preparing, frozen_norm=frozen)


def split_resnet(network: nn.Module) -> tuple[nn.Sequential, nn.Sequential]:
    """conv1 to conv4, and conv5, of a ResNet of timm or torchvision."""
    parts = dict(network.named_children())
    activation = parts.get("act1", parts.get("relu"))
    if activation is None or any(name not in parts for name in _PARTS):
        raise InputError(
            f"{type(network).__name__} has no stages conv1 to conv5; Mask R-CNN C4 needs a ResNet, "
            "such as timm:resnet50."
        )
    stem = [parts["conv1"], parts["bn1"], activation, parts["maxpool"]]
    trunk = nn.Sequential(*stem, *(parts[name] for name in _STAGES))
    return trunk, nn.Sequential(parts["layer4"])


def batch_norms(model: nn.Module) -> list[nn.Module]:
    """Every norm that has statistics of batches."""
    kind = nn.modules.batchnorm._BatchNorm
    return [module for module in model.modules() if isinstance(module, kind)]


def _network(encoder: Encoder, settings: DetectionSettings) -> nn.Module:
    if settings.weights == "pretrained":
        return encoder.backbone
    description = encoder.description
    if description.method in ("timm", "torchvision"):
        raise InputError(
            "weights=random is for runs; name a backbone without its weights as "
            f"{description.method}:{description.backbone.name}:random."
        )
    return build_backbone(description.backbone)


def _measure(trunk: nn.Module, conv5: nn.Module) -> tuple[int, int, int]:
    """Channels and stride of conv4, and channels of conv5."""
    side = 64
    with torch.no_grad():
        features: Tensor = trunk.eval()(torch.zeros(1, 3, side, side))
        channels = features.shape[1]
        regions: Tensor = conv5.eval()(torch.zeros(1, channels, REGION_SIZE, REGION_SIZE))
    if side % features.shape[-1] or regions.shape[-1] * 2 != REGION_SIZE:
        raise InputError(
            "the encoder's stages do not halve their resolution as a ResNet's do; Mask R-CNN C4 "
            "needs conv5 of stride 2."
        )
    return channels, side // features.shape[-1], regions.shape[1]
