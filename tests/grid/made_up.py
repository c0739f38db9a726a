"""Outcomes that nobody has measured."""

from typing import Any

from imsvd.grid.jobs import CurvePoint, Outcome

DATA = "train-test"


def outcome(**changes: Any) -> Outcome:
    values: dict[str, Any] = {
        "data": DATA,
        "metrics": {"knn_20": 50.0, "knn_200": 48.0, "linear_probe_top1": 55.0},
        "hold_out": 49.0,
        "seconds_per_epoch": 2.0,
        "training_seconds": 20.0,
        "evaluation_seconds": 1.0,
        "peak_memory": 100 * 2**20,
        "head_parameters": 1234567,
        "backbone_parameters": 832_592,
        "curve": (CurvePoint(epoch=1, seconds=2.0, accuracy=30.0),),
        "parallel": 1,
        "threads": 2,
        "device": "cpu",
        "cpu": "Abacus, 2 cores",
        "version": "0.1.0",
        "commit": "abc1234",
        "finished": "2000-01-01T00:00:00+00:00",
    }
    return Outcome(**(values | changes))


def scored(knn_20: float, hold_out: float) -> Outcome:
    return outcome(metrics={"knn_20": knn_20, "linear_probe_top1": 60.0}, hold_out=hold_out)
