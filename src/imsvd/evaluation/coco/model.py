"""Mask R-CNN C4 around an encoder: conv1 to conv4 process the image, conv5 every region.

https://arxiv.org/abs/1703.06870, with MoCo's changes for self-supervised encoders
(https://arxiv.org/abs/1911.05722, see `settings`), built from torchvision's parts. They are replaced
where C4 differs: box and mask heads share conv5's output, computed once per region in training. As in
Detectron2, boxes are regressed with L1 and RoIAlign has aligned corners.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor
from torchvision.models.detection.generalized_rcnn import GeneralizedRCNN
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.mask_rcnn import MaskRCNNPredictor
from torchvision.models.detection.roi_heads import (
    RoIHeads,
    maskrcnn_inference,
    maskrcnn_loss,
)
from torchvision.models.detection.rpn import RegionProposalNetwork, RPNHead
from torchvision.models.detection.transform import GeneralizedRCNNTransform
from torchvision.ops import roi_align

from imsvd.encoder import Encoder
from imsvd.errors import InputError
from imsvd.evaluation.coco.settings import DetectionSettings
from imsvd.networks import build_backbone

_STAGES = ("layer1", "layer2", "layer3")
_PARTS = ("conv1", "bn1", "maxpool", *_STAGES, "layer4")

Detections = list[dict[str, Tensor]]
ImageSizes = list[tuple[int, int]]

REGION_SIZE = 14
"""Side of RoIAlign's output; conv5 halves it, and the mask head's deconvolution doubles it again."""


class MaskRCNN(GeneralizedRCNN):  # type: ignore[misc]
    """A detector of lists of images (3, height, width) in [0, 1]; in training it needs targets too."""

    def __init__(self, *parts: nn.Module, frozen_norm: bool) -> None:
        super().__init__(*parts)
        self.frozen_norm = frozen_norm
        if frozen_norm:
            for norm in batch_norms(self):
                norm.requires_grad_(False)

    def train(self, mode: bool = True) -> MaskRCNN:
        """Switch to training or evaluation mode; frozen norms always stay in evaluation mode."""
        super().train(mode)
        if self.frozen_norm:
            for norm in batch_norms(self):
                norm.eval()
        return self


def build_detector(encoder: Encoder, num_categories: int, settings: DetectionSettings) -> MaskRCNN:
    """Build a Mask R-CNN from the stages of the encoder's backbone, which it takes over.

    The backbone is a ResNet from a run, timm or torchvision. Categories do not include background.
    """
    trunk, conv5 = split_resnet(_network(encoder, settings))
    channels, stride, region_channels = _measure(trunk, conv5)
    if settings.norm == "trained":
        conv5.append(nn.BatchNorm2d(region_channels))
    description = encoder.description
    anchors = Anchors((settings.anchor_sizes,), (settings.anchor_ratios,))
    (anchors_per_place,) = anchors.num_anchors_per_location()
    proposing = ProposalNetwork(
        anchors,
        AnchorHead(channels, anchors_per_place),
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
    # The anchor grid needs image sizes that are multiples of the stride.
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
    """Split a ResNet of timm or torchvision into conv1 to conv4, and conv5."""
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
    """Return all BatchNorm modules."""
    kind = nn.modules.batchnorm._BatchNorm
    return [module for module in model.modules() if isinstance(module, kind)]


def _network(encoder: Encoder, settings: DetectionSettings) -> nn.Module:
    if settings.weights == "pretrained":
        return encoder.backbone
    description = encoder.description
    if description.method in ("timm", "torchvision"):
        raise InputError(
            "weights=random works only for runs; for a random backbone, use "
            f"{description.method}:{description.backbone.name}:random."
        )
    return build_backbone(description.backbone)


def _measure(trunk: nn.Module, conv5: nn.Module) -> tuple[int, int, int]:
    """Return channels and stride of conv4, and channels of conv5."""
    side = 64
    with torch.no_grad():
        features: Tensor = trunk.eval()(torch.zeros(1, 3, side, side))
        channels = features.shape[1]
        regions: Tensor = conv5.eval()(torch.zeros(1, channels, REGION_SIZE, REGION_SIZE))
    if side % features.shape[-1] or regions.shape[-1] * 2 != REGION_SIZE:
        raise InputError(
            "the encoder's stages do not halve the resolution; Mask R-CNN C4 needs a ResNet with a "
            "conv5 of stride 2."
        )
    return channels, side // features.shape[-1], regions.shape[1]


class RegionAlign(NamedTuple):
    """RoIAlign with aligned corners."""

    stride: int
    sampling_ratio: int

    def __call__(self, features: Tensor, boxes: list[Tensor]) -> Tensor:
        """Crop every image's `boxes` (n, 4): (boxes of all images, channels, 14, 14)."""
        cut: Tensor = roi_align(
            features.float(),
            boxes,
            REGION_SIZE,
            spatial_scale=1 / self.stride,
            sampling_ratio=self.sampling_ratio or -1,
            aligned=True,
        )
        return cut


class Anchors(AnchorGenerator):  # type: ignore[misc]
    """torchvision's anchors, which are float32 in any precision: bfloat16 would round 517.6 to 516."""

    def forward(self, images: ImageList, features: list[Tensor]) -> list[Tensor]:
        """Return the anchors of every image."""
        # torchvision takes the number type of the features, which need no content here.
        empty = [values[:, :0].float() for values in features]
        found: list[Tensor] = super().forward(images, empty)
        return found


