from pathlib import Path

import pytest
import torch

from imsvd.encoder import load
from imsvd.evaluation.classifier import Classifier, build_optimizer
from tests.evaluation.labeled import FREE, FROZEN

IMAGES = torch.zeros(4, 3, 32, 32)


def test_a_frozen_backbone_takes_no_gradient_and_never_trains(trained: Path) -> None:
    encoder = load(trained)
    network = Classifier(encoder, 7, frozen=True).train()
    assert not any(module.training for module in network.backbone.modules())
    assert network.head.training
    network(IMAGES).sum().backward()
    assert all(parameter.grad is None for parameter in network.backbone.parameters())
    assert network.head.weight.grad is not None
    with torch.no_grad():
        expected = network.head(encoder.eval().backbone(IMAGES))
    assert torch.equal(network(IMAGES), expected)


def test_otherwise_all_of_it_trains(trained: Path) -> None:
    network = Classifier(load(trained), 7, frozen=False)
    assert all(module.training for module in network.modules())
    network(IMAGES + torch.randn(4, 3, 32, 32)).square().sum().backward()
    assert all(parameter.grad is not None for parameter in network.parameters())
    assert not any(module.training for module in network.eval().modules())


def test_the_head_starts_small_and_unbiased(trained: Path) -> None:
    torch.manual_seed(0)
    head = Classifier(load(trained), 500, frozen=True).head
    assert head.weight.std().item() == pytest.approx(0.01, rel=0.1)
    assert not head.bias.any()


def test_only_what_trains_is_optimized_each_at_its_rate(trained: Path) -> None:
    frozen = build_optimizer(Classifier(load(trained), 7, frozen=True), FROZEN)
    assert [group["peak_lr"] for group in frozen.param_groups] == [8 * 32 / 256]
    network = Classifier(load(trained), 7, frozen=False)
    rates = FREE.model_copy(update={"backbone_lr": 0.1, "head_lr": 0.4})
    both = build_optimizer(network, rates).param_groups
    assert [group["name"] for group in both] == ["head_lr", "backbone_lr"]
    assert [group["peak_lr"] for group in both] == pytest.approx([0.05, 0.0125])
    assert sum(len(group["params"]) for group in both) == len(list(network.parameters()))
    assert all(group["weight_decay"] == FREE.weight_decay for group in both)
