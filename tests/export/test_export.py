"""What is exported is loaded by the tool it is for, and computes the same there."""

import json
import pickle
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import timm
import torch
import torchvision
from safetensors import safe_open
from torch import nn

import imsvd
from imsvd.datasets import ImageSource, open_source
from imsvd.encoder import Encoder, EncoderDescription, open_encoder
from imsvd.errors import InputError
from imsvd.evaluation.features import center_crop
from imsvd.export import FORMATS, export_encoder
from imsvd.export.weights import detectron2_name
from imsvd.information import split_variables
from tests.export.networks import encoder, images, normalized
from tests.oracles.detectron2 import resnet50_shapes
from tests.shared import CIFAR10, LITE0, PHOTOGRAPHS, needs


@pytest.fixture(scope="module")
def resnet18() -> Encoder:
    return encoder()


TIE = 1e-4
"""Two units are equally probable if their probabilities differ by less."""


def features(made: Encoder) -> torch.Tensor:
    with torch.no_grad():
        return made.features(images())


def test_torchvision_loads_all_but_the_classifier(resnet18: Encoder, tmp_path: Path) -> None:
    path = export_encoder(resnet18, "torchvision", tmp_path / "weights.pth")
    network = torchvision.models.resnet18()
    result = network.load_state_dict(torch.load(path, weights_only=True), strict=False)
    assert result.missing_keys == ["fc.weight", "fc.bias"]
    assert result.unexpected_keys == []
    network.fc = nn.Identity()
    with torch.no_grad():
        actual = network.eval()(normalized(images()))
    torch.testing.assert_close(actual, features(resnet18), atol=1e-5, rtol=1e-5)


def test_timm_loads_the_folder(resnet18: Encoder, tmp_path: Path) -> None:
    path = export_encoder(resnet18, "timm", tmp_path / "folder")
    assert {file.name for file in path.iterdir()} == {"config.json", "model.safetensors"}
    network = timm.create_model(f"local-dir:{path}", pretrained=True).eval()
    with torch.no_grad():
        actual = network(normalized(images()))
    torch.testing.assert_close(actual, features(resnet18), atol=1e-5, rtol=1e-5)
    config = timm.data.resolve_model_data_config(network)  # type: ignore[attr-defined,no-untyped-call]
    assert list(config["mean"]) == [0.4, 0.5, 0.6]
    assert list(config["std"]) == [0.2, 0.25, 0.3]
    assert list(config["input_size"]) == [3, 64, 64]


def test_timm_can_put_a_new_classifier_on_it(resnet18: Encoder, tmp_path: Path) -> None:
    path = export_encoder(resnet18, "timm", tmp_path / "folder")
    network = timm.create_model(f"local-dir:{path}", pretrained=True, num_classes=7).eval()
    assert network(normalized(images())).shape == (3, 7)
    theirs, ours = network.state_dict(), resnet18.backbone.state_dict()
    assert all(torch.equal(theirs[key], value) for key, value in ours.items())


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("resnet18", {"channels": [8, 8, 8, 8], "layers": [1, 1, 1, 1]}),
        ("vit_tiny_patch16_224", {"img_size": 32, "patch_size": 8, "depth": 2}),
    ],
)
def test_options_travel_to_timm(name: str, options: dict[str, object], tmp_path: Path) -> None:
    made = encoder(name, 32, options=options)
    path = export_encoder(made, "timm", tmp_path / "folder")
    network = timm.create_model(f"local-dir:{path}", pretrained=True).eval()
    pictures = images(size=32)
    with torch.no_grad():
        actual, expected = network(normalized(pictures)), made.features(pictures)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


