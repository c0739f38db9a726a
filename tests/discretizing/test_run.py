"""`imsvd discretize` as a person uses it: every command works on its result; bad input is a sentence."""

import errno
import json
import math
import os
import re
import shutil
import signal
from pathlib import Path

import pytest
import torch
from rich.console import Console

import imsvd
import imsvd.discretizing.run as discretizing
from imsvd.discretizing import capacity
from imsvd.discretizing.capacity import code_size
from imsvd.distributed import rank
from imsvd.errors import InputError, Interrupted
from imsvd.networks import BackboneSettings, build_backbone
from imsvd.runs import RunFolder
from tests import gloo
from tests.pretraining.test_pretrain import write_images
from tests.pretraining.tiny import CommandLine
from tests.shared import LITE0, needs

QUIET = Console(quiet=True)
SMALL = ("method.projector=[16, 16]", "compute.workers=0", "compute.accelerator=cpu")


def arguments(encoder: str | Path, data: str | Path, out: Path, *more: str) -> list[str]:
    sets = [part for setting in SMALL for part in ("--set", setting)]
    size = ("--bits", "8", "--units", "4", "--steps", "6", "--views", "2")
    return ["discretize", str(encoder), str(data), "--out", str(out), *size, *sets, *more]


@pytest.fixture(scope="module")
def made(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("made") / "run"
    imsvd.discretize(
        trained, "shapes:96", out, bits=8, units=4, views=2, steps=6, settings=SMALL, console=QUIET
    )
    return out


def test_the_command_prints_what_held_out_images_show(
    trained: Path, tmp_path: Path, command: CommandLine
) -> None:
    out = tmp_path / "my run"
    assert command(arguments(trained, "shapes:96", out)) == 0, command.err
    said = " ".join(command.out.split())
    assert "Code: 4 variables of 4 units; on 10 held-out images" in said
    # The commands can be copied, whatever the names of the folders.
    assert (
        f"To see it: imsvd explain '{out}' shapes:96\nTo explore it: imsvd explore '{out}'\n"
        in command.out
    )
    for name in ("config.yaml", "metrics.jsonl", "training.png", "encoder.json"):
        assert (out / name).exists()
    shutil.rmtree(out / "features")
    assert command(arguments(trained, "shapes:96", out)) == 0, command.err
    assert "already has its code" in command.out
    assert not (out / "features").exists()


def test_a_kill_between_the_last_files_costs_nothing(
    made: Path, trained: Path, tmp_path: Path, command: CommandLine
) -> None:
    """Weights are written before their description, and the last checkpoint after both."""
    out = Path(shutil.copytree(made, tmp_path / "run"))
    weights = (out / "encoder.safetensors").read_bytes()
    (out / "encoder.json").unlink()
    max((out / "checkpoints").glob("step-*.safetensors")).unlink()
    assert command(arguments(trained, "shapes:96", out)) == 0, command.err
    assert (out / "encoder.json").read_bytes() == (made / "encoder.json").read_bytes()
    assert (out / "encoder.safetensors").read_bytes()[-4096:] == weights[-4096:]


def test_the_encoder_has_a_code(made: Path, trained: Path) -> None:
    encoder = imsvd.load(made)
    images = torch.randint(0, 256, (3, 3, 32, 32), dtype=torch.uint8)
    with torch.no_grad():
        assert encoder.codes(images).shape == (3, 4)
        assert torch.equal(encoder.features(images), imsvd.load(trained).features(images))


@pytest.mark.parametrize(
    "words",
    [
        ["info", "RUN"],
        ["evaluate", "knn", "RUN", "shapes:96"],
        ["evaluate", "linear-probe", "RUN", "shapes:96"],
        ["results", "RUN"],
        ["codes", "RUN", "shapes:96", "--out", "FOLDER/codes.parquet"],
        ["export", "RUN", "--format", "safetensors", "--out", "FOLDER/a.safetensors"],
        ["explain", "RUN", "shapes:96", "--only", "joint,discreteness,galleries"],
    ],
    ids=lambda words: "-".join(words[:2]).lower(),
)
def test_commands_for_runs_work_on_the_result(
    made: Path, tmp_path: Path, command: CommandLine, words: list[str]
) -> None:
    if words[0] == "codes":
        pytest.importorskip("pyarrow")
    if words[0] == "results":
        assert command(["evaluate", "knn", str(made), "shapes:96"]) == 0
    named = [word.replace("RUN", str(made)).replace("FOLDER", str(tmp_path)) for word in words]
    assert command(named) == 0, command.err


def test_explaining_trained_images_names_what_held_out_ones_showed(
    made: Path, tmp_path: Path, command: CommandLine
) -> None:
    """Views that the head was trained on are equal more often than those of new images."""
    out = Path(shutil.copytree(made, tmp_path / "run"))
    health = RunFolder(out).metrics()[-1]["health"]
    expected = (
        f"On 10 held-out images of them, .* {health['share_agreeing']:.0%} equal in two views"
    )
    for split, noted in (("train", True), ("test", False)):
        words = ["explain", str(out), "shapes:96", "--only", "joint", "--split", split]
        assert command(words) == 0, command.err
        report = (out / "explanations" / "report.html").read_text()
        assert bool(re.search(expected, report)) == noted
        assert bool(re.search(expected, " ".join(command.out.split()))) == noted


def test_the_explorer_opens_the_result(made: Path, command: CommandLine) -> None:
    pytest.importorskip("fastapi")
    from imsvd.explorer.explained_run import open_run  # noqa: PLC0415

    assert command(["explain", str(made), "shapes:96"]) == 0, command.err
    assert open_run(made).description.units == (4, 4, 4, 4)


def test_a_shared_cache_serves_several_heads(
    trained: Path, tmp_path: Path, command: CommandLine
) -> None:
    cache = ("--cache", str(tmp_path / "cache"))
    assert command(arguments(trained, "shapes:96", tmp_path / "a", *cache)) == 0, command.err
    more = (*cache, "--set", "method.off_diagonal_weight=1")
    assert command(arguments(trained, "shapes:96", tmp_path / "b", *more)) == 0, command.err
    assert "reusing" in command.out
    assert len(list((tmp_path / "cache").glob("*.npy"))) == 1
    weights = [imsvd.load(tmp_path / name).projector.state_dict() for name in "ab"]
    assert not torch.equal(weights[0]["0.weight"], weights[1]["0.weight"])


@pytest.mark.parametrize("spec", ["timm:resnet10t:random", "torchvision:resnet18:random"])
def test_backbones_of_other_libraries_are_rebuilt_from_the_result_alone(
    spec: str, tmp_path: Path
) -> None:
    images = write_images(tmp_path / "images", 24, side=40)
    out = tmp_path / "run"
    encoder = imsvd.discretize(
        spec, images, out, bits=8, units=4, views=2, steps=2, size=32, settings=SMALL, console=QUIET
    )
    assert json.loads((out / "encoder.json").read_text())["size"] == 32
    assert encoder.description.backbone.library == spec.partition(":")[0]
    sample = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        original = imsvd.open_encoder(spec).features(sample)
        torch.testing.assert_close(imsvd.load(out).features(sample), original)


def test_torchvision_backbones_have_neither_stem_nor_options() -> None:
    settings = BackboneSettings(library="torchvision", name="resnet18", stem="stride_1")
    with pytest.raises(InputError, match="are for timm's networks"):
        build_backbone(settings)
    with pytest.raises(InputError, match="not a torchvision model"):
        build_backbone(BackboneSettings(library="torchvision", name="resnet5O"))


@pytest.mark.parametrize(
    ("bits", "units", "phrase"),
    [
        (63, 4, "--bits 63 is not a multiple of 2, .*; choose 62 or 64"),
        (0, 4, "choose 2"),
        (64, 3, "--units 3 is not a power of two"),
        (64, 1, "--units 1 is not a power of two"),
        (64, 8, "choose 63 or 66"),
    ],
)
def test_bits_that_no_variables_have_are_refused(bits: int, units: int, phrase: str) -> None:
    with pytest.raises(InputError, match=phrase):
        code_size(bits, units)


def test_the_size_is_chosen_by_itself_and_drawn(
    trained: Path, tmp_path: Path, command: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capacity, "BITS", (4, 8))
    monkeypatch.setattr(discretizing, "TRIAL_STEPS", 4)
    out = tmp_path / "run"
    quick = ("--steps", "6", "--views", "2", "--set", SMALL[1], "--set", SMALL[2])
    words = ["discretize", str(trained), "shapes:96", "--out", str(out), *quick]
    assert command(words) == 0, command.err
    trials = RunFolder(out).trials()
    sizes = [(trial["variables"], trial["units"]) for trial in trials]
    # 48 held-out images cannot tell what three variables of eight units repeat.
    assert sizes == [(4, 2), (2, 4), (8, 2), (4, 4)]
    best = max(trials, key=lambda trial: trial["lasting_nats"])
    assert [trial for trial in trials if trial["best"]] == [best]
    units = imsvd.load(out).description.units
    assert units == (best["units"],) * best["variables"]
    assert f"Chosen: {best['variables']} variables of {best['units']} units" in command.out
    assert (out / "capacity.png").exists()
    assert not (out / "capacity").exists()
    assert command(words) == 0, command.err
    assert "already has its code" in command.out
    assert command(["explain", str(out), "shapes:96", "--only", "joint"]) == 0, command.err
    report = (out / "explanations" / "report.html").read_text()
    assert "this size was chosen" in report


def test_an_interrupted_trial_says_how_to_resume(
    trained: Path, tmp_path: Path, command: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trainings of trials are silent, so that somebody else must say it."""

    def interrupt(*_: object) -> None:
        raise Interrupted(signal.SIGINT)

    monkeypatch.setattr(capacity, "BITS", (4, 8))
    monkeypatch.setattr(discretizing, "train_head", interrupt)
    words = [
        "discretize",
        str(trained),
        "shapes:96",
        "--out",
        str(tmp_path / "run"),
        "--views",
        "2",
    ]
    assert command(words) == 130
    assert "Run the same command to resume." in command.out


def test_few_images_take_the_smallest_size_and_say_so(
    trained: Path, tmp_path: Path, command: CommandLine
) -> None:
    out = tmp_path / "run"
    words = [
        "discretize",
        str(trained),
        "shapes:40",
        "--out",
        str(out),
        "--views",
        "2",
        "--steps",
        "2",
    ]
    assert command(words) == 0, command.err
    said = " ".join(command.out.split())
    assert "16 variables of 2 units, 16 bits; 40 images are too few to compare it" in said
    assert not RunFolder(out).trials()


def test_a_size_is_given_once(trained: Path, tmp_path: Path, command: CommandLine) -> None:
    words = ["discretize", str(trained), "shapes:96", "--out", str(tmp_path / "run")]
    command.refuses([*words, "--set", SMALL[0]], "give --bits and --units as well")
    command.refuses([*words, "--bits", "many"], "--bits many is neither a number nor auto")
    command.refuses([*words, "--bits", "4000"], "--bits 4000: choose 2 to 1024")
    command.refuses([*words, "--bits", "64", "--units", "8"], "choose 63 or 66")


def test_bad_input_is_one_sentence(trained: Path, tmp_path: Path, command: CommandLine) -> None:
    out = tmp_path / "run"
    few = write_images(tmp_path / "few", 15)
    command.refuses(arguments(trained, few, out), "15 images cannot fill the 16 pairs of units")
    command.refuses(arguments(trained, "shapes:96", out, "--steps", "0"), "--steps 0")
    command.refuses(arguments(trained, "shapes:96", out, "--views", "1"), "frozen.views=1")
    command.refuses(arguments(trained, "shapes:96", out, "--size", "4"), "--size 4")
    command.refuses(arguments(tmp_path / "no", "shapes:96", out), "is not a run folder")
    command.refuses(arguments(f"untrained:{trained}", "shapes:96", out), "has not learned")
    command.refuses(arguments(trained, tmp_path / "none", out), "none")
    wrong = tmp_path / "wrong.safetensors"
    wrong.write_bytes(b"nothing")
    command.refuses(arguments(f"timm:resnet18:{wrong}", "shapes:96", out), "not a file of weights")
    assert not out.exists()


def test_weights_that_do_not_fit_are_named_one_by_one(tmp_path: Path, command: CommandLine) -> None:
    state = build_backbone(BackboneSettings(name="resnet18")).state_dict()
    left_out = [name for name in state if name.startswith("layer4.") and "tracked" not in name]
    kept = {name: value for name, value in state.items() if name not in left_out}
    path = tmp_path / "a.pth"
    torch.save(kept | {f"layer5.{number}": torch.zeros(1) for number in range(9)}, path)
    out = tmp_path / "run"
    strangers = (f"layer5.{number}" for number in range(9))
    command.refuses(arguments(f"timm:resnet18:{path}", "shapes:96", out), *left_out, *strangers)
    assert not out.exists()


def test_images_that_cannot_be_used_are_one_sentence(
    trained: Path, tmp_path: Path, command: CommandLine
) -> None:
    one = write_images(tmp_path / "one", 1)
    command.refuses(arguments(trained, one, tmp_path / "a"), "1 image cannot fill the 16 pairs")
    assert not (tmp_path / "a").exists()
    broken = write_images(tmp_path / "broken", 20)
    for file in broken.iterdir():
        file.write_bytes(b"no image")
    command.refuses(arguments(trained, broken, tmp_path / "b"), "none of the 20 images can be read")


def test_features_that_are_not_numbers_are_one_sentence(
    tmp_path: Path, command: CommandLine
) -> None:
    state = build_backbone(BackboneSettings(name="resnet10t")).state_dict()
    state["conv1.0.weight"].fill_(torch.nan)
    torch.save(state, tmp_path / "a.pth")
    words = arguments(f"timm:resnet10t:{tmp_path / 'a.pth'}", "shapes:96", tmp_path / "run")
    command.refuses([*words, "--size", "32"], "features that are not numbers")


def test_a_changed_cache_and_a_full_disk_lose_nothing(
    trained: Path, tmp_path: Path, command: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, folder = tmp_path / "run", tmp_path / "cache"
    words = arguments(trained, "shapes:96", out, "--cache", str(folder))

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        command.refuses(words, "the disk is full: features need", "--cache")
    assert command(words) == 0, command.err
    (features,) = folder.glob("*.npy")
    content = features.read_bytes()
    features.write_bytes(content[:-2] + b"ab")
    again = arguments(trained, "shapes:96", tmp_path / "again", "--cache", str(folder))
    command.refuses(again, "its content was changed", str(features))
    assert features.read_bytes() == content[:-2] + b"ab"
    assert imsvd.load(out).description.units == (4,) * 4


def test_sizes_that_a_transformer_cannot_take_are_one_sentence(
    tmp_path: Path, command: CommandLine
) -> None:
    words = arguments("timm:vit_tiny_patch16_224:random", "shapes:96", tmp_path / "run")
    command.refuses([*words, "--size", "40"], "cannot take images of 40 pixels", "--size")


def test_bits_that_no_code_has_are_one_sentence(
    trained: Path, tmp_path: Path, command: CommandLine
) -> None:
    out = tmp_path / "run"
    words = arguments(trained, "shapes:96", out, "--bits", "7", "--units", "4")
    command.refuses(words, "--bits 7 is not a multiple of 2", "choose 6 or 8")
    assert not out.exists()


def test_a_run_is_not_continued_with_another_encoder_or_head(
    made: Path, trained: Path, command: CommandLine
) -> None:
    command.refuses(arguments("timm:resnet10t:random", "shapes:96", made), "holds a run with")
    command.refuses(arguments(trained, "shapes:96", made, "--views", "3"), "frozen.views=2, not 3")
    command.refuses(["pretrain", "shapes:96", "--out", str(made)], "holds a run with")


def test_the_encoder_before_training_is_named_instead(
    made: Path, trained: Path, command: CommandLine
) -> None:
    words = ["evaluate", "knn", f"untrained:{made}", "shapes:96"]
    command.refuses(words, "whose backbone was trained elsewhere", str(trained))


def test_settings_of_heads_are_not_for_pretraining(tmp_path: Path, command: CommandLine) -> None:
    words = ["pretrain", "shapes:96", "--out", str(tmp_path / "run"), "--set", "frozen.views=3"]
    command.refuses(words, "frozen.views is a setting of `imsvd discretize`")


# Without a hidden layer there is no norm, whose statistics processors do not share.
LINEAR = ("method.projector=[16]", *SMALL[1:])


def discretize_on_a_rank(encoder: Path, out: Path, *settings: str) -> list[float]:
    os.environ["LOCAL_RANK"] = str(rank())
    options = {"bits": 8, "units": 4, "views": 2, "steps": 6, "settings": [*LINEAR, *settings]}
    imsvd.discretize(encoder, "shapes:96", out, console=QUIET, **options)  # type: ignore[arg-type]
    return [record["loss"] for record in RunFolder(out).metrics()]


def test_two_processes_train_the_head_that_one_trains(trained: Path, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    losses = discretize_on_a_rank(trained, one)
    assert len(losses) > 1
    for found in gloo.run(2, discretize_on_a_rank, trained, two, "compute.devices=2"):
        assert found == pytest.approx(losses, abs=1e-5)
    (first,), (second,) = ((run / "features").glob("*.npy") for run in (one, two))
    assert first.read_bytes() == second.read_bytes()
    expected, made = imsvd.load(one).state_dict(), imsvd.load(two).state_dict()
    for name, value in expected.items():
        torch.testing.assert_close(made[name], value, atol=1e-5, rtol=1e-4)


@needs(LITE0)
def test_a_head_learns_on_imagenet_weights(tmp_path: Path) -> None:
    out = tmp_path / "run"
    imsvd.discretize(
        f"timm:tf_efficientnet_lite0:{LITE0}",
        "shapes:160",
        out,
        bits=8,
        units=4,
        views=2,
        steps=60,
        size=32,
        settings=["method.projector=[64, 16]", *SMALL[1:]],
        console=QUIET,
    )
    first, *_, last = RunFolder(out).metrics()
    assert last["loss"] < first["loss"]
    assert last["health"]["share_above_0.9"] > first["health"]["share_above_0.9"]
    assert math.isfinite(last["health"]["shared_nats"])
