"""The detector: where its parts come from, its losses, and what it refuses."""

from pathlib import Path

import pytest
import torch
import torchvision
from torch import Tensor, nn

from imsvd.encoder import open_encoder
from imsvd.errors import InputError
from imsvd.evaluation.coco import DetectionSettings, open_coco
from imsvd.evaluation.coco.model import (
    MaskRCNN,
    ProposalNetwork,
    RegionAlign,
    batch_norms,
    build_detector,
    region_losses,
    split_resnet,
)
from imsvd.evaluation.coco.training import to_device
from tests.evaluation.coco import tiny
from tests.oracles import detection_losses

TINY = pytest.mark.usefixtures("_seeded")


@pytest.fixture
def _seeded() -> None:
    torch.manual_seed(0)


def batch(tmp_path: Path) -> tuple[list[Tensor], list[dict[str, Tensor]]]:
    train = open_coco(tiny.write_coco(tmp_path)).train
    samples = [(train.read(place), train.target(place)) for place in (0, 2)]
    return to_device(samples, torch.device("cpu"))


def descend(losses: dict[str, Tensor]) -> None:
    torch.stack(list(losses.values())).sum().backward()  # type: ignore[no-untyped-call]


def test_region_losses_are_the_literal_ones() -> None:
    generator = torch.Generator().manual_seed(0)
    logits, deltas, wanted = (
        torch.randn(7, width, dtype=torch.float64, generator=generator) for width in (3, 12, 4)
    )
    labels = [0, 2, 1, 0, 2, 2, 0]
    compare_losses(
        lambda a, b: region_losses(a, b, torch.tensor(labels), wanted),
        lambda a, b: detection_losses.region_losses(a, b, labels, wanted),
        logits,
        deltas,
    )
    nothing = region_losses(logits, deltas, torch.zeros(7, dtype=torch.int64), wanted)
    assert nothing[1] == 0


def test_proposal_losses_are_the_literal_ones() -> None:
    generator = torch.Generator().manual_seed(0)
    objectness, deltas, wanted = (
        torch.randn(10, width, dtype=torch.float64, generator=generator) for width in (1, 4, 4)
    )
    labels = [1, 0, 0, -1, 1, 0, 0, -1, 0, 0]
    network = proposals(tiny.settings())
    split = [torch.tensor(labels[:4]).double(), torch.tensor(labels[4:]).double()]
    compare_losses(
        lambda a, b: network.compute_loss(a, b, split, [wanted[:4], wanted[4:]]),
        lambda a, b: detection_losses.proposal_losses(a, b, labels, wanted),
        objectness,
        deltas,
    )


def proposals(settings: DetectionSettings) -> ProposalNetwork:
    network = build_detector(tiny.encoder(), 2, settings).rpn
    assert isinstance(network, ProposalNetwork)
    return network


def compare_losses(ours: object, literal: object, *inputs: Tensor) -> None:
    """Values and gradients of both losses."""
    results = []
    for function in (ours, literal):
        assert callable(function)
        leaves = [value.clone().requires_grad_() for value in inputs]
        losses = function(*leaves)
        (losses[0] + 3 * losses[1]).backward()
        results.append([*losses, *(leaf.grad for leaf in leaves)])
    for one, other in zip(*results, strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-10)


def test_regions_are_cut_out_at_the_stride_of_the_features() -> None:
    # Where features are their own coordinates, the middle of a region is the middle of its box.
    across = torch.arange(12.0).expand(1, 1, 8, 12)
    region = RegionAlign(4, 2)(across, [torch.tensor([[8.0, 4.0, 40.0, 28.0]])])
    assert region.shape == (1, 1, 14, 14)
    # Feature i lies over the pixels from 4i to 4i + 4, whose middle is 4(i + 0.5).
    assert region.mean().item() == pytest.approx(24 / 4 - 0.5, abs=1e-5)


@TINY
def test_a_step_reaches_every_weight_and_conv5_runs_once(tmp_path: Path) -> None:
    model = build_detector(tiny.encoder(), 2, tiny.settings()).train()
    calls: list[int] = []
    model.roi_heads.conv5.register_forward_hook(lambda *_: calls.append(1))
    losses = model(*batch(tmp_path))
    assert set(losses) == {"class", "box", "mask", "loss_objectness", "loss_rpn_box_reg"}
    descend(losses)
    assert len(calls) == 1
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name


