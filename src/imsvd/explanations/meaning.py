"""What variables mean, where labels or attributes are known to compare them with.

Normalized mutual information is 2 I / (H(variable) + H(attribute)): 0 if one says nothing about the
other, 1 if each determines the other. It is positive even for unrelated values, more so with fewer
images. The baseline is therefore the best value of all variables after shuffling the attribute.
A small decision tree shows how well codes predict an attribute; each question is whether a variable
takes a unit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from imsvd.datasets import ImageSource
from imsvd.encoder import Encoder
from imsvd.explanations.encodings import Encodings, EncodingsCollector
from imsvd.explanations.sections import (
    Findings,
    Html,
    Part,
    Section,
    Tile,
    element,
    named,
    paragraph,
    percent,
    table,
    write_json,
)
from imsvd.explanations.subject import Progress, Subject
from imsvd.figures import CURVE, STYLE, save_figure
from imsvd.information import codes as taken_units
from imsvd.information import soft_discretize

RECOVERED = 0.3
"""An attribute is recovered if a variable's NMI exceeds the baseline by this."""

BINS = 8
"""Bins per feature of an encoder without discrete variables."""
DEPTH = 3
_FEWEST = 10
"""Branches with fewer images are not split further."""
ATTRIBUTES_SHOWN = 40
TREES_SHOWN = 12
SHUFFLES = 5
_TREE_VARIABLES = 16

Codes = NDArray[np.integer[Any]]


class Attribute(NamedTuple):
    """A known factor: its value for every image (negative if unknown), and the names of values."""

    values: NDArray[np.int64]
    names: tuple[str, ...]

    def value_name(self, value: int) -> str:
        """Return the name of a value, or its number if it has none."""
        return self.names[value] if value < len(self.names) else str(value)


def known_attributes(source: ImageSource, images: NDArray[np.int64]) -> dict[str, Attribute]:
    """Return the attributes of the images at positions `images`, with labels as "label".

    Labels that repeat an attribute, as those of `shapes` do, are not listed twice.
    """
    found = {
        name: Attribute(values.numpy()[images], tuple(source.attribute_values.get(name, ())))
        for name, values in source.attributes.items()
    }
    if source.labels is not None:
        labels = source.labels.numpy()[images]
        if not any(np.array_equal(labels, other.values) for other in found.values()):
            found["label"] = Attribute(labels, tuple(source.classes))
    return {
        name: attribute for name, attribute in found.items() if len(np.unique(attribute.values)) > 1
    }


