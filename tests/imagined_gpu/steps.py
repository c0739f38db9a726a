"""Steps of every method on the imagined GPU, through the loop that trains."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import pytest
import torch

from imsvd.datasets import open_source
from imsvd.engine.batches import EpochOrder, MemoryBatches
from imsvd.methods import MethodSettings
from imsvd.methods.settings import SMALLEST_BATCH
from imsvd.pretraining.run import Pretraining
from imsvd.runs import RunFolder
from imsvd.views import ViewSettings, ViewsSettings
from tests.contracts.test_methods import FORMS
from tests.imagined_gpu.device import NAME, watching
from tests.imagined_gpu.fabric import imagined_fabric
from tests.pretraining import tiny

IMAGES = 5 * SMALLEST_BATCH
BEYOND_WARM_UP = 2
ALLOWED = {  # how often a function may wait for the device in a step; any other wait fails the test
    # Whether an epoch's clusters are in use, and the seed of a draw, are buffers.
    "NPID.view_losses": 1,
    "LA.view_losses": 1,
    "PCL.contrasts": 2,
    "Clustering.prototypes": 3,
    "SwAV._earlier": 1,
    "EmbeddingQueue.is_full": 1,
    "WMSELoss.sub_batches": 1,
    "WMSELoss.forward": 1,
    # The first step fixes a constant; each of two views looks for it.
    "NPIDLoss._noise_contrast": 2,
    # A covariance without a Cholesky factor ends the training with a sentence.
    "whiten": 2,
    "log_determinant": 4,
}

VIEW = ViewSettings(size=32, blur_probability=0.5, solarize_probability=0.5, gray_probability=0.5)
VIEWS = ViewsSettings(views=(VIEW, VIEW))
"""With everything that views can do."""


CODE = ("code.variables=3", "code.units=4", "code.hidden=16")


def _training(
    settings: MethodSettings, device: torch.device, folder: Path, *more: str, mixed: bool
) -> Pretraining:
    optimizer = "lars" if mixed else "adamw"
    changes = [f"optimizer.name={optimizer}", f"training.batch_size={SMALLEST_BATCH}", *more]
    config = tiny.config(*changes, data=f"shapes:{IMAGES}")
    config = config.model_copy(update={"method": settings, "views": VIEWS})
    source = open_source(config.data.source, "train")
    return Pretraining(config, RunFolder(folder), imagined_fabric(device, mixed=mixed), source)


@pytest.mark.parametrize("settings", FORMS.values(), ids=FORMS)
def test_a_step_stays_on_the_device_and_does_not_wait(
    settings: MethodSettings, gpu: torch.device, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    mixed = "small" in request.node.callspec.id
    training = _training(settings, gpu, tmp_path, mixed=mixed)
    images = torch.randint(256, (IMAGES, 3, 32, 32), dtype=torch.uint8)
    order = EpochOrder(IMAGES, SMALLEST_BATCH, seed=0)
    batches = MemoryBatches(images, order, VIEWS, 0, gpu).steps(0, 5)
    for epoch in (0, BEYOND_WARM_UP):  # with another loss after the warm-up
        training.method.begin_epoch(epoch)
        training.train_step(next(batches))
        with watching() as waits:
            training.train_step(next(batches))
        assert waits <= Counter(ALLOWED), dict(waits)
    for key, parameter in training.method.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, f"{key} has no gradient: DDP would stop"
            assert parameter.grad.device.type == NAME
    record = training.metrics.summarize(training.method, training._output.features[0])
    assert all(math.isfinite(value) for value in record["terms"].values())


@pytest.mark.parametrize("mixed", [False, True])
def test_a_code_head_beside_a_method_does_not_wait(
    mixed: bool, gpu: torch.device, tmp_path: Path
) -> None:
    training = _training(FORMS["vicreg, small"], gpu, tmp_path, *CODE, mixed=mixed)
    images = torch.randint(256, (IMAGES, 3, 32, 32), dtype=torch.uint8)
    order = EpochOrder(IMAGES, SMALLEST_BATCH, seed=0)
    batches = MemoryBatches(images, order, VIEWS, 0, gpu).steps(0, 5)
    training.train_step(next(batches))
    with watching() as waits:
        training.train_step(next(batches))
    assert not waits, dict(waits)
    assert training.code is not None
    assert training.is_finite()
    assert set(training.code.summarize()) == {"share_decided", "share_agreeing", "shared_nats"}
