"""One safetensors file: backbone, projector, and in its header how to rebuild the encoder."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import save

from imsvd.encoder import Encoder
from imsvd.files import write_atomically

METADATA_KEY = "imsvd"
"""Where the header holds the encoder's description, as JSON."""


def export_safetensors(encoder: Encoder, path: Path, _kind: str = "features") -> None:
    """Write `backbone.*` and `projector.*`, with the description as metadata."""
    tensors = {name: value.detach().contiguous() for name, value in encoder.state_dict().items()}
    metadata = {"format": "pt", METADATA_KEY: encoder.description.model_dump_json()}
    write_atomically(path, save(tensors, metadata=metadata))
