"""Encoders for `torch.hub.load`, also without installing imsvd, if its dependencies are installed."""

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if importlib.util.find_spec("imsvd") is None:  # torch.hub puts only this folder on the path
    sys.path.append(str(Path(__file__).parent / "src"))

if TYPE_CHECKING:
    from imsvd import Encoder

dependencies = [
    "PIL",
    "huggingface_hub",
    "numpy",
    "pydantic",
    "safetensors",
    "timm",
    "torch",
    "torchvision",
    "yaml",
]


def encoder(name: str) -> "Encoder":
    """Return an encoder in evaluation mode: images in [0, 1] to features, or with `.codes` to units.

    Args:
        name: `hf:OWNER/NAME` on the Hugging Face Hub, a run folder, an exported file or folder, or
            `timm:NAME` or `torchvision:NAME` with pretrained weights; see `imsvd.open_encoder`.
    """
    from imsvd import open_encoder  # noqa: PLC0415 - after torch.hub has checked the dependencies

    return open_encoder(name)
