import numpy as np
import pytest

from imsvd.datasets.drawn.drawing import SHAPES
from imsvd.datasets.drawn.masks import bounding_box
from imsvd.datasets.drawn.scenes import MAX_OBJECTS, Scene, draw_scene

FIRST = [
    ["cross", "square", "cross", "ring"],
    ["circle", "square", "ring"],
    ["ring", "crescent", "circle", "star"],
]


@pytest.fixture(scope="module")
def scenes() -> list[Scene]:
    return [draw_scene("train", index, 64) for index in range(120)]


def test_a_scene_follows_from_its_key_alone(scenes: list[Scene]) -> None:
    again = draw_scene("train", 7, 64)
    assert (again.image == scenes[7].image).all()
    assert [item.category for item in again.objects] == [
        item.category for item in scenes[7].objects
    ]
    for other in (draw_scene("test", 7, 64), draw_scene("train", 7, 64, seed=1), scenes[8]):
        assert (other.image != again.image).any()


def test_the_first_scenes_stay_what_they_are(scenes: list[Scene]) -> None:
    found = [[SHAPES[item.category] for item in scene.objects] for scene in scenes[:3]]
    assert found == FIRST


def test_the_size_changes_the_pixels_only() -> None:
    small, large = draw_scene("train", 0, 64), draw_scene("train", 0, 128)
    assert large.image.shape == (3, 128, 128)
    for one, other in zip(small.objects, large.objects, strict=True):
        assert one.category == other.category
        assert other.mask.mean() == pytest.approx(one.mask.mean(), rel=0.15)


def test_objects_are_counted_and_of_every_class(scenes: list[Scene]) -> None:
    counts = [len(scene.objects) for scene in scenes]
    assert set(counts) == set(range(1, MAX_OBJECTS + 1))
    assert {item.category for scene in scenes for item in scene.objects} == set(range(len(SHAPES)))


def test_no_pixel_belongs_to_two_objects(scenes: list[Scene]) -> None:
    for scene in scenes:
        assert np.sum([item.mask for item in scene.objects], axis=0).max() == 1


def test_some_are_hidden_in_part_and_the_foremost_never(scenes: list[Scene]) -> None:
    shares = [item.visible_share for scene in scenes for item in scene.objects]
    assert min(shares) < 0.5
    assert all(scene.objects[-1].visible_share == 1 for scene in scenes)
    assert all(0.05 <= share <= 1 for share in shares)


def test_truncated_objects_touch_the_border(scenes: list[Scene]) -> None:
    found = {True: 0, False: 0}
    for scene in scenes:
        for item in scene.objects:
            box = bounding_box(item.mask)
            touches = box.left == 0 or box.top == 0 or box.right == 64 or box.bottom == 64
            assert item.truncated == touches
            found[touches] += 1
    assert min(found.values()) > 20


def test_crowds_come_hindmost_and_now_and_then(scenes: list[Scene]) -> None:
    crowds = [scene for scene in scenes if any(item.crowd for item in scene.objects)]
    assert 0.05 < len(crowds) / len(scenes) < 0.3
    for scene in crowds:
        assert [item.crowd for item in scene.objects] == [True] + [False] * (len(scene.objects) - 1)


def test_the_edges_of_masks_are_edges_of_the_picture(scenes: list[Scene]) -> None:
    on, off = [], []
    for scene in scenes[:30]:
        step = np.abs(np.diff(scene.image.astype(int), axis=2)).sum(axis=0)
        edge = np.zeros_like(step, dtype=bool)
        for item in scene.objects:
            edge |= item.mask[:, 1:] != item.mask[:, :-1]
        on.append(step[edge])
        off.append(step[~edge])
    assert np.concatenate(on).mean() > 5 * np.concatenate(off).mean()


def test_pictures_too_small_to_see_anything_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 64 px wide, not 32"):
        draw_scene("train", 0, 32)
