"""NPID: Unsupervised Feature Learning via Non-Parametric Instance Discrimination (https://arxiv.org/abs/1805.01978).

Every image is a class of its own whose weight vector is its entry in a memory bank; an embedding
must be recognized among all images. For few images the softmax is exact; for many, noise-contrastive
estimation compares the image with random others.

| symbol | here |
|---|---|
| v, of unit length | `embedding`, `(batch, width)`, normalized by the loss |
| V, the memory bank | `bank`, `(num_samples, width)`, unit vectors held constant |
| τ | `temperature` |
| P(i \\| v), Eq. 2 | `instance_softmax`, its negative logarithm |
| h(i, v), Eq. 6, and J_NCE, Eq. 7 | `noise_contrast` |
| m | `num_negatives` |
| Z, Eq. 8 | `normalizer`, estimated from the first batch and then held constant |
| λ, Eq. 9 | `proximal_weight`: an embedding should stay near its entry in the bank |

The released code, which gave the published numbers, has no proximal term; its bank follows slowly
instead (a momentum of 0.5). It adds 1e-7 to denominators, which the log-sigmoids here do not need.
With λ = 0, the default, the loss is the released one.
"""

import math
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from imsvd import distributed
from imsvd.errors import InputError
from imsvd.information import at_least_float32
from imsvd.losses.base import Loss, LossOutput

InstanceForm = Literal["nce", "softmax"]


def instance_softmax(
    embedding: Tensor, bank: Tensor, samples: Tensor, temperature: float
) -> Tensor:
    """-log P(i | v) with the exact softmax over all images (Eqs. 2 and 3), mean over the batch.

    Args:
        embedding: `(batch, width)` unit vectors.
        bank: `(num_samples, width)` unit vectors.
        samples: `(batch,)` positions of the images in the bank.
        temperature: τ.
    """
    return F.cross_entropy(embedding @ bank.T / temperature, samples)


def noise_contrast(positive: Tensor, negatives: Tensor, num_samples: int) -> Tensor:
    """J_NCE (Eq. 7): discriminate the image from m others drawn uniformly, mean over the batch.

    With h = P / (P + m / n), log h and log(1 - h) are log-sigmoids of ±(log P - log(m / n)).

    Args:
        positive: `(batch,)` log P of the image itself.
        negatives: `(batch, m)` log P of the others.
        num_samples: n, the number of images.
    """
    log_noise = math.log(negatives.shape[1] / num_samples)
    of_data = F.logsigmoid(positive - log_noise)
    of_noise = F.logsigmoid(log_noise - negatives).sum(1)
    return -(of_data + of_noise).mean()


def proximity(embedding: Tensor, remembered: Tensor) -> Tensor:
    """‖v - v'‖² (Eq. 9), mean over the batch; unit vectors, `(batch, width)` both."""
    return (embedding - remembered).square().sum(1).mean()


def draw_negatives(
    batch: int, num_samples: int, num_negatives: int, generator: torch.Generator
) -> Tensor:
    """Draw `(batch, num_negatives)` images uniformly; all ranks draw for all, and keep their own."""
    shape = (distributed.world_size() * batch, num_negatives)
    drawn = torch.randint(num_samples, shape, generator=generator, device=generator.device)
    return drawn[distributed.own_slice(len(drawn))]


class NPIDLoss(Loss):
    """Instance discrimination against a memory bank, a mean over samples.

    With `form="nce"` the first call fixes Z, a buffer, from the similarities of all ranks.

    Args:
        form: `"nce"` with random negatives, or the exact `"softmax"` over all images.
        temperature: τ.
        proximal_weight: λ; at 0 the term is neither computed nor reported.
    """

    normalizer: Tensor

    def __init__(
        self,
        form: InstanceForm = "nce",
        *,
        temperature: float = 0.07,
        proximal_weight: float = 0.0,
    ) -> None:
        super().__init__()
        if form not in get_args(InstanceForm):
            raise InputError(f"form = {form!r}: choose one of {get_args(InstanceForm)}.")
        self.form = form
        self.temperature = temperature
        self.proximal_weight = proximal_weight
        self.register_buffer("normalizer", torch.zeros(()))

    def forward(
        self, embedding: Tensor, samples: Tensor, bank: Tensor, negatives: Tensor | None = None
    ) -> LossOutput:
        """Loss of one view.

        Args:
            embedding: `(batch, width)`, of any length.
            samples: `(batch,)` positions of the images in the bank.
            bank: `(num_samples, width)` unit vectors, not to be changed before backward.
            negatives: `(batch, m)` positions of other images, for `form="nce"`.
        """
        with torch.autocast(embedding.device.type, enabled=False):
            embedding = F.normalize(at_least_float32(embedding), dim=1)
            bank = bank.to(embedding.dtype)
            if self.form == "softmax":
                loss = instance_softmax(embedding, bank, samples, self.temperature)
            else:
                if negatives is None:
                    raise InputError(
                        "NPIDLoss with form='nce' needs negatives; see draw_negatives."
                    )
                loss = self._noise_contrast(embedding, samples, bank, negatives)
            terms = {"instance_discrimination": loss}
            if self.proximal_weight:
                terms["proximity"] = proximity(embedding, bank[samples])
                loss = loss + self.proximal_weight * terms["proximity"]
        return LossOutput(loss, distributed.mean_over_ranks(terms))

    def _noise_contrast(
        self, embedding: Tensor, samples: Tensor, bank: Tensor, negatives: Tensor
    ) -> Tensor:
        positive = (embedding * bank[samples]).sum(1) / self.temperature
        noise = torch.einsum("bw,bmw->bm", embedding, bank[negatives]) / self.temperature
        if self.normalizer == 0:
            estimate = len(bank) * noise.detach().exp().mean()
            self.normalizer.copy_(distributed.all_reduce_sum(estimate) / distributed.world_size())
        log_z = self.normalizer.log()
        return noise_contrast(positive - log_z, noise - log_z, len(bank))
