"""What is evaluated: one protocol on one encoder and one set of labeled images."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch

from imsvd.config import Config
from imsvd.datasets.source import hash_listing
from imsvd.encoder import Encoder
from imsvd.evaluation.classification import ClassificationSettings, LabeledSplits
from imsvd.views import ViewSettings, ViewsSettings


class Evaluation(NamedTuple):
    """A protocol's name, which is also its folder's and its metrics', and all it depends on."""

    protocol: str
    encoder: Encoder
    splits: LabeledSplits
    settings: ClassificationSettings
    labels: str = ""
    """Whose labels are trained on, where it is not all of them."""

    def folder(self, run: Path) -> Path:
        """Where it is kept below `run`: another for everything that would change the result."""
        weights = [
            value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
            for value in self.encoder.backbone.state_dict().values()
        ]
        settings = self.settings.model_dump_json(exclude={"compute"})
        sources = (self.splits.train.fingerprint(), self.splits.test.fingerprint())
        texts = [text.encode() for text in (self.protocol, settings, *sources)]
        return run / "evaluations" / f"{self.protocol}-{hash_listing([*texts, *weights])}"

    def pretraining_config(self) -> Config:
        """What the machinery of pretraining has to know, with a single view."""
        config = Config(seed=self.settings.seed, compute=self.settings.compute)
        # Not validated: pretraining compares at least two views, a classifier looks at one.
        views = ViewsSettings.model_construct(views=(self.view,))
        return config.model_copy(update={"views": views})

    @property
    def view(self) -> ViewSettings:
        """A random crop and a flip, at the size and with the normalization the encoder knows."""
        description = self.encoder.description
        return ViewSettings(
            size=description.size,
            crop_scale=self.settings.crop_scale,
            jitter_probability=0,
            gray_probability=0,
            mean=description.mean,
            std=description.std,
        )
