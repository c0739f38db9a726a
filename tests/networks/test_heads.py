import torch
from torch import nn

from imsvd.networks import projector


def test_hidden_layers_are_normalized_and_the_last_is_bare() -> None:
    head = projector((6, 10, 12, 8))
    kinds = [type(layer) for layer in head]
    hidden = [nn.Linear, nn.BatchNorm1d, nn.ReLU]
    assert kinds == [*hidden, *hidden, nn.Linear]
    assert [name for name, _ in head[-1].named_parameters()] == ["weight"]
    assert head(torch.randn(4, 6)).shape == (4, 8)


def test_one_width_is_one_matrix() -> None:
    head = projector((6, 8))
    assert [tuple(parameter.shape) for parameter in head.parameters()] == [(8, 6)]
