"""Discrete codes of images for scikit-learn: `ImageCodes().fit(paths).transform(paths)`."""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from numbers import Integral
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from torch import Tensor

from imsvd.checkpoints import random_state, restore_random_state
from imsvd.datasets import ImageSource
from imsvd.datasets.sources import ArraySource, PathSource
from imsvd.discretizing import discretize
from imsvd.encoder import Encoder, encoding_device, open_encoder
from imsvd.errors import InputError, Interrupted
from imsvd.evaluation import extract_features
from imsvd.information import codes
from imsvd.processors import reading_processes
from imsvd.progress import counted, progress_bar

try:
    from sklearn.base import BaseEstimator, TransformerMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.validation import check_is_fitted
except ModuleNotFoundError as error:
    raise InputError("ImageCodes needs scikit-learn; run pip install 'imsvd[sklearn]'.") from error

DEFAULT_ENCODER = "timm:tf_efficientnet_lite0"
"""Small, fast on a CPU, and pretrained; timm downloads its weights once (18 MB)."""
OUTPUTS = ("onehot", "units", "probabilities", "features")
_FEW = 64
"""Images up to which starting processes that read them takes longer than reading them."""


class ImageCodes(TransformerMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn is untyped
    """Turn images into discrete codes, or into features, as a scikit-learn transformer.

    Images are a list, array or pandas column of paths, or an array (images, height, width, 3) of uint8.

    Args:
        encoder: a pretrained encoder as for `imsvd.open_encoder`, such as a run folder, `hf:OWNER/NAME`,
            `timm:NAME` or `timm:NAME:FILE`; or an `imsvd.Encoder`. One with a code is used as it is; for
            one without, `fit` learns a code from the images, without labels (see `imsvd.discretize`).
        output: onehot (a column of 0 and 1 per unit), units (the unit of each variable), probabilities
            (a column per unit) or features (of the backbone; nothing is learned).
        bits: size of the code; given, a code is learned even if the encoder has one. None: chosen without labels.
        units: units of every variable, a power of two. None: chosen likewise.
        steps: smallest number of training steps.
        size: side of the images in pixels while a code is learned and used; None: the encoder's own.
        cache: folder that keeps features of the images of `fit`, to learn codes from them again.
        settings: further settings of `imsvd discretize`, such as "frozen.neighbors=0".
        random_state: seed of the training.
        verbose: whether to show progress.

    Attributes:
        encoder_: the encoder with its code, after `fit`.
    """

    def __init__(  # noqa: PLR0913 - its parameters are its interface
        self,
        encoder: str | Path | Encoder = DEFAULT_ENCODER,
        *,
        output: str = "onehot",
        bits: int | None = None,
        units: int | None = None,
        steps: int = 400,
        size: int | None = None,
        cache: str | Path | None = None,
        settings: Sequence[str] = (),
        random_state: Any = 0,
        verbose: bool = False,
    ) -> None:
        self.encoder = encoder
        self.output = output
        self.bits = bits
        self.units = units
        self.steps = steps
        self.size = size
        self.cache = cache
        self.settings = settings
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any = None) -> Self:  # noqa: N803 - scikit-learn's name
        """Open the encoder and, if it has no code, learn one from the images; `y` is ignored."""
        del y
        self._require_output()
        source = open_images(X)
        before = random_state()
        try:
            self.encoder_ = self._encoder_for(source)
        finally:  # building and training networks draws random numbers
            restore_random_state(before)
        return self

    def _encoder_for(self, source: ImageSource) -> Encoder:
        encoder = (
            copy.deepcopy(self.encoder)
            if isinstance(self.encoder, Encoder)
            else open_encoder(self.encoder)
        )
        resized = self.bits is not None or self.units is not None
        if self.output != "features" and (resized or not encoder.description.units):
            return self._learn(source)
        if self.size is not None:
            encoder.description = encoder.description.model_copy(update={"size": self.size})
        return encoder

    def transform(self, X: Any) -> NDArray[Any]:  # noqa: N803 - scikit-learn's name
        """Return one row per image, in the form that `output` names."""
        check_is_fitted(self)
        self._require_output()
        rows = self._encode(open_images(X))
        if self.output == "units":
            return rows.astype(np.int64)
        if self.output == "onehot":
            sizes = np.array(self.encoder_.description.units)
            columns = rows.astype(np.int64) + (np.cumsum(sizes) - sizes)
            rows = np.zeros((len(rows), int(sizes.sum())), dtype=np.float32)
            np.put_along_axis(rows, columns, 1, axis=1)
        return rows

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[np.object_]:
        """Return the names of the columns, such as `variable_0_unit_3`; `input_features` is ignored."""
        del input_features
        check_is_fitted(self)
        sizes = self.encoder_.description.units
        if self.output == "features":
            names = [f"feature_{number}" for number in range(self.encoder_.num_features)]
        elif self.output == "units":
            names = [f"variable_{variable}" for variable in range(len(sizes))]
        else:
            names = [
                f"variable_{variable}_unit_{unit}"
                for variable, size in enumerate(sizes)
                for unit in range(size)
            ]
        return np.array(names, dtype=object)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.no_validation = True
        tags.input_tags.one_d_array = tags.input_tags.string = True
        tags.input_tags.two_d_array = False
        tags.transformer_tags.preserves_dtype = []  # images have bytes, rows have float32
        return tags

    def _require_output(self) -> None:
        if self.output not in OUTPUTS:
            raise InputError(f"there is no output {self.output!r}; choose {', '.join(OUTPUTS)}.")

    @property
    def _console(self) -> Console:
        return Console(quiet=not self.verbose)

    def _learn(self, source: ImageSource) -> Encoder:
        """Learn a code in a folder that is deleted afterwards."""
        seed = self.random_state
        if not isinstance(seed, Integral):
            seed = check_random_state(seed).randint(2**31 - 1)
        with TemporaryDirectory(prefix="imsvd-") as folder:
            spec = self.encoder
            if isinstance(spec, Encoder):
                content, spec = spec.serialize(), Path(folder) / "encoder.safetensors"
                spec.write_bytes(content)
            try:
                learned = discretize(
                    spec,
                    source,
                    Path(folder) / "run",
                    bits=self.bits,
                    units=self.units,
                    steps=self.steps,
                    size=self.size,
                    cache=self.cache,
                    settings=[f"seed={seed}", *self.settings],
                    console=self._console,
                )
            except Interrupted:
                raise KeyboardInterrupt from None
        learned.run = None
        return learned

    def _encode(self, source: ImageSource) -> NDArray[np.float32]:
        """Return units, probabilities or features of all images, each of which must be readable."""
        device = encoding_device()
        encoder = self.encoder_.to(device)
        described = encoder.description

        def encode(images: Tensor) -> Tensor:
            features: Tensor = encoder.backbone(images)
            if self.output == "features":
                return features
            q = encoder.discretize(features)
            return q if self.output == "probabilities" else codes(q, described.units).float()

        with progress_bar(self._console) as bar:
            task = bar.add_task("images", total=len(source))
            found = extract_features(
                encode,
                source,
                size=described.size,
                mean=described.mean,
                std=described.std,
                device=device,
                workers=reading_processes(device.type) if len(source) > _FEW else 0,
                progress=lambda done, _: bar.update(task, completed=done),
            )
        encoder.cpu()  # a pickle of the estimator must open without a GPU
        if found.skipped:
            first = found.skipped[0]
            raise InputError(
                f"{counted(len(found.skipped), 'image')} of {len(source)} cannot be read, such as "
                f"{first.identity} ({first.reason}); leave them out, because every image needs a row."
            )
        return found.features.numpy()


