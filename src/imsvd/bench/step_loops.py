"""The training loops that `imsvd bench step` compares: views, network, loss and optimizer.

All train IMSVD with the same settings, backbone, batch, optimizer and number of threads, on small
images held in memory as bytes. Ours is what `imsvd pretrain` runs, with the memory and the
convolutions of `training.processor`. The rivals are loops as users of `lightly` write them: its
transforms on PIL images in the workers of a `DataLoader`, its projection head, and the loss with its
joint matrix whole, as the authors released it; lightly has none.

What a competent user would switch on is on in "tuned": persistent workers, convolutions in
channels_last, gradients set to None. Every rival is spared the decoding of files, the end of epochs
and the start of its workers. Mixed precision and compilation are off for all, on a CPU.
"""

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, RandomSampler

from imsvd.bench.loss_forms import FORMS
from imsvd.bench.views_pipelines import lightly_views
from imsvd.config import Config
from imsvd.methods import IMSVDSettings, build_method
from imsvd.networks import build_backbone, feature_width
from imsvd.training.batches import EpochOrder, MemoryBatches
from imsvd.training.metrics import EpochMetrics
from imsvd.training.optimizers import build_optimizer
from imsvd.training.processor import use_processor_well
from imsvd.views import ViewsSettings

ENDLESS = 10**6

Loop = Iterator[float]
"""Makes one step each time it is asked; gives the seconds that step waited for its views."""


class Contender(NamedTuple):
    """One row of the table.

    Attributes:
        label: what the table calls it.
        build: makes the loop from settings, (n, 3, size, size) bytes and a number of cores.
        loss: key of `FORMS`, the loss it uses.
        needs: packages that must be installed.
    """

    label: str
    build: Callable[[Config, Tensor, int], Loop]
    loss: str
    needs: tuple[str, ...] = ()


def _ours(config: Config, images: Tensor, cores: int) -> Loop:
    del cores  # views are made by the threads that train
    order = EpochOrder(len(images), config.training.batch_size, config.seed)
    device = torch.device("cpu")
    batches = MemoryBatches(images, order, config.views, config.seed, device).steps(0, ENDLESS)
    method = build_method(config.method, build_backbone(config.backbone), len(images))
    method = method.to(memory_format=torch.channels_last)
    use_processor_well(method)
    optimizer = build_optimizer(method, config)
    metrics = EpochMetrics()
    while True:
        before = time.perf_counter()
        batch = next(batches)
        waited = time.perf_counter() - before
        output = method(batch.views, batch.samples)
        optimizer.zero_grad()
        output.loss.backward()
        optimizer.step()
        method.after_step(0.5)
        with torch.no_grad():
            metrics.update(output, method.statistics(output.embedding))
        yield waited


class _PilDataset(Dataset[list[Tensor]]):
    """Images in memory, as torchvision's CIFAR-10 holds them, to views by lightly's transforms."""

    def __init__(self, images: Tensor, views: ViewsSettings) -> None:
        self.pixels = images.permute(0, 2, 3, 1).contiguous().numpy()
        self.views = lightly_views(views)

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, index: int) -> list[Tensor]:
        image = Image.fromarray(self.pixels[index])
        return [view(image) for view in self.views]


def _lightly(*, tuned: bool, every_core: bool = True) -> Callable[[Config, Tensor, int], Loop]:
    def build(config: Config, images: Tensor, cores: int) -> Loop:
        layout = torch.channels_last if tuned else torch.contiguous_format
        network = _lightly_network(config).to(memory_format=layout)
        optimizer = _plain_optimizer(network, config)
        batches = _lightly_batches(config, images, cores if every_core else 1)
        assert isinstance(config.method, IMSVDSettings)
        units = config.method.units
        assert isinstance(units, int)
        while True:
            before = time.perf_counter()
            views = next(batches)
            waited = time.perf_counter() - before
            embeddings = [network(view.to(memory_format=layout)) for view in views]
            # The loss runs backward to its inputs; the network's backward goes on from there.
            first, second = (each.detach().requires_grad_() for each in embeddings)
            FORMS["dense"].step(first, second, units)
            optimizer.zero_grad()
            torch.autograd.backward(embeddings, [first.grad, second.grad])
            optimizer.step()
            yield waited

    return build


def _lightly_network(config: Config) -> nn.Sequential:
    from lightly.models.modules.heads import ProjectionHead  # noqa: PLC0415 - an optional package

    assert isinstance(config.method, IMSVDSettings)
    backbone = build_backbone(config.backbone)
    widths = (feature_width(backbone), *config.method.projector)
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
    sampler = RandomSampler(dataset, replacement=True, num_samples=ENDLESS * size)
    loader = DataLoader(
        dataset, size, sampler=sampler, num_workers=workers, persistent_workers=True, drop_last=True
    )
    return iter(loader)


CONTENDERS: dict[str, Contender] = {
    "ours": Contender("imsvd", _ours, "ours"),
    "lightly": Contender("lightly", _lightly(tuned=False), "dense", ("lightly",)),
    "lightly-tuned": Contender("lightly, tuned", _lightly(tuned=True), "dense", ("lightly",)),
    "lightly-tuned-1": Contender(
        "lightly, tuned, 1 worker", _lightly(tuned=True, every_core=False), "dense", ("lightly",)
    ),
}


def random_images(count: int, size: int) -> Tensor:
    """(count, 3, size, size) bytes; no part of a step depends on what they show."""
    values = np.random.default_rng(0).integers(0, 256, (count, 3, size, size), dtype=np.uint8)
    return torch.from_numpy(values)
