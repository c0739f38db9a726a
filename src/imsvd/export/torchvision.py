"""A state dict that torchvision's own network of the same name loads, all but its classifier."""

from __future__ import annotations

import io
from pathlib import Path
from typing import NamedTuple

import torch
import torchvision
from torch import Tensor, nn

from imsvd.encoder import Encoder
from imsvd.errors import InputError
from imsvd.export.agreement import require_agreement
from imsvd.files import write_atomically
from imsvd.pretrained import summarize_keys, take_off_classifier

REMEDY = "use --format safetensors or onnx"
REMEDIES = "use --format timm, safetensors or onnx"


def export_torchvision(encoder: Encoder, path: Path, _kind: str = "features") -> None:
    """Write `path` for `torchvision.models.NAME().load_state_dict(torch.load(path), strict=False)`."""
    buffer = io.BytesIO()
    torch.save(matching_state(encoder, "torchvision").state, buffer)
    write_atomically(path, buffer.getvalue())


class Twin(NamedTuple):
    """torchvision's network of the same name, and the weights that make it compute the same."""

    network: nn.Module
    state: dict[str, Tensor]


def matching_state(encoder: Encoder, library: str) -> Twin:
    """Return torchvision's twin of the encoder's backbone, checked key by key and by its output.

    Args:
        encoder: the encoder.
        library: for whom this is, for the sentence that refuses.
    """
    settings = encoder.description.backbone
    name = settings.name.partition(".")[0]
    if settings.stem != "native":
        raise InputError(
            f"{library} knows no {name} with backbone.stem={settings.stem} (a 3×3 first "
            f"convolution and no max-pool, for small images): its own begins with 7×7 and a "
            f"max-pool; {REMEDY}."
        )
    if name not in torchvision.models.list_models(module=torchvision.models):
        raise InputError(f"{library} has no network {name!r}; {REMEDIES}.")
    network: nn.Module = torchvision.models.get_model(name, weights=None)
    take_off_classifier(name, network)
    state = {key: value.detach().clone() for key, value in encoder.backbone.state_dict().items()}
    wanted = network.state_dict()
    different = [
        key
        for key in wanted.keys() | state.keys()
        if key not in wanted or key not in state or wanted[key].shape != state[key].shape
    ]
    if different:
        options = f" with {settings.options}" if settings.options else ""
        raise InputError(
            f"{library}'s {name} is not this encoder's {settings.name}{options}: they differ in "
            f"{summarize_keys(sorted(different))}; {REMEDIES}."
        )
    network.load_state_dict(state)
    require_agreement(encoder, network.eval(), library, REMEDY)
    return Twin(network, state)
