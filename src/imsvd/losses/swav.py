"""SwAV: unsupervised learning by contrasting cluster assignments (https://arxiv.org/abs/2006.09882).

Each view is compared with learned prototypes. Its soft assignment to them (its code) is computed so
that the batch uses all prototypes equally, and every other view of the image must predict it.

| symbol | here |
|---|---|
| zᵀc_k | `scores`, `(batch, prototypes)` cosines of each view |
| q, the columns of Q* (Eqs. 3 to 5) | `sinkhorn_codes(scores, ...)`, held constant |
| ε | `epsilon` |
| τ | `temperature` |
| ℓ(z_t, q_s), Eq. 2 | `code_entropy + divergence`: entropy of q, and Kullback-Leibler divergence from it |

Codes are those of the global batch and, if given, of embeddings from earlier batches. Eq. 1 adds the
two directions; the authors' code, and this, average over all pairs of a code and another view.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from imsvd import distributed
from imsvd.errors import InputError
from imsvd.information import at_least_float32
from imsvd.losses.base import Loss, LossOutput, sum_of_means


@torch.no_grad()
def sinkhorn_codes(scores: Tensor, epsilon: float, iterations: int) -> Tensor:
    """Assign samples to prototypes so that all are used equally (Eqs. 3 to 5).

    Args:
        scores: `(rows, prototypes)` cosines of this rank's samples.
        epsilon: ε, the smoothness of the assignment.
        iterations: rounds of normalizing prototypes and samples in turn.

    Returns:
        `(rows, prototypes)` codes, each of which sums to 1.
    """
    # The largest cosine is 1, so nothing overflows; the constant cancels.
    codes = ((scores - 1) / epsilon).exp()
    for _ in range(iterations):
        codes /= distributed.all_reduce_sum(codes.sum(dim=0))
        codes /= codes.sum(dim=1, keepdim=True)
    return codes


class SwAVLoss(Loss):
    """Swapped prediction of codes (Eqs. 1 and 2) over the global batch.

    Args:
        temperature: τ of the predictions.
        epsilon: ε of the codes.
        iterations: iterations of Sinkhorn's algorithm.
    """

    def __init__(
        self, temperature: float = 0.1, epsilon: float = 0.05, iterations: int = 3
    ) -> None:
        super().__init__()
        self.temperature, self.epsilon, self.iterations = temperature, epsilon, iterations

    def forward(self, scores: Sequence[Tensor], earlier: Sequence[Tensor] = ()) -> LossOutput:
        """Loss of all views of a batch.

        Args:
            scores: `(batch, prototypes)` cosines of each view; codes come from the first two.
            earlier: this rank's share of the cosines of earlier embeddings, `(rows, prototypes)` for
                each of the first two views; they balance the codes of small batches.
        """
        if len(scores) < 2 or any(view.shape != scores[0].shape for view in scores):
            shapes = ", ".join(str(tuple(view.shape)) for view in scores)
            raise InputError(f"SwAVLoss needs two or more equal (batch, prototypes), got {shapes}.")
        with torch.autocast(scores[0].device.type, enabled=False):
            views = [at_least_float32(view) for view in scores]
            codes = [self._codes(views[large], earlier[large : large + 1]) for large in (0, 1)]
            logs = [F.log_softmax(view / self.temperature, dim=1) for view in views]
            divergences = [
                F.kl_div(log, code, reduction="batchmean")
                for large, code in enumerate(codes)
                for view, log in enumerate(logs)
                if view != large
            ]
            return sum_of_means(
                divergence=torch.stack(divergences).mean(),
                code_entropy=torch.special.entr(torch.stack(codes)).sum(dim=2).mean(),
            )

    def _codes(self, scores: Tensor, earlier: Sequence[Tensor]) -> Tensor:
        together = torch.cat([scores, *(rows.to(scores.dtype) for rows in earlier)]).detach()
        return sinkhorn_codes(together, self.epsilon, self.iterations)[: len(scores)]
