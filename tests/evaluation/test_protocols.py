"""The protocols from the command line: what they record, and what they refuse before training."""

import json
import shutil
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from rich.console import Console
from safetensors.torch import save_file

import imsvd
from imsvd.cli.app import evaluate as evaluate_commands
from imsvd.errors import InputError
from imsvd.evaluation.features import encode_split_shares
from imsvd.evaluation.protocols import PROTOCOLS, evaluate
from imsvd.evaluation.results import collect
from imsvd.settings import Settings
from tests import gloo
from tests.datasets.places import write_places
from tests.pretraining import tiny
from tests.pretraining.test_pretrain import write_images
from tests.pretraining.tiny import CommandLine

DOCS = Path(__file__).parents[2] / "docs" / "evaluation"


@pytest.mark.parametrize("name", PROTOCOLS)
def test_every_protocol_is_complete(name: str, command: CommandLine) -> None:
    protocol = PROTOCOLS[name]
    assert protocol.run.__name__ == f"evaluate_{name.replace('-', '_')}"
    assert {"run", "data", "console"} <= set(signature(protocol.run).parameters)
    assert issubclass(protocol.settings, Settings)
    assert protocol.trains
    assert protocol.data
    page = (DOCS / protocol.page).read_text()
    assert f"imsvd evaluate {name}" in page
    assert protocol.metrics[0] in page
    assert command(["evaluate", name, "--help"]) == 0


def test_every_command_is_a_protocol() -> None:
    assert {command.name for command in evaluate_commands.registered_commands} == set(PROTOCOLS)


def test_an_unknown_protocol_is_named(trained: Path) -> None:
    with pytest.raises(InputError, match="no protocol 'knm'; choose knn, linear-probe"):
        evaluate("knm", trained, "shapes:8")


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write_images(tmp_path / "data" / "train", 60, classes=3)
    write_images(tmp_path / "data" / "test", 12, classes=3)
    return tmp_path / "data"


def results(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "results.jsonl").read_text().splitlines()]


def test_every_protocol_on_small_data(
    command: CommandLine, run: Path, data: Path, tmp_path: Path
) -> None:
    places = write_places(tmp_path / "places", side=100)
    names = tmp_path / "names.txt"
    names.write_text("0000.png\n0001.png\n0002.png\n0003.png\n")
    commands = [
        ["linear", str(run), str(data)],
        ["finetune", str(run), str(data)],
        ["semi", str(run), str(data), "--fraction", "0.1"],
        ["semi", str(run), str(data), "--fraction", "0.01", "--list", str(names)],
        ["places205", str(run), str(places), "--set", "head_lr=0.02"],
    ]
    for arguments in commands:
        assert command(["evaluate", *arguments, "--epochs", "1"]) == 0, command.err
        assert "_best_epoch_top1" in command.out
        assert "epoch 1/1" in command.out
    # Asked again, it answers from what is there.
    assert command(["evaluate", *commands[0], "--epochs", "1"]) == 0
    assert f"Already evaluated: {run}/evaluations/linear-" in command.out
    records = results(run)
    protocols = ["linear", "finetune", "semi-10", "semi-1", "places205"]
    assert [record["protocol"] for record in records] == protocols
    for record in records:
        prefix = record["protocol"].replace("-", "_")
        assert set(record["metrics"]) == {f"{prefix}_top1", f"{prefix}_best_epoch_top1"}
        assert record["details"]["settings"]["epochs"] == 1
    assert [record["details"]["train_images"] for record in records] == [60, 60, 6, 4, 12]
    assert [record["details"]["test_images"] for record in records] == [12, 12, 12, 12, 6]
    assert [record["details"]["settings"]["frozen"] for record in records] == [
        True,
        False,
        False,
        False,
        True,
    ]
    assert records[-1]["details"]["settings"]["head_lr"] == 0.02


