import torch

from imsvd.evaluation import chance


def test_chance_is_the_share_of_the_most_frequent_class() -> None:
    assert chance(torch.tensor([5, 0, 5, 9, 5, 5, 1, 1])) == 50.0
    assert chance(torch.arange(4)) == 25.0
