"""What evaluators ask of the features and labels they compare."""

import torch
from torch import Tensor

from imsvd.errors import InputError


def check_features(split: str, features: Tensor) -> None:
    """Refuse features that are not finite or not (n, width); `split` names them."""
    if features.ndim != 2:
        raise InputError(
            f"The {split} features have shape {tuple(features.shape)}; (n, width) is needed."
        )
    if not len(features):
        raise InputError(f"There are no {split} images to evaluate with.")
    # A NaN or an infinity anywhere makes the sum non-finite, and needs no mask as large as the
    # features; only a sum that overflows calls for the closer look.
    if not features.sum().isfinite() and not features.isfinite().all():
        raise InputError(
            f"The {split} features contain NaN or infinity: the encoder has diverged; train a new one "
            "with a lower optimizer.lr or a longer optimizer.warmup_epochs, in a new --out."
        )


def check_labels(split: str, features: Tensor, labels: Tensor) -> None:
    """Refuse labels that are not one for each of the features (n, width)."""
    if labels.shape != features.shape[:1]:
        raise InputError(
            f"There are {len(features)} {split} features, but labels of shape "
            f"{tuple(labels.shape)}; one label for each is needed."
        )


def check_widths(train: Tensor, test: Tensor) -> None:
    """Refuse features (n, width) and (m, width) of two widths."""
    if train.shape[1] != test.shape[1]:
        raise InputError(
            f"Training features have width {train.shape[1]} and test features {test.shape[1]}; "
            "both must come from the same encoder."
        )


def chance(labels: Tensor) -> float:
    """Accuracy in percent of always naming the most frequent class of `labels` (n,)."""
    _, counts = torch.unique(labels, return_counts=True)
    return 100 * int(counts.max()) / len(labels)
