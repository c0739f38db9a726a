"""The losses of boxes and classes, sum by sum."""

import math

from torch import Tensor


def region_losses(
    logits: Tensor, deltas: Tensor, labels: list[int], wanted: Tensor
) -> tuple[Tensor, Tensor]:
    """Mean cross-entropy; and |difference| of the boxes of objects, divided by all regions."""
    classes, boxes = logits.new_zeros(()), logits.new_zeros(())
    for region, label in enumerate(labels):
        total = logits.new_zeros(())
        for other in range(logits.shape[1]):
            total = total + logits[region, other].exp()
        classes = classes - (logits[region, label] - total.log())
        if label > 0:
            for side in range(4):
                boxes = boxes + (deltas[region, 4 * label + side] - wanted[region, side]).abs()
    return classes / len(labels), boxes / len(labels)


def proposal_losses(
    objectness: Tensor, deltas: Tensor, labels: list[int], wanted: Tensor
) -> tuple[Tensor, Tensor]:
    """Of all anchors but those labeled -1: mean binary cross-entropy, and L1 of those with an object."""
    objects, boxes = objectness.new_zeros(()), objectness.new_zeros(())
    used = 0
    for anchor, label in enumerate(labels):
        if label < 0:
            continue
        used += 1
        sign = 1 if label else -1
        objects = objects + (1 + (-sign * objectness[anchor, 0]).exp()).log()
        if label:
            for side in range(4):
                boxes = boxes + (deltas[anchor, side] - wanted[anchor, side]).abs()
    return objects / used, boxes / used


def learning_rate(step: int, peak: float, warmup: int, decays: list[int]) -> float:
    """Linear warm-up, then a tenth after every one of `decays`."""
    if step < warmup:
        return peak * (step + 1) / warmup
    passed = 0
    for decay in decays:
        if step >= decay:
            passed += 1
    return peak * math.pow(0.1, passed)
