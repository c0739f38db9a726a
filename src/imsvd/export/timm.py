"""A folder that timm and the Hugging Face hub understand: config.json and model.safetensors."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import timm
from safetensors.torch import save_file

from imsvd.encoder import Encoder
from imsvd.errors import InputError
from imsvd.export.agreement import require_agreement
from imsvd.files import complete_or_absent

REMEDY = "use --format safetensors or onnx"


def export_timm(encoder: Encoder, path: Path, _kind: str = "features") -> None:
    """Write what `timm.create_model("local-dir:PATH", pretrained=True)` loads."""
    config = _config(encoder)
    state = {key: value.contiguous() for key, value in encoder.backbone.state_dict().items()}
    with complete_or_absent(path) as folder:
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
        _check(encoder, folder)


def _config(encoder: Encoder) -> dict[str, Any]:
    described = encoder.description
    settings = described.backbone
    if settings.stem != "native":
        raise InputError(
            f"timm cannot build {settings.name} with backbone.stem={settings.stem}, which replaces "
            f"its first layers for small images; {REMEDY}."
        )
    architecture = settings.name.partition(".")[0]
    if not timm.is_model(architecture):
        raise InputError(f"timm has no network {architecture!r}; {REMEDY}.")
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


def _check(encoder: Encoder, folder: Path) -> None:
    try:
        network = timm.create_model(f"local-dir:{os.fspath(folder)}", pretrained=True)
    except (RuntimeError, TypeError, ValueError) as error:
        raise InputError(
            f"timm's {encoder.description.backbone.name} does not take this encoder's weights; "
            f"{REMEDY}."
        ) from error
    require_agreement(encoder, network.eval(), "timm", REMEDY)