def normalized_information(codes: Codes, values: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the NMI of every variable of codes (n, M) with one attribute (n,): (M,)."""
    numbers, compact = np.unique(values, return_inverse=True)
    return np.array([_nmi(column.astype(np.int64), compact, len(numbers)) for column in codes.T])


def _nmi(column: NDArray[np.int64], values: NDArray[np.int64], num_values: int) -> float:
    table = np.bincount(
        column * num_values + values, minlength=(int(column.max()) + 1) * num_values
    )
    cells = table.reshape(-1, num_values) / len(column)
    first, second = _entropy(cells.sum(1)), _entropy(cells.sum(0))
    if first + second == 0:
        return 0.0
    return max(0.0, 2 * (first + second - _entropy(cells)) / (first + second))


def _entropy(shares: NDArray[np.float64]) -> float:
    occupied = shares[shares > 0]
    return float(-(occupied * np.log(occupied)).sum())


def shuffled_baseline(
    codes: Codes, values: NDArray[np.int64], seed: int = 0, progress: Progress | None = None
) -> float:
    """Return the best variable's NMI with shuffled values, averaged over `SHUFFLES` shuffles."""
    random = np.random.default_rng(seed)
    best = []
    for number in range(SHUFFLES):
        best.append(normalized_information(codes, random.permutation(values)).max())
        if progress is not None:
            progress(number + 1, SHUFFLES)
    return float(np.mean(best))


class Leaf(NamedTuple):
    """Predicts the most common value of the images that reach it."""

    value: int
    share: float
    images: int


class Question(NamedTuple):
    """Whether `variable` takes `unit`."""

    variable: int
    unit: int
    yes: Question | Leaf
    no: Question | Leaf


class CodeTree(NamedTuple):
    """A tree grown on every second image and tested on the rest."""

    text: str
    accuracy: float
    """Share of test images predicted correctly."""
    majority_accuracy: float
    """The same when always predicting the most common training value."""


def code_tree(
    codes: Codes, values: NDArray[np.int64], variables: Sequence[int], names: Sequence[str]
) -> CodeTree:
    """Predict `values` (n,) from codes (n, M), using only `variables`."""
    numbers, compact = np.unique(values, return_inverse=True)
    titles = [names[number] if number < len(names) else str(number) for number in numbers]
    train, test = slice(0, None, 2), slice(1, None, 2)
    root = grow(codes[train], compact[train], variables, len(numbers), DEPTH)
    majority = np.bincount(compact[train]).argmax()
    return CodeTree(
        "\n".join(describe(root, titles)),
        float(np.mean(predict(root, codes[test]) == compact[test])) if len(codes) > 1 else 0.0,
        float(np.mean(compact[test] == majority)) if len(codes) > 1 else 0.0,
    )


def grow(
    codes: Codes, values: NDArray[np.int64], variables: Sequence[int], num_values: int, depth: int
) -> Question | Leaf:
    """Split by the question that lowers the Gini impurity most, then grow both branches."""
    counts = np.bincount(values, minlength=num_values)
    leaf = Leaf(int(counts.argmax()), float(counts.max() / max(1, len(values))), len(values))
    if depth == 0 or len(values) < 2 * _FEWEST:
        return leaf
    best, question = _purity(counts[None])[0] + 1e-9 * len(values), None
    for variable in variables:
        column = codes[:, variable].astype(np.int64)
        size = (int(column.max()) + 1) * num_values
        yes = np.bincount(column * num_values + values, minlength=size).reshape(-1, num_values)
        no = counts - yes
        purity = _purity(yes) + _purity(no)
        purity[np.minimum(yes.sum(1), no.sum(1)) < _FEWEST] = -1.0
        unit = int(purity.argmax())
        if purity[unit] > best:
            best, question = purity[unit], (variable, unit)
    if question is None:
        return leaf
    taken = codes[:, question[0]] == question[1]
    branches = [
        grow(codes[part], values[part], variables, num_values, depth - 1)
        for part in (taken, ~taken)
    ]
    if branches[0] == branches[1]:
        return leaf
    return Question(*question, *branches)


def _purity(counts: NDArray[np.integer[Any]]) -> NDArray[np.float64]:
    """Return Σ n_c² / n of each row of (rows, values): the image count minus the Gini impurity."""
    totals = np.maximum(counts.sum(1), 1)
    purity: NDArray[np.float64] = (counts.astype(np.float64) ** 2).sum(1) / totals
    return purity


def predict(node: Question | Leaf, codes: Codes) -> NDArray[np.int64]:
    """Return the prediction for every row of codes (n, M)."""
    if isinstance(node, Leaf):
        return np.full(len(codes), node.value, dtype=np.int64)
    taken = codes[:, node.variable] == node.unit
    return np.where(taken, predict(node.yes, codes), predict(node.no, codes))


def describe(node: Question | Leaf, names: Sequence[str], indent: str = "") -> list[str]:
    """Return the tree as lines of text."""
    if isinstance(node, Leaf):
        return [f"{indent}{names[node.value]} ({node.share:.0%} of {node.images:,})"]
    return [
        f"{indent}variable {node.variable} takes unit {node.unit}?",
        f"{indent}yes:",
        *describe(node.yes, names, indent + "  "),
        f"{indent}no:",
        *describe(node.no, names, indent + "  "),
    ]


def meaning(
    encodings: Encodings, attributes: Mapping[str, Attribute], progress: Progress | None = None
) -> dict[str, Any]:
    """Compare all variables with all attributes; return a JSON-ready record."""
    records = {}
    # Progress counts shuffles, which take most of the time.
    total = SHUFFLES * len(attributes)
    for number, (name, attribute) in enumerate(attributes.items()):

        def tell(done: int, _: int, number: int = number) -> None:
            if progress is not None:
                progress(SHUFFLES * number + done, total)

        tell(0, SHUFFLES)
        records[name] = _describe(encodings.codes, attribute, tell)
    best = [max(record["nmi"]) for record in records.values()]
    recovered = [name for name, record in records.items() if record["recovered"]]
    return {
        "images": len(encodings.images),
        "recovered_means": f"best NMI at least {RECOVERED} above the shuffled baseline",
        "attributes_known": len(records),
        "attributes_recovered": len(recovered),
        "recovered": recovered,
        "mean_best_nmi": float(np.mean(best)) if best else None,
        "attributes": records,
    }


def _describe(codes: Codes, attribute: Attribute, progress: Progress) -> dict[str, Any]:
    known = attribute.values >= 0
    codes, values = codes[known], attribute.values[known]
    information = normalized_information(codes, values)
    baseline = shuffled_baseline(codes, values, progress=progress)
    order = np.argsort(-information, kind="stable")
    # Test images must not influence the choice of variables either.
    learned = np.argsort(-normalized_information(codes[::2], values[::2]), kind="stable")
    tree = code_tree(codes, values, learned[:_TREE_VARIABLES].tolist(), attribute.names)
    return {
        "values": list(attribute.names),
        "nmi": [round(float(value), 5) for value in information],
        "baseline": round(baseline, 5),
        "recovered": bool(information[order[0]] - baseline >= RECOVERED),
        "most_specialized": [
            {"variable": int(m), "nmi": round(float(information[m]), 5)} for m in order[:5]
        ],
        "tree": {
            "depth": DEPTH,
            "accuracy": tree.accuracy,
            "majority_accuracy": tree.majority_accuracy,
            "text": tree.text,
        },
    }


def explainability(
    encoder: Encoder, features: Tensor, attributes: Mapping[str, Tensor]
) -> dict[str, float]:
    """Score any encoder: the number of recovered attributes, and the mean of their best NMI.

    An encoder without discrete variables is scored by its features, each cut into `BINS` bins.

    Args:
        encoder: the encoder.
        features: (n, num_features) its features of n images.
        attributes: (n,) values of each attribute; negative if unknown.

    Returns:
        The scores; empty if no attribute has two known values.
    """
    variables = variable_codes(encoder, features)
    best, recovered = [], 0
    for values in attributes.values():
        known = values.numpy() >= 0
        if len(np.unique(values.numpy()[known])) < 2:
            continue
        shown = variables[known], values.numpy()[known]
        best.append(float(normalized_information(*shown).max()))
        recovered += best[-1] - shuffled_baseline(*shown) >= RECOVERED
    if not best:
        return {}
    return {"attributes_recovered": float(recovered), "mean_best_nmi": float(np.mean(best))}


@torch.no_grad()
def variable_codes(encoder: Encoder, features: Tensor) -> Codes:
    """Return the unit of every variable, or the bin of every feature, (n, variables)."""
    units = encoder.description.units
    if not units:
        return feature_bins(features)
    device = encoder.mean.device
    q = soft_discretize(encoder.projector(features.to(device)), units)
    found: Codes = taken_units(q, units).cpu().numpy()
    return found


def feature_bins(features: Tensor) -> Codes:
    """Cut each feature into `BINS` equally frequent bins; equal values share a bin."""
    values = features.double().numpy()
    edges = np.quantile(values, np.arange(1, BINS) / BINS, axis=0)
    return np.stack(
        [np.searchsorted(edges[:, n], values[:, n], side="right") for n in range(values.shape[1])],
        axis=1,
    ).astype(np.uint8)


def _make(subject: Subject, encodings: Encodings, progress: Progress) -> dict[str, Any]:
    known = known_attributes(subject.source, encodings.images)
    record = meaning(encodings, known, progress)
    if known:
        draw_meaning(record, subject.folder / "meaning.png")
    write_json(subject, "meaning.json", record)
    kept = ("attributes_known", "attributes_recovered", "recovered", "mean_best_nmi")
    return {name: record[name] for name in kept}


@mpl.rc_context(STYLE)
def draw_meaning(record: Mapping[str, Any], path: Path) -> Path:
    """Draw each attribute's best variable with its baseline, and the most specialized variables."""
    attributes: Mapping[str, Any] = record["attributes"]
    values = np.array([attribute["nmi"] for attribute in attributes.values()])
    names = [name.replace("_", " ") for name in attributes]
    height = 1.4 + 0.38 * len(names)
    figure = Figure(figsize=(11, max(2.6, height)), layout="constrained")
    bars, heat = figure.subplots(1, 2, width_ratios=(1, 1.9))
    places = range(len(names))
    drawn = bars.barh(places, values.max(1), color=CURVE, label="best variable")
    bars.bar_label(drawn, fmt="%.2f", padding=2, fontsize=7)
    baselines = [attribute["baseline"] for attribute in attributes.values()]
    bars.plot(baselines, places, "|", color="black", markersize=12, label="by chance")
    bars.set_yticks(places, names)
    bars.invert_yaxis()
    bars.set(xlabel="normalized mutual information", xlim=(0, 1.1))
    bars.legend(frameon=False, ncols=2, loc="lower left", bbox_to_anchor=(0, 1))
    order = np.argsort(-values.max(0), kind="stable")[:24]
    order = order[np.argsort(values[:, order].argmax(0), kind="stable")]
    top = max(0.1, math.ceil(10 * float(values.max())) / 10)
    shown = heat.imshow(values[:, order], cmap="viridis", vmin=0, vmax=top, aspect="auto")
    heat.set_yticks(places, names)
    heat.set_xticks(range(len(order)), [str(number) for number in order], fontsize=7)
    heat.set(xlabel="variable")
    heat.set_title(f"the {len(order)} most specialized variables")
    figure.colorbar(shown, ax=heat, label="NMI")
    return save_figure(figure, path)


def _section(findings: Findings) -> Section | None:
    record = findings.record("meaning", "meaning.json")
    if record is None:
        return None
    if not record["attributes"]:
        return [paragraph("The images have no labels or attributes to compare variables with.")]
    ordered = sorted(record["attributes"].items(), key=lambda item: -max(item[1]["nmi"]))
    rows = [
        (
            named(name.replace("_", " ")),
            "yes" if found["recovered"] else "no",
            str(found["most_specialized"][0]["variable"]),
            f"{found['most_specialized'][0]['nmi']:.2f}",
            f"{found['baseline']:.2f}",
            percent(found["tree"]["accuracy"]),
            percent(found["tree"]["majority_accuracy"]),
        )
        for name, found in ordered[:ATTRIBUTES_SHOWN]
    ]
    return [
        paragraph(
            f"Single variables recover {record['attributes_recovered']} of "
            f"{record['attributes_known']} known attributes, none of which was used in training."
        ),
        table(
            _first_of("attributes", len(rows), len(ordered)),
            ("attribute", "recovered", "variable", "NMI", "by chance", "tree", "most common value"),
            rows,
            texts=2,
        ),
        findings.figure(
            "meaning",
            "Bars and heat map: normalized mutual information of the best variable with every "
            f"attribute, at most {max(ordered[0][1]['nmi']):.2f}, and of the most specialized "
            "variables with all attributes.",
        ),
        element("h3", "Decision trees that predict an attribute from the code"),
        paragraph(_first_of("trees", min(TREES_SHOWN, len(ordered)), len(ordered)) + "."),
        element("div", *(_tree(*item) for item in ordered[:TREES_SHOWN]), class_="trees"),
    ]


def _first_of(things: str, shown: int, total: int) -> str:
    which = f"All {things}" if shown == total else f"{shown} of {total} {things}"
    return f"{which}, the most strongly recovered first"


def _tree(name: str, found: Mapping[str, Any]) -> Html:
    accuracy = percent(found["tree"]["accuracy"])
    return element(
        "details",
        element("summary", named(name.replace("_", " ")), f": {accuracy} correct"),
        element("pre", found["tree"]["text"]),
    )


def _tiles(found: Mapping[str, Any]) -> list[Tile]:
    if not found["attributes_known"]:
        return []
    number = f"{found['attributes_recovered']} of {found['attributes_known']}"
    return [Tile(number, "known attributes are recovered by a single variable")]


PART = Part(
    title="What variables mean",
    files=("meaning.json",),
    reads=EncodingsCollector,
    make=_make,
    section=_section,
    tiles=_tiles,
    method=(
        "Meaning",
        "Normalized mutual information (NMI), 2 I / (H + H), of a variable with an attribute: 0 "
        "if one says nothing about the other, 1 if each determines the other. “By chance” is the "
        "best value of all variables after shuffling the attribute. An attribute is recovered if a "
        "variable exceeds that by 0.3. The tree is trained on every second image and tested on the "
        "rest; the last column is the accuracy of always predicting the most common value.",
    ),
)
