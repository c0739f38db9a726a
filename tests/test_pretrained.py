"""Backbones that no run trained: opened by name, with weights that match or a sentence that says why not."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torchvision
from safetensors.torch import save_file
from torch import Tensor

import imsvd
from imsvd.encoder import open_encoder, results_folder
from imsvd.errors import InputError
from imsvd.pretrained import summarize_keys
from tests.pretraining.test_pretrain import write_images
from tests.pretraining.tiny import CommandLine

State = dict[str, Tensor]


@pytest.fixture(scope="module")
def state() -> State:
    torch.manual_seed(3)
    found: State = torchvision.models.resnet18().state_dict()
    return found


def test_a_run_folder_is_opened_as_load_does(trained: Path) -> None:
    expected = imsvd.load(trained).state_dict()
    for spec in (trained, str(trained)):
        opened = open_encoder(spec).state_dict()
        assert all(torch.equal(opened[key], value) for key, value in expected.items())


@pytest.mark.parametrize(
    ("spec", "width", "size", "mean"),
    [
        ("timm:resnet18:random", 512, 224, (0.485, 0.456, 0.406)),
        ("timm:vit_tiny_patch16_224:random", 192, 224, (0.5, 0.5, 0.5)),
        ("timm:mobilenetv3_small_050:random", 1024, 224, (0.485, 0.456, 0.406)),
        ("torchvision:resnet18:random", 512, 224, (0.485, 0.456, 0.406)),
        ("torchvision:mobilenet_v3_small.IMAGENET1K_V1:random", 1024, 224, (0.485, 0.456, 0.406)),
    ],
)
def test_a_backbone_brings_its_own_data_config(
    spec: str, width: int, size: int, mean: tuple[float, ...]
) -> None:
    encoder = open_encoder(spec)
    assert not encoder.training
    assert (encoder.num_features, encoder.description.size) == (width, size)
    assert encoder.description.mean == pytest.approx(mean)
    with torch.no_grad():
        assert encoder(torch.rand(1, 3, size, size)).shape == (1, width)


def test_random_is_the_same_every_time_and_leaves_the_generator_alone() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = open_encoder("timm:resnet18:random").state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    second = open_encoder("timm:resnet18:random").state_dict()
    assert all(torch.equal(first[key], value) for key, value in second.items())


def prefixed(prefix: str) -> Callable[[State], State]:
    return lambda state: {f"{prefix}{key}": value for key, value in state.items()}


@pytest.mark.parametrize("library", ["timm", "torchvision"])
@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
@pytest.mark.parametrize("prefix", ["", "module.", "backbone.", "module.encoder_q."])
def test_weights_of_a_file_are_used(
    library: str,
    suffix: str,
    prefix: str,
    state: State,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = tmp_path / f"weights{suffix}"
    content = prefixed(prefix)(state)
    if suffix == ".pth":
        torch.save({"epoch": 3, "state_dict": content}, path)
    else:
        save_file(content, path)
    encoder = open_encoder(f"{library}:resnet18:{path}")
    loaded = encoder.backbone.state_dict()
    assert all(torch.equal(state[key], value) for key, value in loaded.items())
    # The classifier is the one thing left out, and it is named.
    assert [record.getMessage() for record in caplog.records] == [
        f"{path}: skipped the classifier: fc.bias, fc.weight"
    ]


def test_silence_means_that_all_matched(
    state: State, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a.pth"
    torch.save({key: value for key, value in state.items() if not key.startswith("fc.")}, path)
    open_encoder(f"torchvision:resnet18:{path}")
    assert caplog.records == []


def test_what_was_saved_beside_the_network_is_named(
    state: State, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a.pth"
    beside = {"projector.0.weight": torch.zeros(2), "queue": torch.zeros(2)}
    torch.save({**prefixed("backbone.")(state), **beside}, path)
    open_encoder(f"timm:resnet18:{path}")
    assert "tensors outside the network: projector.0.weight, queue" in caplog.text


def without(part: str) -> Callable[[State], State]:
    return lambda state: {key: value for key, value in state.items() if not key.startswith(part)}


def with_stem_of_3x3(state: State) -> State:
    return {**state, "conv1.weight": torch.zeros(64, 3, 3, 3)}


def with_attention(state: State) -> State:
    return {**state, "layer1.0.se.fc1.weight": torch.zeros(3)}


@pytest.mark.parametrize(
    ("change", "phrases"),
    [
        (without("bn1.w"), ["missing: bn1.weight"]),
        (
            without("layer4"),
            ["missing: layer4.0.conv1.weight, layer4.0.bn1.weight", ", layer4.1.bn2.running_var)"],
        ),
        (with_attention, ["unexpected: layer1.0.se.fc1.weight"]),
        (with_stem_of_3x3, ["conv1.weight is 64×3×3×3, not 64×3×7×7"]),
        (prefixed("x."), []),
    ],
)
def test_every_key_that_does_not_match_is_named(
    change: Callable[[State], State], phrases: list[str], state: State, tmp_path: Path
) -> None:
    path = tmp_path / "a.pth"
    torch.save(change(state), path)
    if not phrases:
        open_encoder(f"timm:resnet18:{path}")
        return
    with pytest.raises(InputError, match="does not fit the network") as caught:
        open_encoder(f"timm:resnet18:{path}")
    assert all(phrase in str(caught.value) for phrase in phrases)
    assert "\n" not in str(caught.value)


def test_every_key_of_another_network_is_named(tmp_path: Path) -> None:
    """`blocks.0.0.bn1.weight` is no `bn1.weight` under a prefix, which would hide all other keys."""
    path = tmp_path / "a.pth"
    other = timm.create_model("tf_efficientnet_lite0").state_dict()
    torch.save(other, path)
    with pytest.raises(InputError, match="does not fit the network") as caught:
        open_encoder(f"timm:resnet18:{path}")
    named = str(caught.value).partition("unexpected: ")[2].partition(";")[0].split(", ")
    kept = {key for key in other if not key.startswith(("classifier.", "bn1."))}
    assert kept <= set(named)


def test_keys_beside_a_network_that_does_not_fit_are_named(state: State, tmp_path: Path) -> None:
    path = tmp_path / "a.pth"
    content = prefixed("backbone.")(without("layer4.")(state))
    torch.save(content | {"backbon.layer4.0.conv1.weight": torch.zeros(1)}, path)
    with pytest.raises(InputError, match="missing: layer4") as caught:
        open_encoder(f"timm:resnet18:{path}")
    assert "outside the network: backbon.layer4.0.conv1.weight" in str(caught.value)


def test_many_keys_are_counted_by_part() -> None:
    keys = [f"layer1.{number}" for number in range(7)]
    assert summarize_keys([*keys, "fc.bias"]) == "layer1.* (7 keys), fc.* (1 keys)"
    assert summarize_keys(keys[:2]) == "layer1.0, layer1.1"


class Harmful:
    """Would write a file if it were unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


