import numpy as np
import pytest
import torch

from imsvd.explanations.faithfulness import (
    Falls,
    Fill,
    bootstrap_interval,
    highlighted_region,
    measure_falls,
    move_region,
    summarize_falls,
    taken_units,
)
from imsvd.explanations.grad_cam import grad_cam
from tests.explanations.made_up import red_finder, red_squares, softmax_rows


def test_the_map_finds_the_one_thing_that_matters() -> None:
    made, images = red_finder(), red_squares(12)
    maps = grad_cam(made, made.normalize(images), torch.zeros(12, dtype=torch.long))
    red = images[:, 0] == 255
    inside = (maps * red).sum((1, 2)) / maps.sum((1, 2))
    assert inside.min() > 0.5  # the square is a sixteenth of the image
    assert (highlighted_region(maps, 1 / 16) & red).sum((1, 2)).min() == 64


# A blur leaves part of the red where it was, so that less is removed.
@pytest.mark.parametrize(("fill", "least"), [("mean", 0.1), ("blur", 0.0)])
def test_removing_what_is_highlighted_beats_a_random_region_where_it_must(
    fill: Fill, least: float
) -> None:
    falls = measure_falls(red_finder(), red_squares(200), fill)
    record = summarize_falls(falls)
    assert record["images"] == 200
    assert record["verdict"] == "above random"
    assert record["difference_95"][0] > least
    # Removed regions are a quarter of the image: a random one mostly leaves the square alone.
    assert record["fall_highlighted"] > 2 * record["fall_random"]


def test_a_map_unrelated_to_the_unit_is_not_called_faithful(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    generator = torch.Generator().manual_seed(3)

    def blobs(encoder: object, images: torch.Tensor, *_: object) -> torch.Tensor:
        small = torch.rand(len(images), 1, 4, 4, generator=generator)
        return torch.nn.functional.interpolate(small, images.shape[-2:], mode="bilinear")[:, 0]

    monkeypatch.setattr("imsvd.explanations.faithfulness.grad_cam", blobs)
    record = summarize_falls(measure_falls(red_finder(), red_squares(200), "mean"))
    assert abs(record["difference"]) < 0.1
    assert record["verdict"] == "no significant difference"


def test_images_without_evidence_are_left_out_and_counted() -> None:
    gray = torch.full((5, 3, 32, 32), 128, dtype=torch.uint8)
    falls = measure_falls(red_finder(), gray, "mean")
    assert falls.without_map == 5
    assert summarize_falls(falls) == {
        "images": 0,
        "images_without_map": 5,
        "verdict": "no map has positive evidence",
    }


def test_moved_regions_keep_their_size_and_really_move() -> None:
    masks = highlighted_region(torch.rand(20, 9, 11), 0.25)
    assert (masks.sum((1, 2)) == round(0.25 * 99)).all()
    moved = move_region(masks, torch.Generator().manual_seed(0))
    assert (moved.sum((1, 2)) == masks.sum((1, 2))).all()
    assert (moved != masks).any(2).any(1).all()


def test_the_asked_unit_is_the_one_its_variable_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    units = (4, 3, 5)
    q = softmax_rows(6, units, 0)
    monkeypatch.setattr("imsvd.explanations.faithfulness.view_probabilities", lambda *_: q)

    class Described:
        class description:  # noqa: N801 - stands for an attribute
            units = (4, 3, 5)

    variables = torch.tensor([0, 1, 2, 0, 1, 2])
    found = taken_units(Described, q, variables)  # type: ignore[arg-type]
    starts = (0, 4, 7)
    for row, variable in enumerate(variables.tolist()):
        part = q[row, starts[variable] : starts[variable] + units[variable]]
        assert int(found[row]) == starts[variable] + int(part.argmax())


def test_the_bootstrap_interval_is_that_of_a_mean() -> None:
    values = np.random.default_rng(0).normal(1.0, 2.0, 400)
    low, high = bootstrap_interval(values)
    error = values.std() / 20
    assert low == pytest.approx(values.mean() - 1.96 * error, abs=0.15 * error)
    assert high == pytest.approx(values.mean() + 1.96 * error, abs=0.15 * error)


@pytest.mark.parametrize(("sign", "verdict"), [(1, "above random"), (-1, "below random")])
def test_verdicts_follow_the_interval(sign: int, verdict: str) -> None:
    falls = Falls(np.full(30, 0.2 * sign), np.zeros(30), np.zeros(30, dtype=np.int64), 0)
    assert summarize_falls(falls)["verdict"] == verdict
