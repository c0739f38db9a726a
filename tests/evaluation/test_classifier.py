from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from imsvd.datasets import ShapesSource, Subset
from imsvd.datasets.decoding import UnreadableImage
from imsvd.encoder import describe_encoder, load
from imsvd.errors import InputError
from imsvd.evaluation.classifier import Classifier, HeldOutImages, build_optimizer
from tests import gloo
from tests.evaluation.labeled import FREE, FROZEN
from tests.pretraining import tiny

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


class Guesses(nn.Module):
    """Logits that depend on the picture alone, so that hits can be counted by hand."""

    def forward(self, images: Tensor) -> Tensor:
        weights = torch.randn(3 * 32 * 32, 8, generator=torch.Generator().manual_seed(0))
        return images.flatten(1) @ weights


def held_out(count: int) -> HeldOutImages:
    config = tiny.config()
    return HeldOutImages(
        ShapesSource("test", count=count), describe_encoder(config), config.compute
    )


def by_hand(count: int) -> dict[str, float]:
    config, source = tiny.config(), ShapesSource("test", count=count)
    view = config.views.views[0]
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (view.mean, view.std))
    first = five = 0
    assert source.labels is not None
    for index, label in enumerate(source.labels.tolist()):
        image = (source.read(index).float() / 255 - mean) / std
        scores = Guesses()(image[None])[0].tolist()
        ranked = sorted(range(8), key=lambda place: -scores[place])
        first += ranked[0] == label
        five += label in ranked[:5]
    return {"top1": 100 * first / count, "top5": 100 * five / count, "test_images": count}


def measure(count: int) -> dict[str, float]:
    return held_out(count).measure(Guesses(), Fabric(accelerator="cpu", devices=1))


def test_accuracies_by_hand() -> None:
    assert measure(37) == pytest.approx(by_hand(37))


@pytest.mark.parametrize("count", [37, 2])
def test_the_shares_of_all_ranks_make_the_whole_even_where_some_are_empty(count: int) -> None:
    for found in gloo.run(3, measure, count):
        assert found == pytest.approx(by_hand(count))


def test_small_images_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    images = held_out(9)
    expected = images.measure(Guesses(), Fabric(accelerator="cpu", devices=1))
    monkeypatch.delattr(Subset, "read_many")
    assert images.measure(Guesses(), Fabric(accelerator="cpu", devices=1)) == expected


def test_no_more_than_five_classes_have_no_top5() -> None:
    source = ShapesSource("test", count=9)
    source.classes = source.classes[:5]
    source.labels = torch.arange(9) % 5
    config = tiny.config()
    images = HeldOutImages(source, describe_encoder(config), config.compute)
    found = images.measure(Guesses(), Fabric(accelerator="cpu", devices=1))
    assert set(found) == {"top1", "test_images"}


class HalfReadable(ShapesSource):
    """Images of which the second half cannot be read."""

    def read(self, index: int) -> Tensor:
        if index >= len(self) // 2:
            raise UnreadableImage(self.identity(index), "truncated JPEG")
        return super().read(index)

    def read_many(self, indices: Sequence[int]) -> list[Tensor]:
        return [self.read(index) for index in indices]


def hear(size: int) -> str:
    config, source = tiny.config(), HalfReadable("test", count=8, size=size)
    try:
        images = HeldOutImages(source, describe_encoder(config), config.compute)
        images.measure(Guesses(), Fabric(accelerator="cpu", devices=1))
    except InputError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("size", [32, 128])  # kept in memory, and not
def test_a_rank_without_a_readable_image_leaves_none_waiting(size: int) -> None:
    first, second = gloo.run(2, hear, size)
    assert first == second != ""
