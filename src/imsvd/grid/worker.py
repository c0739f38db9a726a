"""The process of one run in a grid: `python -m imsvd.grid.worker FOLDER`.

The configuration is read from FOLDER/config.yaml. A separate process gives each run its own peak
memory and keeps a crash from stopping the grid. The process stops when its standard input closes,
so no run outlives a grid that was killed.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from imsvd.config import Config
from imsvd.datasets import open_source
from imsvd.distributed import rank
from imsvd.encoder import load, untrained_encoder
from imsvd.errors import InputError, Interrupted
from imsvd.evaluation import (
    Features,
    FeatureSplits,
    KNNSettings,
    encode_splits,
    knn,
    linear_probe,
    usable_neighbors,
)
from imsvd.explanations.meaning import explainability
from imsvd.files import write_atomically
from imsvd.grid.codes import measure_codes
from imsvd.grid.jobs import FAILURE, CurvePoint, Outcome, data_fingerprint, write_outcome
from imsvd.methods import build_method
from imsvd.networks import build_backbone
from imsvd.pretraining import train
from imsvd.pretraining.metrics import largest_peak, median_epoch_seconds
from imsvd.provenance import environment
from imsvd.runs import RunFolder

HELD_OUT = 10
"""Every tenth training image is a query; the rest form the bank."""


def run_job(folder: Path, *, trained: bool, parallel: int, console: Console) -> None:
    """Train or resume the run in `folder`, evaluate it and write its outcome."""
    run = RunFolder(folder)
    config = run.config()
    if trained:
        train(config, run, console)
    if rank() != 0:
        return
    began = time.monotonic()
    encoder = load(folder) if trained else untrained_encoder(config)
    split = encode_splits(encoder, config.data.source, console)
    records = run.metrics() if trained else []
    facts = environment()
    data = data_fingerprint(config.data.source)
    metrics = evaluate_split(split)
    metrics |= explainability(encoder, split.test.features, split.test.attributes)
    if trained:
        metrics |= measure_codes(encoder, split.test, folder, data)
    outcome = Outcome(
        data=data,
        metrics=metrics,
        hold_out=hold_out_accuracy(split.train),
        seconds_per_epoch=median_epoch_seconds(records),
        training_seconds=records[-1]["total_seconds"] if records else 0,
        evaluation_seconds=time.monotonic() - began,
        peak_memory=largest_peak(records),
        head_parameters=count_head_parameters(config) if trained else 0,
        backbone_parameters=sum(weight.numel() for weight in encoder.backbone.parameters()),
        curve=accuracy_curve(records),
        parallel=parallel,
        threads=torch.get_num_threads(),
        device=_device(config),
        cpu=facts["cpu"],
        version=version("imsvd"),
        commit=facts["commit"],
        finished=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    write_outcome(folder, outcome)


def evaluate_split(split: FeatureSplits) -> dict[str, float]:
    """Return the kNN-20, kNN-200 and linear-probe accuracies on the test images, in percent."""
    settings = usable_neighbors(KNNSettings(), len(split.train.features))
    parts = (*_labeled(split.train), *_labeled(split.test))
    return knn(*parts, settings) | linear_probe(*parts)


def hold_out_accuracy(train: Features) -> float:
    """Return the kNN-20 accuracy of every tenth training image against the rest, in percent."""
    features, labels = _labeled(train)
    is_query = torch.arange(len(features)) % HELD_OUT == HELD_OUT - 1
    if not is_query.any():
        raise InputError(
            f"{len(features)} training images are too few to hold out a tenth; use at least {HELD_OUT}."
        )
    settings = usable_neighbors(KNNSettings(neighbors=(20,)), int((~is_query).sum()))
    (accuracy,) = knn(
        features[~is_query], labels[~is_query], features[is_query], labels[is_query], settings
    ).values()
    return accuracy


def count_head_parameters(config: Config) -> int:
    """Count the trainable parameters outside the backbone; momentum copies are not trained."""
    source = open_source(config.data.source, "train")
    method = build_method(config.method, build_backbone(config.backbone), len(source))
    backbone = set(method.backbone.parameters())
    return sum(
        weight.numel()
        for weight in method.parameters()
        if weight.requires_grad and weight not in backbone
    )


def accuracy_curve(records: list[dict[str, Any]]) -> tuple[CurvePoint, ...]:
    """Return the online kNN accuracies recorded during training."""
    return tuple(
        CurvePoint(
            epoch=record["epoch"],
            seconds=record["total_seconds"],
            accuracy=next(iter(record["knn"].values())),
        )
        for record in records
        if record.get("knn")
    )


def _labeled(features: Features) -> tuple[Tensor, Tensor]:
    assert features.labels is not None  # encode_splits rejects data without labels
    return features.features, features.labels


def _device(config: Config) -> str:
    on_gpu = torch.cuda.is_available() and config.compute.accelerator in ("auto", "gpu")
    return torch.cuda.get_device_name() if on_gpu else "cpu"


def _end_with_parent() -> None:
    """Send SIGTERM to this process when its parent closes standard input."""

    def wait() -> None:
        while os.read(0, 1):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


def main() -> None:
    """Run the job named on the command line; on failure, write the reason to FOLDER/failure.txt."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--untrained", action="store_true")
    parser.add_argument("--parallel", type=int, default=1)
    arguments = parser.parse_args()
    _end_with_parent()
    try:
        run_job(
            arguments.folder,
            trained=not arguments.untrained,
            parallel=arguments.parallel,
            console=Console(width=100),
        )
    except Interrupted as interruption:
        sys.exit(interruption.exit_code)
    except Exception as error:
        expected = isinstance(error, InputError)
        sentence = str(error) if expected else f"{type(error).__name__}: {error}"
        write_atomically(arguments.folder / FAILURE, sentence.encode())
        if not expected:
            raise
        sys.exit(2)


if __name__ == "__main__":
    main()
