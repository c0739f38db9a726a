"""PCL as a method: MoCo's queries, keys and queue, and prototypes of clusters (arXiv 2005.04966).

The released code embeds all training images, uncropped, once more at the beginning of every epoch
to cluster them. Here a bank keeps the key of every image from the epoch before. That costs no extra
pass, but the keys belong to random crops and to key networks up to one epoch old. An image not drawn
yet (the last, incomplete batch of an epoch is dropped) has a random direction in the bank.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from imsvd import distributed
from imsvd.losses.pcl import PCLLoss, Prototypes, concentrations
from imsvd.methods.kmeans import Clusters, check_cluster_counts, cluster_together, fewer_clusters
from imsvd.methods.memory import MemoryBank
from imsvd.methods.moco_v2 import CIFAR_SGD, IMAGENET_SGD, KeyQueueMethod, KeyQueueSettings
from imsvd.methods.settings import SMALL_LR, SMALLEST_BATCH, Row


class PCLSettings(KeyQueueSettings):
    """Settings of PCL; the defaults are those of PCL v2 for ImageNet."""

    name: Literal["pcl"] = "pcl"
    temperature: float = Field(
        0.2, gt=0, description="temperature of InfoNCE, and mean temperature of prototypes (τ)"
    )
    queue_length: int = Field(
        16384, ge=1, description="number of earlier keys as negatives; at least one step's keys"
    )
    clusters: tuple[PositiveInt, ...] = Field(
        (25_000, 50_000, 100_000), min_length=1, description="prototypes of each clustering"
    )
    num_negative_prototypes: int = Field(
        16384, ge=1, description="most prototypes of a clustering that a step contrasts with (r)"
    )
    kmeans_iterations: int = Field(20, ge=1, description="most iterations of k-means")
    warmup_epochs: int = Field(
        20, ge=1, description="epochs of InfoNCE alone before the first clustering"
    )

    labels: ClassVar = {"attraction": "attr", "repulsion": "repul", "prototypes": "proto"}
    counted_in_epochs: ClassVar = ("warmup_epochs",)
    first_phase: ClassVar = "warmup_epochs"
    smallest_sizes: ClassVar = {
        "projector": 8,
        "queue_length": 2 * SMALLEST_BATCH,
        "clusters": 4,
        "num_negative_prototypes": 3,
        "kmeans_iterations": 2,
        "warmup_epochs": 1,
    }
    recipes: ClassVar = {
        "small": Row(
            "as cifar10, with AdamW and, for few steps, a shorter queue and a faster key network",
            method={"projector": (512, 128), "momentum": 0.99, "queue_length": 4096}
            | {"clusters": (250, 500, 1000), "kmeans_iterations": 10}
            | {"warmup_epochs": 8, "symmetric": True},
            optimizer=SMALL_LR,
        ),
        "cifar10": Row(
            "MoCo's for short CIFAR runs; prototypes in the paper's proportion to the images",
            method={"projector": (2048, 256), "momentum": 0.99, "queue_length": 32768}
            | {"clusters": (1000, 2000, 4000), "warmup_epochs": 20, "symmetric": True},
            optimizer=CIFAR_SGD,
            training={"batch_size": 256},
        ),
        "imagenet": Row(
            "PCL v2 as released, for this recipe's epochs instead of 200",
            optimizer=IMAGENET_SGD,
            training={"batch_size": 256},
        ),
    }

    def fit_to_images(self, images: int, batch_size: int) -> Self:
        """Reduce the prototypes to what the images can fill."""
        del batch_size
        return self.replace(clusters=fewer_clusters(self.clusters, images))


class Clustering(nn.Module):
    """The prototypes of one clustering and the cluster of every image, fixed for an epoch."""

    centroids: Tensor
    concentrations: Tensor
    assignments: Tensor

    def __init__(self, num_clusters: int, width: int, num_samples: int) -> None:
        super().__init__()
        self.register_buffer("centroids", torch.zeros(num_clusters, width))
        self.register_buffer("concentrations", torch.ones(num_clusters))
        self.register_buffer("assignments", torch.zeros(num_samples, dtype=torch.int64))

    def refresh(self, clusters: Clusters, temperature: float) -> None:
        """Take over the result of k-means."""
        self.centroids.copy_(F.normalize(clusters.centroids, dim=1))
        self.assignments.copy_(clusters.assignments)
        distances = clusters.distances.sqrt()
        self.concentrations.copy_(
            concentrations(distances, clusters.assignments, len(self.centroids), temperature)
        )

    def prototypes(self, samples: Tensor, most: int, seed: int) -> Prototypes:
        """Return the contrast of a batch: all prototypes, or `most` of them drawn at random."""
        negatives = torch.arange(len(self.centroids), device=samples.device)
        if most < len(negatives):
            generator = torch.Generator().manual_seed(seed)
            drawn = torch.randperm(len(negatives), generator=generator, device="cpu")[:most]
            negatives = drawn.to(samples.device)
        return Prototypes(self.centroids, self.concentrations, self.assignments[samples], negatives)


class PCL(KeyQueueMethod):
    """The first view must find its key among earlier keys, and its prototypes among all."""

    steps: Tensor
    contrasting: Tensor

    def __init__(self, settings: PCLSettings, backbone: nn.Module, num_samples: int = 0) -> None:
        super().__init__(settings, backbone)
        self.settings = settings
        width = settings.projector[-1]
        self.bank = MemoryBank(num_samples, width, momentum=0)
        check_cluster_counts(settings.clusters, num_samples)
        self.clusterings = nn.ModuleList(
            Clustering(number, width, num_samples) for number in settings.clusters
        )
        self.loss = PCLLoss(settings.temperature)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("contrasting", torch.zeros((), dtype=torch.bool))
        distributed.keep_from_broadcast(self, ["bank.", "queue.", "clusterings."])

    def begin_epoch(self, epoch: int) -> None:
        """Cluster the keys of the epoch before once the warm-up is over."""
        self.contrasting.fill_(epoch >= self.settings.warmup_epochs)
        if epoch < self.settings.warmup_epochs:
            return
        results = cluster_together(
            self.bank.entries,
            self.settings.clusters,
            seed=epoch * len(self.clusterings),
            iterations=self.settings.kmeans_iterations,
        )
        for clustering, clusters in zip(self.clusterings, results, strict=True):
            assert isinstance(clustering, Clustering)
            clustering.refresh(clusters, self.settings.temperature)

    def contrasts(self, samples: Tensor) -> Sequence[Any]:
        """Return one list: the prototypes of every clustering, none during the warm-up."""
        if not self.contrasting:
            return [[]]
        most, found = self.settings.num_negative_prototypes, []
        first_seed = int(self.steps) * len(self.clusterings)
        for seed, clustering in enumerate(self.clusterings, start=first_seed):
            assert isinstance(clustering, Clustering)
            found.append(clustering.prototypes(samples, most, seed))
        return [found]

    def remember(self, samples: Tensor, keys: Sequence[Tensor]) -> None:
        """Push the keys of a step into the queue, and store their mean per image in the bank."""
        super().remember(samples, keys)
        self.bank.update(samples, torch.stack(list(keys)).mean(0))

    def after_step(self, progress: float) -> None:
        """Move the key network and count the step, which seeds the next draw of prototypes."""
        super().after_step(progress)
        self.steps += 1
