"""LA as a method: NPID's network and memory bank, and local aggregation (arXiv 1903.12355).

Clusters say little before the bank has settled: the first epochs are instance discrimination, as in
the authors' release, which starts from a network trained by it. From then on the bank is clustered
anew at the beginning of every epoch (the release does so after every so many steps).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from imsvd import distributed
from imsvd.errors import InputError
from imsvd.losses.la import LALoss
from imsvd.losses.npid import InstanceForm
from imsvd.losses.output import LossOutput
from imsvd.methods.base import MethodSettings
from imsvd.methods.kmeans import check_cluster_counts, cluster_together
from imsvd.methods.npid import NPID, NPIDSettings


class LASettings(MethodSettings):
    """Settings of LA; the defaults are the published ones for ImageNet."""

    name: Literal["la"] = "la"
    projector: tuple[int, ...] = Field(
        (128,),
        min_length=1,
        description="widths of the projector's layers; the last is the embedding",
    )
    temperature: float = Field(0.07, gt=0, description="temperature of the similarities (τ)")
    bank_momentum: float = Field(
        0.5, ge=0, lt=1, description="share of a remembered vector that an update keeps"
    )
    num_background: int = Field(
        4096, ge=2, description="nearest images that are an image's background (k)"
    )
    clusters: tuple[PositiveInt, ...] = Field(
        (30_000,) * 10, min_length=1, description="clusters of each k-means clustering of the bank"
    )
    kmeans_iterations: int = Field(20, ge=1, description="most iterations of k-means")
    warmup_epochs: int = Field(
        10, ge=1, description="epochs of instance discrimination before the first clustering"
    )
    warmup_form: InstanceForm = Field(
        "nce", description="form of instance discrimination, as method.form of npid"
    )
    num_negatives: int = Field(4096, ge=1, description="random images per sample, for nce")

    admits_local_views: ClassVar[bool] = True


class LA(NPID):
    """Every view is to be nearer to its own clusters than to other images around it."""

    labels: Tensor
    aggregating: Tensor

    def __init__(self, settings: LASettings, backbone: nn.Module, num_samples: int = 0) -> None:
        instance = NPIDSettings(
            projector=settings.projector,
            form=settings.warmup_form,
            num_negatives=settings.num_negatives,
            temperature=settings.temperature,
            bank_momentum=settings.bank_momentum,
        )
        super().__init__(instance, backbone, num_samples)
        check_cluster_counts(settings.clusters, num_samples)
        if settings.num_background > num_samples:
            raise InputError(
                f"method.num_background={settings.num_background} is more than the {num_samples} "
                "images of the data; set it to a tenth of them or less."
            )
        self.clusters = settings.clusters
        self.kmeans_iterations = settings.kmeans_iterations
        self.warmup_epochs = settings.warmup_epochs
        self.aggregation = LALoss(settings.num_background, settings.temperature)
        shape = len(settings.clusters), num_samples
        self.register_buffer("labels", torch.zeros(shape, dtype=torch.int64))
        self.register_buffer("aggregating", torch.zeros((), dtype=torch.bool))
        distributed.keep_from_broadcast(self, ["bank.", "labels"])

    def begin_epoch(self, epoch: int) -> None:
        """Cluster the bank, once the warm-up is over."""
        self.aggregating.fill_(epoch >= self.warmup_epochs)
        if epoch < self.warmup_epochs:
            return
        clusterings = cluster_together(
            self.bank.entries,
            self.clusters,
            seed=epoch * len(self.clusters),
            iterations=self.kmeans_iterations,
        )
        self.labels.copy_(torch.stack([clusters.assignments for clusters in clusterings]))

    def view_losses(self, embeddings: Sequence[Tensor], samples: Tensor) -> list[LossOutput]:
        """Compute the loss of every view: NPID's during the warm-up, then LA's."""
        if not self.aggregating:
            return super().view_losses(embeddings, samples)
        bank = self.bank.entries
        return [self.aggregation(view, samples, bank, self.labels) for view in embeddings]
