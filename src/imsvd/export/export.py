"""The table of formats, and the one way into them."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from imsvd.encoder import Encoder
from imsvd.errors import InputError
from imsvd.export.detectron2 import export_detectron2
from imsvd.export.onnx import KINDS, export_onnx
from imsvd.export.safetensors import export_safetensors
from imsvd.export.timm import export_timm
from imsvd.export.torchvision import export_torchvision


class Format(NamedTuple):
    """How an encoder is written, and what the result is called."""

    write: Callable[[Encoder, Path, str], None]
    """Takes the encoder, the place and the kind of output."""
    suffix: str
    """Of a file; empty for a folder."""
    kinds: tuple[str, ...] = ("features",)
    """The outputs that can be asked for."""


FORMATS: dict[str, Format] = {
    "torchvision": Format(export_torchvision, ".pth"),
    "timm": Format(export_timm, ""),
    "detectron2": Format(export_detectron2, ".pkl"),
    "safetensors": Format(export_safetensors, ".safetensors"),
    "onnx": Format(export_onnx, ".onnx", KINDS),
}


def export_encoder(
    encoder: Encoder, name: str, out: str | Path, *, output_kind: str = "features"
) -> Path:
    """Write `encoder` to `out` in the format called `name`; return where.

    Args:
        encoder: what to write.
        name: a key of `FORMATS`.
        out: a file with the format's suffix, or for timm a new folder.
        output_kind: what the exported network gives: features, probabilities or codes (ONNX only).
    """
    if name not in FORMATS:
        close = difflib.get_close_matches(name, FORMATS, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise InputError(f"there is no format {name!r}; {hint}Formats: {', '.join(FORMATS)}.")
    chosen, path = FORMATS[name], Path(out)
    if output_kind not in chosen.kinds:
        raise InputError(
            f"--output-kind {output_kind} is not possible with --format {name}; "
            f"choose {' or '.join(chosen.kinds)}."
        )
    _check_place(name, chosen.suffix, path)
    encoder.cpu().eval()
    chosen.write(encoder, path, output_kind)
    return path


def _check_place(name: str, suffix: str, path: Path) -> None:
    if not suffix:
        if path.exists():
            raise InputError(f"{path} exists already; --format {name} writes a new folder.")
    elif path.is_dir():
        raise InputError(f"{path} is a folder; --format {name} writes a {suffix} file.")
    elif path.suffix != suffix:
        raise InputError(
            f"--format {name} writes a {suffix} file; call it {path.with_suffix(suffix)}."
        )
