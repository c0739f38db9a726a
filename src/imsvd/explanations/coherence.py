"""Coherence of units: whether the images of a unit look alike and share a label.

Monosemanticity is the mean cosine similarity of all pairs of a unit's images; purity is the share of
its most frequent label. Both are compared with random sets of as many images. Similarity is measured
under the encoder's own features, from which the code was made, and under those of another encoder if
one is given as a judge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from imsvd.code_measures import UnitScores, contingency, monosemanticity, unit_purity, unit_sizes
from imsvd.datasets import ImageSource
from imsvd.explanations.encodings import (
    SAMPLE_IMAGES,
    Encodings,
    EncodingsCollector,
    read_arrays,
    write_arrays,
)
from imsvd.explanations.sections import (
    Findings,
    Html,
    Part,
    Section,
    Tile,
    element,
    join,
    named,
    paragraph,
    percent,
    table,
    write_json,
)
from imsvd.explanations.subject import Collector, Progress, ReadBatch, Subject
from imsvd.figures import CURVE, PALETTE, STYLE, save_figure

JUDGE_NAME = "judge.safetensors"
JUDGE_BATCH = 32
UNITS_SHOWN = 6
"""Units with the most similar images in the report, and as many with the least similar ones."""
IMAGES_SHOWN = 6
FEWEST = 10
"""Units with fewer images are not shown: a few images may be alike by chance."""


class JudgeCollector(Collector):
    """Encodes a sample of the images with the judge; returns their positions and features."""

    sample = SAMPLE_IMAGES
    uses_judge = True
    writes_file = True

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        assert subject.judge is not None
        self._judge = subject.judge.encoder
        # Under its own name, so that a pass with another judge is not resumed.
        self.name = f"judge-{subject.judge.key}"
        width = self._judge.num_features
        self.rows = {
            "images": [np.empty(0, dtype=np.int64)],
            "features": [np.empty((0, width), dtype=np.float16)],
        }

    @classmethod
    def stored(cls, subject: Subject) -> dict[str, NDArray[Any]] | None:
        """Return the features of an earlier pass."""
        return read_arrays(subject.folder / JUDGE_NAME, _judge_key(subject))

    def take(self, batch: ReadBatch) -> None:
        """Encode the images that the judge is to see."""
        if not batch.judge_crops:
            return
        # Few at a time: the judge's images may be much larger than the encoder's.
        for crops in torch.split(torch.stack(list(batch.judge_crops.values())), JUDGE_BATCH):
            images = self._judge.normalize(crops).contiguous(memory_format=torch.channels_last)
            features = F.normalize(self._judge.backbone(images).float(), dim=1)
            self.rows["features"].append(features.half().cpu().numpy())
        self.rows["images"].append(np.array(list(batch.judge_crops)))

    def finish(self) -> dict[str, NDArray[Any]]:
        """Write and return positions and features."""
        found = {name: self.joined(name) for name in self.rows}
        write_arrays(self.subject.folder / JUDGE_NAME, _judge_key(self.subject), found)
        return found


def _judge_key(subject: Subject) -> str:
    return f"{subject.key}-{subject.judge.key}" if subject.judge else subject.key


def coherence(
    encodings: Encodings,
    units: tuple[int, ...],
    source: ImageSource,
    judged: Mapping[str, NDArray[Any]] | None = None,
) -> dict[str, Any]:
    """Measure every unit; return a JSON-ready record.

    Args:
        encodings: codes of all images and features of a sample.
        units: number of units of each variable.
        source: the images, perhaps with labels.
        judged: `images`, positions of a sample, and their `features` under another encoder.
    """
    codes, images = encodings.codes, encodings.images
    rows = encodings.feature_rows
    scores = {"monosemanticity": monosemanticity(codes[rows], encodings.features, units)}
    if judged is not None:
        # An image may have become unreadable between the two passes.
        both = np.isin(judged["images"], images)
        where = np.searchsorted(images, judged["images"][both])
        features = judged["features"][both]
        scores["judged_monosemanticity"] = monosemanticity(codes[where], features, units)
    common = None
    labels = None if source.labels is None else source.labels.numpy()[images]
    if labels is not None and (labels >= 0).any():
        scores["purity"] = unit_purity(codes, labels, units)
        common = _most_common(codes, labels, units)
    sizes = unit_sizes(codes, units)
    listed = [
        {
            "variable": variable,
            "unit": unit,
            "images": int(sizes[place]),
            **_of_unit(scores, place),
            **({} if common is None else {"label": _label(source, int(common[place]))}),
        }
        for place, (variable, unit) in enumerate(_numbers(units))
    ]
    return {
        "images": len(images),
        "sample": len(rows),
        "scores": {name: _overall(found) for name, found in scores.items()},
        "units": listed,
        **_extremes(encodings, scores),
    }


def _most_common(
    codes: NDArray[Any], labels: NDArray[np.int64], units: tuple[int, ...]
) -> NDArray[np.int64]:
    """Return the most frequent label of every unit's images; -1 if there is none."""
    known = labels >= 0
    counts = contingency(codes[known], labels[known, None], units, (int(labels.max()) + 1,))
    return np.where(counts.any(1), counts.argmax(1), -1)


