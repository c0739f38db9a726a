import copy

import pytest
import torch
from timm.layers.norm_act import BatchNormAct2d
from torch import nn

from imsvd.errors import InputError
from imsvd.networks import BackboneSettings, build_backbone, feature_width, synchronize_norms
from imsvd.networks.backbone import Stem

TINY = {"layers": [1, 1, 1, 1], "channels": [8, 8, 8, 16]}


def resolution_after_stem(stem: Stem, **options: object) -> int:
    backbone = build_backbone(
        BackboneSettings.model_validate(
            {"name": "resnet18", "stem": stem, "options": {**TINY, **options}}
        )
    )
    seen: list[int] = []
    first = backbone.layer1
    assert isinstance(first, nn.Module)
    first.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape[-1]))
    assert backbone(torch.zeros(2, 3, 32, 32)).shape == (2, feature_width(backbone))
    return seen[0]


@pytest.mark.parametrize(("stem", "side"), [("native", 8), ("stride_1", 32), ("stride_2", 16)])
def test_the_stem_sets_the_resolution_of_small_images(stem: Stem, side: int) -> None:
    assert resolution_after_stem(stem) == side
    assert resolution_after_stem(stem, stem_type="deep", stem_width=8) == side


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
@pytest.mark.parametrize("zero", [True, False])
def test_residual_blocks_start_as_identity_only_if_asked(name: str, zero: bool) -> None:
    settings = BackboneSettings(name=name, zero_init_residual=zero, options=dict(TINY))
    blocks = [
        module
        for module in build_backbone(settings).modules()
        if type(module).__name__ in ("BasicBlock", "Bottleneck")
    ]
    assert len(blocks) == 4
    for block in blocks:
        last = block.bn3 if name == "resnet50" else block.bn2
        assert isinstance(last, nn.BatchNorm2d)
        assert bool((last.weight == 0).all()) is zero


def test_a_zero_initialized_block_passes_its_input_on() -> None:
    backbone = build_backbone(
        BackboneSettings(name="resnet18", options={**TINY, "stem_type": "deep", "stem_width": 4})
    ).eval()
    block = backbone.get_submodule("layer1.0")
    features = torch.rand(2, 8, 4, 4)
    assert torch.equal(block(features), features)


@pytest.mark.parametrize(
    ("name", "options", "side"),
    [
        ("vit_tiny_patch16_224", {"img_size": 32, "patch_size": 8, "depth": 1}, 32),
        ("mobilenetv3_small_050", {}, 64),
        ("convnext_atto", {"depths": [1, 1, 1, 1]}, 64),
    ],
)
def test_other_families_give_as_many_features_as_they_say(
    name: str, options: dict[str, object], side: int
) -> None:
    backbone = build_backbone(BackboneSettings.model_validate({"name": name, "options": options}))
    features = backbone.eval()(torch.zeros(2, 3, side, side))
    assert features.shape == (2, feature_width(backbone))


def test_an_unknown_name_suggests_real_ones() -> None:
    with pytest.raises(
        InputError, match=r"'resnet5O' is not a timm model; did you mean .*resnet50"
    ):
        build_backbone(BackboneSettings(name="resnet5O"))


def test_a_stem_is_refused_where_it_means_nothing() -> None:
    with pytest.raises(InputError, match=r"stem='stride_1' is for timm's ResNets"):
        build_backbone(BackboneSettings(name="vit_tiny_patch16_224", stem="stride_1"))


@pytest.mark.parametrize("options", [{"no_such_option": 1}, {"layers": 5}, {"pretrained": True}])
def test_options_that_do_not_fit_are_refused(options: dict[str, object]) -> None:
    settings = BackboneSettings.model_validate({"name": "resnet18", "options": options})
    with pytest.raises(InputError, match="do not fit 'resnet18'"):
        build_backbone(settings)


FAMILIES = (
    "resnet18", "resnetv2_18", "efficientnet_lite0", "efficientnet_b0", "mobilenetv2_050", "mobilenetv3_small_050",
    "mobilenetv4_conv_small", "regnetx_002", "regnety_002", "densenet121", "ghostnet_050", "mnasnet_small",
    "hardcorenas_a", "fbnetc_100", "vovnet39a", "dla34", "hrnet_w18_small", "repvgg_a0", "darknet17",
    "cspresnet50", "res2net50_26w_4s", "vgg11_bn",
)  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
def test_synchronized_norms_leave_the_network_as_it_was(name: str) -> None:
    torch.manual_seed(0)
    backbone = build_backbone(BackboneSettings(name=name, zero_init_residual=False)).eval()
    for module in backbone.modules():  # running statistics of a new network are trivial
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            module.running_mean.normal_(std=0.1)
    images = torch.randn(1, 3, 64, 64)
    with torch.inference_mode():
        expected = backbone(images)
        synchronized = synchronize_norms(backbone)
        assert any(isinstance(module, nn.SyncBatchNorm) for module in synchronized.modules())
        torch.testing.assert_close(synchronized(images), expected, rtol=0, atol=0)
    assert not any(module.training for module in synchronized.modules())


def test_synchronized_norms_do_not_look_for_empty_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    capturing: list[bool] = []

    def forward(module: nn.SyncBatchNorm, images: torch.Tensor) -> torch.Tensor:
        capturing.append(torch.cuda.is_current_stream_capturing())
        if len(capturing) > 2:
            raise RuntimeError
        return images

    monkeypatch.setattr(nn.SyncBatchNorm, "forward", forward)
    monkeypatch.setattr("torch.cuda.is_current_stream_capturing", lambda: False)
    network = synchronize_norms(nn.Sequential(nn.BatchNorm2d(2), BatchNormAct2d(2)))
    found = copy.deepcopy(network)(-torch.ones(1, 2, 1, 1))
    assert capturing == [True, True]
    assert found.sum() == 0, "the activation of timm's norm is kept"
    with pytest.raises(RuntimeError):
        network(torch.ones(1, 2, 1, 1))
    assert not torch.cuda.is_current_stream_capturing()
