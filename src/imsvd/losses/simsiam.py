"""SimSiam: exploring simple Siamese representation learning (https://arxiv.org/abs/2011.10566).

A predictor predicts, from one view, the embedding of the other. There are neither negatives nor a
second network: it is enough that no gradient flows into the predicted embedding.

| symbol | here |
|---|---|
| p | `prediction`, `(batch, width)` |
| z | `target`, `(batch, width)`, held constant |
| 𝒟(p, stopgrad(z)), Eqs. 1 and 3 | minus `cosine` |

Eq. 4 halves the sum of both directions; the method averages them, with one call for each.
"""

from torch import Tensor

from imsvd.losses.base import Loss, LossOutput, checked_pair, mean_cosine


class SimSiamLoss(Loss):
    """Negative cosine of predictions and targets (Eqs. 1 and 3), a mean over the global batch.

    No gradient reaches the target.
    """

    def forward(self, prediction: Tensor, target: Tensor) -> LossOutput:
        """Loss of predictions of one view for the embeddings of another, `(batch, width)` each."""
        prediction, target = checked_pair("SimSiamLoss", prediction, target.detach())
        cosine = mean_cosine(prediction, target)
        return LossOutput(-cosine, {"cosine": cosine.detach()})