def test_bad_input_is_one_sentence_before_any_training(
    command: CommandLine, run: Path, data: Path, tmp_path: Path
) -> None:
    names = tmp_path / "names.txt"
    names.write_text("0000.png\nnowhere.png\n")
    cases: list[tuple[list[str], str]] = [
        (["linear", str(tmp_path), str(data)], "is not a run folder"),
        (["linear", str(run), str(data), "--recipe", "cifar"], "no recipe 'cifar'"),
        (["linear", str(run), str(data), "--set", "lr=1"], "no setting 'lr'"),
        (["linear", str(run), str(data), "--epochs", "0"], "epochs=0 cannot be used"),
        (["finetune", str(run), str(data / "train")], "has no test images"),
        (["finetune", str(run), str(data), "--set", "batch_size=64"], "larger than the 60"),
        (
            ["semi", str(run), str(data), "--fraction", "10"],
            "--fraction 10 must lie between 0 and 1",
        ),
        (
            ["semi", str(run), str(data), "--fraction", "0.1", "--list", str(names)],
            "lists nowhere.png",
        ),
        (["places205", str(run), str(data)], "does not have the layout of Places205"),
    ]
    for arguments, phrase in cases:
        command.refuses(["evaluate", *arguments], phrase)
    assert not (run / "evaluations").exists()
    assert not (run / "results.jsonl").exists()


