"""Self-supervised image representations with discrete, explainable variables."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from imsvd.processors import share_processors

if TYPE_CHECKING:
    from imsvd.codes import write_codes
    from imsvd.compare import compare_methods
    from imsvd.discretizing import discretize
    from imsvd.encoder import Encoder, load, open_encoder
    from imsvd.errors import InputError
    from imsvd.evaluation.protocols import evaluate, evaluate_knn, evaluate_linear_probe
    from imsvd.explanations import explain
    from imsvd.index import Index
    from imsvd.losses.imsvd import IMSVDLoss
    from imsvd.pretraining.pretrain import pretrain
    from imsvd.sklearn import ImageCodes

share_processors()  # before any module loads PyTorch

try:
    __version__ = version("imsvd")
except PackageNotFoundError:  # not installed: torch.hub loads the source tree
    __version__ = "unknown"

_HOMES = {
    "Encoder": "imsvd.encoder",
    "IMSVDLoss": "imsvd.losses.imsvd",
    "ImageCodes": "imsvd.sklearn",
    "Index": "imsvd.index",
    "InputError": "imsvd.errors",
    "compare_methods": "imsvd.compare",
    "discretize": "imsvd.discretizing",
    "evaluate": "imsvd.evaluation.protocols",
    "evaluate_knn": "imsvd.evaluation.protocols",
    "evaluate_linear_probe": "imsvd.evaluation.protocols",
    "explain": "imsvd.explanations",
    "load": "imsvd.encoder",
    "open_encoder": "imsvd.encoder",
    "pretrain": "imsvd.pretraining.pretrain",
    "write_codes": "imsvd.codes",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that `imsvd.IMSVDLoss` alone stays light."""
    if name not in _HOMES:
        raise AttributeError(f"module 'imsvd' has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415 - only needed here

    return getattr(import_module(_HOMES[name]), name)


__all__ = [
    "Encoder",
    "IMSVDLoss",
    "ImageCodes",
    "Index",
    "InputError",
    "__version__",
    "compare_methods",
    "discretize",
    "evaluate",
    "evaluate_knn",
    "evaluate_linear_probe",
    "explain",
    "load",
    "open_encoder",
    "pretrain",
    "write_codes",
]