def test_detectron2_names_shapes_and_values(tmp_path: Path) -> None:
    made = encoder("resnet50")
    path = export_encoder(made, "detectron2", tmp_path / "r50.pkl")
    content = pickle.loads(path.read_bytes(), encoding="latin1")
    assert content["__author__"] == "imsvd"
    assert content["matching_heuristics"] is True
    assert {key: value.shape for key, value in content["model"].items()} == resnet50_shapes()
    assert all(isinstance(value, np.ndarray) for value in content["model"].values())
    state = made.backbone.state_dict()
    for ours, theirs in {
        "conv1.weight": "stem.conv1.weight",
        "bn1.running_var": "stem.conv1.norm.running_var",
        "layer1.0.downsample.0.weight": "res2.0.shortcut.weight",
        "layer4.0.downsample.1.running_mean": "res5.0.shortcut.norm.running_mean",
        "layer3.5.bn3.bias": "res4.5.conv3.norm.bias",
        "layer2.3.conv2.weight": "res3.3.conv2.weight",
    }.items():
        assert detectron2_name(ours) == theirs
        np.testing.assert_array_equal(content["model"][theirs], state[ours].numpy())


def test_safetensors_carries_its_description(resnet18: Encoder, tmp_path: Path) -> None:
    path = export_encoder(resnet18, "safetensors", tmp_path / "a.safetensors")
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - no mapping
    rebuilt = Encoder(EncoderDescription.model_validate_json(metadata["imsvd"]))
    rebuilt.load_state_dict(tensors)
    with torch.no_grad():
        assert torch.equal(rebuilt.eval().probabilities(images()), resnet18.probabilities(images()))


