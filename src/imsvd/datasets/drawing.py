"""Pictures of textured shapes from analytic distance functions, a batch at a time.

Coordinates span -1 to 1 over the picture, y downwards. A shape's own coordinates are turned,
centered and divided by its radius, so that its outline and its texture lie within the unit circle.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from imsvd.datasets.outlines import OUTLINES
from imsvd.datasets.palette import BACKGROUND_COLORS, BACKGROUNDS, COLORS, SHAPES, TEXTURES

Field = NDArray[np.float32]

# Small enough for the working arrays of a group to stay in a core's cache.
_PIXELS_AT_ONCE = 65_536
_SHADOW_SHIFT = (0.05, 0.08)
_SHADOW_SOFTNESS = 0.16
_COLOR_TABLE = np.array(list(COLORS.values()), dtype=np.float32) / 255
_BACKGROUND_TABLE = np.array(list(BACKGROUND_COLORS.values()), dtype=np.float32) / 255


@dataclass(frozen=True)
class Scenes:
    """What to draw, one entry per picture in every field, (n,)."""

    shape: NDArray[np.int64]
    texture: NDArray[np.int64]
    color: NDArray[np.int64]
    background: NDArray[np.int64]
    background_color: NDArray[np.int64]
    radius: NDArray[np.float64]
    x: NDArray[np.float64]
    y: NDArray[np.float64]
    angle: NDArray[np.float64]
    phase: NDArray[np.float64]
    tint: NDArray[np.float64]
    slope: NDArray[np.float64]
    spread: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.shape)

    def part(self, start: int, stop: int) -> "Scenes":
        """Some consecutive pictures."""
        return Scenes(**{item.name: getattr(self, item.name)[start:stop] for item in fields(self)})


def draw(scenes: Scenes, size: int) -> NDArray[np.uint8]:
    """Draw every scene, uint8 (n, 3, size, size)."""
    images = np.empty((len(scenes), 3, size, size), dtype=np.uint8)
    group = max(1, _PIXELS_AT_ONCE // size**2)
    for start in range(0, len(scenes), group):
        part = scenes.part(start, start + group)
        images[start : start + len(part)] = _draw_group(part, size)
    return images


def _draw_group(scenes: Scenes, size: int) -> NDArray[np.uint8]:
    axis = ((2 * np.arange(size, dtype=np.float32) + 1) / size - 1).astype(np.float32)
    x, y = axis[None, None, :], axis[None, :, None]
    radius = per_picture(scenes.radius)
    softness = np.float32(2 / size) / radius  # one pixel, in the shape's own coordinates

    u, v = own_coordinates(scenes, x, y)
    distance = by_kind(scenes.shape, [OUTLINES[name] for name in SHAPES], u, v)
    shadow_u, shadow_v = own_coordinates(scenes, x - _SHADOW_SHIFT[0], y - _SHADOW_SHIFT[1])
    shadow = by_kind(scenes.shape, [OUTLINES[name] for name in SHAPES], shadow_u, shadow_v)

    picture = paint_background(scenes, x, y)
    picture *= (1 - 0.42 * smoothstep(_SHADOW_SOFTNESS, -_SHADOW_SOFTNESS, shadow))[:, None]
    ink = paint_shape(scenes, u, v, distance, softness)
    coverage = ramp(-distance, softness)[:, None]
    picture += coverage * (ink - picture)
    return np.rint(np.clip(picture, 0, 1) * 255).astype(np.uint8)


def per_picture(values: NDArray[np.float64]) -> Field:
    """(n,) to (n, 1, 1), which spreads over pixels."""
    return values.astype(np.float32)[:, None, None]


def own_coordinates(scenes: Scenes, x: Field, y: Field) -> tuple[Field, Field]:
    """Points (1, size, size) in every shape's own coordinates, each (n, size, size)."""
    radius = per_picture(scenes.radius)
    cosine = per_picture(np.cos(scenes.angle)) / radius
    sine = per_picture(np.sin(scenes.angle)) / radius
    x, y = x - per_picture(scenes.x), y - per_picture(scenes.y)
    return cosine * x + sine * y, cosine * y - sine * x


def by_kind(
    kinds: NDArray[np.int64], functions: list[Callable[..., Field]], *arguments: Field
) -> Field:
    """Apply to every picture the function of its kind; all (n, size, size) or (n, 1, 1)."""
    result = np.empty(np.broadcast_shapes(*(field.shape for field in arguments)), np.float32)
    for kind in np.unique(kinds):
        chosen = np.flatnonzero(kinds == kind)
        result[chosen] = functions[kind](*(field[chosen] for field in arguments))
    return result


def smoothstep(start: float, stop: float, values: Field) -> Field:
    """Rise smoothly from 0 at `start` to 1 at `stop`."""
    t = np.clip((values - np.float32(start)) / np.float32(stop - start), 0, 1)
    return np.asarray(t * t * (3 - 2 * t))


def paint_shape(scenes: Scenes, u: Field, v: Field, distance: Field, softness: Field) -> Field:
    """Color of the shape at every point, (n, 3, size, size), lit from the upper left."""
    functions = [_TEXTURE_FUNCTIONS[name] for name in TEXTURES]
    share = by_kind(scenes.texture, functions, u, v, softness, per_picture(scenes.phase))
    main, accent = (_COLOR_TABLE[scenes.color, part][..., None, None] for part in (0, 1))
    light = 1 - 0.09 * (u + v) + 0.16 * per_picture(scenes.tint)
    light *= 1 - 0.28 * smoothstep(-0.16, 0.02, distance)  # a darker rim rounds the edge
    return np.asarray((main + share[:, None] * (accent - main)) * light[:, None])


