"""Backbones in exported files: folders of timm and ONNX graphs.

`imsvd.encoder` reads safetensors itself, because those hold a whole encoder.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from imsvd.errors import InputError
from imsvd.networks import BackboneSettings, build_backbone, feature_width
from imsvd.networks.graph import GraphShape, read_graph
from imsvd.pretrained import Backbone, load_weights

SAFETENSORS, ONNX = ".safetensors", ".onnx"
_WEIGHTS = (".pth", ".pt", ".bin", ".ckpt", ".tar")
_PICKLES = (".pkl", ".pickle")
_TIMM_WEIGHTS = ("model.safetensors", "pytorch_model.bin")


def exported_path(spec: str | Path) -> Path | None:
    """Return the path of an exported file or timm folder; None if `spec` is neither."""
    path = Path(spec).expanduser()
    if path.is_file() or path.suffix in (SAFETENSORS, ONNX, *_WEIGHTS, *_PICKLES):
        return None if path.is_dir() else path
    is_timm = (path / "config.json").is_file() and not (path / "config.yaml").exists()
    return path if is_timm else None


def open_exported(path: Path) -> tuple[BackboneSettings, Backbone]:
    """Open a timm folder or an ONNX graph, and describe how to build it again."""
    if path.is_dir():
        return _open_timm_folder(path)
    if not path.exists():
        raise InputError(f"there is no file {path}.")
    if path.suffix == ONNX:
        return _open_graph(path)
    if path.suffix in _PICKLES:
        raise InputError(
            f"{path} is a pickle, which could run code and is never read; export the encoder with "
            "--format safetensors instead."
        )
    if path.suffix in (SAFETENSORS, *_WEIGHTS):
        raise InputError(
            f"{path} has weights but no description of their network; name the network: "
            f"torchvision:NAME:{path} or timm:NAME:{path}."
        )
    raise InputError(
        f"{path} is not an encoder; give a run folder, timm:NAME, torchvision:NAME, or what "
        "`imsvd export` writes with --format safetensors, timm or onnx."
    )


def _open_graph(path: Path) -> tuple[BackboneSettings, Backbone]:
    network = read_graph(path)
    shape = GraphShape(len(network.graph), network.num_features, network.size)
    settings = BackboneSettings(library="onnx", name=path.stem, options=shape._asdict())
    # The graph normalizes by itself.
    plain = ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    return settings, Backbone(network, network.num_features, (), network.size, *plain)


def _open_timm_folder(path: Path) -> tuple[BackboneSettings, Backbone]:
    weights = next((path / name for name in _TIMM_WEIGHTS if (path / name).is_file()), None)
    if weights is None:
        raise InputError(f"{path} has config.json, but not {' or '.join(_TIMM_WEIGHTS)}.")
    try:
        config: dict[str, Any] = json.loads((path / "config.json").read_text())
        settings = BackboneSettings.model_validate(
            {"name": config["architecture"], "options": config.get("model_args") or {}}
        )
        images = config["pretrained_cfg"]
        classifier = images.get("classifier") or ()
        size = int(images["input_size"][-1])
        mean, std = (tuple(map(float, images[key])) for key in ("mean", "std"))
        red_green_blue = len(mean) == len(std) == 3
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ValidationError) as error:
        raise InputError(
            f"{path / 'config.json'} does not describe a network of timm ({error}); give a folder "
            "that `imsvd export --format timm` wrote."
        ) from error
    if not red_green_blue:
        raise InputError(f"{path} is for images of {len(mean)} channels; images are read as RGB.")
    network = build_backbone(settings)
    heads = (classifier,) if isinstance(classifier, str) else tuple(classifier)
    backbone = Backbone(network, feature_width(network), heads, size, mean, std)  # type: ignore[arg-type]
    load_weights(backbone, weights)
    return settings, backbone
