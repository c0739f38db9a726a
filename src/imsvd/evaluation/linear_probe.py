"""A quick linear probe: logistic regression on cached features.

Every image is encoded once, from its center crop, and the convex problem is solved to convergence in
seconds. The paper's protocol, `imsvd evaluate linear`, trains a linear layer by SGD for 100 epochs on
augmented images instead. Both rank encoders alike, but their numbers are not interchangeable.
"""

import warnings
from typing import NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from imsvd.encoder import encoding_device
from imsvd.errors import InputError
from imsvd.evaluation.features import check_features, check_labels, check_widths
from imsvd.settings import Settings


class LinearProbeSettings(Settings):
    """Settings of the quick linear probe.

    Attributes:
        l2: weight of ½‖W‖² added to the mean cross-entropy; biases are not regularized.
            scikit-learn's `LogisticRegression` has the same objective with C = 1 / (l2 · n), or
            2 / (l2 · n) for two classes.
        max_iterations: most L-BFGS steps; stopping there raises a warning.
        tolerance: largest gradient entry of a converged solution.
    """

    l2: float = Field(default=1e-3, gt=0)
    max_iterations: int = Field(default=1000, ge=1)
    tolerance: float = Field(default=1e-5, gt=0)


_DEFAULTS = LinearProbeSettings()


_COPIES = 4
"""How often the features must fit into a GPU: standardized, as logits in float64, and as gradients."""


def fitting_device(features: Tensor) -> torch.device:
    """Return where to fit: the device that encodes, unless its memory is too small."""
    device = encoding_device()
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        if _COPIES * features.nbytes > free:
            return features.device
    return device


class _Classifier(NamedTuple):
    """Weights (classes, width) and biases (classes,) for standardized features."""

    weight: Tensor
    bias: Tensor


def linear_probe(
    train: Tensor,
    train_labels: Tensor,
    test: Tensor,
    test_labels: Tensor,
    settings: LinearProbeSettings = _DEFAULTS,
) -> dict[str, float]:
    """Return the test accuracy in percent: "linear_probe_top1" and, for more than five classes, "…_top5".

    Fits training features (n, width) with labels (n,) and classifies test features (m, width) with
    labels (m,). Test classes absent from training count as misclassified.
    """
    check_features("training", train)
    check_features("test", test)
    check_widths(train, test)
    check_labels("training", train, train_labels)
    check_labels("test", test, test_labels)
    train = train.to(fitting_device(train))
    classes, targets = torch.unique(train_labels.to(train.device), return_inverse=True)
    if len(classes) < 2:
        raise InputError("a linear probe needs training images of at least two classes.")
    train, test = _standardized(train, test.to(train.device))
    classifier = _fit(train, targets, len(classes), settings)
    with torch.no_grad():
        ranked = F.linear(test, *classifier).topk(min(5, len(classes)), dim=1).indices
    hits = (classes[ranked] == test_labels.to(train.device)[:, None]).double()
    metrics = {"linear_probe_top1": 100 * hits[:, 0].mean().item()}
    if len(classes) > 5:
        metrics["linear_probe_top5"] = 100 * hits.sum(dim=1).mean().item()
    return metrics


def _standardized(train: Tensor, test: Tensor) -> tuple[Tensor, Tensor]:
    """Standardize both (·, width) by the mean and deviation of `train`, in float32."""
    train, test = train.detach().float(), test.detach().float()
    deviation, mean = torch.std_mean(train, dim=0, correction=0)
    # A dimension that is constant up to rounding would only amplify noise.
    constant = deviation <= 1e-6 * mean.abs()
    scale = deviation.masked_fill(constant, 1)
    return (train - mean) / scale, (test - mean) / scale


def _fit(
    features: Tensor, targets: Tensor, num_classes: int, settings: LinearProbeSettings
) -> _Classifier:
    """Minimize mean cross-entropy + l2/2 ‖W‖² over (n, width) features by full-batch L-BFGS."""
    weight = features.new_zeros(num_classes, features.shape[1], requires_grad=True)
    bias = features.new_zeros(num_classes, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [weight, bias],
        max_iter=settings.max_iterations,
        # A line search may take several evaluations; max_iter is the actual limit.
        max_eval=25 * settings.max_iterations,
        tolerance_grad=settings.tolerance,
        # Stop on the gradient alone; small steps do not imply convergence.
        tolerance_change=0,
        history_size=20,
        line_search_fn="strong_wolfe",
    )

    def objective() -> Tensor:
        optimizer.zero_grad()
        # Near the optimum the line search compares losses closer than float32 resolves.
        value = F.cross_entropy(F.linear(features, weight, bias).double(), targets)
        value = value + settings.l2 / 2 * weight.double().square().sum()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    with torch.enable_grad():
        optimizer.step(objective)  # type: ignore[no-untyped-call]
        objective()
    _warn_unless_converged((weight.grad, bias.grad), settings)
    return _Classifier(weight.detach(), bias.detach())


def _warn_unless_converged(
    gradients: tuple[Tensor | None, ...], settings: LinearProbeSettings
) -> None:
    steepest = max(g.abs().max().item() for g in gradients if g is not None)
    if steepest > settings.tolerance:
        warnings.warn(
            f"the linear probe stopped with a gradient of {steepest:.1e}, above its tolerance of "
            f"{settings.tolerance:.1e}; raise max_iterations or l2.",
            RuntimeWarning,
            stacklevel=4,
        )
