"""Every shape and texture that scenes are drawn with, alone on a plain background."""

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from imsvd.datasets.drawn.drawing import BACKGROUNDS, SHAPES, TEXTURES, Figures, draw


def figures(count: int, **given: NDArray[np.int64]) -> Figures:
    """Return solid circles in the middle, upright, that differ in their variation alone."""
    random = np.random.default_rng(0)
    kinds = ("shape", "texture", "color", "background", "background_color")
    values: dict[str, NDArray[Any]] = {item.name: np.zeros(count) for item in fields(Figures)}
    values |= {name: np.zeros(count, np.int64) for name in kinds}
    values |= {name: random.uniform(size=count) for name in ("phase", "slope", "spread")}
    for name in ("light", "texture_contrast", "background_contrast"):
        values[name] = np.ones(count)
    values["radius"] = np.full(count, 0.67)
    values |= {"background": np.full(count, BACKGROUNDS.index("plain"))} | given
    return Figures(**values)


def drawn(**kind: int) -> NDArray[np.float64]:
    """Draw twenty images of a kind, (20, 3, 32, 32)."""
    given = {name: np.full(20, value) for name, value in kind.items()}
    return draw(figures(20, **given), 32).astype(np.float64)


def test_textures_differ_in_how_much_they_vary() -> None:
    square = SHAPES.index("square")
    spread = {
        name: drawn(shape=square, texture=number)[:, :, 12:20, 12:20].std((2, 3)).mean()
        for number, name in enumerate(TEXTURES)
    }
    assert all(spread[name] > 2 * spread["solid"] for name in TEXTURES if name != "solid")


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_differs_from_every_other(shape: str) -> None:
    outlines = {name: drawn(shape=number).mean((0, 1)) for number, name in enumerate(SHAPES)}
    own = outlines.pop(shape)
    assert min(np.abs(own - other).mean() for other in outlines.values()) > 2


def test_light_and_contrast_change_what_they_say() -> None:
    striped = figures(20, texture=np.full(20, TEXTURES.index("stripes")))
    grid = replace(striped, background=np.full(20, BACKGROUNDS.index("grid")))
    images = draw(grid, 32).astype(np.float64)
    dim, dimmer = (draw(replace(grid, light=np.full(20, light)), 32) for light in (0.8, 0.4))
    assert np.abs(dimmer - dim / 2).max() <= 1
    plain = draw(replace(grid, texture_contrast=np.zeros(20)), 32)
    assert (
        plain[:, :, 12:20, 12:20].std((2, 3)).mean() < images[:, :, 12:20, 12:20].std((2, 3)).mean()
    )
    flat = draw(replace(grid, background_contrast=np.zeros(20)), 32)
    assert flat[:, :, :4, :4].std((2, 3)).max() == 0 < images[:, :, :4, :4].std((2, 3)).max()
