"""Images of several shapes, with the visible pixels of each known.

A scene depends on (seed, split, index) alone. It shows one to six objects of the classes of
`shapes` on one of its backgrounds, painted back to front so that upper objects hide lower ones. In
some scenes the rearmost object is a group of small shapes of one class, COCO's "crowd".
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from imsvd.datasets.drawn.drawing import (
    BACKGROUND_COLORS,
    BACKGROUNDS,
    COLORS,
    SHAPES,
    TEXTURES,
    Figures,
    one_pixel,
    outline_distance,
    own_coordinates,
    paint_background,
    paint_shape,
    pixel_grid,
    ramp,
    smoothstep,
)

Mask = NDArray[np.bool_]

MIN_SIZE = 64
MAX_OBJECTS = 6
_SPLITS = ("train", "test")

# Lengths in the coordinates of `drawing`: the image spans -1 to 1.
_RADII = (0.13, 0.5)
_CROWD_REACH = 0.36
_CROWD_RADII = (0.08, 0.12)
_CROWD_MEMBERS = (6, 10)
_CROWD_SHARE = 0.15
_MAX_ANGLE = np.deg2rad(30)
_MAX_OFFSET = 0.88
# Minimum distance of two centers, as a share of the sum of their radii; given up after some tries.
_SPACING = 0.45
_TRIES = 8
# Relative to the radius, so that small objects do not seem to float.
_SHADOW_SHIFT = (0.1, 0.16)
_SHADOW_SOFTNESS = 0.16
# Below these, the class cannot be recognized and the object is not annotated.
_MIN_VISIBLE_PIXELS = 16
_MIN_VISIBLE_SHARE = 0.05


@dataclass(frozen=True)
class SceneObject:
    """One annotated object of a scene.

    Attributes:
        category: its number in `SHAPES`.
        mask: (size, size), its visible pixels.
        visible_share: share of its pixels not hidden by other objects, 0 to 1.
        truncated: whether it touches the border of the image.
        crowd: whether it is a group of shapes rather than one.
    """

    category: int
    mask: Mask
    visible_share: float
    truncated: bool
    crowd: bool


@dataclass(frozen=True)
class Scene:
    """An image, uint8 (3, size, size) RGB, and the objects in it, rearmost first."""

    image: NDArray[np.uint8]
    objects: tuple[SceneObject, ...]


class _Place(NamedTuple):
    x: float
    y: float
    radius: float


class _Random:
    """Random choices that depend on a key alone.

    All derive from raw bits, the only output of NumPy's generators that is guaranteed never to
    change.
    """

    def __init__(self, *key: int) -> None:
        self._bits = np.random.PCG64(np.random.SeedSequence(key))

    def share(self) -> float:
        """Return a number in [0, 1)."""
        return float(int(self._bits.random_raw()) >> 11) * 2.0**-53

    def between(self, low: float, high: float) -> float:
        """Return a number in [low, high)."""
        return low + (high - low) * self.share()

    def below(self, count: int) -> int:
        """Return an integer from 0 to count - 1."""
        return int(self.share() * count)


def draw_scene(split: str, index: int, size: int = 128, seed: int = 0) -> Scene:
    """Draw scene `index` of `split` ("train" or "test"), `size` pixels wide."""
    if size < MIN_SIZE:
        raise ValueError(f"scenes must be at least {MIN_SIZE} px wide, not {size}")
    random = _Random(seed, _SPLITS.index(split), index)
    pieces, owners, crowd = _sample_pieces(random)
    image, masks = _paint(pieces, size)
    objects = []
    above = np.zeros((size, size), dtype=np.bool_)
    for owner in range(int(owners[-1]), -1, -1):
        members = np.flatnonzero(owners == owner)
        whole = np.asarray(masks[members].any(axis=0))
        category = int(pieces.shape[members[0]])
        objects.append(_describe(category, whole, above, crowd=crowd and owner == 0))
        above |= whole
    kept = (item for item in reversed(objects) if _is_recognizable(item))
    return Scene(image, tuple(kept))


def _describe(category: int, whole: Mask, above: Mask, *, crowd: bool) -> SceneObject:
    """Describe an object (size, size) given the pixels `above` that hide it."""
    visible = whole & ~above
    border = (visible[0], visible[-1], visible[:, 0], visible[:, -1])
    return SceneObject(
        category=category,
        mask=visible,
        visible_share=float(visible.sum() / max(1, whole.sum())),
        truncated=any(bool(side.any()) for side in border),
        crowd=crowd,
    )


def _is_recognizable(item: SceneObject) -> bool:
    enough = int(item.mask.sum()) >= _MIN_VISIBLE_PIXELS
    return enough and item.visible_share >= _MIN_VISIBLE_SHARE


def _sample_pieces(random: _Random) -> tuple[Figures, NDArray[np.int64], bool]:
    """Draw the shapes of a scene, back to front, their objects, and whether object 0 is a crowd."""
    num_objects = 1 + random.below(MAX_OBJECTS)
    crowd = random.share() < _CROWD_SHARE
    background = _sample_background(random)
    pieces: list[dict[str, Any]] = []
    owners: list[int] = []
    taken: list[_Place] = []
    for owner in range(num_objects):
        category = random.below(len(SHAPES))
        in_group = crowd and owner == 0
        radius = _CROWD_REACH if in_group else _sample_radius(random)
        place = _find_place(random, radius, taken)
        taken.append(place)
        for part in _sample_members(random, place) if in_group else [place]:
            pieces.append(background | _sample_look(random) | {"shape": category} | part._asdict())
            owners.append(owner)
    columns = {name: np.array([piece[name] for piece in pieces]) for name in pieces[0]}
    return Figures(**columns), np.array(owners), crowd


def _sample_radius(random: _Random) -> float:
    """Draw a radius, uniform on a logarithmic scale."""
    low, high = _RADII
    return float(low * (high / low) ** random.share())


def _find_place(random: _Random, radius: float, taken: Sequence[_Place]) -> _Place:
    """Return the first of a few random places that hides little of the others, else the last."""
    place = _Place(0, 0, radius)
    for _ in range(_TRIES):
        x, y = (random.between(-_MAX_OFFSET, _MAX_OFFSET) for _ in range(2))
        place = _Place(x, y, radius)
        if all(
            np.hypot(x - other.x, y - other.y) > _SPACING * (radius + other.radius)
            for other in taken
        ):
            break
    return place


def _sample_members(random: _Random, group: _Place) -> list[_Place]:
    """Place the members of a crowd like the seeds of a sunflower, so that they touch."""
    count = _CROWD_MEMBERS[0] + random.below(1 + _CROWD_MEMBERS[1] - _CROWD_MEMBERS[0])
    turn = random.between(0, 2 * np.pi)
    members = []
    for number in range(count):
        reach = 0.8 * group.radius * np.sqrt((number + 0.5) / count)
        angle = turn + number * np.pi * (3 - np.sqrt(5))
        x, y = group.x + reach * np.cos(angle), group.y + reach * np.sin(angle)
        members.append(_Place(float(x), float(y), random.between(*_CROWD_RADII)))
    return members


def _sample_background(random: _Random) -> dict[str, Any]:
    return {
        "background": random.below(len(BACKGROUNDS)),
        "background_color": random.below(len(BACKGROUND_COLORS)),
        "slope": random.share(),
        "spread": random.share(),
        "light": 1.0,
        "texture_contrast": 1.0,
        "background_contrast": 1.0,
    }


def _sample_look(random: _Random) -> dict[str, Any]:
    return {
        "texture": random.below(len(TEXTURES)),
        "color": random.below(len(COLORS)),
        "angle": random.between(-_MAX_ANGLE, _MAX_ANGLE),
        "phase": random.share(),
        "tint": random.share() - 0.5,
    }


def _paint(pieces: Figures, size: int) -> tuple[NDArray[np.uint8], Mask]:
    """Return the image (3, size, size) of n `pieces` and the mask of each, (n, size, size)."""
    x, y = pixel_grid(size)
    softness = one_pixel(pieces, size)
    u, v = own_coordinates(pieces, x, y)
    distance = outline_distance(pieces, u, v)
    shifted = outline_distance(pieces, u - _SHADOW_SHIFT[0], v - _SHADOW_SHIFT[1])
    shadow = smoothstep(_SHADOW_SOFTNESS, -_SHADOW_SOFTNESS, shifted)
    ink = paint_shape(pieces, u, v, distance, softness)
    coverage = ramp(-distance, softness)
    image = paint_background(pieces.part(0, 1), x, y)[0]
    for layer in range(len(pieces)):
        image *= 1 - 0.42 * shadow[layer]
        image += coverage[layer] * (ink[layer] - image)
    return np.rint(np.clip(image, 0, 1) * 255).astype(np.uint8), coverage > 0.5
