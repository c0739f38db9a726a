"""The protocol from an encoder and a folder to numbers: check, train, test."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from imsvd.checkpoints import seed_random_state
from imsvd.config import Config
from imsvd.distributed import gather_lists, together
from imsvd.encoder import Encoder
from imsvd.evaluation.coco.batches import TrainingStream
from imsvd.evaluation.coco.data import CocoData
from imsvd.evaluation.coco.evaluation import average_precision, detect
from imsvd.evaluation.coco.model import build_detector
from imsvd.evaluation.coco.settings import DetectionSettings
from imsvd.evaluation.coco.training import DetectorTrainer
from imsvd.files import write_atomically
from imsvd.progress import progress_bar
from imsvd.training.hardware import launch


class CocoOutcome(NamedTuple):
    """COCO's measures in percent, and what is needed to understand them."""

    metrics: dict[str, float]
    details: dict[str, Any]


def run_coco(
    encoder: Encoder, data: CocoData, folder: Path, settings: DetectionSettings, console: Console
) -> CocoOutcome:
    """Train Mask R-CNN C4 on the training split and measure it on the other.

    Args:
        encoder: whose backbone is used up.
        data: checked.
        folder: of checkpoints; each combination of encoder, data and settings has its own below
            it, so that the same call goes on where it was interrupted and others start anew.
        settings: of the protocol.
        console: where to show progress.

    Raises:
        Interrupted: after Ctrl-C or SIGTERM, when everything has been saved.
    """
    state = folder / _identity(encoder, data, settings)
    seed_random_state(settings.seed)
    model = build_detector(encoder, len(data.train.categories), settings)
    fabric = launch(Config(compute=settings.compute))
    if not fabric.is_global_zero:
        console = Console(quiet=True)
    else:
        description = json.dumps(settings.model_dump(mode="json"), indent=2) + "\n"
        write_atomically(state / "settings.json", description.encode())
    stream = TrainingStream(data.train, settings.seed)
    trainer = DetectorTrainer(model, stream, settings, state, fabric)
    trainer.fit(console)
    trainer.precise_norms()
    with progress_bar(console) as bar:
        task = bar.add_task("detections", total=len(data.val) // fabric.world_size)
        found = detect(
            trainer.model, data.val, fabric.device, lambda done: bar.update(task, completed=done)
        )
    first = fabric.is_global_zero
    own = together(lambda: [average_precision(data.val.ground_truth(), found)] if first else [])
    (metrics,) = gather_lists(own)
    details = {
        "train_images": len(data.train.trainable),
        "test_images": len(data.val),
        "categories": len(data.val.categories),
        "detections": len(found),
        "settings": settings.model_dump(mode="json", exclude={"compute"}),
    }
    return CocoOutcome(metrics, details)


def _identity(encoder: Encoder, data: CocoData, settings: DetectionSettings) -> str:
    """A name for what is computed; where it is computed does not matter."""
    digest = hashlib.sha256()
    digest.update(settings.model_dump_json(exclude={"compute"}).encode())
    digest.update(f"{data.train.fingerprint} {data.val.fingerprint}".encode())
    for name, tensor in encoder.backbone.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.cpu().numpy().tobytes())
    return digest.hexdigest()[:12]
