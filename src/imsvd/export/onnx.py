"""An ONNX graph from images in [0, 1] to features, probabilities or codes."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from imsvd.encoder import Encoder
from imsvd.errors import InputError
from imsvd.export.weights import differs, sample_images
from imsvd.files import complete_or_absent
from imsvd.information import max_probabilities, split_variables

KINDS = ("features", "probabilities", "codes")
_TOLERANCE = 1e-4
_PACKAGES = ("onnx", "onnxscript", "onnxruntime")


class _Output(nn.Module):
    """A network with one of the encoder's outputs."""

    def __init__(self, encoder: Encoder, kind: str) -> None:
        super().__init__()
        self.encoder, self.kind = encoder, kind

    def forward(self, images: Tensor) -> Tensor:
        output: Tensor = getattr(self.encoder, self.kind)(images)
        return output


def export_onnx(encoder: Encoder, path: Path, kind: str = "features") -> None:
    """Write a graph of `images`, (batch, 3, size, size) in [0, 1], and run it to verify it.

    The batch size is free; normalization is part of the graph.
    """
    _require_packages()
    images = sample_images(encoder)
    network = _Output(encoder, kind).eval()
    with torch.no_grad():
        network(images)  # raises for codes of an encoder without variables
    with complete_or_absent(path) as temporary:
        with _quiet():
            program = torch.onnx.export(
                network,
                (images,),
                dynamo=True,
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                input_names=["images"],
                output_names=[kind],
                verbose=False,
            )
        assert program is not None
        program.save(str(temporary), external_data=False)
        _check(encoder, kind, temporary)


def _check(encoder: Encoder, kind: str, path: Path) -> None:
    """Run the graph with onnxruntime, at another batch size than it was exported with."""
    import onnxruntime  # noqa: PLC0415 - optional

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    images = sample_images(encoder, 3)
    actual = torch.from_numpy(session.run([kind], {"images": images.numpy()})[0])
    with torch.no_grad():
        wrong = (
            _codes_differ(encoder, images, actual)
            if kind == "codes"
            else differs(getattr(encoder, kind)(images), actual, _TOLERANCE)
        )
    if wrong:
        raise InputError(
            f"onnxruntime gives other {kind} than this encoder, so nothing was written; "
            "use another --format, or other versions of torch and onnxruntime."
        )


def _codes_differ(encoder: Encoder, images: Tensor, actual: Tensor) -> bool:
    """Return whether any code is not the unit of largest probability, up to rounding."""
    units = encoder.description.units
    q = encoder.probabilities(images)
    if actual.shape != (len(images), len(units)):
        return True
    chosen = [
        part.gather(1, actual[:, m : m + 1]) for m, part in enumerate(split_variables(q, units))
    ]
    return bool((max_probabilities(q, units) - torch.cat(chosen, 1)).max() > _TOLERANCE)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter's progress messages and warnings."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


def _require_packages() -> None:
    absent = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if absent:
        raise InputError(f"--format onnx needs {', '.join(absent)}; run pip install 'imsvd[onnx]'.")
