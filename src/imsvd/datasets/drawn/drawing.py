"""Shapes and their textures and backgrounds, drawn from analytic distance functions.

Coordinates span -1 to 1 across the image, with y pointing down. A shape's own coordinates are
rotated, centered and divided by its radius, so its outline and texture lie within the unit circle.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

Field = NDArray[np.float32]
"""A value at every pixel of every image, (n, size, size)."""

# The main color and the accent color of its textures.
COLORS: dict[str, tuple[tuple[int, int, int], tuple[int, int, int]]] = {
    "red": ((214, 48, 49), (255, 205, 190)),
    "orange": ((240, 132, 28), (255, 234, 190)),
    "yellow": ((247, 206, 45), (150, 96, 10)),
    "green": ((52, 160, 72), (208, 245, 190)),
    "teal": ((22, 160, 165), (200, 250, 240)),
    "blue": ((44, 98, 214), (196, 222, 255)),
    "purple": ((132, 66, 190), (234, 210, 255)),
    "pink": ((238, 92, 160), (255, 226, 240)),
}
BACKGROUND_COLORS: dict[str, tuple[int, int, int]] = {
    "sand": (226, 208, 178),
    "sky": (178, 204, 226),
    "sage": (176, 196, 168),
    "mauve": (196, 180, 200),
    "slate": (92, 104, 122),
    "charcoal": (56, 54, 60),
}

# Small enough to keep the working arrays of a group in the cache of one core.
_PIXELS_AT_ONCE = 65_536
_SHADOW_SHIFT = (0.05, 0.08)
_SHADOW_SOFTNESS = 0.16
_COLOR_TABLE = np.array(list(COLORS.values()), dtype=np.float32) / 255
_BACKGROUND_TABLE = np.array(list(BACKGROUND_COLORS.values()), dtype=np.float32) / 255


@dataclass(frozen=True)
class Figures:
    """One shape on a background per image; every field is (n,)."""

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
    light: NDArray[np.float64]
    """Brightness of the whole image."""
    texture_contrast: NDArray[np.float64]
    """How far a texture's accent goes from the main color, 1 for the whole way."""
    background_contrast: NDArray[np.float64]
    """Factor of the background's differences in brightness."""

    def __len__(self) -> int:
        return len(self.shape)

    def part(self, start: int, stop: int) -> "Figures":
        """Return consecutive images."""
        return Figures(**{item.name: getattr(self, item.name)[start:stop] for item in fields(self)})


