"""What full-scale training costs: hours, by the paper's own numbers, and disk, by counting.

The paper tells the hours per 100 epochs on 32 V100 of five methods (Table IV) and of IMSVD with
other projectors (Tables VI and VII). Everything else is an estimate: two terms, one for the passes
through the backbone and one for the parameters of the heads, fitted to IMSVD's rows. Where a
method's own hours are known, only the difference that another head makes is estimated.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

from imsvd.config import Config, override
from imsvd.paper_numbers import paper_tables
from imsvd.recipes import recipe
from imsvd.reproduction.full_networks import IMAGENET_IMAGES, Sizes, measure, same_network
from imsvd.reproduction.variants import OUR_NAMES

PAPER_GPUS = 32
PLACES205_IMAGES = 2_448_873
COCO_GPU_HOURS = 90_000 * 0.584 * 8 / 3600
"""90,000 iterations on 8 V100, at the 0.584 s that Detectron2's model zoo lists for R50-C4."""

KEPT_CHECKPOINTS = 3
"""Two are kept, and a third exists while it is written."""
LOG_BYTES_PER_EPOCH = 3_000
"""metrics.jsonl and TensorBoard's events together, measured of runs with IMSVD."""


class Hours(NamedTuple):
    """Hours per 100 epochs on the paper's GPUs."""

    value: float
    source: str
    """The table that reports them; empty for an estimate."""


class TimeModel(NamedTuple):
    """Hours per 100 epochs = `backbone` × passes + `per_million` × millions of head parameters.

    A pass is counted as one when two views go forward and backward through the backbone.
    """

    backbone: float
    per_million: float

    def hours(self, config: Config) -> float:
        """Return what `config` would take."""
        trained, forward = _passes(config)
        heads = sizes(config).heads / 1e6
        return self.backbone * (trained + forward) + self.per_million * heads * trained


def hours_per_100_epochs(config: Config) -> Hours:
    """Return the paper's hours for this method and head, or an estimate."""
    reported = _reported(config)
    if reported is not None:
        return reported
    model = time_model()
    estimate = model.hours(config)
    usual = recipe("imagenet", config.method.name)
    known = _reported(usual)
    if known is not None:
        estimate += known.value - model.hours(usual)
    return Hours(estimate, "")


def training_hours(config: Config) -> float:
    """Return the hours of the whole run on the paper's GPUs."""
    return hours_per_100_epochs(config).value * config.training.epochs / 100


def evaluation_gpu_hours(protocol: str) -> float:
    """Return GPU hours of a protocol on one ResNet-50, all of them estimates.

    One epoch forward of one view is a sixth of the backbone's share of an epoch of training (two
    views, forward and twice as long backward). VOC's images and figures are a matter of minutes.
    """
    epoch = time_model().backbone * PAPER_GPUS / 6 / 100
    places = PLACES205_IMAGES / IMAGENET_IMAGES
    return {
        "linear": 100 * epoch,
        "places205": 14 * places * epoch,
        "knn": epoch,
        "coco": COCO_GPU_HOURS,
    }.get(protocol, 0.1)


def run_bytes(config: Config) -> int:
    """Return the disk that a run needs at its fullest."""
    counted = sizes(config)
    logs = LOG_BYTES_PER_EPOCH * config.training.epochs
    return KEPT_CHECKPOINTS * counted.checkpoint + counted.encoder + logs


@cache
def time_model() -> TimeModel:
    """Fit the two terms to the hours of IMSVD's projectors, by least squares."""
    reported = _imsvd_hours()
    heads = [sizes(_with_projector(projector)).heads / 1e6 for projector in reported]
    matrix = np.stack([np.ones(len(heads)), np.array(heads)], axis=1)
    hours = np.array([hours.value for hours in reported.values()])
    backbone, per_million = np.linalg.lstsq(matrix, hours, rcond=None)[0]
    return TimeModel(float(backbone), float(per_million))


def largest_miss() -> float:
    """Return by which share the fit misses the worst of the five methods of Table IV."""
    misses = []
    for method, columns in paper_tables()["cost"].rows.items():
        estimate = time_model().hours(recipe("imagenet", OUR_NAMES[method]))
        misses.append(abs(estimate / columns["hours"] - 1))
    return max(misses)


def formula() -> str:
    """Say how hours were estimated that the paper does not report."""
    model = time_model()
    return (
        f"Hours marked ~ are estimates: {model.backbone:.2f} h for two views through the backbone "
        f"(a third of it for views that only go forward) and {1000 * model.per_million:.1f} h per "
        "1000 M parameters of heads, per 100 epochs, fitted to Tables VI and VII; of the five "
        f"methods of Table IV this misses the worst by {100 * largest_miss():.0f} %. "
        "The batch size is taken to make no difference."
    )


def sizes(config: Config) -> Sizes:
    """Count what `config` trains and writes, once for configurations of the same size."""
    return _sizes(same_network(config))


@cache
def _sizes(config: str) -> Sizes:
    return measure(Config.model_validate_json(config))


def _reported(config: Config) -> Hours | None:
    if head := config.method.code_head.projector:
        return _imsvd_hours().get(head)
    if config.method != recipe("imagenet", config.method.name).method:
        return None
    for name, columns in paper_tables()["cost"].rows.items():
        if OUR_NAMES[name] == config.method.name:
            return Hours(columns["hours"], "Table IV")
    return None


@cache
def _imsvd_hours() -> dict[tuple[int, ...], Hours]:
    """Hours of IMSVD's projectors, by their widths."""
    tables = paper_tables()
    depths = {
        (*[8192] * (int(depth) - 1), 8160): Hours(hours, tables["projector-depth"].source)
        for depth, hours in tables["projector-depth"].rows["hours"].items()
    }
    widths = {
        (8192, int(width)): Hours(hours, tables["width"].source)
        for width, hours in tables["width"].rows["hours"].items()
    }
    usual = Hours(tables["cost"].rows["IMSVD"]["hours"], tables["cost"].source)
    return depths | widths | {(8192, 8160): usual}


def _with_projector(projector: tuple[int, ...]) -> Config:
    return override(recipe("imagenet"), [f"method.projector={list(projector)}"])


def _passes(config: Config) -> tuple[float, float]:
    """Passes of pairs of views: forward and backward, and forward only, in units of the former."""
    pairs = config.method.views_with_gradient
    return pairs, pairs / 3 if sizes(config).momentum else 0.0
