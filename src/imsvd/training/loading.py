"""Chooses how images reach the network: from memory when they are small, streamed otherwise."""

from __future__ import annotations

from lightning_fabric import Fabric
from rich.console import Console

from imsvd.config import Config
from imsvd.datasets import ImageSource, Quarantine, load_into_memory, small_image_size
from imsvd.progress import progress_bar
from imsvd.training.batches import Batches, EpochOrder, MemoryBatches, StreamedBatches
from imsvd.training.hardware import worker_count
from imsvd.views.samples import takes_fast_path


def build_batches(
    config: Config,
    source: ImageSource,
    quarantine: Quarantine,
    order: EpochOrder,
    fabric: Fabric,
    console: Console,
) -> Batches:
    """Return the batches of a run."""
    if small_image_size(source) is not None:
        with progress_bar(console) as bar:
            task = bar.add_task("reading images", total=len(source))
            images = load_into_memory(
                source, quarantine, progress=lambda done, _: bar.update(task, completed=done)
            )
        if images is not None:
            return MemoryBatches(images, order, config.views, config.seed, fabric.device)
    workers = worker_count(config, fabric, cheap=takes_fast_path(source))
    return StreamedBatches(source, order, config.views, config.seed, fabric.device, workers)
