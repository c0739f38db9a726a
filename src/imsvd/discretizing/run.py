"""`discretize`: from an encoder and images to a run folder whose encoder has a discrete code."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from imsvd.config import Config, override, parse_config
from imsvd.datasets import ImageSource, open_source
from imsvd.datasets.opening import absolute
from imsvd.datasets.reading import image_key
from imsvd.discretizing.cache import FeatureRequest, cached_features, weights_key
from imsvd.discretizing.head import HeadTraining, split_rows
from imsvd.encoder import UNTRAINED, Encoder, load, open_encoder, saved_epoch
from imsvd.engine.batches import EpochOrder
from imsvd.engine.hardware import launch
from imsvd.engine.loop import shared_quarantine
from imsvd.errors import InputError
from imsvd.methods import IMSVDSettings
from imsvd.pretrained import RANDOM, parse_spec
from imsvd.progress import counted
from imsvd.runs import RunFolder
from imsvd.views import ViewSettings, ViewsSettings

HIDDEN = 1024
"""Width of the head's hidden layer."""
BATCH_SIZE = 1024
MOST_EPOCHS = 20
"""Epochs that are logged and saved; with few images, an epoch has several passes over them."""
WARMUP = 0.1
"""Share of the training in which the learning rate rises."""
FEATURES = "features"
"""Folder of cached features in a run folder, unless another one is named."""


def discretize(  # noqa: PLR0913 - its options are its interface
    encoder: str | Path,
    data: str | Path,
    out: str | Path,
    *,
    bits: int = 64,
    units: int = 4,
    views: int = 4,
    steps: int = 400,
    size: int | None = None,
    cache: str | Path | None = None,
    settings: Sequence[str] = (),
    console: Console | None = None,
) -> Encoder:
    """Train a head that gives each image a discrete code, or resume the run in `out`.

    Args:
        encoder: a run folder, `timm:NAME[:FILE]` or `torchvision:NAME[:FILE]`; it stays as it is.
        data: a folder of images, or the name of a dataset such as "shapes" or "cifar10".
        out: the run folder.
        bits: size of the code; there are bits / log2(units) variables.
        units: units of every variable, a power of two.
        views: augmented views per image whose features are kept.
        steps: smallest number of training steps; the last pass over the images is completed.
        size: side of the images in pixels; the encoder's own if left out.
        cache: folder for the features, to share them between runs; `out/features` if left out.
        settings: overrides such as "method.off_diagonal_weight=2".
        console: where to show progress; `Console(quiet=True)` shows nothing.

    Returns:
        The encoder with its code.
    """
    console = console or Console()
    variables = count_variables(bits, units)
    frozen = open_frozen(encoder, size)
    source = open_source(data, "train")
    config = configure(frozen, encoder=encoder, data=data, views=views, head=(variables, units))
    config = override(config, settings)
    require_enough_images(config, len(source))
    config = set_length(config, len(source), steps, settings)
    train_head(config, frozen, source, RunFolder(out), cache, console)
    return load(out)


def count_variables(bits: int, units: int) -> int:
    """Return the number of variables of a code of `bits`; raise if there is none."""
    each = units.bit_length() - 1
    if units < 2 or units != 2**each:
        raise InputError(f"--units {units} is not a power of two; choose 2, 4, 8 or 16.")
    if bits < each or bits % each:
        below, above = bits // each * each, (bits // each + 1) * each
        nearest = f"{below} or {above}" if below > 0 else f"{above}"
        raise InputError(
            f"--bits {bits} is not a multiple of {each}, the bits of a variable of {units} units; "
            f"choose {nearest}."
        )
    return bits // each


def open_frozen(spec: str | Path, size: int | None) -> Encoder:
    """Open the encoder to give a code, for images of `size` pixels."""
    if str(spec).startswith(UNTRAINED):
        raise InputError(f"{spec} has not learned anything; give a trained encoder.")
    encoder = open_encoder(str(spec))
    if size is not None:
        if size < 8:
            raise InputError(f"--size {size} is too small; choose at least 8 pixels.")
        encoder.description = encoder.description.model_copy(update={"size": size})
    encoder.backbone.requires_grad_(requires_grad=False)
    return encoder