def test_its_own_safetensors_opens_as_a_backbone(
    resnet18: Encoder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = export_encoder(resnet18, "safetensors", tmp_path / "a.safetensors")
    opened = open_encoder(f"timm:resnet18:{path}")
    assert "projector" in caplog.text
    with torch.no_grad():
        actual = opened.backbone(normalized(images()))
    torch.testing.assert_close(actual, features(resnet18))


@pytest.fixture(scope="module")
def tiny() -> Encoder:
    options = {"channels": [8, 8, 8, 8], "layers": [1, 1, 1, 1]}
    return encoder(size=32, stem="stride_1", options=options)


@pytest.mark.parametrize("kind", FORMATS["onnx"].kinds)
def test_onnxruntime_agrees(kind: str, tiny: Encoder, tmp_path: Path) -> None:
    path = export_encoder(tiny, "onnx", tmp_path / "a.onnx", output_kind=kind)
    assert [file.name for file in tmp_path.iterdir()] == ["a.onnx"]
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    assert names == (["features", "probabilities", "codes"] if kind == "all" else [kind])
    for count in (1, 5):
        pictures = images(count, 32)
        for name, actual in zip(
            names, session.run(names, {"images": pictures.numpy()}), strict=True
        ):
            with torch.no_grad():
                expected = getattr(tiny, name)(pictures)
            torch.testing.assert_close(torch.from_numpy(actual), expected, atol=1e-5, rtol=1e-5)
    if "codes" in names:
        q = split_variables(tiny.probabilities(pictures), (4, 3, 5))
        assert actual.tolist() == [[int(part[row].argmax()) for part in q] for row in range(5)]


def test_one_pass_gives_all_outputs(tiny: Encoder, tmp_path: Path) -> None:
    """The backbone is in the graph once, so that codes cost no second pass."""
    convolutions = {}
    for kind in ("features", "all"):
        path = export_encoder(tiny, "onnx", tmp_path / f"{kind}.onnx", output_kind=kind)
        nodes = onnx.load(path).graph.node
        convolutions[kind] = sum(node.op_type == "Conv" for node in nodes)
    assert convolutions["all"] == convolutions["features"] > 0


def test_codes_of_many_images_are_those_of_torch(tiny: Encoder, tmp_path: Path) -> None:
    path = export_encoder(tiny, "onnx", tmp_path / "a.onnx", output_kind="all")
    assert codes_that_differ(path, tiny, open_source("shapes:200"), 200) == 0


@pytest.mark.slow
@needs(LITE0, PHOTOGRAPHS, CIFAR10)
def test_codes_of_a_thousand_photographs_are_those_of_torch(tmp_path: Path) -> None:
    backbone, run = f"timm:tf_efficientnet_lite0:{LITE0}", tmp_path / "run"
    made = imsvd.discretize(backbone, PHOTOGRAPHS, run, size=96, bits=64, units=4, steps=100)
    path = export_encoder(made, "onnx", tmp_path / "a.onnx", output_kind="all")
    assert codes_that_differ(path, made, open_source(CIFAR10, "test"), 1000, TIE) == 0


def codes_that_differ(
    path: Path, made: Encoder, source: ImageSource, count: int, tie: float = 0
) -> int:
    """Count variables of the first `count` images in which onnxruntime and torch differ.

    Both round differently, so that a variable may take either of two units that are equally probable.
    """
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    different = ties = 0
    for start in range(0, count, 50):
        chosen = [center_crop(source.read(start + n), made.description.size) for n in range(50)]
        batch = torch.stack(chosen).float() / 255
        (actual,) = session.run(["codes"], {"images": batch.numpy()})
        with torch.no_grad():
            expected = made.codes(batch)
            by_variable = made.probabilities(batch).reshape(*expected.shape, -1)
        best = by_variable.topk(2).values
        tied = best[..., 0] - best[..., 1] < tie
        assert actual.shape == expected.shape == (50, len(made.description.units))
        different += int(((torch.from_numpy(actual) != expected) & ~tied).sum())
        ties += int(tied.sum())
    assert ties <= count * len(made.description.units) / 100
    return different


def test_an_export_that_disagrees_is_not_written(
    tiny: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imsvd.export.onnx.differs", lambda *_: True)
    with pytest.raises(InputError, match="onnxruntime gives other features"):
        export_encoder(tiny, "onnx", tmp_path / "a.onnx")
    assert list(tmp_path.iterdir()) == []


def test_the_same_keys_with_another_function_are_refused(tmp_path: Path) -> None:
    """A dilated ResNet has torchvision's keys and shapes, and computes something else."""
    with pytest.raises(InputError, match="gives other features than this encoder"):
        export_encoder(
            encoder(options={"output_stride": 8}), "torchvision", tmp_path / "weights.pth"
        )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "backbone", "form", "phrase"),
    [
        ("resnet18", {"stem": "stride_1"}, "torchvision", "backbone.stem=stride_1"),
        ("resnet18", {"stem": "stride_2"}, "timm", "backbone.stem=stride_2"),
        ("resnet18", {"stem": "stride_1"}, "detectron2", "Detectron2 has no resnet18 with"),
        ("resnet18", {"options": {"channels": [8, 8, 8, 8]}}, "torchvision", "they differ in"),
        ("vit_tiny_patch16_224", {}, "torchvision", "has no network 'vit_tiny_patch16_224'"),
        ("resnet26", {}, "detectron2", "Detectron2 has no network"),
    ],
)
def test_what_the_other_library_lacks_is_said(
    name: str, backbone: dict[str, object], form: str, phrase: str, tmp_path: Path
) -> None:
    size = 224 if name.startswith("vit") else 64
    with pytest.raises(InputError, match=phrase) as caught:
        export_encoder(encoder(name, size, **backbone), form, tmp_path / f"a{FORMATS[form].suffix}")
    assert "use --format" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_bad_requests(tiny: Encoder, tmp_path: Path) -> None:
    for form, out, kind, phrase in (
        ("onx", "a.onnx", "features", "did you mean 'onnx'"),
        ("onnx", "a.pth", "features", "name it .*a.onnx"),
        ("timm", ".", "features", "already exists"),
        ("safetensors", ".", "features", "is a folder"),
        ("safetensors", "a.safetensors", "codes", "does not support --output-kind codes"),
    ):
        with pytest.raises(InputError, match=phrase):
            export_encoder(tiny, form, tmp_path / out, output_kind=kind)
    bare = open_encoder("torchvision:resnet18:random")
    with pytest.raises(InputError, match="no discrete variables"):
        export_encoder(bare, "onnx", tmp_path / "a.onnx", output_kind="codes")
    assert list(tmp_path.iterdir()) == []


def test_onnx_names_the_extra(
    tiny: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(InputError, match=r"imsvd\[onnx\]"):
        export_encoder(tiny, "onnx", tmp_path / "a.onnx")


def test_timm_config_has_no_foreign_weights_address(resnet18: Encoder, tmp_path: Path) -> None:
    path = export_encoder(resnet18, "timm", tmp_path / "folder")
    config = json.loads((path / "config.json").read_text())["pretrained_cfg"]
    assert not {"url", "hf_hub_id", "file"} & config.keys()
