"""An ONNX graph from images in [0, 1] to features, probabilities and codes."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from imsvd.encoder import Encoder
from imsvd.errors import InputError
from imsvd.export.weights import differs, sample_images
from imsvd.files import complete_or_absent
from imsvd.information import codes, max_probabilities, split_variables

OUTPUTS = ("features", "probabilities", "codes")
KINDS = (*OUTPUTS, "all")
_TOLERANCE = 1e-4
_PACKAGES = ("onnx", "onnxscript", "onnxruntime")


class _Outputs(nn.Module):
    """A network with one of the encoder's outputs, or with all of them from one pass."""

    def __init__(self, encoder: Encoder, kind: str) -> None:
        super().__init__()
        self.encoder, self.kind = encoder, kind

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, ...]:
        if self.kind != "all":
            output: Tensor = getattr(self.encoder, self.kind)(images)
            return output
        features = self.encoder.features(images)
        q = self.encoder.discretize(features)
        return features, q, codes(q, self.encoder.description.units)


def export_onnx(encoder: Encoder, path: Path, kind: str = "features") -> None:
    """Write a graph of `images`, (batch, 3, size, size) in [0, 1], and run it to verify it.

    The batch size is free; normalization is part of the graph. Outputs have the names in `OUTPUTS`.
    """
    _require_packages()
    images = sample_images(encoder)
    network = _Outputs(encoder, kind).eval()
    with torch.no_grad():
        network(images)  # raises for codes of an encoder without variables
    names = OUTPUTS if kind == "all" else (kind,)
    with complete_or_absent(path) as temporary:
        with _quiet():
            program = torch.onnx.export(
                network,
                (images,),
                dynamo=True,
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                input_names=["images"],
                output_names=names,
                verbose=False,
            )
        assert program is not None
        program.save(str(temporary), external_data=False)
        _check(encoder, names, temporary)


def _check(encoder: Encoder, names: Sequence[str], path: Path) -> None:
    """Run the graph with onnxruntime, at another batch size than it was exported with."""
    import onnxruntime  # noqa: PLC0415 - optional

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    images = sample_images(encoder, 3)
    for name, output in zip(names, session.run(names, {"images": images.numpy()}), strict=True):
        actual = torch.from_numpy(output)
        with torch.no_grad():
            wrong = (
                _codes_differ(encoder, images, actual)
                if name == "codes"
                else differs(getattr(encoder, name)(images), actual, _TOLERANCE)
            )
        if wrong:
            raise InputError(
                f"onnxruntime gives other {name} than this encoder, so nothing was written; "
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
