"""Weights in the formats of torchvision, timm, Detectron2 and safetensors.

Except for safetensors, the other library's network is loaded with the weights and must give the
features of the encoder; otherwise nothing is written.
"""

from __future__ import annotations

import io
import json
import pickle
import re
from pathlib import Path
from typing import Any

import timm
import torch
import torchvision
from safetensors.torch import save_file
from torch import Tensor, nn

from imsvd.encoder import Encoder
from imsvd.errors import InputError
from imsvd.files import complete_or_absent, write_atomically
from imsvd.networks import take_off_heads, torchvision_network
from imsvd.pretrained import summarize_keys

TOLERANCE = 1e-5
"""Largest difference between outputs that agree, relative to the largest feature."""
_ANY_NETWORK = "use --format safetensors or onnx"
_RENAMES = (
    (re.compile(r"^(?=conv1|bn1)"), "stem."),
    (re.compile(r"\bbn(\d)\."), r"conv\1.norm."),
    (re.compile(r"\bdownsample\.0\."), "shortcut."),
    (re.compile(r"\bdownsample\.1\."), "shortcut.norm."),
    (re.compile(r"^layer(\d)"), lambda match: f"res{int(match[1]) + 1}"),
)


def sample_images(encoder: Encoder, batch: int = 2) -> Tensor:
    """Return the same random images in [0, 1] every time, (batch, 3, size, size)."""
    side = encoder.description.size
    generator = torch.Generator().manual_seed(0)
    return torch.rand(batch, 3, side, side, generator=generator)


def differs(expected: Tensor, actual: Tensor, tolerance: float = TOLERANCE) -> bool:
    """Return whether two outputs differ by more than rounding."""
    scale = float(expected.abs().max())
    return expected.shape != actual.shape or not bool(
        (expected - actual).abs().max() <= tolerance * scale
    )


def _require_agreement(encoder: Encoder, network: nn.Module, library: str) -> None:
    """Refuse unless `network` gives the encoder's features for normalized images."""
    images = sample_images(encoder)
    with torch.no_grad():
        expected = encoder.features(images)
        actual = network.eval()(encoder.normalize(images))
    if differs(expected, actual):
        raise InputError(
            f"{library}'s {encoder.description.backbone.name} gives other features than this "
            f"encoder, so nothing was written; {_ANY_NETWORK}."
        )


def export_torchvision(encoder: Encoder, path: Path, _kind: str = "features") -> None:
    """Write `path` for `torchvision.models.NAME().load_state_dict(torch.load(path), strict=False)`."""
    buffer = io.BytesIO()
    torch.save(_torchvision_twin(encoder, "torchvision").state_dict(), buffer)
    write_atomically(path, buffer.getvalue())


def _torchvision_twin(encoder: Encoder, library: str) -> nn.Module:
    """Return torchvision's network of the same name with the encoder's weights.

    Keys, shapes and output must be the same; `library` is named in the error if they are not.
    """
    settings = encoder.description.backbone
    name = settings.name.partition(".")[0]
    if settings.stem != "native":
        raise InputError(
            f"{library} has no {name} with backbone.stem={settings.stem} (a 3×3 first convolution "
            f"without max-pooling, for small images); {_ANY_NETWORK}."
        )
    remedy = "use --format timm, safetensors or onnx"
    if name not in torchvision.models.list_models(module=torchvision.models):
        raise InputError(f"{library} has no network {name!r}; {remedy}.")
    network = torchvision_network(name)
    take_off_heads(name, network)
    state, wanted = encoder.backbone.state_dict(), network.state_dict()
    different = [
        key
        for key in wanted.keys() | state.keys()
        if key not in wanted or key not in state or wanted[key].shape != state[key].shape
    ]
    if different:
        options = f" with {settings.options}" if settings.options else ""
        raise InputError(
            f"{library}'s {name} is not this encoder's {settings.name}{options}: they differ in "
            f"{summarize_keys(sorted(different))}; {remedy}."
        )
    network.load_state_dict(state)
    _require_agreement(encoder, network, library)
    return network


def export_detectron2(encoder: Encoder, path: Path, _kind: str = "features") -> None:
    """Write the backbone of a ResNet in Detectron2's naming, as the pickle it expects.

    Nothing in `imsvd` reads a pickle.
    """
    twin = _torchvision_twin(encoder, "Detectron2")
    if not isinstance(twin, torchvision.models.ResNet):
        raise InputError(
            f"Detectron2 has no {encoder.description.backbone.name}; --format detectron2 is for "
            "ResNets."
        )
    # Frozen norms count no batches, and Detectron2 would report each counter as unused.
    model = {
        detectron2_name(key): value.numpy()
        for key, value in twin.state_dict().items()
        if not key.endswith("num_batches_tracked")
    }
    content = {"model": model, "__author__": "imsvd", "matching_heuristics": True}
    write_atomically(path, pickle.dumps(content))


def detectron2_name(key: str) -> str:
    """Return Detectron2's name of a weight of torchvision's ResNet."""
    for pattern, replacement in _RENAMES:
        key = pattern.sub(replacement, key)
    return key


def export_timm(encoder: Encoder, path: Path, _kind: str = "features") -> None:
    """Write the folder that `timm.create_model("local-dir:PATH", pretrained=True)` loads."""
    config = _timm_config(encoder)
    state = {key: value.contiguous() for key, value in encoder.backbone.state_dict().items()}
    with complete_or_absent(path) as folder:
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
        try:
            network = timm.create_model(f"local-dir:{folder}", pretrained=True)
        except (RuntimeError, TypeError, ValueError) as error:
            raise InputError(
                f"timm's {encoder.description.backbone.name} does not accept this encoder's "
                f"weights; {_ANY_NETWORK}."
            ) from error
        _require_agreement(encoder, network, "timm")


def _timm_config(encoder: Encoder) -> dict[str, Any]:
    described = encoder.description
    settings = described.backbone
    if settings.stem != "native":
        raise InputError(
            f"timm cannot build {settings.name} with backbone.stem={settings.stem}, which replaces "
            f"its first layers for small images; {_ANY_NETWORK}."
        )
    architecture = settings.name.partition(".")[0]
    if not timm.is_model(architecture):
        raise InputError(f"timm has no network {architecture!r}; {_ANY_NETWORK}.")
    own = timm.get_pretrained_cfg(architecture, allow_unregistered=True)
    pretrained: dict[str, Any] = {} if own is None else own.to_dict()  # type: ignore[no-untyped-call]
    kept = ("first_conv", "classifier", "pool_size", "fixed_input_size", "interpolation")
    return {
        "architecture": architecture,
        "num_classes": 0,
        "num_features": encoder.num_features,
        "model_args": dict(settings.options),
        "pretrained_cfg": {
            **{key: pretrained[key] for key in kept if pretrained.get(key) is not None},
            "tag": described.method,
            "input_size": [3, described.size, described.size],
            "crop_pct": 224 / 256,
            "crop_mode": "center",
            "mean": list(described.mean),
            "std": list(described.std),
            "num_classes": 0,
        },
    }


def export_safetensors(encoder: Encoder, path: Path, _kind: str = "features") -> None:
    """Write `backbone.*` and `projector.*`, with the encoder's description as JSON metadata."""
    write_atomically(path, encoder.serialize())


def export_huggingface(encoder: Encoder, path: Path, _kind: str = "features") -> None:
    """Write the folder that `Encoder.from_pretrained` loads: the encoder and its model card."""
    with complete_or_absent(path) as folder:
        encoder.save_pretrained(folder, model_card_kwargs={"place": path.name})