def draw(figures: Figures, size: int) -> NDArray[np.uint8]:
    """Draw one image per figure, uint8 (n, 3, size, size)."""
    images = np.empty((len(figures), 3, size, size), dtype=np.uint8)
    group = max(1, _PIXELS_AT_ONCE // size**2)
    for start in range(0, len(figures), group):
        part = figures.part(start, start + group)
        images[start : start + len(part)] = _draw_group(part, size)
    return images


def _draw_group(figures: Figures, size: int) -> NDArray[np.uint8]:
    x, y = pixel_grid(size)
    softness = one_pixel(figures, size)
    u, v = own_coordinates(figures, x, y)
    distance = outline_distance(figures, u, v)
    shadow = outline_distance(
        figures, *own_coordinates(figures, x - _SHADOW_SHIFT[0], y - _SHADOW_SHIFT[1])
    )

    image = paint_background(figures, x, y)
    image *= (1 - 0.42 * smoothstep(_SHADOW_SOFTNESS, -_SHADOW_SOFTNESS, shadow))[:, None]
    ink = paint_shape(figures, u, v, distance, softness)
    coverage = ramp(-distance, softness)[:, None]
    image += coverage * (ink - image)
    image *= per_image(figures.light)[:, None]
    return np.rint(np.clip(image, 0, 1) * 255).astype(np.uint8)


def pixel_grid(size: int) -> tuple[Field, Field]:
    """Return x (1, 1, size) and y (1, size, 1) of the pixel centers."""
    axis: Field = ((2 * np.arange(size, dtype=np.float32) + 1) / size - 1).astype(np.float32)
    return axis[None, None, :], axis[None, :, None]


def one_pixel(figures: Figures, size: int) -> Field:
    """Return the width of a pixel in every shape's own coordinates, (n, 1, 1)."""
    return np.float32(2 / size) / per_image(figures.radius)


def per_image(values: NDArray[np.float64]) -> Field:
    """Reshape (n,) to (n, 1, 1), which broadcasts over pixels."""
    return values.astype(np.float32)[:, None, None]


def own_coordinates(figures: Figures, x: Field, y: Field) -> tuple[Field, Field]:
    """Convert points (1, size, size) to every shape's own coordinates, (n, size, size) each."""
    radius = per_image(figures.radius)
    cosine = per_image(np.cos(figures.angle)) / radius
    sine = per_image(np.sin(figures.angle)) / radius
    x, y = x - per_image(figures.x), y - per_image(figures.y)
    return cosine * x + sine * y, cosine * y - sine * x


def outline_distance(figures: Figures, u: Field, v: Field) -> Field:
    """Return the signed distance of every point to its shape's outline, (n, size, size)."""
    return _by_kind(figures.shape, _OUTLINES, u, v)


def _by_kind(
    kinds: NDArray[np.int64], functions: dict[str, Callable[..., Field]], *arguments: Field
) -> Field:
    """Apply to every image the function of its kind; arguments (n, size, size) or (n, 1, 1)."""
    result = np.empty(np.broadcast_shapes(*(field.shape for field in arguments)), np.float32)
    for kind in np.unique(kinds):
        chosen = np.flatnonzero(kinds == kind)
        result[chosen] = list(functions.values())[kind](*(field[chosen] for field in arguments))
    return result


def smoothstep(start: float, stop: float, values: Field) -> Field:
    """Rise smoothly from 0 at `start` to 1 at `stop`."""
    t = np.clip((values - np.float32(start)) / np.float32(stop - start), 0, 1)
    return np.asarray(t * t * (3 - 2 * t))


def paint_shape(figures: Figures, u: Field, v: Field, distance: Field, softness: Field) -> Field:
    """Return the color of the shape at every point, (n, 3, size, size), lit from the top left."""
    share = _by_kind(figures.texture, _TEXTURES, u, v, softness, per_image(figures.phase))
    share *= per_image(figures.texture_contrast)
    main, accent = (_COLOR_TABLE[figures.color, part][..., None, None] for part in (0, 1))
    light = 1 - 0.09 * (u + v) + 0.16 * per_image(figures.tint)
    light *= 1 - 0.28 * smoothstep(-0.16, 0.02, distance)  # a darker rim makes the edge look round
    return np.asarray((main + share[:, None] * (accent - main)) * light[:, None])


def paint_background(figures: Figures, x: Field, y: Field) -> Field:
    """Return the color of the background at every point, (n, 3, size, size)."""
    points = np.broadcast_arrays(x, y, per_image(figures.phase))[:2]
    pixel = np.full((len(figures), 1, 1), x[0, 0, 1] - x[0, 0, 0], np.float32)
    variation = (per_image(values) for values in (figures.phase, figures.slope, figures.spread))
    light = _by_kind(figures.background, _BACKGROUNDS, *points, pixel, *variation)
    contrast = per_image(figures.background_contrast)
    light = contrast * light + (1 - contrast)
    color = _BACKGROUND_TABLE[figures.background_color][..., None, None]
    return np.asarray(color * light[:, None], dtype=np.float32)


def ramp(distance: Field, softness: Field) -> Field:
    """Rise linearly from 0 to 1 across an edge at 0, over a width of `softness`."""
    return np.asarray(np.clip(distance / softness + np.float32(0.5), 0, 1))


def _line_wave(values: Field, period: float, softness: Field) -> Field:
    """Alternate between 0 and 1; edges are one pixel soft."""
    triangle = np.abs((values / np.float32(period)) % 1 - 0.5) - 0.25
    return ramp(triangle * np.float32(period), softness)


# Signed distances to the outlines, negative inside and accurate near the edge. Arguments are points
# in the shape's own coordinates, (n, size, size) each; all outlines lie within the unit circle.


def _length(u: Field, v: Field) -> Field:
    return np.sqrt(u * u + v * v)


def _circle(u: Field, v: Field) -> Field:
    return _length(u, v) - np.float32(0.9)


def _square(u: Field, v: Field) -> Field:
    return np.maximum(np.abs(u), np.abs(v)) - np.float32(0.75)


def _triangle(u: Field, v: Field) -> Field:
    side = np.float32(np.sqrt(3) / 2) * np.abs(u) - np.float32(0.5) * v
    return np.maximum(side, v) - np.float32(0.5)


def _star(u: Field, v: Field) -> Field:
    # Fold the plane onto half of the upper arm, then measure from its straight edge.
    sector = np.float32(2 * np.pi / 5)
    angle = np.arctan2(u, -v)
    angle = np.abs(angle - sector * np.rint(angle / sector))
    radius = _length(u, v)
    along, aside = radius * np.cos(angle), radius * np.sin(angle)
    notch_along, notch_aside = 0.44 * np.cos(np.pi / 5), 0.44 * np.sin(np.pi / 5)
    norm = np.hypot(1 - notch_along, notch_aside)
    normal = np.array([notch_aside, 1 - notch_along], dtype=np.float32) / np.float32(norm)
    return np.asarray(normal[0] * (along - np.float32(1)) + normal[1] * aside)


def _cross(u: Field, v: Field) -> Field:
    u, v = np.abs(u), np.abs(v)
    reach, width = np.float32(0.92), np.float32(0.32)
    upright = np.maximum(u - width, v - reach)
    return np.asarray(np.minimum(upright, np.maximum(u - reach, v - width)))


def _ring(u: Field, v: Field) -> Field:
    return np.asarray(np.abs(_length(u, v) - np.float32(0.66)) - np.float32(0.27))


def _heart(u: Field, v: Field) -> Field:
    # After Inigo Quilez: two arcs on a square standing on a corner.
    scale = np.float32(0.62)
    u, v = np.abs(u) * scale, np.float32(0.55) - v * scale
    lobe = _length(u - np.float32(0.25), v - np.float32(0.75)) - np.float32(np.sqrt(2) / 4)
    foot = np.float32(0.5) * np.maximum(u + v, 0)
    flank = np.minimum(_length(u, v - 1), _length(u - foot, v - foot)) * np.sign(u - v)
    return np.asarray(np.where(u + v > 1, lobe, flank) / scale, dtype=np.float32)


def _crescent(u: Field, v: Field) -> Field:
    disc = _length(u, v) - np.float32(0.95)
    bite = np.float32(0.74) - _length(u - np.float32(0.5), v + np.float32(0.12))
    return np.asarray(np.maximum(disc, bite))


_OUTLINES: dict[str, Callable[..., Field]] = {
    "circle": _circle,
    "square": _square,
    "triangle": _triangle,
    "star": _star,
    "cross": _cross,
    "ring": _ring,
    "heart": _heart,
    "crescent": _crescent,
}


# Share of the accent color at every point of a shape's own coordinates, by texture.


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
    # Keeps edges equally soft, in pixels, near the center and far from it.
    arc = softness / (np.float32(2 * np.pi) * np.sqrt(u * u + v * v) + np.float32(0.05))
    return _line_wave(np.asarray(turns, dtype=np.float32), 1 / 5, arc)


def _gradient(u: Field, v: Field, softness: Field, phase: Field) -> Field:  # noqa: ARG001
    return smoothstep(-0.8, 0.8, v + 0.3 * (phase - 0.5))


_TEXTURES: dict[str, Callable[..., Field]] = {
    "solid": _solid,
    "stripes": _stripes,
    "checks": _checks,
    "dots": _dots,
    "rings": _rings,
    "rays": _rays,
    "gradient": _gradient,
}


# Brightness of the background at every point of the image, by kind.


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


_BACKGROUNDS: dict[str, Callable[..., Field]] = {
    "plain": _plain,
    "gradient": _shaded,
    "horizon": _horizon,
    "grid": _grid,
    "spots": _spots,
}

SHAPES, TEXTURES, BACKGROUNDS = tuple(_OUTLINES), tuple(_TEXTURES), tuple(_BACKGROUNDS)