def test_evaluations_are_returned_and_recorded(trained: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    data = tmp_path / "data"
    write_images(data / "train", 30, classes=3)
    write_images(data / "test", 12, classes=3)
    knn = imsvd.evaluate_knn(run, data, neighbors=(5,))
    probe = imsvd.evaluate_linear_probe(run, data)
    assert set(knn) == {"knn_5"}
    assert all(0 <= value <= 100 for value in (*knn.values(), *probe.values()))
    results = [json.loads(line) for line in (run / "results.jsonl").read_text().splitlines()]
    assert [result["protocol"] for result in results] == ["knn", "linear-probe"]
    assert results[0]["metrics"] == knn
    assert results[0]["details"]["train_images"] == 30


def test_evaluation_needs_labels(trained: Path, tmp_path: Path) -> None:
    write_images(tmp_path / "train", 4)
    write_images(tmp_path / "test", 4)
    with pytest.raises(InputError, match="has no labels in its train split"):
        imsvd.evaluate_knn(trained, tmp_path)


def labeled(folder: Path) -> Path:
    write_images(folder / "train", 30, classes=3)
    write_images(folder / "test", 12, classes=3)
    return folder


def test_an_untrained_encoder_is_evaluated_and_told_apart(
    command: CommandLine, trained: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    data = str(labeled(tmp_path / "data"))
    for spec in (str(run), f"untrained:{run}"):
        assert command(["evaluate", "linear-probe", spec, data]) == 0
        assert command(["evaluate", "knn", spec, data, "--k", "3"]) == 0
        assert command(["evaluate", "linear", spec, data, "--epochs", "1"]) == 0
    records = [json.loads(line) for line in (run / "results.jsonl").read_text().splitlines()]
    said = [record["details"].get("encoder") for record in records]
    assert said == [None] * 3 + ["untrained"] * 3
    rows = collect([run])
    told = {(row.protocol, row.encoder, row.epochs) for row in rows}
    protocols = ("linear-probe", "knn", "linear")
    assert told == {(name, "trained", 2) for name in protocols} | {
        (name, "untrained", 0) for name in protocols
    }


def test_untrained_of_what_is_no_run_is_one_sentence(command: CommandLine, tmp_path: Path) -> None:
    command.refuses(["evaluate", "knn", f"untrained:{tmp_path}", "shapes"], "holds no run")


def test_settings_of_knn_are_recorded(command: CommandLine, trained: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    data = str(labeled(tmp_path / "data"))
    options = ["--k", "3", "--k", "7", "--temperature", "0.2", "--distance", "euclidean"]
    assert command(["evaluate", "knn", str(run), data, *options]) == 0
    (record,) = map(json.loads, (run / "results.jsonl").read_text().splitlines())
    assert set(record["metrics"]) == {"knn_3", "knn_7"}
    settings = record["details"]["settings"]
    assert (settings["neighbors"], settings["temperature"]) == ([3, 7], 0.2)
    assert settings["distance"] == "euclidean"


@pytest.mark.parametrize(
    ("options", "phrases"),
    [
        (["--distance", "manhattan"], ["distance='manhattan'", "'cosine' or 'euclidean'"]),
        (["--temperature", "0"], ["temperature=0", "greater than 0"]),
        (["--k", "0"], ["neighbors.0=0"]),
        (["--set", "head_lr=1"], ["kNN has no setting 'head_lr'"]),
        (["--set", "compute.devices"], ["has no '='", "compute.devices=2"]),
    ],
)
def test_senseless_options_of_knn(
    options: list[str], phrases: list[str], command: CommandLine, trained: Path
) -> None:
    command.refuses(["evaluate", "knn", str(trained), "shapes:8", *options], *phrases)


def share_lengths(data: str) -> list[tuple[int, list[float]]]:
    encoder = imsvd.open_encoder("timm:resnet18:random")
    encoder.description = encoder.description.model_copy(update={"size": 32})
    split = encode_split_shares(encoder, data, torch.device("cpu"), Console(quiet=True))
    return [(len(part.features), part.features.sum(dim=1).tolist()) for part in split]


def test_processes_share_whole_batches_and_compute_them_as_one(tmp_path: Path) -> None:
    # Three batches of training images for two processes, and one of test images.
    data = str(tmp_path)
    write_images(tmp_path / "train", 520, classes=3)
    write_images(tmp_path / "test", 9, classes=3)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        (alone_train, alone_test) = share_lengths(data)
    finally:
        torch.set_num_threads(before)
    first, second = gloo.run(2, share_lengths, data)
    assert [first[0][0], second[0][0]] == [256, 264]
    assert sorted([first[1][0], second[1][0]]) == [0, 9]
    assert first[0][1] + second[0][1] == alone_train[1]
    assert first[1][1] + second[1][1] == alone_test[1]


FILES = {
    "cmyk.jpg": Image.new("CMYK", (40, 40), (0, 255, 255, 0)),
    "gray.png": Image.new("L", (40, 40), 100),
    "gray-alpha.png": Image.new("LA", (40, 40), (100, 128)),
    "rgba.png": Image.new("RGBA", (40, 40), (255, 0, 0, 128)),
    "palette.png": Image.new("P", (40, 40), 3),
    "bilevel.png": Image.new("1", (40, 40), 1),
    "deep.png": Image.fromarray(np.full((40, 40), 40_000, dtype=np.uint16)),
    "float.tiff": Image.fromarray(np.full((40, 40), 0.5, dtype=np.float32)),
}


@pytest.fixture
def many_modes(tmp_path: Path) -> str:
    """Two classes of pictures, each with one file of every kind that is not RGB."""
    for split in ("train", "test"):
        for label in ("a", "b"):
            folder = tmp_path / "modes" / split / label
            folder.mkdir(parents=True)
            for name, image in FILES.items():
                image.save(folder / name)
    return str(tmp_path / "modes")


@pytest.mark.parametrize("protocol", ["knn", "linear-probe", "linear", "finetune", "semi"])
def test_pictures_that_are_not_rgb_are_converted_in_every_protocol(
    protocol: str, many_modes: str, command: CommandLine, trained: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    further = {"knn": ["--k", "3"], "linear-probe": [], "semi": ["--fraction", "0.5"]}
    epochs = [] if protocol in ("knn", "linear-probe") else ["--epochs", "1"]
    options = [*further.get(protocol, []), *epochs]
    assert command(["evaluate", protocol, str(run), many_modes, *options]) == 0
    (record,) = map(json.loads, (run / "results.jsonl").read_text().splitlines())
    assert record["details"]["test_images"] == 2 * len(FILES)
    assert record["details"]["skipped"] == 0


@pytest.mark.parametrize("channels", [1, 4])
@pytest.mark.parametrize("protocol", ["knn", "linear-probe", "linear", "finetune", "semi"])
def test_weights_for_other_channels_are_refused_before_anything_is_read(
    protocol: str, channels: int, command: CommandLine, tmp_path: Path
) -> None:
    network = timm.create_model("resnet18", pretrained=False, in_chans=channels)
    save_file(network.state_dict(), path := tmp_path / "weights.safetensors")
    data = str(labeled(tmp_path / "data"))
    fraction = ["--fraction", "0.5"] if protocol == "semi" else []
    command.refuses(
        ["evaluate", protocol, f"timm:resnet18:{path}", data, *fraction],
        f"is for images of {channels} channels",
        "use weights for 3 channels",
    )


def test_a_network_for_other_channels_is_not_trained(command: CommandLine, tmp_path: Path) -> None:
    command.refuses(
        tiny.arguments("shapes:64", tmp_path / "run", "backbone.options.in_chans=1"),
        "in_chans=1",
        "read as RGB",
    )
