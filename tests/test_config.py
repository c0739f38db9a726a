import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from imsvd.config import (
    Config,
    FrozenSettings,
    InitSettings,
    describe_settings,
    from_yaml,
    method_settings_class,
    override,
    setting_keys,
    to_yaml,
)
from imsvd.errors import InputError
from imsvd.methods import METHODS
from imsvd.methods.code import CodeSettings
from imsvd.recipes import RECIPES, recipe


@pytest.mark.parametrize(
    ("assignment", "value"),
    [
        ("seed=7", 7),
        ("optimizer.lr=3e-4", 3e-4),
        ("optimizer.lr=1", 1.0),
        ("optimizer.scale_lr=false", False),
        ("optimizer.betas=[0.8, 0.95]", (0.8, 0.95)),
        ("optimizer.name=sgd", "sgd"),
        ("method.projector=[64, 64]", (64, 64)),
        ("method.units=[256, 200, 56]", (256, 200, 56)),
        ("backbone.options={drop_path_rate: 0.1}", {"drop_path_rate": 0.1}),
        ("data.source=/a=b", "/a=b"),
        ("compute.workers=0", 0),
        ("compute.devices=auto", "auto"),
        ("views.views.1.size=64", 64),
        ("views.views.0.crop_scale=[0.5, 1]", (0.5, 1.0)),
        (" training.batch_size = 8 ", 8),
    ],
)
def test_every_kind_of_value_can_be_set(assignment: str, value: object) -> None:
    node: Any = override(recipe("shapes"), ["method.projector=[512]", "method.units=8", assignment])
    for part in assignment.partition("=")[0].strip().split("."):
        node = node[int(part)] if part.isdigit() else getattr(node, part)
    assert node == value


def test_one_option_of_many_can_be_set() -> None:
    config = override(recipe("cifar10-cpu"), ["backbone.options.drop_path_rate=0.2"])
    assert config.backbone.options == {
        **recipe("cifar10-cpu").backbone.options,
        "drop_path_rate": 0.2,
    }


def test_every_listed_key_can_be_set_to_what_it_is() -> None:
    assert len(setting_keys()) > 80
    for key, description in describe_settings().items():
        assert description[:1] not in ("", " "), key
        assert "; (" not in description, key
    reached = set()
    for key, method in itertools.product(setting_keys(), METHODS):
        config = recipe("shapes", method)
        own = {f"method.{name}" for name in type(config.method).model_fields}
        if key in reached or (key.startswith("method.") and key not in own):
            continue
        reached.add(key)
        if key.startswith("frozen."):
            frozen = FrozenSettings(encoder="timm:resnet18", weights="0")
            config = config.model_copy(update={"frozen": frozen})
        if key.startswith("init."):
            init = InitSettings(encoder="timm:resnet18", weights="0")
            config = config.model_copy(update={"init": init})
        if key.startswith("code."):
            config = config.model_copy(update={"code": CodeSettings()})
        node: Any = config.model_dump(mode="json")
        for part in key.split("."):
            node = node[int(part)] if part.isdigit() else node[part]
        assert override(config, [f"{key}={json.dumps(node)}"]) == config, key
    assert reached == set(setting_keys())


@pytest.mark.parametrize("name", RECIPES)
def test_yaml_returns_the_same_configuration(name: str) -> None:
    config = recipe(name)
    assert from_yaml(to_yaml(config), "config.yaml") == config


