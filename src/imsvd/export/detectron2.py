"""A .pkl in Detectron2's naming of ResNets, to initialize the backbone of its detectors.

Detectron2 reads pickles; this module writes one and nothing here ever reads one.
"""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import torchvision

from imsvd.encoder import Encoder
from imsvd.errors import InputError
from imsvd.export.torchvision import matching_state
from imsvd.files import write_atomically

_RENAMES = (
    (re.compile(r"^(?=conv1|bn1)"), "stem."),
    (re.compile(r"\bbn(\d)\."), r"conv\1.norm."),
    (re.compile(r"\bdownsample\.0\."), "shortcut."),
    (re.compile(r"\bdownsample\.1\."), "shortcut.norm."),
    (re.compile(r"^layer(\d)"), lambda match: f"res{int(match[1]) + 1}"),
)


def export_detectron2(encoder: Encoder, path: Path, _kind: str = "features") -> None:
    """Write the backbone's weights and running statistics as Detectron2 names them."""
    twin = matching_state(encoder, "Detectron2")
    if not isinstance(twin.network, torchvision.models.ResNet):
        raise InputError(
            f"Detectron2 has no {encoder.description.backbone.name}; --format detectron2 is for "
            "ResNets."
        )
    # Frozen norms count no batches, and Detectron2 would report each counter as unused.
    model = {
        detectron2_name(key): value.numpy()
        for key, value in twin.state.items()
        if not key.endswith("num_batches_tracked")
    }
    content = {"model": model, "__author__": "imsvd", "matching_heuristics": True}
    write_atomically(path, pickle.dumps(content))


def detectron2_name(key: str) -> str:
    """Return Detectron2's name of a weight of torchvision's ResNet."""
    for pattern, replacement in _RENAMES:
        key = pattern.sub(replacement, key)
    return key
