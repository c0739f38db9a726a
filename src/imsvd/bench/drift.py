"""`imsvd bench drift`: false alarms of `imsvd drift` and its power, against MMD on features.

Two sets of equal size are drawn from the same images, without overlap, again and again. The second set
stays as it is, loses one class, or is blurred or given a color cast. MMD is the usual two-sample test:
a Gaussian kernel on the features, its width the median distance, and the same number of permutations.

A found shift must also be named. For a blur, fewer images are in the highest quarter of sharpness; for a
color cast toward red, more images are in the highest quarter of warmth; for a lost class, the images
typical of the first set are of that class.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from torch import Tensor
from torchvision.transforms import functional as transforms

from imsvd.bench.comparison import Row, show_tables, write_tables
from imsvd.datasets import ImageSource, open_source
from imsvd.datasets.sources import Subset
from imsvd.encoder import Encoder, encoding_device, open_encoder
from imsvd.errors import InputError
from imsvd.evaluation.features import encode_source
from imsvd.information import codes
from imsvd.population import Drift, ImageSet, measure_drift
from imsvd.population.appearance import appearance
from imsvd.progress import progress_bar
from imsvd.provenance import environment

PERMUTATIONS = 199
LEVEL = 0.05
_TITLE = "Alarms at a level of 5 %, {images:,} images in each set"

Shift = Callable[[Tensor], Tensor]
"""Changes an image, uint8 (3, height, width)."""


class Encoded(NamedTuple):
    """Images as each test sees them."""

    features: NDArray[np.float32]
    codes: NDArray[np.uint16]
    appearance: NDArray[np.float32]

    def at(self, images: NDArray[np.int64]) -> Encoded:
        """Return some of the images."""
        return Encoded(self.features[images], self.codes[images], self.appearance[images])


class _Shifted(ImageSource):
    """Images of another source, changed when they are read."""

    def __init__(self, source: ImageSource, shift: Shift) -> None:
        self.source, self.shift = source, shift

    def __len__(self) -> int:
        return len(self.source)

    def read(self, index: int) -> Tensor:
        return self.shift(self.source.read(index))

    def identity(self, index: int) -> str:
        return self.source.identity(index)

    def fingerprint(self) -> str:
        return self.source.fingerprint()


def blurred(sigma: float) -> Shift:
    """Return a Gaussian blur of `sigma` pixels."""
    size = 2 * int(np.ceil(3 * sigma)) + 1
    return lambda image: transforms.gaussian_blur(image, [size, size], [sigma, sigma])


def reddened(strength: float) -> Shift:
    """Return a color cast: red times 1 + strength, blue times 1 - strength."""
    factors = torch.tensor([1 + strength, 1, 1 - strength]).view(3, 1, 1)
    return lambda image: (image * factors).clamp(0, 255).to(torch.uint8)


def mmd_p_value(
    first: NDArray[np.float32], second: NDArray[np.float32], permutations: int, seed: int
) -> float:
    """Return the p-value of the kernel two-sample test (Gretton et al., 2012)."""
    pooled, n = np.concatenate([first, second]).astype(np.float64), len(first)
    squares = (pooled**2).sum(axis=1)
    distances = np.maximum(squares[:, None] + squares - 2 * pooled @ pooled.T, 0)
    kernel = np.exp(-distances / np.median(distances[np.triu_indices(len(pooled), 1)]))
    # The diagonal is the same in all arrangements.
    np.fill_diagonal(kernel, 0)
    signs = np.repeat([1 / n, -1 / len(second)], [n, len(second)])
    arrangements = np.tile(signs, (permutations + 1, 1))
    np.random.default_rng(seed).permuted(arrangements[1:], axis=1, out=arrangements[1:])
    values = ((arrangements @ kernel) * arrangements).sum(axis=1)
    return float((values >= values[0] - 1e-12).mean())


def _encode(encoder: Encoder, source: ImageSource, name: str, console: Console) -> Encoded:
    found = encode_source(encoder, source, name, console, encoding_device())
    if found.skipped:
        raise InputError(f"{found.skipped[0].identity} cannot be read; remove it from the images.")
    device, units = encoder.mean.device, encoder.description.units
    with torch.no_grad():
        q = encoder.projector(found.features.to(device))
    looks = [appearance(source.read(index).numpy()) for index in range(len(source))]
    hard = codes(q, units).cpu().numpy().astype(np.uint16)
    return Encoded(found.features.numpy(), hard, np.stack(looks))


class _Trials:
    """Draws of two sets, and what both tests say about them."""

    def __init__(
        self, encoded: dict[str, Encoded], labels: NDArray[np.int64], units: tuple[int, ...]
    ) -> None:
        self.encoded, self.labels, self.units = encoded, labels, units

    def run(self, shift: str, size: int, seed: int) -> dict[str, float]:
        """Return p-values of one draw, and whether the shift was named."""
        random = np.random.default_rng(seed)
        order = random.permutation(len(self.labels))
        lost = int(random.integers(self.labels.max() + 1)) if shift == "class" else -1
        left = order[size:]
        drawn = left[self.labels[left] != lost][:size]
        first = self.encoded["none"].at(order[:size])
        second = self.encoded.get(shift, self.encoded["none"]).at(drawn)
        drift = measure_drift(
            ImageSet(first.codes, first.appearance),
            ImageSet(second.codes, second.appearance),
            self.units,
            level=LEVEL,
            permutations=PERMUTATIONS,
            seed=seed,
        )
        typical = self.labels[order[:size]][list(drift.typical[0])]
        found = {"drift": drift.p_value, **drift.families}
        found["named"] = float(_named(shift, drift, typical == lost))
        found["mmd"] = mmd_p_value(first.features, second.features, PERMUTATIONS, seed)
        return found


def _named(shift: str, drift: Drift, of_lost_class: NDArray[np.bool_]) -> float:
    """Return 1 if the properties named show the shift; for a class, its share of the typical images."""
    expected = {"blur": ("sharpness", False), "cast": ("warmth", True)}
    if shift not in expected:
        return float(of_lost_class.mean())
    name, more = expected[shift]
    for variable in drift.moved:
        if variable.name == name:
            highest = next(unit for unit in variable.units if "highest" in unit.name)
            return float(highest.gained == more)
    return 0.0


class DriftSettings(NamedTuple):
    """Sizes of the benchmark.

    Attributes:
        images: number of images that sets are drawn from.
        sizes: images of each of the two sets.
        nulls: draws without a shift.
        trials: draws with each shift.
        blur: deviation of the blur in pixels.
        cast: strength of the color cast.
    """

    images: int = 2500
    sizes: tuple[int, ...] = (100, 400)
    nulls: int = 1000
    trials: int = 200
    blur: float = 0.5
    cast: float = 0.1


_DEFAULTS = DriftSettings()


def run(
    run: Path,
    data: str,
    settings: DriftSettings = _DEFAULTS,
    console: Console | None = None,
    output: Path | None = None,
) -> list[Row]:
    """Measure false alarms and power on test images of `data`, encoded by `run`."""
    console = console or Console()
    encoder = open_encoder(run)
    if not encoder.description.units:
        raise InputError(f"{run} has no codes; use a run of IMSVD or of `imsvd discretize`.")
    subset = _chosen(data, settings)
    shifts: dict[str, Shift] = {
        "none": lambda image: image,
        "blur": blurred(settings.blur),
        "cast": reddened(settings.cast),
    }
    encoded = {
        name: _encode(encoder, _Shifted(subset, shift), name, console)
        for name, shift in shifts.items()
    }
    assert subset.labels is not None
    trials = _Trials(encoded, subset.labels.numpy(), encoder.description.units)
    rows = _measure(trials, settings, console)
    tables = {
        _TITLE.format(images=size): _table([row for row in rows if row["size"] == size])
        for size in settings.sizes
    }
    show_tables(tables, console)
    if output is not None:
        facts = environment() | {
            "run": str(run),
            "images": f"{len(subset):,} of {data}",
            "permutations": str(PERMUTATIONS),
        }
        write_tables(output, "Drift", facts, rows, tables)
    return rows


def _chosen(data: str, settings: DriftSettings) -> Subset:
    source = open_source(data, "test")
    if source.labels is None:
        raise InputError(f"{data} has no labels; use folders of classes.")
    chosen = np.linspace(0, len(source) - 1, min(settings.images, len(source))).round().astype(int)
    if 3 * max(settings.sizes) > len(chosen):
        raise InputError(
            f"{len(chosen):,} images are too few for sets of {max(settings.sizes):,}; "
            "lower --sizes or raise --images."
        )
    return Subset(source, chosen.tolist())


def _measure(trials: _Trials, settings: DriftSettings, console: Console) -> list[Row]:
    labels = {
        "none": "no shift",
        "class": "one class missing",
        "blur": f"blur, σ = {settings.blur:g} pixels",
        "cast": f"color cast of {settings.cast:.0%}",
    }
    rows = []
    with progress_bar(console) as bar:
        draws = len(settings.sizes) * (settings.nulls + 3 * settings.trials)
        task = bar.add_task("draws", total=draws)
        for size in settings.sizes:
            for shift, label in labels.items():
                found = []
                for seed in range(settings.nulls if shift == "none" else settings.trials):
                    found.append(trials.run(shift, size, seed))
                    bar.advance(task)
                rows.append(_row(shift, label, size, found))
    return rows


def _row(shift: str, label: str, size: int, found: list[dict[str, float]]) -> Row:
    row: Row = {"shift": shift, "label": label, "size": size, "draws": len(found)}
    for key in ("drift", "codes", "appearance", "mmd"):
        row[key] = float(np.mean([each[key] <= LEVEL for each in found]))
    alarmed = [each["named"] for each in found if each["drift"] <= LEVEL]
    row["named"] = float(np.mean(alarmed)) if alarmed and shift != "none" else None
    return row


def _table(rows: list[Row]) -> list[list[str]]:
    names = [
        "shift",
        "draws",
        "imsvd drift",
        "its codes",
        "its appearance",
        "MMD on features",
        "named",
    ]
    lines = []
    for row in rows:
        named = "" if row["named"] is None else f"{row['named']:.0%}"
        values = [f"{100 * row[key]:.1f} %" for key in ("drift", "codes", "appearance", "mmd")]
        lines.append([row["label"], f"{row['draws']:,}", *values, named])
    return [names, *lines]
