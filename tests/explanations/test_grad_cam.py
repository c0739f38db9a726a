from typing import Any, get_args

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from imsvd.encoder import Encoder, EncoderDescription
from imsvd.errors import InputError
from imsvd.explanations.encodings import Encodings
from imsvd.explanations.grad_cam import Target, grad_cam, most_confident_units
from imsvd.networks import BackboneSettings
from tests.export.networks import encoder
from tests.oracles import explanations as oracle

UNITS = (4, 3, 5)


def one_layer(name: str, **options: object) -> Encoder:
    """An encoder whose logits are linear in its features, in float64."""
    torch.manual_seed(0)
    description = EncoderDescription(
        method="imsvd",
        backbone=BackboneSettings.model_validate({"name": name, "options": options}),
        projector=(sum(UNITS),),
        units=UNITS,
        size=64,
        mean=(0.5, 0.5, 0.5),
        std=(0.2, 0.2, 0.2),
    )
    return Encoder(description).eval().double()


@pytest.mark.parametrize("target", get_args(Target))
def test_maps_of_a_convolutional_network_equal_the_equation(target: Target) -> None:
    made = one_layer("resnet18", channels=[8] * 4, layers=[1] * 4)
    images = torch.randn(4, 3, 64, 64, dtype=torch.float64)
    places = torch.tensor([0, 3, 5, 11])
    found = grad_cam(made, images, places, target)
    network: Any = made.backbone
    linear = next(made.projector.children())
    with torch.no_grad():
        maps = network.forward_features(images)
    for image, place in enumerate(places.tolist()):
        evidence = oracle.pooled_grad_cam(
            maps[image].numpy(),
            linear.get_parameter("weight").detach().numpy(),
            UNITS,
            place,
            log_probability=target == "log_probability",
        )
        expected = F.interpolate(
            torch.from_numpy(evidence)[None, None], (64, 64), mode="bilinear", align_corners=False
        )
        np.testing.assert_allclose(found[image], expected[0, 0], rtol=0, atol=1e-10)
    assert found.amax((1, 2)).max() > 0


def test_networks_of_torchvision_have_the_maps_of_timm() -> None:
    theirs = one_layer("resnet18")
    described = theirs.description
    settings = BackboneSettings(library="torchvision", name="resnet18")
    made = Encoder(described.model_copy(update={"backbone": settings})).eval().double()
    made.load_state_dict(theirs.state_dict())
    images, places = torch.randn(2, 3, 64, 64, dtype=torch.float64), torch.tensor([0, 7])
    torch.testing.assert_close(grad_cam(made, images, places), grad_cam(theirs, images, places))


def test_a_network_without_gradients_is_one_sentence() -> None:
    made = one_layer("resnet18", channels=[8] * 4, layers=[1] * 4)
    made.backbone = torch.nn.Flatten()
    with pytest.raises(InputError, match="Flatten does not have; leave out `grad_cam`"):
        grad_cam(made, torch.zeros(1, 3, 2, 2, dtype=torch.float64), torch.tensor([0]))


def test_maps_of_a_transformer_follow_its_patch_tokens() -> None:
    made = one_layer(
        "vit_tiny_patch16_224", img_size=64, patch_size=16, depth=2, embed_dim=16, num_heads=2
    )
    images, place = torch.randn(1, 3, 64, 64, dtype=torch.float64), 6
    found = grad_cam(made, images, torch.tensor([place]), "logit")
    network: Any = made.backbone
    # The same network, taken apart by hand before its last block.
    tokens = network.patch_embed(images)
    tokens = network.norm_pre(network._pos_embed(tokens))
    tokens = network.blocks[0](tokens).detach().requires_grad_()
    features = network.norm(network.blocks[1](tokens))[:, 0]
    made.projector(network.fc_norm(features))[0, place].backward()
    gradient = tokens.grad
    assert gradient is not None
    evidence = np.zeros((4, 4))
    for row in range(4):
        for column in range(4):
            token = 1 + 4 * row + column
            total = sum(
                float(gradient[0, 1:, c].mean() * tokens[0, token, c].detach()) for c in range(16)
            )
            evidence[row, column] = max(0.0, total)
    expected = F.interpolate(
        torch.from_numpy(evidence / evidence.max())[None, None], (64, 64), mode="bilinear"
    )
    np.testing.assert_allclose(found[0], expected[0, 0], rtol=0, atol=1e-10)


