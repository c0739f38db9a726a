"""Encoders in the formats of other tools: `FORMATS` is the table, `export_encoder` the entry."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from imsvd.encoder import Encoder
from imsvd.errors import InputError
from imsvd.export.onnx import KINDS, export_onnx
from imsvd.export.weights import (
    export_detectron2,
    export_huggingface,
    export_safetensors,
    export_timm,
    export_torchvision,
)

__all__ = ["FORMATS", "Format", "export_encoder"]


class Format(NamedTuple):
    """How an encoder is written.

    Attributes:
        write: takes the encoder, the path and the kind of output.
        suffix: suffix of the file; empty for a folder.
        kinds: kinds of output that the format supports.
    """

    write: Callable[[Encoder, Path, str], None]
    suffix: str
    kinds: tuple[str, ...] = ("features",)


FORMATS: dict[str, Format] = {
    "torchvision": Format(export_torchvision, ".pth"),
    "timm": Format(export_timm, ""),
    "detectron2": Format(export_detectron2, ".pkl"),
    "safetensors": Format(export_safetensors, ".safetensors"),
    "huggingface": Format(export_huggingface, ""),
    "onnx": Format(export_onnx, ".onnx", KINDS),
}


def export_encoder(
    encoder: Encoder, name: str, out: str | Path, *, output_kind: str = "features"
) -> Path:
    """Write `encoder` to `out` in the format called `name`; return the path.

    Args:
        encoder: the encoder to write.
        name: key of `FORMATS`.
        out: file with the format's suffix, or for timm and huggingface a new folder.
        output_kind: output of the exported network: features, probabilities, codes or all (ONNX only).
    """
    if name not in FORMATS:
        close = difflib.get_close_matches(name, FORMATS, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise InputError(f"there is no format {name!r}; {hint}Formats: {', '.join(FORMATS)}.")
    chosen, path = FORMATS[name], Path(out)
    if output_kind not in chosen.kinds:
        raise InputError(
            f"--format {name} does not support --output-kind {output_kind}; "
            f"choose {' or '.join(chosen.kinds)}."
        )
    _check_path(name, chosen.suffix, path)
    if encoder.description.backbone.library == "onnx" and name not in (
        "safetensors",
        "huggingface",
    ):
        raise InputError(
            f"the backbone of this encoder is an ONNX graph, which --format {name} cannot hold; use "
            "--format safetensors or huggingface."
        )
    encoder.cpu().eval()
    chosen.write(encoder, path, output_kind)
    return path


def _check_path(name: str, suffix: str, path: Path) -> None:
    if not suffix:
        if path.exists():
            raise InputError(f"{path} already exists; --format {name} writes a new folder.")
    elif path.is_dir():
        raise InputError(f"{path} is a folder; --format {name} writes a {suffix} file.")
    elif path.suffix != suffix:
        raise InputError(
            f"--format {name} writes a {suffix} file; name it {path.with_suffix(suffix)}."
        )