def open_images(images: Any) -> ImageSource:
    """Return the images of a list, array or column of paths, or of an array of pixels."""
    if isinstance(images, str | os.PathLike):
        raise InputError(f"{images} is one path; give a list of paths, one per image.")
    if isinstance(images, np.ndarray) and images.ndim == 4:
        if images.dtype != np.uint8 or images.shape[-1] != 3:
            raise InputError(
                f"images are {images.dtype} of shape {images.shape}; give uint8 of (images, height, width, 3)."
            )
        pixels = torch.from_numpy(np.ascontiguousarray(images)).permute(0, 3, 1, 2)
        return ArraySource("images", pixels.contiguous())
    listed = np.asarray(images, dtype=object)
    if listed.ndim == 2 and listed.shape[1] == 1:  # a data frame of one column
        listed = listed[:, 0]
    if listed.ndim != 1 or not all(isinstance(path, str | os.PathLike) for path in listed):
        raise InputError(
            f"images of shape {listed.shape} are no paths; give a list of paths, or uint8 of "
            "(images, height, width, 3)."
        )
    if not len(listed):
        raise InputError("there are no images; give at least one path.")
    names = [os.path.abspath(Path(path).expanduser()) for path in listed]  # noqa: PTH100 - keeps links
    return PathSource(Path("/"), names)