def _label(source: ImageSource, value: int) -> str | None:
    if value < 0:
        return None
    return source.classes[value] if value < len(source.classes) else str(value)


def _numbers(units: tuple[int, ...]) -> list[tuple[int, int]]:
    return [(variable, unit) for variable, size in enumerate(units) for unit in range(size)]


def _of_unit(scores: Mapping[str, UnitScores], place: int) -> dict[str, float | None]:
    found = {}
    for name, each in scores.items():
        found[name] = _finite(each.per_unit[place])
        found[f"{name}_by_chance"] = _finite(each.by_chance[place])
    return found


def _overall(scores: UnitScores) -> dict[str, float | None]:
    return {"mean": _finite(scores.mean), "by_chance": _finite(scores.mean_by_chance)}


def _finite(value: float) -> float | None:
    return round(float(value), 5) if np.isfinite(value) else None


def _extremes(encodings: Encodings, scores: Mapping[str, UnitScores]) -> dict[str, Any]:
    """List the units with the most and the least similar images: their place and best images."""
    ranked = scores.get("judged_monosemanticity", scores["monosemanticity"])
    eligible = np.flatnonzero(ranked.sizes >= FEWEST)
    order = eligible[np.argsort(-ranked.per_unit[eligible], kind="stable")].tolist()
    count = min(UNITS_SHOWN, len(order) // 2)

    def listed(place: int) -> dict[str, Any]:
        top = encodings.top_images[place, :IMAGES_SHOWN]
        return {"place": place, "top": top[top >= 0].tolist()}

    return {
        "most_alike": [listed(place) for place in order[:count]],
        "least_alike": [listed(place) for place in order[::-1][:count]],
    }


def _make(subject: Subject, encodings: Encodings, progress: Progress) -> dict[str, Any]:
    progress(0, 1)
    judged = None if subject.judge is None else JudgeCollector.stored(subject)
    record = coherence(encodings, subject.units, subject.source, judged)
    record["judge"] = None if judged is None or subject.judge is None else subject.judge.name
    draw_coherence(record, subject.folder / "coherence.png")
    write_json(subject, "coherence.json", record)
    progress(1, 1)
    headline = {"judge": record["judge"]} if record["judge"] else {}
    for name, found in record["scores"].items():
        headline |= {name: found["mean"], f"{name}_by_chance": found["by_chance"]}
    return headline


@mpl.rc_context(STYLE)
def draw_coherence(record: Mapping[str, Any], path: Path) -> Path:
    """Draw the similarity and purity of all units in descending order, with random sets."""
    scores, units = record["scores"], record["units"]
    panels = 2 if "purity" in scores else 1
    figure = Figure(figsize=(6 * panels, 3.4), layout="constrained")
    axes: list[Axes] = list(figure.subplots(1, panels, squeeze=False)[0])
    _draw_sorted(axes[0], units, "monosemanticity", CURVE, "own features")
    if record["judge"]:
        _draw_sorted(axes[0], units, "judged_monosemanticity", PALETTE[5], "judge")
    axes[0].set(ylabel="mean similarity of two images", title="Monosemanticity\n")
    if "purity" in scores:
        _draw_sorted(axes[1], units, "purity", CURVE, "units")
        axes[1].set(ylabel="share of the most frequent label", title="Purity\n", ylim=(0, 1.02))
    for axis in axes:
        axis.set(xlabel="units, in descending order")
        axis.legend(frameon=False, fontsize=8, ncols=4, loc="lower left", bbox_to_anchor=(0, 0.99))
    return save_figure(figure, path)


def _draw_sorted(
    axis: Axes, units: Sequence[Mapping[str, Any]], name: str, color: str, title: str
) -> None:
    """Draw a measure of all units, and of random sets of as many images, each in its own order."""
    measured = [unit for unit in units if unit[name] is not None]
    for key, style, label in ((name, ".-", title), (f"{name}_by_chance", "--", "random sets")):
        values = sorted((unit[key] for unit in measured), reverse=True)
        axis.plot(range(1, len(values) + 1), values, style, color=color, markersize=3, label=label)


def _section(findings: Findings) -> Section | None:
    record = findings.record("coherence", "coherence.json")
    if record is None:
        return None
    scores = record["scores"]
    names = {
        "monosemanticity": "monosemanticity, own features",
        "judged_monosemanticity": "monosemanticity, judge's features",
        "purity": "purity",
    }
    rows = [
        (names[name], _number(name, found["mean"]), _number(name, found["by_chance"]))
        for name, found in scores.items()
    ]
    ranked = "the judge's features" if record["judge"] else "the encoder's own features"
    section: Section = [
        _introduction(record),
        table("Means over units, weighted by their images", ("", "units", "random sets"), rows),
        findings.figure(
            "coherence",
            "Curves: monosemanticity"
            + (" and purity" if "purity" in scores else "")
            + " of all units in descending order, and of random sets of as many images.",
        ),
    ]
    for name, title in (("most_alike", "most"), ("least_alike", "least")):
        if record[name]:
            strips = [_strip(findings, record, shown) for shown in record[name]]
            section += [
                element("h3", f"Units whose images are {title} alike"),
                paragraph(f"By {ranked}; shown are the images with the highest probability."),
                element("div", *strips, class_="units"),
            ]
    return section


def _introduction(record: Mapping[str, Any]) -> Html:
    if record["judge"]:
        return paragraph(
            "Do the images of a unit look alike? Similarity is measured under the encoder's own features, "
            "from which the code was made, and under those of a judge, ",
            named(record["judge"]),
            f", on {record['sample']:,} images.",
        )
    return paragraph(
        "Do the images of a unit look alike? Similarity is measured under the encoder's own features, from "
        f"which the code was made, on {record['sample']:,} images; ",
        element("code", "--judge ENCODER"),
        " also measures it under another encoder.",
    )


def _strip(findings: Findings, record: Mapping[str, Any], shown: Mapping[str, Any]) -> Html:
    """Show the best images of a unit, and its numbers."""
    unit = record["units"][shown["place"]]
    title = f"Variable {unit['variable']}, unit {unit['unit']}"
    images = [
        findings.thumbnail(index, findings.label(index) or f"image {index} of {title.lower()}")
        for index in shown["top"]
    ]
    name = "judged_monosemanticity" if record["judge"] else "monosemanticity"
    note = [f"taken by {unit['images']:,} images", f"monosemanticity {unit[name]:.2f}"]
    if unit.get("label"):
        share = percent(unit["purity"], 0)
        note.append(join((f"{share} ", named(unit["label"]))))
    return element(
        "article",
        element("h4", title),
        element("ul", *(element("li", each) for each in images if each), class_="strip"),
        element("p", join(note, " · "), class_="note"),
    )


def _number(name: str, value: float | None) -> str:
    if value is None:
        return "–"
    return percent(value) if name == "purity" else f"{value:.3f}"


def _tiles(found: Mapping[str, Any]) -> list[Tile]:
    tiles = []
    name = "judged_monosemanticity" if "judged_monosemanticity" in found else "monosemanticity"
    if found[name] is not None:
        chance = _number(name, found[f"{name}_by_chance"])
        text = f"mean similarity of two images of a unit (random sets: {chance})"
        tiles.append(Tile(_number(name, found[name]), text))
    if "purity" in found:
        chance = _number("purity", found["purity_by_chance"])
        text = f"of a unit's images have its most frequent label (random sets: {chance})"
        tiles.append(Tile(_number("purity", found["purity"]), text))
    return tiles


PART = Part(
    title="Coherence of units",
    files=("coherence.png", "coherence.json"),
    reads=EncodingsCollector,
    make=_make,
    section=_section,
    tiles=_tiles,
    method=(
        "Monosemanticity and purity",
        "Monosemanticity of a unit is the mean cosine similarity of all pairs of its images' features, "
        "on up to 20,000 images; a random set of images is expected to have the mean similarity of all "
        "pairs of images. Purity is the share of a unit's images that have its most frequent label, on "
        f"all images; random sets have as many images. Units with fewer than {FEWEST} images are not "
        "shown as examples.",
    ),
    judge=JudgeCollector,
)
