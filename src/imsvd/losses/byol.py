"""BYOL: bootstrap your own latent (https://arxiv.org/abs/2006.07733).

A predictor on top of the online network predicts, from one view, the embedding of the other by a
slowly moving copy of the network. There are no negatives: the predictor and the copy prevent
collapse.

| symbol | here |
|---|---|
| q_θ(z_θ) | `prediction`, `(batch, width)` |
| z'_ξ | `target`, `(batch, width)`, held constant |
| ℒ_{θ,ξ}, Eq. 2 | `2 - 2 * cosine`: the squared distance of the two unit vectors |

The paper adds the losses of both directions; the method does so, with one call for each.
"""

from torch import Tensor

from imsvd.losses.base import Loss, LossOutput, checked_pair, mean_cosine


class BYOLLoss(Loss):
    """Squared distance of normalized predictions and targets (Eq. 2), a mean over the global batch.

    No gradient reaches the target.
    """

    def forward(self, prediction: Tensor, target: Tensor) -> LossOutput:
        """Loss of predictions of one view for the targets of another, `(batch, width)` each."""
        prediction, target = checked_pair("BYOLLoss", prediction, target.detach())
        cosine = mean_cosine(prediction, target)
        return LossOutput(2 - 2 * cosine, {"cosine": cosine.detach()})
