"""A frozen backbone that is an ONNX graph, run by onnxruntime."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from imsvd.errors import InputError

INPUT, OUTPUT = "images", "features"
"""Names that `imsvd export --format onnx` gives."""


class GraphShape(NamedTuple):
    """What must be known of a graph to hold it: bytes, features per image, side of the images."""

    length: int
    num_features: int
    size: int


class GraphBackbone(nn.Module):
    """Images in [0, 1], (batch, 3, size, size), to features; the graph normalizes them itself.

    The graph is kept as a tensor of bytes, so that it is saved, loaded and hashed like any weights.
    It runs on the processor, and no gradient passes through it.
    """

    graph: Tensor

    def __init__(self, shape: GraphShape) -> None:
        super().__init__()
        require_onnxruntime()
        self.num_features, self.size = shape.num_features, shape.size
        self.register_buffer("graph", torch.zeros(shape.length, dtype=torch.uint8))
        self._session: Any = None

    def forward(self, images: Tensor) -> Tensor:
        """Return the features on the device of the images."""
        if images.shape[-2:] != (self.size, self.size):
            raise InputError(
                f"an ONNX encoder takes images of exactly {self.size} pixels, not "
                f"{images.shape[-2]}×{images.shape[-1]}; leave out --size."
            )
        if self._session is None:
            self._session = _open_session(self.graph.cpu().numpy().tobytes(), "the saved graph")
        pixels = images.detach().float().cpu().contiguous().numpy()
        (features,) = self._session.run([OUTPUT], {INPUT: pixels})
        return torch.from_numpy(features).to(images.device)


def read_graph(path: Path) -> GraphBackbone:
    """Read a graph of features that `imsvd export --format onnx` wrote."""
    require_onnxruntime()
    content = path.read_bytes()
    session = _open_session(content, str(path))
    inputs = {each.name: each.shape for each in session.get_inputs()}
    outputs = {each.name: each.shape for each in session.get_outputs()}
    side = inputs[INPUT][-1] if list(inputs) == [INPUT] and len(inputs[INPUT]) == 4 else None
    if OUTPUT not in outputs or not isinstance(side, int):
        raise InputError(
            f"{path} turns {', '.join(inputs)} into {', '.join(outputs)}, but an encoder turns images of "
            "a fixed size into features; export it with --format onnx --output-kind features or all."
        )
    graph = GraphBackbone(GraphShape(len(content), int(outputs[OUTPUT][-1]), side))
    graph.graph = torch.from_numpy(np.frombuffer(content, np.uint8).copy())
    return graph


def _open_session(content: bytes, name: str) -> Any:
    import onnxruntime  # noqa: PLC0415 - optional

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 4  # the error itself says enough
    try:
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime raises many kinds
        raise InputError(
            f"{name} is damaged, or not an ONNX graph that this onnxruntime can run; export it again."
        ) from error


def require_onnxruntime() -> None:
    """Raise if onnxruntime is not installed."""
    if importlib.util.find_spec("onnxruntime") is None:
        raise InputError("ONNX encoders need onnxruntime; run pip install 'imsvd[onnx]'.")