class AnchorHead(RPNHead):  # type: ignore[misc]
    """torchvision's head of the proposal network, whose results are float32 like the anchors."""

    def forward(self, features: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Return objectness and box deltas of every anchor."""
        objectness, deltas = super().forward(features)
        return [value.float() for value in objectness], [value.float() for value in deltas]


class SharedHeads(RoIHeads):  # type: ignore[misc]
    """Class, box and mask heads on a shared conv5.

    Args:
        conv5: the encoder's last stage and the norm after it.
        channels: output channels of conv5.
        num_labels: number of categories plus background.
        mask_channels: width of the mask head's deconvolution.
        align: crops regions from the features.
        options: thresholds and sample counts of torchvision's heads.
    """

    def __init__(
        self,
        conv5: nn.Module,
        channels: int,
        num_labels: int,
        mask_channels: int,
        align: RegionAlign,
        **options: Any,
    ) -> None:
        super().__init__(
            box_roi_pool=None,
            box_head=None,
            box_predictor=FastRCNNPredictor(channels, num_labels),
            bbox_reg_weights=(10.0, 10.0, 5.0, 5.0),
            mask_predictor=MaskRCNNPredictor(channels, mask_channels, num_labels),
            **options,
        )
        self.conv5 = conv5
        self.align = align
        initialize_predictors(self.box_predictor, self.mask_predictor)

    def forward(
        self,
        features: dict[str, Tensor],
        proposals: list[Tensor],
        image_sizes: ImageSizes,
        targets: list[dict[str, Tensor]] | None = None,
    ) -> tuple[Detections, dict[str, Tensor]]:
        """Return (empty, losses) in training and (detections, empty) in evaluation mode."""
        (shared,) = features.values()
        if self.training:
            assert targets is not None
            return [], self._losses(shared, proposals, targets)
        return self._detections(shared, proposals, image_sizes), {}

    def _predict_boxes(self, regions: Tensor) -> tuple[Tensor, Tensor]:
        """Return class logits and box deltas in float32, as `AnchorHead` does."""
        logits, deltas = self.box_predictor(regions.mean(dim=(2, 3)))
        return logits.float(), deltas.float()

    def _losses(
        self, features: Tensor, proposals: list[Tensor], targets: list[dict[str, Tensor]]
    ) -> dict[str, Tensor]:
        proposals, matches, labels, regression = self.select_training_samples(proposals, targets)
        regions = self.conv5(self.align(features, proposals))
        logits, deltas = self._predict_boxes(regions)
        every_label = torch.cat(labels)
        class_loss, box_loss = region_losses(logits, deltas, every_label, torch.cat(regression))
        positive = [label > 0 for label in labels]
        mask_loss = maskrcnn_loss(
            self.mask_predictor(regions[every_label > 0]).float(),
            [boxes[chosen] for boxes, chosen in zip(proposals, positive, strict=True)],
            [target["masks"] for target in targets],
            [target["labels"] for target in targets],
            [match[chosen] for match, chosen in zip(matches, positive, strict=True)],
        )
        return {"class": class_loss, "box": box_loss, "mask": mask_loss}

    def _detections(
        self, features: Tensor, proposals: list[Tensor], image_sizes: ImageSizes
    ) -> Detections:
        regions = self.conv5(self.align(features, proposals))
        logits, deltas = self._predict_boxes(regions)
        found = self.postprocess_detections(logits, deltas, proposals, image_sizes)
        boxes, scores, labels = found
        # Masks belong to the final boxes, not to the proposals.
        masks = maskrcnn_inference(
            self.mask_predictor(self.conv5(self.align(features, boxes))).float(), labels
        )
        return [
            {"boxes": box, "scores": score, "labels": label, "masks": mask}
            for box, score, label, mask in zip(boxes, scores, labels, masks, strict=True)
        ]


class ProposalNetwork(RegionProposalNetwork):  # type: ignore[misc]
    """torchvision's region proposal network with an L1 box loss."""

    def compute_loss(
        self,
        objectness: Tensor,
        pred_bbox_deltas: Tensor,
        labels: list[Tensor],
        regression_targets: list[Tensor],
    ) -> tuple[Tensor, Tensor]:
        """Return the objectness and box losses on a sample of anchors."""
        positive, negative = (torch.cat(chosen) > 0 for chosen in self.fg_bg_sampler(labels))
        sampled = positive | negative
        wanted = torch.cat(regression_targets)
        box_loss = (pred_bbox_deltas - wanted)[positive].abs().sum() / sampled.sum()
        object_loss = F.binary_cross_entropy_with_logits(
            objectness.flatten()[sampled], torch.cat(labels)[sampled]
        )
        return object_loss, box_loss


def region_losses(
    logits: Tensor, deltas: Tensor, labels: Tensor, wanted: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the cross-entropy of the classes and the L1 loss of the objects' boxes, per region.

    Args:
        logits: (n, labels), background first.
        deltas: (n, 4 · labels), one predicted box per label.
        labels: (n,) true labels.
        wanted: (n, 4) target boxes.
    """
    objects = torch.where(labels > 0)[0]
    own = deltas.view(len(labels), -1, 4)[objects, labels[objects]]
    return F.cross_entropy(logits, labels), (own - wanted[objects]).abs().sum() / len(labels)


def initialize_predictors(box: nn.Module, mask: nn.Module) -> None:
    """Initialize the new heads with small random weights and zero biases."""
    for name, std in (("cls_score", 0.01), ("bbox_pred", 0.001)):
        nn.init.normal_(box.get_parameter(f"{name}.weight"), std=std)
    nn.init.normal_(mask.get_parameter("mask_fcn_logits.weight"), std=0.001)
    for predictor in (box, mask):
        for name, parameter in predictor.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
