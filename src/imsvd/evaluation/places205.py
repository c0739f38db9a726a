"""Places205: a linear classifier on the frozen backbone, on scenes instead of objects.

The paper's settings: SGD for 14 epochs, lr 0.01, a tenth of it after 5 and after 10, weight decay
5e-4, momentum 0.9, batch 256. Crops and tests are those of linear evaluation.
"""

from __future__ import annotations

from pathlib import Path

from imsvd.datasets.places205 import open_places205
from imsvd.evaluation.classification import ClassificationSettings, LabeledSplits, checked_splits

PLACES205_SETTINGS = ClassificationSettings(
    epochs=14, head_lr=0.01, milestones=(5, 10), weight_decay=5e-4
)


def places205_splits(root: str | Path) -> LabeledSplits:
    """Open the folder of Places205 and check it completely, but for the content of its images."""
    train, test = open_places205(root)
    return checked_splits(root, train, test)
