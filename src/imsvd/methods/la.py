"""LA as a method: NPID's network and memory bank, and local aggregation (arXiv 1903.12355).

Clusters mean little before the bank has settled, so the first epochs are instance discrimination;
the authors' release starts from a network trained that way. From then on the bank is clustered anew
at the beginning of every epoch (in the release, after a fixed number of steps).
"""

from collections.abc import Sequence
from typing import ClassVar, Literal, Self

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from imsvd import distributed
from imsvd.errors import InputError
from imsvd.losses.base import LossOutput
from imsvd.losses.la import LALoss
from imsvd.losses.npid import InstanceForm
from imsvd.methods.kmeans import (
    IMAGES_PER_CLUSTER,
    check_cluster_counts,
    cluster_together,
    fewer_clusters,
)
from imsvd.methods.npid import NPID, NPIDSettings
from imsvd.methods.settings import SMALL_LR, MethodSettings, Row, layer_widths


class LASettings(MethodSettings):
    """Settings of LA; the defaults are the published ones for ImageNet."""

    name: Literal["la"] = "la"
    projector: tuple[int, ...] = layer_widths(128)
    temperature: float = Field(0.07, gt=0, description="temperature of the similarities (τ)")
    bank_momentum: float = Field(
        0.5, ge=0, lt=1, description="share of an image's vector in the bank that an update keeps"
    )
    num_background: int = Field(
        4096, ge=2, description="nearest images that form an image's background (k)"
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

    admits_local_views: ClassVar = True
    labels: ClassVar = {"instance_discrimination": "inst", "local_aggregation": "local"}
    counted_in_epochs: ClassVar = ("warmup_epochs",)
    first_phase: ClassVar = "warmup_epochs"
    smallest_sizes: ClassVar = {
        "projector": 8,
        "num_background": 8,
        "clusters": 4,
        "kmeans_iterations": 2,
        "warmup_epochs": 1,
        "num_negatives": 8,
    }
    # Only ImageNet is published. The other rows take NPID's optimizer and some 40 images per cluster.
    recipes: ClassVar = {
        "small": Row(
            "NPID's settings, with clusters and background reduced with the number of images",
            method={"temperature": 0.1, "clusters": (250,) * 4, "num_background": 512}
            | {"kmeans_iterations": 10, "warmup_epochs": 10, "warmup_form": "softmax"},
            optimizer=SMALL_LR,
        ),
        "cifar10": Row(
            "NPID's settings, with clusters and background reduced with the number of images",
            method={"temperature": 0.1, "clusters": (1200,) * 5, "num_background": 1024}
            | {"warmup_epochs": 20, "warmup_form": "softmax"},
            optimizer={"lr": 0.06},
            training={"batch_size": 256},
        ),
        "imagenet": Row(
            "the authors' released settings, with a cosine in place of their steps",
            optimizer={"name": "sgd", "lr": 0.03, "scale_lr": False, "weight_decay": 1e-4}
            | {"decay_all": True, "warmup_epochs": 0},
            training={"batch_size": 128},
        ),
    }

    def fit_to_images(self, images: int, batch_size: int) -> Self:
        """Reduce clusters and background to what the images can fill."""
        del batch_size
        background = min(self.num_background, max(2, images // IMAGES_PER_CLUSTER))
        clusters = fewer_clusters(self.clusters, images)
        return self.replace(clusters=clusters, num_background=background)


class LA(NPID):
    """Every view must be nearer to its own clusters than to the other images around it."""

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
        """Cluster the bank once the warm-up is over."""
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
