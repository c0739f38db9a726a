"""The losses and heads in which Mask R-CNN C4 differs from what torchvision assembles.

With C4 features, conv5 is applied to every region, and box and mask share its output: in training
it runs once per region, for the masks of those that show an object as well. Boxes are regressed
with L1 and regions cropped by RoIAlign with aligned corners, as in Detectron2.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor
from torchvision.models.detection.mask_rcnn import MaskRCNNPredictor
from torchvision.models.detection.roi_heads import (
    RoIHeads,
    maskrcnn_inference,
    maskrcnn_loss,
)
from torchvision.models.detection.rpn import RegionProposalNetwork
from torchvision.ops import roi_align

Detections = list[dict[str, Tensor]]
ImageSizes = list[tuple[int, int]]

REGION_SIZE = 14
"""Side of what RoIAlign cuts out; conv5 halves it, and the deconvolution doubles it again."""


class RegionAlign(NamedTuple):
    """How regions are cut out of the features."""

    stride: int
    sampling_ratio: int

    def __call__(self, features: Tensor, boxes: list[Tensor]) -> Tensor:
        """(regions of all images, channels, 14, 14) of the `boxes` (n, 4) of every image."""
        cut: Tensor = roi_align(
            features,
            boxes,
            REGION_SIZE,
            spatial_scale=1 / self.stride,
            sampling_ratio=self.sampling_ratio or -1,
            aligned=True,
        )
        return cut


class SharedHeads(RoIHeads):  # type: ignore[misc]
    """Classes, boxes and masks of regions, from conv5's one output.

    Args:
        conv5: the encoder's last stage, and the norm after it.
        channels: that conv5 gives.
        num_labels: categories and background.
        mask_channels: width of the mask's deconvolution.
        align: cuts regions out of the features.
        options: of torchvision's heads: thresholds and numbers of samples.
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
        """Losses in training, detections otherwise; the other is empty."""
        (shared,) = features.values()
        if self.training:
            assert targets is not None
            return [], self._losses(shared, proposals, targets)
        return self._detections(shared, proposals, image_sizes), {}

    def _losses(
        self, features: Tensor, proposals: list[Tensor], targets: list[dict[str, Tensor]]
    ) -> dict[str, Tensor]:
        proposals, matches, labels, regression = self.select_training_samples(proposals, targets)
        regions = self.conv5(self.align(features, proposals))
        logits, deltas = self.box_predictor(regions.mean(dim=(2, 3)))
        every_label = torch.cat(labels)
        class_loss, box_loss = region_losses(logits, deltas, every_label, torch.cat(regression))
        positive = [label > 0 for label in labels]
        mask_loss = maskrcnn_loss(
            self.mask_predictor(regions[every_label > 0]),
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
        logits, deltas = self.box_predictor(regions.mean(dim=(2, 3)))
        found = self.postprocess_detections(logits, deltas, proposals, image_sizes)
        boxes, scores, labels = found
        # Masks are cut out of the final boxes, not of the proposals.
        masks = maskrcnn_inference(
            self.mask_predictor(self.conv5(self.align(features, boxes))), labels
        )
        return [
            {"boxes": box, "scores": score, "labels": label, "masks": mask}
            for box, score, label, mask in zip(boxes, scores, labels, masks, strict=True)
        ]


class ProposalNetwork(RegionProposalNetwork):  # type: ignore[misc]
    """torchvision's proposals, regressed with L1."""

    def compute_loss(
        self,
        objectness: Tensor,
        pred_bbox_deltas: Tensor,
        labels: list[Tensor],
        regression_targets: list[Tensor],
    ) -> tuple[Tensor, Tensor]:
        """Of a sample of anchors: whether there is an object, and where."""
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
    """Cross-entropy of the classes, and L1 of the boxes of objects, both per region.

    Args:
        logits: (n, labels), background first.
        deltas: (n, 4 · labels), a box for every label.
        labels: (n,).
        wanted: (n, 4), the box that was meant.
    """
    objects = torch.where(labels > 0)[0]
    own = deltas.view(len(labels), -1, 4)[objects, labels[objects]]
    return F.cross_entropy(logits, labels), (own - wanted[objects]).abs().sum() / len(labels)


def initialize_predictors(box: nn.Module, mask: nn.Module) -> None:
    """Small random weights and zero biases for what no encoder has been trained for."""
    for name, std in (("cls_score", 0.01), ("bbox_pred", 0.001)):
        nn.init.normal_(box.get_parameter(f"{name}.weight"), std=std)
    nn.init.normal_(mask.get_parameter("mask_fcn_logits.weight"), std=0.001)
    for predictor in (box, mask):
        for name, parameter in predictor.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
