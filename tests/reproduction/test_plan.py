"""Commands of full-budget experiments, and their hours and bytes."""

import shlex
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

from imsvd import cli
from imsvd.config import override
from imsvd.paper_numbers import paper_tables
from imsvd.pretraining.pretrain import configure
from imsvd.recipes import recipe
from imsvd.reproduction.experiment import Setup
from imsvd.reproduction.experiments import EXPERIMENTS, OUR_NAMES, find_experiments
from imsvd.reproduction.plan import (
    BACKBONE_HOURS,
    FORMULA,
    HEAD_HOURS,
    LARGEST_ERROR,
    FullPlan,
    Hours,
    estimated_hours,
    evaluation_gpu_hours,
    hours_per_100_epochs,
    plan_full,
    run_bytes,
    sizes,
    training_hours,
)
from imsvd.runs import RunFolder

OUT = Path("out's/new runs")
SETUP = Setup("full", data="/data/image net", voc="/data/voc", coco="/data/coco")


def plan(*names: str, setup: Setup = SETUP) -> FullPlan:
    return plan_full(find_experiments(names), setup, OUT)


@cache
def command_line() -> Any:
    return typer.main.get_command(cli.app)


def parse(command: str) -> tuple[str, dict[str, Any]]:
    """The path of a command and its options, as the real command line reads them."""
    program, *words = shlex.split(command)
    assert program == "imsvd"
    node = command_line()
    path = []
    while words and words[0] in getattr(node, "commands", {}):
        path.append(words.pop(0))
        node = node.commands[path[-1]]
    return " ".join(path), node.make_context(path[-1], words).params


def test_every_training_command_means_its_configuration() -> None:
    whole = plan("all")
    assert len(whole.runs) > 60
    for run, command in zip(whole.runs, whole.commands(), strict=False):
        path, options = parse(command)
        assert path == "pretrain"
        assert options["out"] == whole.folder(run)
        config = configure(
            options["data"],
            recipe_name=options["recipe"],
            method=options["method"],
            settings=options["settings"],
        )
        assert config == run.job.config


def test_every_evaluation_command_exists() -> None:
    whole = plan("all")
    folders = {str(whole.folder(run)) for run in whole.runs}
    data = {
        "evaluate linear": "/data/image net",
        "evaluate knn": "/data/image net",
        "evaluate voc07": Path("/data/voc"),
        "evaluate places205": Path("places205"),
        "evaluate coco": Path("/data/coco"),
        "explain": "/data/image net",
    }
    seen = set()
    for command in whole.commands()[len(whole.runs) :]:
        path, options = parse(command)
        seen.add(path)
        assert str(options["run"]) in folders | {"torchvision:resnet50"}
        assert options["data"] == data[path]
    assert seen == set(data)


def test_runs_are_shared_between_experiments() -> None:
    assert len(plan("units").runs) == 5
    assert len(plan("loss-terms").runs) == 4
    both = plan("units", "loss-terms")
    assert len(both.runs) == 5 + 4 - 1  # the paper's own setting stands in both
    assert len(both.evaluations) == 8  # top-1 and top-5 are measured at once
    assert both.values == 2 * (5 + 4)
    assert len({run.job.key for run in plan("all").runs}) == len(plan("all").runs)


def test_every_seed_is_a_run() -> None:
    three = plan("units", setup=SETUP._replace(seeds=(0, 1, 2)))
    assert len(three.runs) == 15
    assert len(three.evaluations) == 15


def test_what_training_itself_tells_is_not_evaluated() -> None:
    cost = plan("cost")
    assert {evaluation.protocol for evaluation in cost.evaluations} == {"linear"}
    assert len(cost.evaluations) == len(cost.runs) == 5


def test_a_published_backbone_is_evaluated_and_not_trained() -> None:
    transfer = plan("transfer")
    published = [one for one in transfer.evaluations if one.published]
    assert {one.protocol for one in published} == {"coco", "voc07", "places205"}
    assert {one.encoder for one in published} == {"torchvision:resnet50"}
    assert all(run.method != "supervised" for run in transfer.runs)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_labels_tell_the_evaluations_of_an_encoder_apart(name: str) -> None:
    evaluations = plan(name).evaluations
    assert evaluations
    assert len({(one.encoder, one.label) for one in evaluations}) == len(evaluations)
    assert len({one.words for one in evaluations}) == len(evaluations)


def perceptron(*widths: int) -> int:
    """Parameters of IMSVD's head by hand: Linear with bias and BatchNorm, the last Linear bare."""
    hidden = sum(a * b + b + 2 * b for a, b in pairwise(widths[:-1]))
    return hidden + widths[-2] * widths[-1]


