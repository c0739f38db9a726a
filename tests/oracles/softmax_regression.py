"""One step of SGD on the mean cross-entropy of a linear classifier, written out."""

import math

import numpy as np
from numpy.typing import NDArray

Reals = NDArray[np.float64]


def step(
    features: Reals, labels: list[int], weight: Reals, bias: Reals, lr: float, decay: float
) -> tuple[Reals, Reals, float]:
    """The new weight and bias, and the loss before the step."""
    gradient, bias_gradient, loss = np.zeros_like(weight), np.zeros_like(bias), 0.0
    for row, label in zip(features, labels, strict=True):
        logits = [
            sum(w * x for w, x in zip(weight[c], row, strict=True)) + bias[c]
            for c in range(len(bias))
        ]
        total = sum(math.exp(logit) for logit in logits)
        loss -= math.log(math.exp(logits[label]) / total) / len(labels)
        for c, logit in enumerate(logits):
            error = (math.exp(logit) / total - (1 if c == label else 0)) / len(labels)
            bias_gradient[c] += error
            for d, x in enumerate(row):
                gradient[c, d] += error * x
    new_weight = weight - lr * (gradient + decay * weight)
    return new_weight, bias - lr * (bias_gradient + decay * bias), loss