def test_layouts_with_channels_last_are_understood() -> None:
    made = encoder(
        "swin_tiny_patch4_window7_224",
        options={
            "img_size": 64,
            "window_size": 2,
            "embed_dim": 8,
            "depths": [1, 1],
            "num_heads": [1, 1],
        },
    )
    maps = grad_cam(made, torch.randn(2, 3, 64, 64), torch.tensor([0, 4]))
    assert maps.shape == (2, 64, 64)
    assert maps.min() >= 0
    assert maps.max() <= 1


def test_images_do_not_influence_one_another_and_weights_get_no_gradient() -> None:
    made = one_layer("resnet18", channels=[8] * 4, layers=[1] * 4)
    images, places = torch.randn(3, 3, 64, 64, dtype=torch.float64), torch.tensor([1, 5, 9])
    together = grad_cam(made, images, places)
    for row in range(3):
        alone = grad_cam(made, images[row : row + 1], places[row : row + 1])
        torch.testing.assert_close(alone[0], together[row], rtol=0, atol=1e-10)
    assert all(parameter.grad is None for parameter in made.parameters())


def test_an_unknown_target_is_refused() -> None:
    made = one_layer("resnet18", channels=[8] * 4, layers=[1] * 4)
    with pytest.raises(InputError, match="choose one of"):
        grad_cam(made, torch.zeros(1, 3, 64, 64).double(), torch.tensor([0]), "q")  # type: ignore[arg-type]


def test_maps_of_the_surest_units_are_as_exact_as_others() -> None:
    made = one_layer("resnet18", channels=[8] * 4, layers=[1] * 4)
    linear = next(made.projector.children())
    images = torch.randn(4, 3, 64, 64, dtype=torch.float64)
    places = torch.tensor([0, 3, 5, 11])
    with torch.no_grad():
        logits = made.projector(made.backbone(images))
        linear.get_parameter("weight").mul_(40 / logits.std())
    exact = grad_cam(made, images, places)
    found = grad_cam(made.float(), images.float(), places)
    np.testing.assert_allclose(found, exact, rtol=0, atol=1e-3)


SMALL = (2, 3, 2)


def seven_units(scores: list[float], images: list[list[int]]) -> Encodings:
    """Seven units, each with the same score for all of its best images."""
    found: dict[str, Any] = dict.fromkeys(Encodings._fields, np.zeros(0))
    found["top_scores"] = np.array(scores, dtype=np.float32)[:, None].repeat(2, axis=1)
    found["top_images"] = np.array(images)
    return Encodings(**found)


def test_the_surest_unit_of_each_variable_surest_first() -> None:
    apart = [[2 * place, 2 * place + 1] for place in range(7)]
    found = most_confident_units(seven_units([0.1, 0.5, 0.2, 0.9, 0.3, 0.7, 0.6], apart), SMALL, 3)
    assert found == [(1, 1, 3), (2, 0, 5), (0, 1, 1)]
    assert most_confident_units(seven_units([0.5] * 7, apart), SMALL, 2) == [(0, 0, 0), (1, 0, 2)]


def test_a_unit_that_shows_images_again_gives_way_to_another_of_its_variable() -> None:
    scores = [0.9, 0.1, 0.8, 0.2, 0.1, 0.7, 0.1]
    images = [[0, 1], [9, 9], [1, 2], [3, 4], [9, 9], [5, -1], [9, 9]]
    found = most_confident_units(seven_units(scores, images), SMALL, 3)
    assert found == [(0, 0, 0), (2, 0, 5), (1, 1, 3)]


def test_where_all_show_the_same_images_they_are_shown_nevertheless() -> None:
    found = most_confident_units(
        seven_units([0.9, 0.1, 0.8, 0.2, 0.1, 0.7, 0.1], [[0, 1]] * 7), SMALL, 3
    )
    assert found == [(0, 0, 0), (1, 0, 2), (2, 0, 5)]