@TINY
def test_images_without_objects_alone_can_be_learned_from(tmp_path: Path) -> None:
    images, targets = batch(tmp_path)
    model = build_detector(tiny.encoder(), 2, tiny.settings()).train()
    losses = model(images[1:], targets[1:])
    descend(losses)
    assert losses["mask"] == losses["box"] == losses["loss_rpn_box_reg"] == 0
    assert losses["class"] > 0


@TINY
def test_detections_lie_in_the_image_as_it_was_given(tmp_path: Path) -> None:
    images, _ = batch(tmp_path)
    model = build_detector(tiny.encoder(), 2, tiny.settings("sizes=[64]")).eval()
    with torch.no_grad():
        detections = model(images)
    assert sum(len(found["scores"]) for found in detections) > 0
    for found in detections:
        count = len(found["scores"])
        assert found["masks"].shape == (count, 1, tiny.HEIGHT, tiny.WIDTH)
        assert set(found["labels"].tolist()) <= {1, 2}
        assert bool((found["boxes"][:, 2] <= tiny.WIDTH + 1e-3).all())


def test_the_stages_are_the_encoders_own() -> None:
    encoder = tiny.encoder()
    model = build_detector(encoder, 2, tiny.settings())
    network = encoder.backbone
    assert model.backbone[0] is network.conv1
    assert model.backbone[-1] is network.layer3
    assert model.roi_heads.conv5[0] is network.layer4
    assert isinstance(model.roi_heads.conv5[1], nn.BatchNorm2d)
    assert model.roi_heads.align.stride == 4


def test_a_resnet_of_torchvision_and_of_timm_have_stride_16() -> None:
    for spec in ("torchvision:resnet18:random", "timm:resnet18:random"):
        model = build_detector(open_encoder(spec), 80, tiny.settings())
        assert model.roi_heads.align.stride == 16
        assert model.roi_heads.box_predictor.cls_score.weight.shape == (81, 512)


def test_frozen_norms_stay_as_they_were_pretrained(tmp_path: Path) -> None:
    model = build_detector(tiny.encoder(), 2, tiny.settings("norm=frozen")).train()
    before = {name: value.clone() for name, value in model.named_buffers()}
    descend(model(*batch(tmp_path)))
    assert all(torch.equal(value, before[name]) for name, value in model.named_buffers())
    for norm in batch_norms(model):
        assert not norm.training
        assert all(parameter.grad is None for parameter in norm.parameters())
    assert len(model.roi_heads.conv5) == 1


def test_random_weights_are_new_ones() -> None:
    encoder = tiny.encoder(seed=1)
    models: list[MaskRCNN] = []
    for _ in range(2):
        torch.manual_seed(5)
        models.append(build_detector(encoder, 2, tiny.settings("weights=random")))
    first, second = (model.backbone[0].weight for model in models)
    assert torch.equal(first, second)
    assert not torch.equal(first, encoder.backbone.conv1.weight)  # type: ignore[union-attr,arg-type]
    with pytest.raises(InputError, match="timm:resnet18:random"):
        build_detector(open_encoder("timm:resnet18:random"), 2, tiny.settings("weights=random"))


def test_networks_that_have_no_c4_are_refused() -> None:
    with pytest.raises(InputError, match="VisionTransformer has no stages"):
        split_resnet(open_encoder("timm:vit_tiny_patch16_224:random").backbone)
    with pytest.raises(InputError, match="in_chans=1 is not possible"):
        tiny.encoder(in_chans=1)
    dilated = torchvision.models.resnet50(replace_stride_with_dilation=[False, False, True])
    encoder = tiny.encoder()
    encoder.backbone = dilated
    with pytest.raises(InputError, match="conv5 of stride 2"):
        build_detector(encoder, 2, tiny.settings())


@TINY
def test_boxes_of_large_images_are_not_rounded_in_mixed_precision() -> None:
    detector = build_detector(
        tiny.encoder(), 2, tiny.settings("sizes=[320]", "max_size=600")
    ).eval()
    anchors: list[Tensor] = []
    detector.rpn.anchor_generator.register_forward_hook(lambda *found: anchors.extend(found[2]))
    for is_mixed in (False, True):
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=is_mixed):
            (found,) = detector([torch.rand(3, 320, 500)])
    assert anchors[0].max() > 256, "from there on, 8 bits skip every second number"
    torch.testing.assert_close(anchors[1], anchors[0], rtol=0, atol=0)
    assert found["boxes"].dtype == torch.float32
