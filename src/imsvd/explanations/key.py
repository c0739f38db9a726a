"""The key of an explanation: by it results of other weights or other images are told apart."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from torch import Tensor

from imsvd.datasets import ImageSource
from imsvd.datasets.encoded import EncodedSource
from imsvd.datasets.source import UnreadableImage
from imsvd.datasets.stream import StreamSource
from imsvd.encoder import EncoderDescription

SAMPLE = 64
"""Images whose content is looked at: others may have the same names."""


def explanation_key(
    description: EncoderDescription, weights: Mapping[str, Tensor], source: ImageSource
) -> str:
    """Short hashes of an encoder, and of the listing of the images and some of their contents."""
    return f"{encoder_key(description, weights)}-{_image_key(source)}"


def is_of_encoder(key: str, description: EncoderDescription, weights: Mapping[str, Tensor]) -> bool:
    """Whether `key` is that of an explanation of this encoder."""
    return key.partition("-")[0] == encoder_key(description, weights)


def encoder_key(description: EncoderDescription, weights: Mapping[str, Tensor]) -> str:
    """A short hash of an encoder's description and weights."""
    digest = hashlib.sha256(description.model_dump_json().encode())
    for name, value in sorted(weights.items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:12]


def _image_key(source: ImageSource) -> str:
    digest = hashlib.sha256(source.fingerprint().encode())
    if isinstance(source, StreamSource):  # may be far away, and every image costs a whole chunk
        return digest.hexdigest()[:12]
    for index in range(0, len(source), max(1, -(-len(source) // SAMPLE))):
        digest.update(hashlib.sha256(_content(source, index)).digest())
    return digest.hexdigest()[:12]


def _content(source: ImageSource, index: int) -> bytes:
    try:
        if isinstance(source, EncodedSource):
            return source.encoded(index)
        return source.read(index).numpy().tobytes()
    except UnreadableImage:
        return b""