@pytest.mark.parametrize(
    ("assignment", "phrases"),
    [
        ("optimizer.learning_rate=1", ["no setting 'optimizer.learning_rate'", "did you mean"]),
        ("optimiser.lr=1", ["did you mean optimizer.lr?"]),
        ("epochs=1", ["did you mean training.epochs?"]),
        ("views.views.0.sise=1", ["did you mean views.views.0.size?"]),
        ("views.views.9.size=32", ["no setting 'views.views.9.size'"]),
        ("training.epochs.x=1", ["no setting 'training.epochs.x'"]),
        ("seed", ["has no '='", "key=value"]),
        ("seed=[1", ["not valid YAML"]),
        ("seed=many", ["seed='many' cannot be used"]),
        ("seed=-1", ["seed=-1 cannot be used", "greater than or equal to 0"]),
        ("optimizer.lr=.nan", ["optimizer.lr", "finite"]),
        ("optimizer.name=adam", ["optimizer.name='adam' is not possible", "'adamw'"]),
        ("method.name=vicreg", ["method.name='vicreg'", "--method vicreg"]),
        ("method.covariance_weight=2", ["no setting of imsvd, only of vicreg"]),
        ("method.units=7", ["Width 512 is not divisible by units 7", "511 or 518"]),
        ("method.units=[256, 255]", ["does not match", "511"]),
        ("training.accumulate_batches=4", ["gradient accumulation is refused", "not the mean"]),
        ("training.batch_size=1", ["training.batch_size=1", "2"]),
        ("optimizer.warmup_epochs=1000", ["optimizer.warmup_epochs=1000", "training.epochs"]),
        ("compute.workers=-1", ["compute.workers"]),
        ("compute.devices=0", ["compute.devices"]),
        ("data=5", ["data=5 cannot be used"]),
    ],
)
def test_a_bad_override_gets_one_sentence(assignment: str, phrases: list[str]) -> None:
    base = override(recipe("shapes"), ["method.projector=[512]", "method.units=8"])
    with pytest.raises(InputError) as caught:
        override(base, [assignment])
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert not sentence.endswith("..")
    for phrase in phrases:
        assert phrase in sentence


@pytest.mark.parametrize("text", ["a: [", "- 1", "", "unknown: 1"])
def test_a_file_that_is_no_configuration_gets_a_sentence(text: str) -> None:
    with pytest.raises(InputError):
        from_yaml(text, "config.yaml")


def test_an_unknown_method_names_the_known_ones() -> None:
    with pytest.raises(InputError, match="no method 'imsdv'; did you mean 'imsvd'"):
        method_settings_class("imsdv")


def test_the_peak_learning_rate_grows_with_the_batch() -> None:
    config = override(Config(), ["optimizer.lr=0.5", "training.batch_size=1024"])
    assert config.peak_lr == 2.0
    assert override(config, ["optimizer.scale_lr=false"]).peak_lr == 0.5


def test_a_configuration_cannot_change() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Config().seed = 1  # type: ignore[misc]


def test_a_path_with_any_characters_survives_the_file(tmp_path: Path) -> None:
    source = str(tmp_path / "ünï code")
    config = override(Config(), [f"data.source={source}"])
    assert from_yaml(to_yaml(config), "config.yaml").data.source == source


def test_a_run_of_an_earlier_version_gets_one_clear_sentence() -> None:
    text = to_yaml(Config()).replace("standardize", "standardise")
    with pytest.raises(
        InputError,
        match=r"^run/config.yaml: there is no setting 'method.standardise'; did you mean "
        r"method.standardize\? If an earlier version of imsvd wrote it, train the run again\.$",
    ):
        from_yaml(text, "run/config.yaml")


def test_a_third_view_is_refused() -> None:
    views = [view.model_dump(mode="json") for view in recipe("shapes").views.views]
    with pytest.raises(InputError, match="compares two views"):
        override(recipe("shapes"), [f"views.views={json.dumps([*views, views[0]])}"])


def test_local_views_must_be_smaller_than_the_others() -> None:
    assert override(recipe("imagenet"), ["views.local_views=6"]).views.every[-1].size == 96
    with pytest.raises(InputError, match=r"local_size=96 .* views of 32 pixels; set it to 14"):
        override(recipe("cifar10"), ["views.local_views=6"])


def test_local_views_are_refused_where_two_views_are_compared() -> None:
    config = override(recipe("shapes"), ["views.local_views=2", "views.local_size=16"])
    assert config.views.local_views == 2
    with pytest.raises(InputError, match=r"views.local_views=2 is not for moco_v2"):
        override(recipe("shapes", "moco_v2"), ["views.local_views=2"])
