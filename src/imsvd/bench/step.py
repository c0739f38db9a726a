"""`imsvd bench step`: a whole training step, by our loop and by one written with lightly.

All loops train IMSVD with the same settings, backbone, batch, optimizer and number of threads, on
small images held in memory as bytes. Ours is what `imsvd pretrain` runs. The rivals are loops as
users of `lightly` write them: its transforms on PIL images in the workers of a `DataLoader`, its
projection head, and the loss with the whole joint matrix, as the authors released it (lightly has
none). The tuned rivals have everything a competent user would switch on: persistent workers,
channels_last, gradients set to None. The rivals decode no files, and neither the ends of epochs nor
the start of workers is counted. Mixed precision and compilation are off for all, on a CPU.

A row with PyTorch's convolutions shows what `imsvd.networks.winograd` gains, one with a code head
(`imsvd.pretraining.code`) what it costs.
"""

import itertools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, RandomSampler

from imsvd.bench.comparison import Benchmark, Case, Column, Contender, Numbers, Ratio, Row
from imsvd.bench.loss import FORMS
from imsvd.bench.views import lightly_view
from imsvd.config import Config, override
from imsvd.engine.batches import EpochOrder, MemoryBatches
from imsvd.engine.fabric import Fabric
from imsvd.engine.hardware import keep_freed_memory
from imsvd.errors import InputError
from imsvd.methods import build_method
from imsvd.methods.code import CodeSettings
from imsvd.networks import build_backbone, feature_width
from imsvd.networks.winograd import use_winograd
from imsvd.pretraining.code import CodeTraining
from imsvd.pretraining.metrics import EpochMetrics
from imsvd.pretraining.optimizers import build_optimizer
from imsvd.recipes import recipe
from imsvd.views import ViewsSettings

IMAGES, SIDE = 2048, 32
_WARM_UP, _LEAST_STEPS, _LOSS_CALLS = 2, 2, 3
_ENDLESS = 10**6

Loop = Iterator[float]
"""Runs one training step per item; the item is the seconds spent waiting for views."""


class Network(NamedTuple):
    """A backbone to train: the title of its table and its configuration."""

    title: str
    config: Callable[[], Config]


def _small() -> Config:
    """Return the small recipe in the published form, which rivals can have too."""
    config = recipe("cifar10-cpu")
    return override(config, config.method.published_form)


NETWORKS: dict[str, Network] = {
    "small": Network(
        "Small ResNet of cifar10-cpu: 24-pixel views, batch 128 (ms per image)",
        _small,
    ),
    # The recipe's batch of 512 would take a minute per step on two cores.
    "resnet18": Network(
        "ResNet-18, stride-1 stem: 32-pixel views, batch 64 (ms per image)",
        lambda: override(recipe("cifar10"), ["training.batch_size=64"]),
    ),
}


Build = Callable[[Config, Tensor, int], Loop]
"""Makes a loop from settings, (n, 3, size, size) bytes and a number of cores."""


def _ours(*, winograd: bool = True, code: CodeSettings | None = None) -> Build:
    def build(config: Config, images: Tensor, cores: int) -> Loop:
        del cores  # views are made by the threads that train
        order = EpochOrder(len(images), config.training.batch_size, config.seed)
        device = torch.device("cpu")
        batches = MemoryBatches(images, order, config.views, config.seed, device)
        method = build_method(config.method, build_backbone(config.backbone), len(images))
        method = method.to(memory_format=torch.channels_last)
        keep_freed_memory()
        if winograd:
            use_winograd(method)
        optimizer = build_optimizer(method, config)
        width, fabric = feature_width(method.backbone), Fabric(accelerator="cpu", devices=1)
        beside = None if code is None else CodeTraining(code, config, width, fabric)
        metrics = EpochMetrics()
        steps = batches.steps(0, _ENDLESS)
        while True:
            before = time.perf_counter()
            batch = next(steps)
            waited = time.perf_counter() - before
            output = method(batch.views, batch.samples)
            optimizer.zero_grad()
            output.loss.backward()
            optimizer.step()
            method.after_step(0.5)
            with torch.no_grad():
                metrics.update(output, method.statistics(output.embedding))
            if beside is not None:
                beside.step(output.features, config.peak_lr, 0.5)
            yield waited

    return build


