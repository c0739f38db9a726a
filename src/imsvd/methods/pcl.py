"""PCL as a method: MoCo's queries, keys and queue, and prototypes of clusters (arXiv 2005.04966).

The released code embeds all training images once more at the beginning of every epoch, uncropped,
to cluster them. Here a bank keeps the key that every image got in the epoch before: no extra pass, but
keys of random crops, made by key networks of up to one epoch's age. An image that has not been drawn
yet (the last, incomplete batch of an epoch is dropped) stands in the bank with a random direction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from imsvd import distributed
from imsvd.information import at_least_float32
from imsvd.losses.pcl import PCLLoss, Prototypes, concentrations
from imsvd.methods.base import Method, MethodOutput, MethodSettings, average_terms
from imsvd.methods.kmeans import Clusters, check_cluster_counts, cluster_together
from imsvd.methods.memory_bank import MemoryBank
from imsvd.methods.momentum import momentum_copy, update_momentum
from imsvd.methods.queue import EmbeddingQueue
from imsvd.networks import feature_width, projector


class PCLSettings(MethodSettings):
    """Settings of PCL; the defaults are those of PCL v2 for ImageNet."""

    name: Literal["pcl"] = "pcl"
    projector: tuple[int, ...] = Field(
        (2048, 128),
        min_length=1,
        description="widths of the projector's layers, without BatchNorm; the last is the embedding",
    )
    temperature: float = Field(
        0.2, gt=0, description="temperature of InfoNCE, and mean temperature of prototypes (τ)"
    )
    momentum: float = Field(0.999, ge=0, le=1, description="momentum of the key network")
    queue_length: int = Field(
        16384, ge=1, description="how many earlier keys are negatives; at least one step's keys"
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
    symmetric: bool = Field(
        False, description="whether each view is query and key in turn, for twice the passes"
    )


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
        """Take over what k-means has found."""
        self.centroids.copy_(F.normalize(clusters.centroids, dim=1))
        self.assignments.copy_(clusters.assignments)
        distances = clusters.distances.sqrt()
        self.concentrations.copy_(
            concentrations(distances, clusters.assignments, len(self.centroids), temperature)
        )

    def prototypes(self, samples: Tensor, most: int, seed: int) -> Prototypes:
        """What a batch is contrasted with: all prototypes, or `most` drawn at random."""
        negatives = torch.arange(len(self.centroids), device=samples.device)
        if most < len(negatives):
            generator = torch.Generator().manual_seed(seed)
            drawn = torch.randperm(len(negatives), generator=generator, device="cpu")[:most]
            negatives = drawn.to(samples.device)
        return Prototypes(self.centroids, self.concentrations, self.assignments[samples], negatives)


class PCL(Method):
    """The first view must find its key among earlier keys, and its prototypes among all."""

    steps: Tensor
    contrasting: Tensor

    def __init__(self, settings: PCLSettings, backbone: nn.Module, num_samples: int = 0) -> None:
        super().__init__()
        self.settings = settings
        self.pairs = ((0, 1), (1, 0)) if settings.symmetric else ((0, 1),)
        self.backbone = backbone
        widths = (feature_width(backbone), *settings.projector)
        self.projector = projector(widths, hidden_norm=False, last="bias")
        self.target = momentum_copy(self.backbone, self.projector)
        self.queue = EmbeddingQueue(settings.queue_length, widths[-1])
        self.bank = MemoryBank(num_samples, widths[-1], momentum=0)
        check_cluster_counts(settings.clusters, num_samples)
        self.clusterings = nn.ModuleList(
            Clustering(number, widths[-1], num_samples) for number in settings.clusters
        )
        self.loss = PCLLoss(settings.temperature)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("contrasting", torch.zeros((), dtype=torch.bool))
        distributed.keep_from_broadcast(self, ["bank.", "queue.", "clusterings."])

    def begin_epoch(self, epoch: int) -> None:
        """Cluster the keys of the epoch before, once the warm-up is over."""
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

    def forward(self, views: Sequence[Tensor], samples: Tensor) -> MethodOutput:
        """Compute the loss against queue and prototypes, then remember this step's keys."""
        features = [self.backbone(views[query]) for query, _ in self.pairs]
        queries = [self.projector(feature) for feature in features]
        with torch.no_grad():
            keys = [
                F.normalize(at_least_float32(self.target(views[key])), dim=1)
                for _, key in self.pairs
            ]
        prototypes = self._prototypes(samples)
        negatives = self.queue.values.clone()  # the backward pass must not find newer ones
        outputs = [
            self.loss(query, key, negatives, prototypes)
            for query, key in zip(queries, keys, strict=True)
        ]
        for key in keys:
            self.queue.push(key)
        self.bank.update(samples, torch.stack(keys).mean(0))
        return MethodOutput(
            torch.stack([output.loss for output in outputs]).mean(),
            average_terms([output.terms for output in outputs]),
            features[0].detach(),
            queries[0].detach(),
        )

    def after_step(self, progress: float) -> None:
        """Move the key network towards the query network."""
        del progress
        self.steps += 1
        online = nn.Sequential(self.backbone, self.projector)
        update_momentum(self.target, online, self.settings.momentum)

    def _prototypes(self, samples: Tensor) -> list[Prototypes]:
        if not self.contrasting:
            return []
        most, found = self.settings.num_negative_prototypes, []
        for index, clustering in enumerate(self.clusterings):
            assert isinstance(clustering, Clustering)
            seed = int(self.steps) * len(self.clusterings) + index
            found.append(clustering.prototypes(samples, most, seed))
        return found
