"""Exported encoders open again wherever an encoder is taken; other files are one sentence."""

import json
import shutil
from pathlib import Path

import onnx
import pytest
import torch
import torchvision
from safetensors.torch import load_file, save_file

import imsvd
from imsvd.encoder import Encoder, open_encoder, results_path
from imsvd.errors import InputError
from imsvd.export import FORMATS, export_encoder
from imsvd.networks import BackboneSettings, build_backbone
from tests.export.networks import encoder, images
from tests.pretraining.test_pretrain import write_images
from tests.pretraining.tiny import CommandLine

OPTIONS = {"channels": [8, 8, 8, 8], "layers": [1, 1, 1, 1]}
SETS = ("method.projector=[16, 16]", "compute.workers=0", "compute.accelerator=cpu")


@pytest.fixture(scope="module")
def original() -> Encoder:
    made = encoder(size=32, options=OPTIONS)
    made.epoch = 7
    return made


@pytest.fixture(scope="module")
def exported(original: Encoder, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("exported")
    return {
        name: export_encoder(original, name, folder / f"a{FORMATS[name].suffix}")
        for name in ("safetensors", "timm", "onnx")
    }


@pytest.mark.parametrize("name", ["safetensors", "timm", "onnx"])
def test_what_is_exported_opens_with_the_same_features(
    name: str, original: Encoder, exported: dict[str, Path]
) -> None:
    pictures = images(3, 32)
    for spec in (exported[name], str(exported[name])):
        opened = open_encoder(spec)
        assert not opened.training
        assert opened.description.size == 32
        with torch.no_grad():
            torch.testing.assert_close(opened(pictures), original(pictures), atol=1e-5, rtol=1e-5)


def test_safetensors_keep_codes_and_epoch(original: Encoder, exported: dict[str, Path]) -> None:
    opened = open_encoder(exported["safetensors"])
    assert opened.description == original.description
    assert opened.epoch == 7
    with torch.no_grad():
        assert torch.equal(opened.codes(images(3, 32)), original.codes(images(3, 32)))


@pytest.mark.parametrize("name", ["safetensors", "timm", "onnx"])
def test_an_exported_encoder_gets_a_code_in_a_run_that_needs_no_other_file(
    name: str, exported: dict[str, Path], tmp_path: Path, command: CommandLine
) -> None:
    spec = tmp_path / exported[name].name
    (shutil.copytree if exported[name].is_dir() else shutil.copy)(exported[name], spec)
    data = write_images(tmp_path / "images", 24, side=32, classes=2)
    out = tmp_path / "run"
    words = ["discretize", str(spec), str(data), "--out", str(out), "--bits", "8", "--views", "2"]
    words += [
        "--steps",
        "2",
        "--units",
        "4",
        *(part for setting in SETS for part in ("--set", setting)),
    ]
    assert command(words) == 0, command.err
    with torch.no_grad():
        expected = open_encoder(spec)(images(3, 32))
    (shutil.rmtree if spec.is_dir() else Path.unlink)(spec)
    with torch.no_grad():
        assert torch.equal(imsvd.load(out)(images(3, 32)), expected)
    again = tmp_path / "again.safetensors"
    assert command(["export", str(out), "--format", "safetensors", "--out", str(again)]) == 0
    with torch.no_grad():
        assert torch.equal(
            open_encoder(again).codes(images(3, 32)), imsvd.load(out).codes(images(3, 32))
        )


@pytest.mark.parametrize("name", ["safetensors", "timm", "onnx"])
def test_evaluations_take_exported_encoders(
    name: str,
    exported: dict[str, Path],
    tmp_path: Path,
    command: CommandLine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_images(tmp_path / "data/train", 8, classes=2)
    write_images(tmp_path / "data/test", 4, classes=2)
    spec = str(exported[name])
    assert command(["evaluate", "knn", spec, "data", "--k", "3"]) == 0, command.err
    assert (tmp_path / results_path(spec) / "results.jsonl").exists()
    assert results_path(spec).parts[0] == "results"
    if name == "onnx":
        command.refuses(["evaluate", "finetune", spec, "data", "--epochs", "1"], "no weights to")
        command.refuses(
            ["export", spec, "--format", "onnx", "--out", "b.onnx"], "--format safetensors"
        )


def test_codes_of_an_exported_encoder(
    exported: dict[str, Path], tmp_path: Path, command: CommandLine
) -> None:
    pytest.importorskip("pyarrow")
    data = write_images(tmp_path / "images", 6)
    words = [str(data), "--out", str(tmp_path / "codes.parquet")]
    assert command(["codes", str(exported["safetensors"]), *words]) == 0, command.err
    command.refuses(["codes", str(exported["onnx"]), *words], "has no codes")


def test_torchvision_weights_are_named_with_their_network(tmp_path: Path) -> None:
    made = encoder()
    path = export_encoder(made, "torchvision", tmp_path / "a.pth")
    with pytest.raises(InputError, match=f"torchvision:NAME:{path}"):
        open_encoder(path)
    opened = open_encoder(f"torchvision:resnet18:{path}")
    state = made.backbone.state_dict()
    loaded = opened.backbone.state_dict()
    assert all(torch.equal(value, loaded[name]) for name, value in state.items())


def test_other_files_are_one_sentence(
    trained: Path, exported: dict[str, Path], tmp_path: Path, command: CommandLine
) -> None:
    detectron = export_encoder(encoder(), "detectron2", tmp_path / "a.pkl")
    bare = tmp_path / "bare.safetensors"
    save_file({"conv1.weight": torch.zeros(2)}, bare)
    text = tmp_path / "notes.txt"
    text.write_text("no encoder")
    damaged = tmp_path / "damaged.onnx"
    damaged.write_bytes(exported["onnx"].read_bytes()[:-500])
    graph = onnx.load(exported["onnx"])
    graph.graph.output[0].name = "codes"
    next(node for node in graph.graph.node if "features" in node.output).output[:] = ["codes"]
    codes = tmp_path / "codes.onnx"
    onnx.save(graph, codes)
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(exported["safetensors"].read_bytes()[:-500])
    for spec, phrase in (
        (detectron, "is a pickle, which could run code"),
        (f"torchvision:resnet18:{detectron}", "is a pickle, which could run code"),
        (bare, f"name the network: torchvision:NAME:{bare}"),
        (text, "is not an encoder"),
        (damaged, "damaged"),
        (codes, "turns images into codes"),
        (cut, "damaged"),
        (tmp_path / "none.onnx", "there is no file"),
        (trained / "encoder.safetensors", f"give the folder {trained}"),
    ):
        out = str(tmp_path / "b.safetensors")
        command.refuses(["export", str(spec), "--format", "safetensors", "--out", out], phrase)
    assert not (tmp_path / "b.safetensors").exists()


def test_timm_folders_that_are_not_whole(exported: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    shutil.copytree(exported["timm"], folder)
    config = json.loads((folder / "config.json").read_text())
    weights = load_file(folder / "model.safetensors")
    missing = weights.pop("layer4.0.bn2.bias")
    save_file({**weights, "extra": missing}, folder / "model.safetensors")
    with pytest.raises(InputError, match=r"missing: layer4\.0\.bn2\.bias; unexpected: extra"):
        open_encoder(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"but not model\.safetensors or pytorch_model\.bin"):
        open_encoder(folder)
    save_file(weights, folder / "model.safetensors")
    for changed in ("{", json.dumps({**config, "pretrained_cfg": {}})):
        (folder / "config.json").write_text(changed)
        with pytest.raises(InputError, match="does not describe a network of timm"):
            open_encoder(folder)


def test_a_graph_takes_images_of_its_size(exported: dict[str, Path]) -> None:
    with pytest.raises(InputError, match="exactly 32 pixels, not 40×40"):
        open_encoder(exported["onnx"])(images(1, 40))
    with pytest.raises(InputError, match="cannot be trained"):
        build_backbone(BackboneSettings(library="onnx"))


def test_onnx_without_onnxruntime_names_the_extra(
    exported: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(InputError, match=r"imsvd\[onnx\]"):
        open_encoder(exported["onnx"])


@pytest.mark.parametrize("name", ["googlenet", "inception_v3"])
def test_auxiliary_classifiers_of_published_files_are_left_out(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    published = torchvision.models.get_model(
        name, weights=None, aux_logits=True, transform_input=True, init_weights=False
    )
    torch.save(published.state_dict(), tmp_path / "a.pth")
    opened = open_encoder(f"torchvision:{name}:{tmp_path / 'a.pth'}")
    assert "aux" in caplog.text.lower()
    assert not any("aux" in key.lower() for key in opened.backbone.state_dict())
    published.fc = torch.nn.Identity()
    rebuilt = Encoder(opened.description)
    rebuilt.load_state_dict(opened.state_dict())
    pictures = images(1, 96)
    with torch.no_grad():
        expected = published.eval()(opened.normalize(pictures))
        assert torch.equal(opened(pictures), expected)
        assert torch.equal(rebuilt.eval()(pictures), expected)