class _PilDataset(Dataset[list[Tensor]]):
    """Images in memory, as torchvision's CIFAR-10 holds them, and lightly's views of them."""

    def __init__(self, images: Tensor, views: ViewsSettings) -> None:
        self.pixels = images.permute(0, 2, 3, 1).contiguous().numpy()
        self.views = [lightly_view(view) for view in views.views]

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, index: int) -> list[Tensor]:
        image = Image.fromarray(self.pixels[index])
        return [view(image) for view in self.views]


def _lightly(*, tuned: bool, every_core: bool = True) -> Build:
    def build(config: Config, images: Tensor, cores: int) -> Loop:
        layout = torch.channels_last if tuned else torch.contiguous_format
        network = lightly_network(config).to(memory_format=layout)
        optimizer = _plain_optimizer(network, config)
        batches = _lightly_batches(config, images, cores if every_core else 1)
        units = config.method.code_head.units[0]
        while True:
            before = time.perf_counter()
            views = next(batches)
            waited = time.perf_counter() - before
            embeddings = [network(view.to(memory_format=layout)) for view in views]
            # The loss leaves gradients at the embeddings; the network's backward starts there.
            first, second = (each.detach().requires_grad_() for each in embeddings)
            FORMS["dense"].make(first, second, units)
            optimizer.zero_grad()
            torch.autograd.backward(embeddings, [first.grad, second.grad])
            optimizer.step()
            yield waited

    return build


def lightly_network(config: Config) -> nn.Sequential:
    """Return the configured backbone with lightly's projection head."""
    from lightly.models.modules.heads import ProjectionHead  # noqa: PLC0415 - an optional package

    backbone = build_backbone(config.backbone)
    widths = (feature_width(backbone), *config.method.head_widths)
    blocks: list[Any] = [
        (inputs, outputs, nn.BatchNorm1d(outputs), nn.ReLU(inplace=True), True)
        for inputs, outputs in itertools.pairwise(widths[:-1])
    ]
    blocks.append((widths[-2], widths[-1], None, None, False))
    return nn.Sequential(backbone, ProjectionHead(blocks))


def _plain_optimizer(network: nn.Module, config: Config) -> torch.optim.Optimizer:
    settings, lr = config.optimizer, config.peak_lr
    decay, parameters = settings.weight_decay, network.parameters()
    if settings.name == "sgd":
        return torch.optim.SGD(parameters, lr=lr, momentum=settings.momentum, weight_decay=decay)
    return torch.optim.AdamW(parameters, lr=lr, betas=settings.betas, weight_decay=decay)


def _lightly_batches(config: Config, images: Tensor, workers: int) -> Iterator[list[Tensor]]:
    dataset = _PilDataset(images, config.views)
    size = config.training.batch_size
    sampler = RandomSampler(dataset, replacement=True, num_samples=_ENDLESS * size)
    loader = DataLoader(
        dataset, size, sampler=sampler, num_workers=workers, persistent_workers=True, drop_last=True
    )
    return iter(loader)


CONTENDERS: dict[str, Contender[Build]] = {
    "ours": Contender("imsvd", _ours()),
    "code": Contender("imsvd, a code head beside it", _ours(code=CodeSettings())),
    "direct": Contender("imsvd, PyTorch's convolutions", _ours(winograd=False)),
    "lightly": Contender("lightly", _lightly(tuned=False), ("lightly",)),
    "lightly-tuned": Contender("lightly, tuned", _lightly(tuned=True), ("lightly",)),
    "lightly-tuned-1": Contender(
        "lightly, tuned, 1 worker", _lightly(tuned=True, every_core=False), ("lightly",)
    ),
}


def random_images(count: int, size: int) -> Tensor:
    """Return (count, 3, size, size) bytes; the cost of a step does not depend on the content."""
    values = np.random.default_rng(0).integers(0, 256, (count, 3, size, size), dtype=np.uint8)
    return torch.from_numpy(values)


