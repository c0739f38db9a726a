"""A TopK sparse autoencoder on features (Gao et al., 2024, https://arxiv.org/abs/2406.04093).

z = TopK(W (x - b)) and x̂ = V ReLU(z) + b, with columns of V of length 1. The loss is the squared error
of x̂ relative to the variance of x. Latents that have not been active for some steps are dead: the
strongest of them reconstruct the remaining error in an auxiliary loss, which brings them back.

A code is the set of k active latents of n. As a list it takes k log2 n bits, as a set log2 (n over k).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from imsvd.bench.codes.quantizers import Preparation, Quantizer

LATENTS = 256
STEPS = 600
BATCH = 512
LEARNING_RATE = 1e-3
AUXILIARY_WEIGHT = 1 / 32
"""Weight of the auxiliary loss, as in the paper."""
DEAD_STEPS = 20
"""Steps without activity after which a latent is dead."""


def active_in_list(bits: int) -> int:
    """Return how many of the latents a list of `bits` bits can name."""
    return int(bits / math.log2(LATENTS))


def active_in_set(bits: int) -> int:
    """Return the size of the largest sets of latents of which there are at most 2^bits."""
    return max(k for k in range(1, LATENTS // 2) if math.comb(LATENTS, k) <= 2**bits)


class SparseAutoencoder(Quantizer):
    """The autoencoder as a code: sets of active latents.

    Args:
        bits: size of a code.
        as_set: whether as many latents are active as a set of that size can hold, instead of a list.
    """

    units = None

    def __init__(self, bits: int, *, as_set: bool) -> None:
        self.as_set = as_set
        self.active = active_in_set(bits) if as_set else active_in_list(bits)
        self.prepare = Preparation(normalize=True)

    @property
    def bits(self) -> float:
        """Size of a code."""
        sets = math.log2(math.comb(LATENTS, self.active))
        return sets if self.as_set else self.active * math.log2(LATENTS)

    def fit(self, rows: Tensor, seed: int) -> None:
        """Train on features."""
        generator = torch.Generator().manual_seed(seed)
        points = self.prepare.fit(rows)
        self.scale = float(points.square().sum(1).mean().sqrt())
        points = points / self.scale
        self._begin(points.shape[1], generator)
        optimizer = torch.optim.Adam([self.encoder, self.decoder, self.bias], LEARNING_RATE)
        silent = torch.zeros(LATENTS, dtype=torch.long)
        for step in range(STEPS):
            optimizer.param_groups[0]["lr"] = LEARNING_RATE * min(1, 5 * (1 - step / STEPS))
            batch = points[torch.randint(len(points), (BATCH,), generator=generator)]
            loss, active = self._loss(batch, silent > DEAD_STEPS)
            gradients = torch.autograd.grad(loss, [self.encoder, self.decoder, self.bias])
            for weight, gradient in zip(
                optimizer.param_groups[0]["params"], gradients, strict=True
            ):
                weight.grad = gradient
            optimizer.step()
            with torch.no_grad():
                self.decoder.copy_(F.normalize(self.decoder, dim=1))
            silent = torch.where(active.any(0), 0, silent + 1)
        self.dead = int((silent > DEAD_STEPS).sum())
        for weight in (self.encoder, self.decoder, self.bias):
            weight.requires_grad_(False)

    def _begin(self, width: int, generator: torch.Generator) -> None:
        """Begin with directions at random, the encoder as the transpose of the decoder."""
        directions = F.normalize(torch.randn(LATENTS, width, generator=generator), dim=1)
        self.decoder = directions.clone().requires_grad_()
        self.encoder = directions.clone().requires_grad_()
        self.bias = torch.zeros(width, requires_grad=True)

    def _loss(self, batch: Tensor, dead: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss of a batch and which latents are active, (batch, latents)."""
        latents = (batch - self.bias) @ self.encoder.T
        active = strongest(latents, self.active)
        decoded = torch.where(active, latents.relu(), 0.0) @ self.decoder + self.bias
        error = batch - decoded
        loss = error.square().sum(1).mean()  # of points whose mean square length is 1
        if bool(dead.any()):
            # Half of the width, as in the paper, if there are as many dead ones.
            hidden = latents.masked_fill(~dead, -torch.inf)
            helping = strongest(hidden, min(int(dead.sum()), batch.shape[1] // 2)) & dead
            helped = torch.where(helping, latents.relu(), 0.0) @ self.decoder
            rest = error.detach()
            auxiliary = (rest - helped).square().sum(1).mean() / rest.square().sum(1).mean()
            loss = loss + AUXILIARY_WEIGHT * auxiliary
        return loss, active & (latents > 0)

    def _latents(self, features: Tensor) -> Tensor:
        return (self.prepare(features) / self.scale - self.bias) @ self.encoder.T

    def error(self, features: Tensor) -> Tensor:
        """Return the mean squared error of the reconstruction; 1 if it were the mean of all features."""
        latents = self._latents(features)
        decoded = torch.where(strongest(latents, self.active), latents.relu(), 0.0) @ self.decoder
        points = self.prepare(features) / self.scale
        return (points - decoded - self.bias).square().sum(1).mean()

    def codes(self, features: Tensor) -> Tensor:
        """Return the active latents, exactly `active` per image."""
        return strongest(self._latents(features), self.active)

    def vectors(self, codes: Tensor) -> Tensor:
        """Return 1 for active latents: inner products count those that two images share."""
        return codes.float()

    def query(self, features: Tensor) -> Tensor:
        """Return the activations of all latents."""
        return self._latents(features).relu()


def strongest(latents: Tensor, count: int) -> Tensor:
    """Return which `count` latents are the largest in each row, (n, latents) bool."""
    return torch.zeros_like(latents, dtype=torch.bool).scatter_(
        1, latents.topk(count, dim=1).indices, True
    )
