"""The commands of full-scale experiments: they parse, and mean the configurations they stand for."""

import shlex
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from imsvd import cli
from imsvd.api import configure
from imsvd.errors import InputError
from imsvd.reproduction.experiments import EXPERIMENTS, Setup, find_experiments
from imsvd.reproduction.full_plan import FullPlan, plan_full

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
    assert both.entries == 2 * (5 + 4)
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
    assert len({one.command for one in evaluations}) == len(evaluations)


def test_another_scale_is_refused() -> None:
    with pytest.raises(InputError, match="--scale full"):
        plan("units", setup=Setup("cpu", data="shapes"))
