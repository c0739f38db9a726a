"""A backbone with a linear classifier: the network, its optimizer, the evaluation it belongs to, tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from imsvd.config import ComputeSettings
from imsvd.datasets import ImageSource, Quarantine, Subset, load_into_memory
from imsvd.datasets.sources import hash_listing
from imsvd.distributed import all_reduce_sum, own_slice, together
from imsvd.encoder import Encoder, EncoderDescription
from imsvd.engine.hardware import worker_count
from imsvd.evaluation import extract_features
from imsvd.evaluation.classification import ClassificationSettings, LabeledSplits, count_hits
from imsvd.views import ViewSettings, ViewsSettings


class Classifier(nn.Module):
    """Maps normalized images (batch, 3, size, size) to logits (batch, classes).

    A frozen backbone gets no gradients and stays in evaluation mode, which fixes its weights and the
    statistics of its norms. As in MoCo and VICReg, the head's initial weights are N(0, 0.01²).
    """

    def __init__(self, encoder: Encoder, num_classes: int, *, frozen: bool) -> None:
        super().__init__()
        self.backbone = encoder.backbone.requires_grad_(not frozen)
        self.head = nn.Linear(encoder.num_features, num_classes)
        self.frozen = frozen
        nn.init.normal_(self.head.weight, std=0.01)
        nn.init.zeros_(self.head.bias)
        self.train()

    def train(self, mode: bool = True) -> Self:
        """Set the mode of all modules; a frozen backbone stays in evaluation mode."""
        super().train(mode)
        if self.frozen:
            self.backbone.eval()
        return self

    def forward(self, images: Tensor) -> Tensor:
        """Return logits in float32, whatever the backbone's precision."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            features = self.backbone(images)
        with torch.autocast(images.device.type, enabled=False):
            logits: Tensor = self.head(features.float())
        return logits

    @property
    def trained(self) -> nn.Module:
        """The trained part of the network, which checkpoints save."""
        return self.head if self.frozen else self


def build_optimizer(network: Classifier, settings: ClassificationSettings) -> torch.optim.Optimizer:
    """Build SGD with separate rates for head and backbone; a frozen backbone is left out."""
    rates = {"head": settings.head_lr, "backbone": settings.backbone_lr}
    modules = {"head": network.head, "backbone": network.backbone}
    groups = [
        {
            "params": list(module.parameters()),
            "name": f"{name}_lr",
            "peak_lr": rates[name] * settings.batch_size / 256,
        }
        for name, module in modules.items()
        if name == "head" or not settings.frozen
    ]
    return torch.optim.SGD(
        groups, lr=1.0, momentum=settings.momentum, weight_decay=settings.weight_decay
    )


class Evaluation(NamedTuple):
    """One protocol with its encoder, labeled images and settings.

    Attributes:
        protocol: name of the protocol, which also names its folder and metrics.
        encoder: encoder to evaluate.
        splits: labeled images.
        settings: settings of the training.
        labels: how the labeled images were chosen, if not all labels are used.
    """

    protocol: str
    encoder: Encoder
    splits: LabeledSplits
    settings: ClassificationSettings
    labels: str = ""

    def folder(self, run: Path) -> Path:
        """Return its folder below `run`, named by a hash of everything that determines the result."""
        weights = [
            value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
            for value in self.encoder.backbone.state_dict().values()
        ]
        settings = self.settings.model_dump_json(exclude={"compute"})
        sources = (self.splits.train.fingerprint(), self.splits.test.fingerprint())
        texts = [text.encode() for text in (self.protocol, settings, *sources)]
        return run / "evaluations" / f"{self.protocol}-{hash_listing([*texts, *weights])}"

    @property
    def views(self) -> ViewsSettings:
        """One view: a random crop and a flip, at the encoder's size and with its normalization."""
        description = self.encoder.description
        view = ViewSettings(
            size=description.size,
            crop_scale=self.settings.crop_scale,
            jitter_probability=0,
            gray_probability=0,
            mean=description.mean,
            std=description.std,
        )
        # Not validated: pretraining needs at least two views, a classifier one.
        return ViewsSettings.model_construct(views=(view,))


class HeldOutImages:
    """This rank's share of the test images; small images are kept in memory."""

    def __init__(
        self, source: ImageSource, description: EncoderDescription, compute: ComputeSettings
    ) -> None:
        self.description, self.compute = description, compute
        own = own_slice(len(source))
        self.source = Subset(source, range(own.start, own.stop))
        self.images = together(lambda: _small_images(self.source) if len(self.source) else None)

    def measure(self, network: nn.Module, fabric: Fabric) -> dict[str, Any]:
        """Return accuracies in percent over the readable test images of all ranks, and their number.

        "top5" needs more than five classes.
        """
        counts = together(lambda: self._counts(network, fabric) if len(self.source) else [0, 0, 0])
        total = all_reduce_sum(torch.tensor(counts, device=fabric.device))
        top1, top5, count = total.tolist()
        measured: dict[str, Any] = {"top1": 100 * top1 / count}
        if len(self.source.classes) > 5:
            measured["top5"] = 100 * top5 / count
        return measured | {"test_images": count}

    def _counts(self, network: nn.Module, fabric: Fabric) -> list[int]:
        """Count top-1 hits, top-5 hits and images in this rank's share."""
        in_memory = self.images is not None
        with fabric.autocast():
            found = extract_features(
                network,
                self.source,
                size=self.description.size,
                mean=self.description.mean,
                std=self.description.std,
                device=fabric.device,
                workers=0 if in_memory else worker_count(self.compute, fabric),
                images=self.images,
            )
        assert found.labels is not None
        hits = [count_hits(found.features, found.labels, most) for most in (1, 5)]
        return [*hits, len(found.features)]


def _small_images(source: ImageSource) -> Tensor | None:
    """Return all images as one tensor if they are small, of one size and readable, else None."""
    quarantine = Quarantine(source, limit=1)
    images = load_into_memory(source, quarantine)
    return None if quarantine.count else images