def paint_background(scenes: Scenes, x: Field, y: Field) -> Field:
    """Color of the background at every point, (n, 3, size, size)."""
    functions = [_BACKGROUND_FUNCTIONS[name] for name in BACKGROUNDS]
    points = np.broadcast_arrays(x, y, per_picture(scenes.phase))[:2]
    pixel = np.full((len(scenes), 1, 1), x[0, 0, 1] - x[0, 0, 0], np.float32)
    variation = (per_picture(values) for values in (scenes.phase, scenes.slope, scenes.spread))
    light = by_kind(scenes.background, functions, *points, pixel, *variation)
    color = _BACKGROUND_TABLE[scenes.background_color][..., None, None]
    return np.asarray(color * light[:, None], dtype=np.float32)


def ramp(distance: Field, softness: Field) -> Field:
    """0 below an edge, 1 above it, linear over `softness` between."""
    return np.asarray(np.clip(distance / softness + np.float32(0.5), 0, 1))


def _line_wave(values: Field, period: float, softness: Field) -> Field:
    """Alternate 0 and 1 with straight edges one pixel soft."""
    triangle = np.abs((values / np.float32(period)) % 1 - 0.5) - 0.25
    return ramp(triangle * np.float32(period), softness)


def _solid(u: Field, v: Field, softness: Field, phase: Field) -> Field:  # noqa: ARG001
    return np.zeros_like(u)


def _stripes(u: Field, v: Field, softness: Field, phase: Field) -> Field:  # noqa: ARG001
    return _line_wave(u + phase, 0.62, softness)


def _checks(u: Field, v: Field, softness: Field, phase: Field) -> Field:
    across, down = _line_wave(u + phase, 0.9, softness), _line_wave(v + 2 * phase, 0.9, softness)
    return across + down - 2 * across * down


def _dots(u: Field, v: Field, softness: Field, phase: Field) -> Field:
    row = np.floor(v / np.float32(0.5) + phase)
    du = (u / np.float32(0.58) + 0.5 * (row % 2) + phase) % 1 - 0.5
    dv = (v / np.float32(0.5) + phase) % 1 - 0.5
    distance = np.sqrt((0.58 * du) ** 2 + (0.5 * dv) ** 2) - np.float32(0.16)
    return ramp(-distance, softness)


def _rings(u: Field, v: Field, softness: Field, phase: Field) -> Field:
    return _line_wave(np.sqrt(u * u + v * v) + 0.3 * phase, 0.56, softness)


def _rays(u: Field, v: Field, softness: Field, phase: Field) -> Field:
    turns = np.arctan2(v, u) / np.float32(2 * np.pi) + phase
    # The edges are as soft in pixels near the center, where the rays meet, as far from it.
    arc = softness / (np.float32(2 * np.pi) * np.sqrt(u * u + v * v) + np.float32(0.05))
    return _line_wave(np.asarray(turns, dtype=np.float32), 1 / 5, arc)


def _gradient(u: Field, v: Field, softness: Field, phase: Field) -> Field:  # noqa: ARG001
    return smoothstep(-0.8, 0.8, v + 0.3 * (phase - 0.5))


_TEXTURE_FUNCTIONS: dict[str, Callable[..., Field]] = {
    "solid": _solid,
    "stripes": _stripes,
    "checks": _checks,
    "dots": _dots,
    "rings": _rings,
    "rays": _rays,
    "gradient": _gradient,
}


def _plain(x: Field, y: Field, pixel: Field, phase: Field, slope: Field, spread: Field) -> Field:  # noqa: ARG001
    return np.ones_like(x) * (0.94 + 0.12 * spread)


def _shaded(x: Field, y: Field, pixel: Field, phase: Field, slope: Field, spread: Field) -> Field:  # noqa: ARG001
    direction = np.float32(2 * np.pi) * slope
    return np.asarray(1 + (0.16 + 0.08 * spread) * (np.cos(direction) * x + np.sin(direction) * y))


def _horizon(x: Field, y: Field, pixel: Field, phase: Field, slope: Field, spread: Field) -> Field:
    below = y - 0.3 * (slope - 0.5) * x - 0.7 * (phase - 0.5)
    return 1.08 - (0.28 + 0.08 * spread) * ramp(below, pixel)


def _grid(x: Field, y: Field, pixel: Field, phase: Field, slope: Field, spread: Field) -> Field:
    period = 0.36 + 0.1 * spread
    across = np.abs((x / period + phase) % 1 - 0.5) * period
    down = np.abs((y / period + slope) % 1 - 0.5) * period
    line = np.minimum(across, down) - np.float32(0.026)
    return 1.04 - 0.2 * ramp(-line, pixel)


def _spots(x: Field, y: Field, pixel: Field, phase: Field, slope: Field, spread: Field) -> Field:
    period = 0.42 + 0.12 * spread
    du, dv = (x / period + phase) % 1 - 0.5, (y / period + slope) % 1 - 0.5
    distance = np.sqrt(du * du + dv * dv) * period - 0.28 * period
    return 0.97 + 0.17 * ramp(-distance, pixel)


_BACKGROUND_FUNCTIONS: dict[str, Callable[..., Field]] = {
    "plain": _plain,
    "gradient": _shaded,
    "horizon": _horizon,
    "grid": _grid,
    "spots": _spots,
}
