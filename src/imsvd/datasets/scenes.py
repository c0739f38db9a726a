"""Pictures of several shapes at once, with the visible part of each known pixel by pixel.

A scene follows from (seed, split, index) alone. It holds one to six objects of the classes of
`shapes` on one of its backgrounds, painted from back to front with what lies above hiding what
lies below. Now and then the hindmost object is a group of small shapes of one class, too many to
mark one by one: COCO's crowd.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from imsvd.datasets.drawing import (
    Field,
    Scenes,
    by_kind,
    own_coordinates,
    paint_background,
    paint_shape,
    per_picture,
    ramp,
    smoothstep,
)
from imsvd.datasets.outlines import OUTLINES
from imsvd.datasets.palette import BACKGROUND_COLORS, BACKGROUNDS, COLORS, SHAPES, TEXTURES

Mask = NDArray[np.bool_]

MIN_SIZE = 64
MAX_OBJECTS = 6
_SPLITS = ("train", "test")

# Lengths where the picture spans -1 to 1, as in `drawing`.
_RADII = (0.13, 0.5)
_CROWD_REACH = 0.36
_CROWD_RADII = (0.08, 0.12)
_CROWD_MEMBERS = (6, 10)
_CROWD_SHARE = 0.15
_MAX_ANGLE = np.deg2rad(30)
_MAX_OFFSET = 0.88
# Centers keep this share of the sum of both radii between them where a few tries allow it.
_SPACING = 0.45
_TRIES = 8
# Relative to the radius, so that small things do not seem to float.
_SHADOW_SHIFT = (0.1, 0.16)
_SHADOW_SOFTNESS = 0.16
# Of less than this nobody could tell the class, and nobody would have marked it.
_MIN_VISIBLE_PIXELS = 16
_MIN_VISIBLE_SHARE = 0.05


@dataclass(frozen=True)
class SceneObject:
    """One thing to find in a scene.

    Attributes:
        category: its number in `SHAPES`.
        mask: (size, size), the pixels where it can be seen.
        visible_share: how much of it other objects leave in sight, 0 to 1.
        truncated: whether it reaches the border of the picture.
        crowd: whether it is a group of things rather than one.
    """

    category: int
    mask: Mask
    visible_share: float
    truncated: bool
    crowd: bool


@dataclass(frozen=True)
class Scene:
    """A picture, uint8 (3, size, size) RGB, and the objects in it, hindmost first."""

    picture: NDArray[np.uint8]
    objects: tuple[SceneObject, ...]


class _Place(NamedTuple):
    x: float
    y: float
    radius: float


class _Random:
    """Choices that follow from a key alone.

    Everything comes from uniform numbers: of NumPy's generators, only their bits are promised to
    stay the same for ever.
    """

    def __init__(self, *key: int) -> None:
        self._bits = np.random.PCG64(np.random.SeedSequence(key))

    def share(self) -> float:
        """A number in [0, 1)."""
        return float(int(self._bits.random_raw()) >> 11) * 2.0**-53

    def between(self, low: float, high: float) -> float:
        """A number in [low, high)."""
        return low + (high - low) * self.share()

    def below(self, count: int) -> int:
        """A whole number from 0 to count - 1."""
        return int(self.share() * count)


def draw_scene(split: str, index: int, size: int = 128, seed: int = 0) -> Scene:
    """Draw scene `index` of `split` ("train" or "test"), `size` pixels wide."""
    if size < MIN_SIZE:
        raise ValueError(f"scenes are drawn at {MIN_SIZE} px or more, not {size}")
    random = _Random(seed, _SPLITS.index(split), index)
    pieces, owners, crowd = _sample_pieces(random)
    picture, masks = _paint(pieces, size)
    objects = []
    above = np.zeros((size, size), dtype=np.bool_)
    for owner in range(int(owners[-1]), -1, -1):
        members = np.flatnonzero(owners == owner)
        whole = np.asarray(masks[members].any(axis=0))
        category = int(pieces.shape[members[0]])
        objects.append(_describe(category, whole, above, crowd=crowd and owner == 0))
        above |= whole
    kept = (item for item in reversed(objects) if _is_recognizable(item))
    return Scene(picture, tuple(kept))


def _describe(category: int, whole: Mask, above: Mask, *, crowd: bool) -> SceneObject:
    """What remains of an object (size, size) under the pixels `above` it."""
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


def _sample_pieces(random: _Random) -> tuple[Scenes, NDArray[np.int64], bool]:
    """The shapes of a scene from back to front, the object each belongs to, whether 0 is a crowd."""
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
    return Scenes(**columns), np.array(owners), crowd


def _sample_radius(random: _Random) -> float:
    """Small things are as frequent as large ones on a scale of ratios."""
    low, high = _RADII
    return float(low * (high / low) ** random.share())


def _find_place(random: _Random, radius: float, taken: Sequence[_Place]) -> _Place:
    """The first of a few random places that leaves the others mostly in sight, else the last."""
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
    """The places of a crowd's members: spread like the seeds of a sunflower, so that they touch."""
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
    }


def _sample_look(random: _Random) -> dict[str, Any]:
    return {
        "texture": random.below(len(TEXTURES)),
        "color": random.below(len(COLORS)),
        "angle": random.between(-_MAX_ANGLE, _MAX_ANGLE),
        "phase": random.share(),
        "tint": random.share() - 0.5,
    }


def _paint(pieces: Scenes, size: int) -> tuple[NDArray[np.uint8], Mask]:
    """The picture (3, size, size) of `pieces`, and where each of the n lies, (n, size, size)."""
    axis: Field = ((2 * np.arange(size, dtype=np.float32) + 1) / size - 1).astype(np.float32)
    x, y = axis[None, None, :], axis[None, :, None]
    softness = np.float32(2 / size) / per_picture(pieces.radius)
    outlines = [OUTLINES[name] for name in SHAPES]
    u, v = own_coordinates(pieces, x, y)
    distance = by_kind(pieces.shape, outlines, u, v)
    shifted = by_kind(pieces.shape, outlines, u - _SHADOW_SHIFT[0], v - _SHADOW_SHIFT[1])
    shadow = smoothstep(_SHADOW_SOFTNESS, -_SHADOW_SOFTNESS, shifted)
    ink = paint_shape(pieces, u, v, distance, softness)
    coverage = ramp(-distance, softness)
    picture = paint_background(pieces.part(0, 1), x, y)[0]
    for layer in range(len(pieces)):
        picture *= 1 - 0.42 * shadow[layer]
        picture += coverage[layer] * (ink[layer] - picture)
    return np.rint(np.clip(picture, 0, 1) * 255).astype(np.uint8), coverage > 0.5
