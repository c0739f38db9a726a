"""Encoders: from images to features, probabilities and codes; saving, loading and finding them."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import torch
from pydantic import Field, ValidationError, field_validator
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from imsvd.checkpoints import random_state, restore_random_state, seed_random_state
from imsvd.config import Config
from imsvd.datasets.sources import hash_listing
from imsvd.errors import InputError
from imsvd.exported import SAFETENSORS, exported_path, open_exported
from imsvd.files import write_atomically
from imsvd.hub import PREFIX, WEIGHTS, SharedEncoder
from imsvd.information import codes, soft_discretize
from imsvd.methods import MethodSettings
from imsvd.networks import BackboneSettings, build_backbone, feature_width, projector
from imsvd.pretrained import RANDOM, Backbone, compare_keys, open_backbone, parse_spec
from imsvd.runs import RunFolder
from imsvd.settings import Settings, describe_validation_error, keys_of

FORMAT = 1
"""Version of `encoder.json`; incremented when older versions of imsvd could misread it."""

UNTRAINED = "untrained:"
"""Prefix of a run folder that stands for its encoder before training."""
METADATA = "imsvd"
"""Key of the description in the header of an exported safetensors file."""


class EncoderDescription(Settings):
    """Everything needed to rebuild an encoder around its weights."""

    format: int = FORMAT
    method: str
    backbone: BackboneSettings
    projector: tuple[int, ...] = ()
    standardize: bool = Field(False, description="whether the projector ends in a BatchNorm")
    units: tuple[int, ...] = Field(
        (), description="number of units per variable; empty if the method has no variables"
    )
    size: int = Field(gt=0, description="side of the training images")
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    @field_validator("format")
    @classmethod
    def _refuse_newer(cls, value: int) -> int:
        if value > FORMAT:
            raise ValueError(
                f"{value} was written by a newer imsvd; update this version, which reads up to {FORMAT}"
            )
        return value


class Encoder(nn.Module, SharedEncoder):
    """A backbone and projector that normalize their input.

    Images are (batch, 3, height, width), uint8 or floats in [0, 1], on any device.

    Args:
        description: its architecture and normalization.
        backbone: network to use instead of building the described one.

    Attributes:
        untrained: whether it has the initial weights of its run.
        epoch: training epoch after which it was saved, if known.
        run: the run folder it was loaded from, if any.
    """

    description: EncoderDescription
    mean: Tensor
    std: Tensor
    untrained: bool = False
    epoch: int | None = None
    run: Path | None = None

    def __init__(self, description: EncoderDescription, backbone: Backbone | None = None) -> None:
        super().__init__()
        self.description = description
        self.backbone = backbone.network if backbone else build_backbone(description.backbone)
        self.num_features = backbone.num_features if backbone else feature_width(self.backbone)
        self.projector: nn.Module = nn.Identity()
        if description.projector:
            self.projector = projector(
                (self.num_features, *description.projector),
                last="norm_without_affine" if description.standardize else "bare",
            )
        self.register_buffer(
            "mean", torch.tensor(description.mean).view(1, 3, 1, 1), persistent=False
        )
        self.register_buffer(
            "std", torch.tensor(description.std).view(1, 3, 1, 1), persistent=False
        )

    def normalize(self, images: Tensor) -> Tensor:
        """Return the images as the backbone expects them, on the encoder's device."""
        images = images.to(self.mean.device)
        scaled = images.float() / 255 if images.dtype == torch.uint8 else images
        return (scaled - self.mean) / self.std

    def features(self, images: Tensor) -> Tensor:
        """Return backbone features, (batch, num_features)."""
        features: Tensor = self.backbone(self.normalize(images))
        return features

    def forward(self, images: Tensor) -> Tensor:
        """Return backbone features, as the encoders of timm and torchvision do."""
        return self.features(images)

    def discretize(self, features: Tensor) -> Tensor:
        """Return q (Eq. 1) of features: the distribution of each variable over its units, (batch, width)."""
        if not self.description.units:
            raise InputError(
                f"an encoder trained with {self.description.method!r} has no discrete variables; "
                "train one with imsvd, or use its features."
            )
        return soft_discretize(self.projector(features), self.description.units)

    def probabilities(self, images: Tensor) -> Tensor:
        """Return q (Eq. 1): all variables' distributions over their units, concatenated, (batch, width)."""
        return self.discretize(self.features(images))

    def codes(self, images: Tensor) -> Tensor:
        """Return the most probable unit of each variable, (batch, variables)."""
        return codes(self.probabilities(images), self.description.units)

    def serialize(self) -> bytes:
        """Return weights and description as the content of a safetensors file."""
        tensors = {name: value.detach().contiguous() for name, value in self.state_dict().items()}
        metadata = {"format": "pt", METADATA: self.description.model_dump_json()}
        if self.epoch is not None:
            metadata["epoch"] = str(self.epoch)
        return save(tensors, metadata=metadata)

    @classmethod
    def open_file(cls, path: Path) -> Self:
        """Return the encoder of a folder or safetensors file."""
        encoder = open_encoder(path)
        assert isinstance(encoder, cls)
        return encoder