@pytest.mark.parametrize(
    ("method", "settings", "expected"),
    [
        ("imsvd", [], Hours(8.5, "Table IV")),
        ("imsvd", ["training.batch_size=512"], Hours(8.5, "Table IV")),
        ("imsvd", ["method.invariance=cross_entropy"], Hours(8.5, "Table IV")),
        ("imsvd", ["method.projector=[8192, 16320]"], Hours(10.9, "Table VII")),
        ("imsvd", ["method.projector=[8192, 8192, 8192, 8160]"], Hours(10.8, "Table VI")),
        ("byol", [], Hours(10, "Table IV")),
        ("vicreg", ["training.batch_size=2048"], Hours(11, "Table IV")),
    ],
)
def test_reported_hours(method: str, settings: list[str], expected: Hours) -> None:
    assert hours_per_100_epochs(override(recipe("imagenet", method), settings)) == expected


def test_hours_go_with_epochs() -> None:
    config = override(recipe("imagenet"), ["training.epochs=1000"])
    assert training_hours(config) == pytest.approx(85)


def test_the_fit_is_a_line_through_the_tables() -> None:
    heads = [perceptron(2048, 8192, width) for width in (960, 2000, 4080, 8160, 16320)]
    heads += [perceptron(2048, *[8192] * depth, 8160) for depth in (2, 3)]
    hours = [7.6, 7.7, 8.0, 8.5, 10.9, 9.6, 10.8]
    slope, start = np.polyfit(np.array(heads) / 1e9, hours, 1)
    assert pytest.approx((start, slope), rel=1e-3) == (BACKBONE_HOURS, HEAD_HOURS)


def test_another_head_changes_the_hours_of_a_method_by_its_size() -> None:
    config = override(recipe("imagenet", "vicreg"), ["method.projector=[1024, 1024, 1024]"])
    more = perceptron(2048, 8192, 8192, 8192) - perceptron(2048, 1024, 1024, 1024)
    hours = hours_per_100_epochs(config)
    assert hours.value == pytest.approx(11 - HEAD_HOURS * more / 1e9)
    assert hours.source == ""


def test_momentum_networks_only_go_forward() -> None:
    byol, moco = (recipe("imagenet", name) for name in ("byol", "moco_v2"))
    assert estimated_hours(byol) == pytest.approx(
        BACKBONE_HOURS * 4 / 3 + HEAD_HOURS * sizes(byol).heads / 1e9
    )
    # MoCo v2 sends one view through each of its networks.
    assert estimated_hours(moco) == pytest.approx(
        (BACKBONE_HOURS * 4 / 3 + HEAD_HOURS * sizes(moco).heads / 1e9) / 2
    )
    assert hours_per_100_epochs(moco) == Hours(estimated_hours(moco), "")


def test_the_stated_error_is_the_largest_on_table_iv() -> None:
    errors = [
        abs(estimated_hours(recipe("imagenet", OUR_NAMES[name])) / columns["hours"] - 1)
        for name, columns in paper_tables()["cost"].rows.items()
    ]
    assert max(errors) == pytest.approx(LARGEST_ERROR, abs=0.005)
    assert f"{100 * LARGEST_ERROR:.0f} %" in FORMULA


def test_evaluations_cost_less_than_training() -> None:
    training = 32 * 8.5
    assert evaluation_gpu_hours("linear") == pytest.approx(32 * BACKBONE_HOURS / 6)
    assert evaluation_gpu_hours("coco") == pytest.approx(117, abs=1)
    for protocol in ("linear", "places205", "knn", "coco", "voc07", "explain"):
        assert 0 < evaluation_gpu_hours(protocol) < training


def test_counts_are_those_of_the_papers_network() -> None:
    counted = sizes(recipe("imagenet"))
    assert counted.backbone == 23_508_032  # ResNet-50 without its classifier
    assert counted.heads == perceptron(2048, 8192, 8160)
    assert counted.momentum == 0
    byol = sizes(recipe("imagenet", "byol"))
    assert byol.momentum == byol.backbone + perceptron(2048, 4096, 256)
    # Their encoders differ in nothing: backbone and code head.
    assert byol.encoder == sizes(recipe("imagenet", "sem")).encoder < counted.encoder


def test_bytes_are_those_of_real_files(trained: Path) -> None:
    run = RunFolder(trained)
    config = run.config()
    counted = sizes(config)
    checkpoint = max(path.stat().st_size for path in run.checkpoints.glob("*.safetensors"))
    # Beside the tensors: their names, the state of the random generators and of the epoch's means.
    assert counted.checkpoint < checkpoint < counted.checkpoint + 100_000
    assert counted.encoder < run.encoder_weights.stat().st_size < counted.encoder + 20_000
    assert run_bytes(config) > 3 * counted.checkpoint + counted.encoder
