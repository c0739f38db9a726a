"""The key of an explanation: by it results of other weights or other images are told apart."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from torch import Tensor

from imsvd.datasets import ImageSource
from imsvd.encoder import EncoderDescription


def explanation_key(
    description: EncoderDescription, weights: Mapping[str, Tensor], source: ImageSource
) -> str:
    """A short hash of an encoder's description and weights and of the listing of the images."""
    digest = hashlib.sha256(description.model_dump_json().encode())
    for name, value in sorted(weights.items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    digest.update(source.fingerprint().encode())
    return digest.hexdigest()[:16]