def encoding_device() -> torch.device:
    """Return where commands that only encode images run: the first GPU, or else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def describe_encoder(config: Config) -> EncoderDescription:
    """Return the description of the encoder that `config` trains."""
    view = config.views.views[0]
    return EncoderDescription(
        method=config.method.name,
        backbone=config.backbone,
        **_coding(config).code_head._asdict(),
        size=config.views.whole_image_size,
        mean=view.mean,
        std=view.std,
    )


def encoder_key(description: EncoderDescription, weights: Mapping[str, Tensor]) -> str:
    """Return twelve hexadecimal digits that identify an encoder's description and weights."""
    digest = hashlib.sha256(description.model_dump_json().encode())
    for name, value in sorted(weights.items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:12]


def _coding(config: Config) -> MethodSettings:
    """Return the settings of what gives images their code: a head beside the method, or the method."""
    return config.method if config.code is None else config.code.as_method()


def save_encoder(run: RunFolder, config: Config, state: dict[str, Tensor], epoch: int) -> None:
    """Write the encoder's weights after `epoch`, taken from a method's `state`, and its description."""
    described = describe_encoder(config)
    prefixes = ("backbone.", "projector.") if described.projector else ("backbone.",)
    saved = _coding(config).saved_state(state)
    tensors = {
        name: value.cpu().contiguous() for name, value in saved.items() if name.startswith(prefixes)
    }
    write_atomically(run.encoder_weights, save(tensors, {"epoch": str(epoch)}))
    description: dict[str, Any] = described.model_dump(mode="json")
    write_atomically(run.encoder_description, (json.dumps(description, indent=2) + "\n").encode())


def open_encoder(spec: str | Path) -> Encoder:
    """Return a run's encoder, a shared or exported one, or a backbone of timm or torchvision, for evaluation.

    Args:
        spec: a run folder; `untrained:RUN`, the run's encoder before training; what `imsvd export`
            writes with --format safetensors, huggingface, timm or onnx; `hf:OWNER/NAME`, an encoder on
            the Hugging Face Hub; or `timm:NAME` (pretrained),
            `timm:NAME:random` or `timm:NAME:FILE` (a .pth or .safetensors state dict), and the same
            with `torchvision:`. Weights in a file that do not match are reported.
    """
    if isinstance(spec, str) and spec.startswith(UNTRAINED):
        return untrained_encoder(RunFolder(spec.removeprefix(UNTRAINED)).config())
    if isinstance(spec, str) and spec.startswith(PREFIX):
        return Encoder.from_pretrained(spec.removeprefix(PREFIX))
    parsed = parse_spec(spec) if isinstance(spec, str) else None
    if parsed is not None:
        settings = BackboneSettings.model_validate({"library": parsed.library, "name": parsed.name})
        return _foreign_encoder(settings, open_backbone(parsed))
    if (path := exported_path(spec)) is not None:
        return _open_exported(path)
    return load(spec)


def _open_exported(path: Path) -> Encoder:
    if (inside := path / WEIGHTS).is_file() and METADATA in _read_header(inside):
        path = inside
    if path.suffix != SAFETENSORS or not path.is_file():
        return _foreign_encoder(*open_exported(path))
    weights, metadata = _read_weights(path)
    if METADATA in metadata:
        description = _parse_description(metadata[METADATA], path)
        return _fill(Encoder(description), weights, metadata, path)
    if RunFolder(path.parent).encoder_description.exists():
        raise InputError(f"{path} is part of a run; give the folder {path.parent}.")
    return _foreign_encoder(*open_exported(path))


def absolute_spec(spec: str | Path) -> str:
    """Return the encoder's name with absolute paths, so that it can be found from anywhere."""
    parsed = parse_spec(str(spec))
    if str(spec).startswith(PREFIX):
        return str(spec)
    if parsed is None:
        return str(Path(spec).expanduser().resolve())
    if parsed.weights in ("", RANDOM):
        return str(spec)
    return f"{parsed.library}:{parsed.name}:{Path(parsed.weights).expanduser().resolve()}"


def weights_key(encoder: Encoder) -> str:
    """Return a hash of the backbone's weights."""
    return hash_listing(
        part
        for name, value in encoder.backbone.state_dict().items()
        for part in (
            name.encode(),
            memoryview(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()),
        )
    )