def test_a_file_that_carries_code_is_not_run(tmp_path: Path) -> None:
    path, trace = tmp_path / "a.pth", tmp_path / "trace"
    torch.save({"state_dict": Harmful(trace)}, path)
    with pytest.raises(InputError, match="could run code"):
        open_encoder(f"timm:resnet18:{path}")
    assert not trace.exists()


@pytest.mark.parametrize(
    ("name", "content", "phrase"),
    [
        ("none.pth", None, "there is no file"),
        ("a.pth", b"", "damaged"),
        ("a.pth", b"PK\x03\x04 no archive", "damaged"),
        ("a.safetensors", b"12345678", "is damaged or not a file of weights"),
    ],
)
def test_bad_files(name: str, content: bytes | None, phrase: str, tmp_path: Path) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=phrase):
        open_encoder(f"timm:resnet18:{path}")


def test_a_file_without_tensors(tmp_path: Path) -> None:
    torch.save({"epoch": 3}, tmp_path / "a.pth")
    with pytest.raises(InputError, match="contains no state dict"):
        open_encoder(f"timm:resnet18:{tmp_path / 'a.pth'}")


@pytest.mark.parametrize(
    ("spec", "phrase"),
    [
        ("timm:resnet81", "did you mean resnet"),
        ("torchvision:resnet81", "did you mean resnet"),
        ("torchvision:resnet18.V7:random", "choose IMAGENET1K_V1"),
        ("torchvision:squeezenet1_0:random", "does not end in a linear classifier"),
        ("timm:resnet18.nothing:random", "has no weights 'nothing'; choose resnet18"),
        ("timm:", "names no network"),
        ("nothing", "is not a run folder"),
    ],
)
def test_bad_names(spec: str, phrase: str) -> None:
    with pytest.raises(InputError, match=phrase):
        open_encoder(spec)


@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_offline_is_one_sentence_with_a_remedy(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        retries = logging.getLogger("huggingface_hub.utils._http")
        assert not retries.isEnabledFor(logging.WARNING), "retries would be printed"
        raise OSError("no\nroute to host")

    monkeypatch.setattr(timm, "create_model", fail)
    monkeypatch.setattr(torchvision.models, "get_model", fail)
    with pytest.raises(InputError, match=f"{library}:resnet18:FILE") as caught:
        open_encoder(f"{library}:resnet18")
    assert "could not be fetched (no route to host)" in str(caught.value)


def test_results_of_a_backbone_go_below_the_working_directory(
    command: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_images(tmp_path / "data/train", 8, classes=2)
    write_images(tmp_path / "data/test", 4, classes=2)
    spec = "torchvision:resnet18:random"
    assert command(["evaluate", "knn", spec, "data", "--k", "3"]) == 0
    path = "results/torchvision-resnet18-random/results.jsonl"
    assert f"Recorded in {path}" in command.out
    (record,) = map(json.loads, Path(path).read_text().splitlines())
    assert record["protocol"] == "knn"
    assert command(["results", str(Path(path).parent)]) == 0
    assert "knn_3" in command.out


def test_results_of_a_run_stay_in_it(trained: Path) -> None:
    assert results_folder(trained) == results_folder(str(trained)) == trained
