"""LA: Local Aggregation for Unsupervised Learning of Visual Embeddings (https://arxiv.org/abs/1903.12355).

An image should be nearer to the images of its own kind than to merely similar ones. Its *background
neighbors* are the nearest entries of a memory bank; its *close neighbors* are the images that share
its cluster in any of several clusterings of the bank. The loss raises the share of the close ones
among the background, which makes clusters locally tight and distinct.

| symbol | here |
|---|---|
| v, of unit length | `embedding`, `(batch, width)`, normalized by the loss |
| the memory bank | `bank`, `(num_samples, width)`, unit vectors held constant |
| B_i and k | `background_neighbors`, `num_background` |
| C_i, from H clusterings | `close_neighbors`, from `labels`, `(clusterings, num_samples)` |
| P(i \\| v), Eq. 1 | exp(vᵀv_i / τ), whose normalizer cancels |
| L(C_i, B_i \\| θ, x_i), Eq. 5 | `local_aggregation` |

An image is its own close neighbor. If its own entry is not among the k nearest, the released code
may find no close neighbor at all; it adds 1e-7 to the share and has no gradient there. Here the own
entry always belongs to the background, in place of the furthest one, so the share is never empty.
Weight decay, part of Eq. 6, is left to the optimizer.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from imsvd import distributed
from imsvd.information import at_least_float32
from imsvd.losses.base import Loss, LossOutput


@torch.no_grad()
def background_neighbors(similarities: Tensor, samples: Tensor, num_background: int) -> Tensor:
    """B_i: the own entry and the nearest others, `(batch, num_background)` positions.

    Args:
        similarities: `(batch, num_samples)` of the embeddings with the bank.
        samples: `(batch,)` own positions.
        num_background: k, at most the number of images.
    """
    own_first = similarities.scatter(1, samples.unsqueeze(1), float("inf"))
    return own_first.topk(num_background, dim=1).indices


def close_neighbors(labels: Tensor, samples: Tensor, candidates: Tensor) -> Tensor:
    """C_i among `candidates`: whether each shares a cluster with the sample in any clustering.

    Args:
        labels: `(clusterings, num_samples)` cluster of every image.
        samples: `(batch,)` positions.
        candidates: `(batch, k)` positions.
    """
    return (labels[:, samples].unsqueeze(-1) == labels[:, candidates]).any(0)


def local_aggregation(logits: Tensor, close: Tensor) -> Tensor:
    """-log P(C_i ∩ B_i | v) / P(B_i | v) (Eq. 5), mean over the batch.

    Args:
        logits: `(batch, k)` similarities with the background neighbors, over the temperature.
        close: `(batch, k)`, which of them are close; at least one in each row.
    """
    of_close = logits.masked_fill(~close, float("-inf")).logsumexp(1)
    return (logits.logsumexp(1) - of_close).mean()


class LALoss(Loss):
    """Local aggregation against a memory bank, a mean over samples.

    Holds all similarities of the batch with the bank, `(batch, num_samples)`.

    Args:
        num_background: k, nearest entries that form the background.
        temperature: τ.
    """

    def __init__(self, num_background: int = 4096, temperature: float = 0.07) -> None:
        super().__init__()
        self.num_background = num_background
        self.temperature = temperature

    def forward(
        self, embedding: Tensor, samples: Tensor, bank: Tensor, labels: Tensor
    ) -> LossOutput:
        """Loss of one view.

        Args:
            embedding: `(batch, width)`, of any length.
            samples: `(batch,)` positions of the images in the bank.
            bank: `(num_samples, width)` unit vectors, not to be changed before backward.
            labels: `(clusterings, num_samples)` cluster of every image.
        """
        with torch.autocast(embedding.device.type, enabled=False):
            embedding = F.normalize(at_least_float32(embedding), dim=1)
            similarities = embedding @ bank.to(embedding.dtype).T
            background = background_neighbors(similarities, samples, self.num_background)
            close = close_neighbors(labels, samples, background)
            loss = local_aggregation(similarities.gather(1, background) / self.temperature, close)
        return LossOutput(loss, distributed.mean_over_ranks({"local_aggregation": loss}))