def untrained_encoder(config: Config) -> Encoder:
    """Return the encoder with the initial weights that the configuration's seed determines."""
    if config.frozen is not None:
        raise InputError(
            f"{UNTRAINED}RUN is not for runs of `imsvd discretize`, whose backbone was trained elsewhere; "
            f"use {config.frozen.encoder} itself."
        )
    if config.init is not None:
        raise InputError(
            f"{UNTRAINED}RUN is not for runs that continue from trained weights; "
            f"use {config.init.encoder} itself."
        )
    before = random_state()
    try:
        seed_random_state(config.seed)
        encoder = Encoder(describe_encoder(config)).eval()
    finally:
        restore_random_state(before)
    encoder.untrained = True
    return encoder


def encoder_details(encoder: Encoder) -> dict[str, str | int]:
    """Return what a result records about its encoder, in addition to its folder.

    The epoch is recorded because training may continue after the evaluation.
    """
    if encoder.untrained:
        return {"encoder": "untrained"}
    return {} if encoder.epoch is None else {"epoch": encoder.epoch}


def results_folder(spec: str | Path) -> Path:
    """Return the folder for an encoder's results: its run, or `results/NAME`, which is created.

    An unwritable folder is an error here, before hours of work.
    """
    folder = results_path(spec)
    try:
        if not _is_run(spec):
            folder.mkdir(parents=True, exist_ok=True)
        if folder.is_dir() and not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise InputError(
            f"results cannot be written to {folder} ({error.strerror}); make it writable or copy the run."
        ) from error
    return folder


def results_path(spec: str | Path) -> Path:
    """Return the folder for an encoder's results without creating it."""
    if _is_run(spec):
        return Path(str(spec).removeprefix(UNTRAINED))
    return Path("results") / re.sub(r"[^\w.]+", "-", str(spec)).strip("-.")


def _is_run(spec: str | Path) -> bool:
    """Whether `spec` is a run folder, and no backbone, shared encoder or exported file."""
    shared = str(spec).startswith(PREFIX)
    return not shared and parse_spec(str(spec)) is None and exported_path(spec) is None


def _foreign_encoder(settings: BackboneSettings, backbone: Backbone) -> Encoder:
    description = EncoderDescription(
        method=settings.library,
        backbone=settings,
        size=backbone.size,
        mean=backbone.mean,
        std=backbone.std,
    )
    return Encoder(description, backbone).eval()


def read_description(folder: RunFolder) -> EncoderDescription:
    """Return the description of a run's encoder."""
    if not folder.encoder_description.exists():
        reason = "has not finished its first epoch" if folder.exists() else "is not a run folder"
        raise InputError(f"{folder.path} {reason}: {folder.encoder_description.name} is missing.")
    return _parse_description(folder.encoder_description.read_text(), folder.encoder_description)


def _parse_description(text: str, path: Path) -> EncoderDescription:
    try:
        return EncoderDescription.model_validate_json(text)
    except ValidationError as error:
        problem = describe_validation_error(error, keys_of(EncoderDescription))
        raise InputError(
            f"{path}: {problem} If an earlier version of imsvd wrote it, train the run again."
        ) from error


def read_weights(folder: RunFolder) -> dict[str, Tensor]:
    """Return the weights of a run's encoder by name."""
    return _read_weights(folder.encoder_weights)[0]


def _read_weights(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return weights and metadata from one read, because training may replace the file."""
    with _opened(path) as file:
        weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no dict
        return weights, file.metadata() or {}


def _read_header(path: Path) -> dict[str, str]:
    with _opened(path) as file:
        return file.metadata() or {}


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with safe_open(path, "pt") as file:
            yield file
    except (SafetensorError, OSError) as error:
        reason = "missing" if isinstance(error, FileNotFoundError) else f"damaged ({error})"
        raise InputError(f"{path} is {reason}.") from error


def saved_epoch(folder: RunFolder) -> int | None:
    """Return the epoch of a run's saved encoder, or None if there is none."""
    if not folder.encoder_weights.exists() or not folder.encoder_description.exists():
        return None  # the description is written last
    epoch = _read_header(folder.encoder_weights).get("epoch")
    return None if epoch is None else int(epoch)


def load(run: str | Path) -> Encoder:
    """Return the latest encoder of a run folder, in evaluation mode."""
    folder = RunFolder(run)
    encoder = Encoder(read_description(folder))
    encoder.run = folder.path
    return _fill(encoder, *_read_weights(folder.encoder_weights), folder.encoder_weights)


def _fill(
    encoder: Encoder, weights: dict[str, Tensor], metadata: dict[str, str], path: Path
) -> Encoder:
    """Give `encoder` the weights of `path`, all of which must fit."""
    try:
        encoder.load_state_dict(weights)
    except RuntimeError as error:
        raise InputError(
            f"{path} does not fit the description of its encoder "
            f"({compare_keys(weights, encoder.state_dict())}); restore both from the same run."
        ) from error
    encoder.epoch = int(metadata["epoch"]) if "epoch" in metadata else None
    return encoder.eval()
