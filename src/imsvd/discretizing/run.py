"""`discretize`: from an encoder and images to a run folder whose encoder has a discrete code."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from rich.console import Console

from imsvd.config import Config, override, parse_config
from imsvd.datasets import ImageSource, open_source
from imsvd.datasets.opening import absolute
from imsvd.datasets.reading import image_key
from imsvd.datasets.sources import hash_listing
from imsvd.discretizing.cache import FeatureRequest, cached_features
from imsvd.discretizing.capacity import (
    CodeSize,
    Trial,
    choose_size,
    ladder,
    read_trials,
    too_few_images,
)
from imsvd.discretizing.directions import FeatureDirections, lasting_directions
from imsvd.discretizing.feature_file import Half, Rows
from imsvd.discretizing.head import HeadTraining, split_rows
from imsvd.discretizing.held_out import fewest_images
from imsvd.discretizing.neighborhoods import feature_neighbors
from imsvd.distributed import barrier, on_first_rank
from imsvd.encoder import (
    UNTRAINED,
    Encoder,
    absolute_spec,
    load,
    open_encoder,
    saved_epoch,
    weights_key,
)
from imsvd.engine.batches import EpochOrder
from imsvd.engine.fabric import Fabric
from imsvd.engine.hardware import launch
from imsvd.engine.loop import shared_quarantine
from imsvd.errors import InputError, Interrupted
from imsvd.methods import IMSVDSettings
from imsvd.methods.code import CodeSettings
from imsvd.pretraining.code import GivenFeatures
from imsvd.progress import counted, progress_bar
from imsvd.runs import RunFolder
from imsvd.views import ViewSettings, ViewsSettings

BATCH_SIZE = 1024
MOST_EPOCHS = 20
"""Epochs that are logged and saved; with few images, an epoch has several passes over them."""
CROPS = (0.5, 1.0)
"""Share of an image that a view shows; the code of a photograph should survive a moderate crop."""
WARMUP = 0.1
"""Share of the training in which the learning rate rises."""
TRIAL_STEPS, TRIAL_HIDDEN, TRIAL_HELD_OUT = 200, 512, 1000
"""Steps, hidden width and held-out images of the short trainings that find the size of a code."""
FEATURES = "features"
"""Folder of cached features in a run folder, unless another one is named."""


def discretize(  # noqa: PLR0913 - its options are its interface
    encoder: str | Path,
    data: str | Path | ImageSource,
    out: str | Path,
    *,
    bits: int | None = None,
    units: int | None = None,
    views: int = 4,
    steps: int = 400,
    size: int | None = None,
    cache: str | Path | None = None,
    settings: Sequence[str] = (),
    console: Console | None = None,
) -> Encoder:
    """Train a head that gives each image a discrete code, or resume the run in `out`.

    Args:
        encoder: a run folder, `timm:NAME[:FILE]`, `torchvision:NAME[:FILE]`, or an exported
            safetensors file, timm folder or ONNX graph of features; it stays as it is.
        data: a folder of images, the name of a dataset such as "shapes" or "cifar10", or an open source.
        out: the run folder.
        bits: size of the code; there are bits / log2(units) variables. None: chosen without labels
            (see `imsvd.discretizing.capacity`).
        units: units of every variable, a power of two. None: chosen likewise.
        views: augmented views per image whose features are kept.
        steps: smallest number of training steps; the last pass over the images is completed.
        size: side of the images in pixels; the encoder's own if left out.
        cache: folder for the features, to share them between runs; `out/features` if left out.
        settings: overrides such as "method.off_diagonal_weight=2".
        console: where to show progress; `Console(quiet=True)` shows nothing.

    Returns:
        The encoder with its code.
    """
    console, run = console or Console(), RunFolder(out)
    frozen = open_frozen(encoder, size)
    source = data if isinstance(data, ImageSource) else open_source(data, "train")
    name = counted(len(source), "image") if isinstance(data, ImageSource) else data
    sizes = possible_sizes(run, bits, units, len(source), settings)

    def configured(head: CodeSize) -> Config:
        config = configure(frozen, encoder=encoder, data=name, views=views, head=head)
        config = override(config, settings)
        require_enough_images(config, len(source))
        return set_length(config, len(source), steps, settings)

    config = configured(sizes[0])
    run.begin(config)
    folder = run.path / FEATURES if cache is None else Path(cache).expanduser()
    shared = share_features(frozen, source, config, run, folder, console)
    if len(sizes) > 1:
        config = configured(choose_by_trials(shared, run, sizes, configured, settings))
    train_head(config, shared, run)
    return load(out)


def possible_sizes(
    run: RunFolder, bits: int | None, units: int | None, images: int, settings: Sequence[str]
) -> list[CodeSize]:
    """Return the sizes that the code may have: one if it is given, or fixed by an earlier call."""
    sizes = ladder(bits, units, images)
    named = {setting.partition("=")[0].strip() for setting in settings}
    if len(sizes) > 1 and (fixed := sorted(named & {"method.projector", "method.units"})):
        raise InputError(f"{fixed[0]} fixes the size of the code; give --bits and --units as well.")
    if len(sizes) > 1 and run.has_saved:
        head = run.config().method.code_head
        chosen = CodeSize(len(head.units), head.units[0]) if head.units else None
        sizes = [size for size in sizes if size == chosen] or sizes[:1]
    return sizes


class SharedFeatures:
    """What heads of any size share: the encoder, its features, their directions and neighbors.

    Args:
        encoder: the frozen encoder.
        source: the images.
        fabric: launched.
        console: where to show progress.
        make: returns the features, (images, views + 1, width); called when they are first needed.
    """

    def __init__(
        self,
        encoder: Encoder,
        source: ImageSource,
        fabric: Fabric,
        console: Console,
        make: Callable[[], Half],
    ) -> None:
        self.encoder, self.source = encoder, source
        self.fabric, self.console = fabric, console
        self._make = make
        self._readers: dict[tuple[float, int], GivenFeatures | FeatureDirections] = {}
        self._neighbors: dict[tuple[float, int], Rows] = {}

    @cached_property
    def features(self) -> Half:
        """Features of every image."""
        return self._make()

    def reader(self, config: Config) -> GivenFeatures | FeatureDirections:
        """Return what maps features to what the head of `config` reads."""
        assert config.frozen is not None
        key = config.frozen.held_out, config.seed
        if key not in self._readers:
            most = config.frozen.directions
            rows, _ = split_rows(len(self.features), *key)
            self._readers[key] = (
                lasting_directions(self.features, rows, most, config.seed)
                if most
                else GivenFeatures(self.encoder.num_features)
            ).to(self.fabric.device)
        return self._readers[key]

    def neighbors(self, config: Config) -> Rows | None:
        """Return the neighbors of the images that `config` trains on, or None if it uses none."""
        assert config.frozen is not None
        rows, _ = split_rows(len(self.features), config.frozen.held_out, config.seed)
        count = min(config.frozen.neighbors, len(rows) - 1)
        if not count or not config.frozen.neighbor_share:
            return None
        key = config.frozen.held_out, config.seed
        if key not in self._neighbors:
            reader = self.reader(config)
            self._neighbors[key] = feature_neighbors(
                self.features, rows, count, config.seed, reader, self.fabric.device, self.console
            )
        return self._neighbors[key]


def share_features(
    encoder: Encoder,
    source: ImageSource,
    config: Config,
    run: RunFolder,
    folder: Path,
    console: Console,
) -> SharedFeatures:
    """Launch the processes and return the features that `folder` keeps, computed when needed."""
    fabric = launch(config.compute)
    if not fabric.is_global_zero:
        console = Console(quiet=True)
    if fabric.world_size > 1 and fabric.device.type == "cpu":
        console.print("[yellow]BatchNorm is not synchronized between CPU processes.[/yellow]")

    def make() -> Half:
        assert config.frozen is not None
        quarantine = shared_quarantine(source, config.data.bad_image_limit, run.path)
        pair = config.views.views
        every = tuple(pair[number % len(pair)] for number in range(config.frozen.views))
        views = ViewsSettings(views=every, evaluation_size=config.views.evaluation_size)
        request = FeatureRequest(encoder, source, views, config.seed, config.frozen.weights)
        return cached_features(request, folder, config.compute, fabric, quarantine, console)

    return SharedFeatures(encoder, source, fabric, console, make)


def choose_by_trials(
    shared: SharedFeatures,
    run: RunFolder,
    sizes: Sequence[CodeSize],
    configured: Callable[[CodeSize], Config],
    settings: Sequence[str],
) -> CodeSize:
    """Train each size for a short while and return the one whose code says most that lasts."""
    images = len(shared.source)
    held_out = min(0.5, max(0.1, TRIAL_HELD_OUT / images))
    measurable = measurable_sizes(sizes, len(split_rows(images, held_out, 0)[1]))
    if len(measurable) == 1:
        shared.console.print(
            f"Size of the code: {measurable[0].describe()}; {counted(images, 'image')} are too few "
            "to compare it with larger ones.",
            highlight=False,
        )
        return measurable[0]
    sizes = measurable
    bar = progress_bar(shared.console)

    def shortened(size: CodeSize) -> Config:
        lean = (
            f"method.projector=[{TRIAL_HIDDEN},{size.variables * size.units}]",
            f"frozen.held_out={held_out}",
        )
        config = override(configured(size), lean)
        return set_length(config, images, TRIAL_STEPS, settings, most_epochs=1)

    def attempt(size: CodeSize) -> Trial:
        trial = RunFolder(folder / key / f"{size.variables}x{size.units}")
        found = try_size(shortened(size), size, shared, trial)
        bar.advance(task)
        return found

    folder = run.path / "capacity"
    key = trials_key(shortened(sizes[0]), image_key(shared.source))
    shared.console.print(f"Size of the code: up to {len(sizes)} short trials", highlight=False)
    shared.neighbors(shortened(sizes[0]))
    with bar:
        done = len(read_trials(run.capacity, key))
        task = bar.add_task("trials", total=len(sizes), completed=done)
        chosen = choose_size(sizes, attempt, run.capacity, key)
        bar.update(task, total=len(read_trials(run.capacity, key)))  # small sizes may be left out
    on_first_rank(partial(shutil.rmtree, folder, ignore_errors=True))
    shared.console.print(f"Chosen: {chosen.describe()}", highlight=False)
    return chosen


def try_size(config: Config, size: CodeSize, shared: SharedFeatures, trial: RunFolder) -> Trial:
    """Train a head of `size` in the folder `trial` and return what its code says of held-out images."""
    try:
        train_head(config, shared, trial, Console(quiet=True))
    except Interrupted:  # which the training has said to nobody
        text = f"Stopped while {size} was tried. Run the same command to resume."
        shared.console.print(text, highlight=False)
        raise
    barrier()  # the first rank writes the metrics
    lasting = trial.metrics()[-1]["lasting"]
    return Trial(size, lasting["surviving_nats"], lasting["unrepeated_share"])


def measurable_sizes(sizes: Sequence[CodeSize], held_out: int) -> list[CodeSize]:
    """Return the sizes of which `held_out` images can tell what they repeat, or else the smallest."""
    enough = [size for size in sizes if held_out >= fewest_images(size.freedom)]
    return enough or [min(sizes, key=lambda size: size.freedom)]


def trials_key(config: Config, images: str) -> str:
    """Return a hash of everything that trials depend on besides the size."""
    values = config.model_dump(mode="json", exclude={"compute"})
    return hash_listing([json.dumps(values).encode(), images.encode()])


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
    head: CodeSize,
) -> Config:
    """Return the configuration of a head of the size `head`, before overrides."""
    described = frozen.description
    view = ViewSettings(
        size=described.size, crop_scale=CROPS, mean=described.mean, std=described.std
    )
    values: dict[str, Any] = {
        "data": {"source": absolute(data)},
        "backbone": described.backbone.model_dump(),
        "method": head_settings(head).model_dump(),
        "views": {"views": [view.model_dump()] * 2},
        "optimizer": {
            "name": "adamw",
            "lr": CodeSettings().lr,
            "scale_lr": False,
            "weight_decay": CodeSettings().weight_decay,
            "warmup_epochs": WARMUP,
            "final_lr_ratio": 0.0,
        },
        "training": {"epochs": 1, "batch_size": BATCH_SIZE},
        "frozen": {
            "encoder": absolute_spec(encoder),
            "weights": weights_key(frozen),
            "views": views,
        },
    }
    return parse_config(values)


def head_settings(size: CodeSize) -> IMSVDSettings:
    """Return the loss in the form that keeps a code's variables decided and independent.

    It differs from the paper's in four ways: pairs of variables are judged within each view, with
    fifteen times the weight; the temperature falls while training; and the saved code is sharp.
    """
    return CodeSettings(variables=size.variables, units=size.units).as_method()


def set_length(
    config: Config,
    images: int,
    steps: int,
    settings: Sequence[str],
    most_epochs: int = MOST_EPOCHS,
) -> Config:
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
    per_epoch = math.ceil(passes / most_epochs)
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
        raise too_few_images(images, units)


def train_head(
    config: Config, shared: SharedFeatures, run: RunFolder, console: Console | None = None
) -> None:
    """Train until all epochs are done, continuing what `run` may hold."""
    console = console or shared.console
    on_first_rank(partial(run.begin, config))
    if saved_epoch(run) == config.training.epochs:  # its features may have been deleted since
        console.print(f"{run.path} already has its code.", highlight=False, soft_wrap=True)
        return
    HeadTraining(
        config,
        run,
        shared.fabric,
        shared.encoder,
        image_key(shared.source),
        shared.features,
        shared.reader(config),
        shared.neighbors(config),
    ).fit(console)
