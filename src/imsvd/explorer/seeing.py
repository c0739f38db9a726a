"""The encoders of the runs, loaded when first asked for and used by a single thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from imsvd.encoder import Encoder, load
from imsvd.errors import InputError
from imsvd.explanations.grad_cam import grad_cam
from imsvd.explanations.subject import is_of_encoder
from imsvd.explorer.explained_run import ExplainedRun
from imsvd.information import codes, max_probabilities, soft_discretize

MOST_WAITING = 64

Result = TypeVar("Result")


class BusyError(RuntimeError):
    """More is waiting for the encoder than a person can have asked for."""


class Seen(NamedTuple):
    """What an encoder makes of one picture."""

    code: NDArray[np.unsignedinteger[Any]]
    confidence: NDArray[np.float32]
    features: NDArray[np.float32]


class EncoderThread:
    """Runs work that needs an encoder, one piece after the other, beside the server's own threads."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="encoder")
        self._encoders: dict[ExplainedRun, Encoder] = {}
        self._waiting = 0

    async def run(self, work: Callable[[], Result]) -> Result:
        """Wait for `work` without holding one of the server's threads."""
        if self._waiting >= MOST_WAITING:
            raise BusyError("The encoder is busy with earlier requests; try again in a moment.")
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, work)
        finally:
            self._waiting -= 1

    def encoder(self, run: ExplainedRun) -> Encoder:
        """The encoder of a run; to be called inside of `run` only."""
        if run not in self._encoders:
            encoder = load(run.run.path)
            if not is_of_encoder(run.key, encoder.description, encoder.state_dict()):
                raise InputError(
                    f"The weights in {run.run.path} have changed since it was explained; "
                    f"run `imsvd explain {run.run.path} {run.summary['data']}` again."
                )
            device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
            self._encoders[run] = encoder.to(device)
        return self._encoders[run]

    def close(self) -> None:
        """Let the piece that is under way end and drop the others."""
        self._executor.shutdown(wait=False, cancel_futures=True)


def unit_map(encoder: Encoder, picture: Tensor, place: int) -> NDArray[np.float32]:
    """Grad-CAM of the unit at `place` in a picture (3, size, size) uint8: (size, size) in [0, 1]."""
    normalized = encoder.normalize(picture[None].to(encoder.mean.device))
    places = torch.tensor([place], device=normalized.device)
    found: NDArray[np.float32] = grad_cam(encoder, normalized, places)[0].cpu().numpy()
    return found


@torch.no_grad()
def see(encoder: Encoder, picture: Tensor) -> Seen:
    """Code, confidence and features of a picture (3, size, size) uint8."""
    normalized = encoder.normalize(picture[None].to(encoder.mean.device))
    features = encoder.backbone(normalized)
    units = encoder.description.units
    q = soft_discretize(encoder.projector(features), units).cpu()
    dtype = np.uint8 if max(units) <= 256 else np.uint16
    return Seen(
        codes(q, units)[0].numpy().astype(dtype),
        max_probabilities(q, units)[0].numpy(),
        features[0].cpu().numpy(),
    )
