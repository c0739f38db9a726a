import pytest

from imsvd.datasets import ShapesSource
from imsvd.errors import InputError
from imsvd.evaluation.linear import LINEAR_RECIPES, linear_settings


def test_the_size_of_the_images_chooses_the_recipe() -> None:
    assert linear_settings(ShapesSource(count=8, size=32)) == LINEAR_RECIPES["cifar10"]
    assert linear_settings(ShapesSource(count=8, size=128)) == LINEAR_RECIPES["imagenet"]
    assert linear_settings(ShapesSource(count=8), "imagenet") == LINEAR_RECIPES["imagenet"]


def test_an_unknown_recipe_is_refused() -> None:
    with pytest.raises(
        InputError, match="no recipe 'cifar' for linear evaluation; choose imagenet"
    ):
        linear_settings(ShapesSource(count=8), "cifar")


def test_the_published_settings() -> None:
    imagenet, cifar = LINEAR_RECIPES["imagenet"], LINEAR_RECIPES["cifar10"]
    for settings in (imagenet, cifar):
        assert settings.frozen
        assert (settings.epochs, settings.batch_size, settings.momentum) == (100, 256, 0.9)
        assert settings.crop_scale == (0.2, 1.0)
    assert (imagenet.head_lr, imagenet.weight_decay, imagenet.milestones) == (0.02, 1e-6, ())
    assert (cifar.head_lr, cifar.weight_decay, cifar.milestones) == (30, 0, (60, 80))
