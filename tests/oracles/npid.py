"""Instance discrimination, literally: loops over samples and images."""

import torch
from torch import Tensor


def unit(vector: Tensor) -> Tensor:
    return vector / vector.square().sum().sqrt()


def softmax_loss(embedding: Tensor, bank: Tensor, samples: Tensor, temperature: float) -> Tensor:
    """Eqs. 2 and 3, averaged."""
    total = torch.zeros((), dtype=embedding.dtype)
    for v, i in zip(embedding, samples.tolist(), strict=True):
        powers = [(row @ unit(v) / temperature).exp() for row in bank]
        total = total - (powers[i] / torch.stack(powers).sum()).log()
    return total / len(embedding)


def normalizer(embedding: Tensor, bank: Tensor, negatives: Tensor, temperature: float) -> float:
    """Eq. 8, averaged over the samples."""
    powers = [
        float((bank[j] @ unit(v) / temperature).exp())
        for v, row in zip(embedding, negatives.tolist(), strict=True)
        for j in row
    ]
    return len(bank) * sum(powers) / len(powers)


def nce_loss(
    embedding: Tensor,
    bank: Tensor,
    samples: Tensor,
    negatives: Tensor,
    temperature: float,
    z: float,
) -> Tensor:
    """Eqs. 4 to 7, averaged; the expectation over the noise is the mean of the m that were drawn."""
    m, noise = negatives.shape[1], 1 / len(bank)
    total = torch.zeros((), dtype=embedding.dtype)
    for v, i, row in zip(embedding, samples.tolist(), negatives.tolist(), strict=True):
        p = (bank[i] @ unit(v) / temperature).exp() / z
        total = total - (p / (p + m * noise)).log()
        for j in row:
            p = (bank[j] @ unit(v) / temperature).exp() / z
            total = total - (1 - p / (p + m * noise)).log()
    return total / len(embedding)


def proximal(embedding: Tensor, bank: Tensor, samples: Tensor) -> Tensor:
    """The last term of Eq. 9, averaged."""
    pairs = zip(embedding, samples.tolist(), strict=True)
    return torch.stack([(unit(v) - bank[i]).square().sum() for v, i in pairs]).mean()
