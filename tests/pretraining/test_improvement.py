import pytest
import torch

from imsvd.pretraining.improvement import describe_improvement, self_retrieval


def test_self_retrieval_counts_both_views_of_every_image() -> None:
    first = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    assert self_retrieval(first, 3 * first) == 100
    # Image 1's views lie beside those of image 0: all four find a view of the other image.
    assert self_retrieval(first, first.flip(0)) == 0
    # One of six views, the last image's second, is nearer to another image's first.
    first = torch.eye(3)
    second = torch.tensor([[1.0, 0.1, 0.0], [0.1, 1.0, 0.0], [0.9, 0.0, 0.1]])
    assert self_retrieval(first, second) == pytest.approx(100 * 5 / 6)


def test_collapsed_features_find_nothing() -> None:
    assert self_retrieval(torch.ones(50, 8), torch.ones(50, 8)) <= 2


@pytest.mark.parametrize(
    ("before", "after", "images", "verdict"),
    [
        (50.0, 56.0, 1000, "50.0 % before training, 56.0 % after; training helped."),
        (56.0, 50.0, 1000, "training made the encoder worse."),
        # Two standard errors of the difference of two shares of 100 images near a half: 14 points.
        (50.0, 56.0, 100, "no clear difference (two standard errors are 14.1 points)."),
        (50.0, 64.2, 100, "training helped."),
    ],
)
def test_the_verdict_needs_two_standard_errors(
    before: float, after: float, images: int, verdict: str
) -> None:
    record = {"before": {"knn_20": before, "images": images}, "knn": {"knn_20": after}}
    said = describe_improvement([{}, record])
    assert said is not None
    assert said.startswith(f"kNN-20 on {images:,} images: ")
    assert said.endswith(verdict)
    unlabeled = {"before": {"self_retrieval": before, "images": images}, "self_retrieval": after}
    said = describe_improvement([unlabeled])
    assert said is not None
    assert said.endswith(verdict)


def test_other_runs_get_no_verdict() -> None:
    assert describe_improvement([]) is None
    assert describe_improvement([{"knn": {"knn_20": 50.0}}]) is None