def configure(
    frozen: Encoder,
    *,
    encoder: str | Path,
    data: str | Path,
    views: int,
    head: tuple[int, int],
) -> Config:
    """Return the configuration of a head of `head` = (variables, units), before overrides."""
    variables, units = head
    described = frozen.description
    view = ViewSettings(
        size=described.size, crop_scale=(0.2, 1.0), mean=described.mean, std=described.std
    )
    values: dict[str, Any] = {
        "data": {"source": absolute(data)},
        "backbone": described.backbone.model_dump(),
        "method": IMSVDSettings(
            projector=(HIDDEN, variables * units),
            units=units,
            joint="within",
            off_diagonal_weight=3.0,
        ).model_dump(),
        "views": {"views": [view.model_dump()] * 2},
        "optimizer": {
            "name": "adamw",
            "lr": 2e-3,
            "scale_lr": False,
            "weight_decay": 1e-4,
            "warmup_epochs": WARMUP,
            "final_lr_ratio": 0.0,
        },
        "training": {"epochs": 1, "batch_size": BATCH_SIZE},
        "frozen": {
            "encoder": _absolute_spec(encoder),
            "weights": weights_key(frozen),
            "views": views,
        },
    }
    return parse_config(values)


def _absolute_spec(spec: str | Path) -> str:
    """Return the encoder's name with absolute paths, so that it can be found from anywhere."""
    parsed = parse_spec(str(spec))
    if parsed is None:
        return str(Path(spec).expanduser().resolve())
    if parsed.weights in ("", RANDOM):
        return str(spec)
    return f"{parsed.library}:{parsed.name}:{Path(parsed.weights).expanduser().resolve()}"


def set_length(config: Config, images: int, steps: int, settings: Sequence[str]) -> Config:
    """Return `config` with the batch that `images` allow and the epochs that `steps` take.

    Whatever `settings` name stays as it is.
    """
    if steps < 1:
        raise InputError(f"--steps {steps} trains nothing; choose at least 1.")
    assert config.frozen is not None
    named = {setting.partition("=")[0].strip() for setting in settings}
    rows, _ = split_rows(images, config.frozen.held_out, config.seed)
    batch = config.training.batch_size
    if "training.batch_size" not in named:
        # Up to eight processes can share a multiple of eight.
        batch = min(batch, len(rows) // 8 * 8 or len(rows))
    passes = math.ceil(steps / EpochOrder(len(rows), batch, config.seed).steps_per_epoch)
    per_epoch = math.ceil(passes / MOST_EPOCHS)
    changes: dict[str, float] = {"training.batch_size": batch}
    if "training.epochs" not in named:
        changes["training.epochs"] = math.ceil(passes / per_epoch)
        changes["frozen.passes"] = per_epoch
    epochs = changes.get("training.epochs", config.training.epochs)
    changes["optimizer.warmup_epochs"] = round(WARMUP * epochs, 3)
    return override(
        config, [f"{key}={value}" for key, value in changes.items() if key not in named]
    )


def require_enough_images(config: Config, images: int) -> None:
    """Raise if there are fewer images than pairs of units, which could then not be told apart."""
    units = max(config.method.code_head.units)
    if images < units**2:
        raise InputError(
            f"{counted(images, 'image')} cannot fill the {units**2} pairs of units of two variables; "
            f"give at least {units**2} images or fewer --units."
        )


def train_head(
    config: Config,
    encoder: Encoder,
    source: ImageSource,
    run: RunFolder,
    cache: str | Path | None,
    console: Console,
) -> None:
    """Cache the features and train until all epochs are done, continuing what `run` may hold."""
    assert config.frozen is not None
    run.begin(config)
    fabric = launch(config.compute)
    if not fabric.is_global_zero:
        console = Console(quiet=True)
    if fabric.world_size > 1 and fabric.device.type == "cpu":
        console.print("[yellow]BatchNorm is not synchronized between CPU processes.[/yellow]")
    if saved_epoch(run) == config.training.epochs:  # its features may have been deleted since
        console.print(f"{run.path} already has its code.", highlight=False, soft_wrap=True)
        return
    quarantine = shared_quarantine(source, config.data.bad_image_limit, run.path)
    pair = config.views.views
    every = tuple(pair[number % len(pair)] for number in range(config.frozen.views))
    request = FeatureRequest(
        encoder,
        source,
        ViewsSettings(views=every, evaluation_size=config.views.evaluation_size),
        config.seed,
    )
    folder = run.path / FEATURES if cache is None else Path(cache).expanduser()
    features = cached_features(request, folder, config.compute, fabric, quarantine, console)
    HeadTraining(config, run, fabric, encoder, image_key(source), features).fit(console)