@dataclass(frozen=True)
class StepCase(Case):
    """A loop that trains a key of `NETWORKS` for at least so many seconds."""

    network: str
    seconds: float


class _Step(Benchmark[StepCase]):
    case = StepCase
    contenders = CONTENDERS
    heading = "A whole training step"
    first_column = "loop"
    columns = (
        Column("images/s", "images_per_second", ",.0f"),
        Column("views/s", "views_per_second", ",.0f"),
        Column("ms waiting for views", "views", ".3f"),
        Column("ms network and optimizer", "rest", ".3f"),
        Column("ms loss", "loss", ".3f"),
        Column("time / ours", "times_ours"),
    )
    ratios = (Ratio("times_ours", "milliseconds", {"contender": "ours"}),)
    hidden = ("seconds",)
    packages = ("lightly",)

    def title(self, row: Row) -> str:
        return NETWORKS[row["network"]].title

    def measure(self, case: StepCase) -> Numbers:
        cores = os.cpu_count() or 1
        torch.set_num_threads(cores)
        torch.manual_seed(0)
        config = NETWORKS[case.network].config()
        build = self.contenders[case.contender].make
        steps, views, seconds = timed_steps(
            build(config, random_images(IMAGES, SIDE), cores), case.seconds
        )
        form = "dense" if case.contender.startswith("lightly") else "ours"
        loss = steps * _loss_seconds(config, form)
        images = steps * config.training.batch_size
        return {
            "images_per_second": images / seconds,
            "views_per_second": 2 * images / seconds,
            "milliseconds": 1000 * seconds / images,
            "views": 1000 * views / images,
            "loss": 1000 * loss / images,
            "rest": 1000 * max(0.0, seconds - views - loss) / images,
        }


class TimedSteps(NamedTuple):
    """How many steps took how long, and how much of that was waiting for views, in seconds."""

    steps: int
    views: float
    seconds: float


def timed_steps(loop: Loop, least: float) -> TimedSteps:
    """Train for at least `least` seconds, after two steps to warm up; also ends the loop's workers."""
    for _ in range(_WARM_UP):
        next(loop)
    steps, views, start = 0, 0.0, time.perf_counter()
    while steps < _LEAST_STEPS or time.perf_counter() - start < least:
        views += next(loop)
        steps += 1
    return TimedSteps(steps, views, time.perf_counter() - start)


def _loss_seconds(config: Config, form: str) -> float:
    """Time the loss alone, forward and backward, on random embeddings: the best of a few calls."""
    units, width = config.method.code_head.units[0], config.method.head_widths[-1]
    best = float("inf")
    for _ in range(_LOSS_CALLS):
        shape = config.training.batch_size, width
        first, second = (torch.randn(shape).requires_grad_() for _ in range(2))
        before = time.perf_counter()
        FORMS[form].make(first, second, units)
        best = min(best, time.perf_counter() - before)
    return best


BENCHMARK = _Step()


def check(networks: Sequence[str], seconds: float) -> None:
    """Raise unless `networks` are keys of `NETWORKS` and the duration is positive."""
    if seconds <= 0:
        raise InputError(f"seconds = {seconds}: choose more than 0.")
    unknown = [name for name in networks if name not in NETWORKS]
    if unknown or not networks:
        name = unknown[0] if unknown else ""
        raise InputError(f"network {name!r} is not measured; choose among {', '.join(NETWORKS)}.")


def run(
    networks: Sequence[str] = tuple(NETWORKS),
    seconds: float = 5.0,
    repeats: int = 3,
    console: Console | None = None,
    output: Path | None = None,
    *,
    contenders: Sequence[str] = tuple(CONTENDERS),
) -> list[Row]:
    """Compare keys of `CONTENDERS` on keys of `NETWORKS`.

    A measurement lasts at least `seconds`, after two steps to warm up.
    """
    check(networks, seconds)
    cases = [
        StepCase(contender, network, seconds)
        for network in NETWORKS
        if network in networks
        for contender in contenders
    ]
    return BENCHMARK.run(cases, repeats, console, output)
