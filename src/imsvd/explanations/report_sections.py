"""The sections of a report: each says what one part found, or nothing if it has not been made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from imsvd.explanations.report_findings import Findings, named, percent
from imsvd.explanations.report_html import Html, element, join, paragraph, table
from imsvd.explanations.report_images import galleries_section, retrieval_section

PAIRS_SHOWN = 5
ATTRIBUTES_SHOWN = 40
TREES_SHOWN = 12

PROPERTIES = {
    "one_hot": "Variables are decided: one unit has nearly all of the probability.",
    "equal_views": "Two views of an image take the same units.",
    "even_units": "The units of a variable are used equally often.",
    "even_pairs": "All pairs of units of two variables are equally frequent.",
    "independent": "One variable tells nothing about another.",
}
VERDICTS = {
    "holds": ("good", "✓"),
    "partly": ("middle", "≈"),
    "does not hold": ("bad", "✗"),
    "too few images": ("middle", "?"),
}
FILLS = {"mean": "the mean color", "blur": "a blur"}


class Section(NamedTuple):
    """A section of the page, which is left out when `make` gives nothing."""

    part: str
    title: str
    make: Callable[[Findings], list[Html | None] | None]


def verdict(name: str) -> Html:
    """A verdict as text with a sign, so that it does not depend on its color."""
    look, sign = VERDICTS.get(name, ("middle", ""))
    return element("span", f"{sign} {name}".strip(), class_=f"verdict {look}")


def _joint(findings: Findings) -> list[Html | None] | None:
    record = findings.record("joint", "properties.json")
    if record is None:
        return None
    rows = [
        (
            join((row["name"].replace("_", " "), element("small", PROPERTIES[row["name"]]))),
            verdict(row["verdict"]),
            row["meaning"],
            *(f"{row[name]:.3g}" for name in ("measured", "ideal", "floor")),
        )
        for row in record["properties"]
    ]
    held = sum(row["verdict"] == "holds" for row in record["properties"])
    return [
        paragraph(
            f"The theorem says that a model at the optimum of the loss has five properties. Of this "
            f"model {held} of {len(rows)} hold, measured on two augmented views of "
            f"{record['images']:,} images."
        ),
        table(
            "Floor: what variables as sure as these would show on so few images if it held.",
            ("property", "verdict", "measured as", "measured", "ideal", "floor"),
            rows,
            texts=3,
        ),
        *_joint_figures(findings, record),
    ]


def _joint_figures(findings: Findings, record: Mapping[str, Any]) -> list[Html | None]:
    shared = record["mutual_information"]
    pairs = [
        (" and ".join(map(str, pair["variables"])), f"{pair['nats']:.3g}")
        for pair in shared["most_dependent"][:PAIRS_SHOWN]
    ]
    return [
        findings.figure(
            "joint",
            "Heat map: joint probabilities of the units of the first variables in two views, a "
            "square for every two variables; ideal is a bright diagonal and even squares off it.",
            "Every square is a pair of variables. On the diagonal a variable meets itself in the "
            "other view: bright only along its own diagonal when both views take the same unit. "
            "Elsewhere an ideal model is even.",
            file="joint_matrix.png",
        ),
        findings.figure(
            "joint",
            "Heat map and histogram: mutual information of every two variables, "
            f"{shared['mean']:.3g} nats on average, where independent variables would show "
            f"{shared['floor']:.2g}.",
            f"Two variables share {shared['mean']:.3g} nats on average; a variable shares "
            f"{shared['with_itself_in_the_other_view']:.3g} with itself in the other view.",
            file="mutual_information.png",
        ),
        table("The pairs that share most, in nats", ("variables", "shared"), pairs)
        if pairs
        else None,
    ]


def _embeddings(findings: Findings) -> list[Html | None] | None:
    headline = findings.summary["parts"].get("embeddings")
    if headline is None:
        return None
    agreement = percent(headline["agreement_of_those_drawn"], 0)
    drawn = findings.figure(
        "embeddings",
        f"Pictures and heat maps: two augmented views of {len(headline['paths'])} images, and the "
        f"probability of every unit of the first variables in both; {agreement} of the variables "
        "take the same unit.",
        "The images: ",
        join([named(path) for path in headline["paths"]], ", "),
        ".",
    )
    lead = (
        "Each row of a heat map is a variable, bright at the unit that it takes. The two maps of "
        f"an image should be the same: {agreement} of the variables drawn agree."
    )
    return None if drawn is None else [paragraph(lead), drawn]


def _discreteness(findings: Findings) -> list[Html | None] | None:
    record = findings.record("discreteness", "discreteness.json")
    if record is None:
        return None
    bits = record["bits"]
    shares = [
        (
            f"sub-vectors with a maximum above {level}",
            percent(record[f"share_above_{level}"]),
            percent(record[f"paper_share_above_{level}"], 2),
        )
        for level in ("0.9", "0.99")
    ]
    units = record["units"]
    rows = [
        *shares,
        ("dead units", f"{record['dead_units']:,} of {units:,}", "–"),
        ("over-used units", f"{record['overused_units']:,} of {units:,}", "–"),
        ("distinct codes", f"{record['distinct_codes']:,} of {record['images']:,} images", "–"),
        ("bits of a code, at most", f"{bits['upper']:.1f} of {bits['capacity']:.1f}", "–"),
        ("bits of a code, at least", f"{bits['lower']:.1f}", "–"),
    ]
    alt = (
        f"Three charts: the largest q of variables, {rows[0][1]} of them above 0.9; how often units "
        f"are used against even use; and bits per code, capacity {bits['capacity']:.1f}, at most "
        f"{bits['upper']:.1f}, at least {bits['lower']:.1f}."
    )
    return [
        table(
            f"Codes of {record['images']:,} whole images",
            ("", "this run", "paper, ImageNet"),
            rows,
        ),
        findings.figure("discreteness", alt),
    ]


def _grad_cam(findings: Findings) -> list[Html | None] | None:
    headline = findings.summary["parts"].get("grad_cam")
    if headline is None:
        return None
    units = "; ".join(f"variable {m}, unit {d}" for m, d in headline["units"])
    drawn = findings.figure(
        "grad_cam",
        f"Pictures in pairs of rows: the best images of {headline['units_drawn']} units, and below "
        "each the same image in gray under a map that is brightest where the evidence is.",
        "Drawn are the surest units, one of each variable, first those with images that no surer "
        f"one has: {units}.",
    )
    lead = "Bright is where the image speaks for the unit. Whether that is true is measured next."
    return None if drawn is None else [paragraph(lead), drawn]


def _faithfulness(findings: Findings) -> list[Html | None] | None:
    record = findings.record("faithfulness", "faithfulness.json")
    if record is None:
        return None
    rows = [
        (FILLS.get(fill, fill), *_faithfulness_row(found))
        for fill, found in record["fills"].items()
    ]
    return [
        paragraph(
            f"If a map is true, the unit fades when the {record['share_removed']:.0%} of the image "
            "that it highlights is removed, and fades less when the same region is removed "
            "elsewhere."
        ),
        table(
            "Fall of the unit's probability",
            ("replaced by", "verdict", "images", "highlighted", "elsewhere", "difference", "95 %"),
            rows,
            texts=2,
        ),
        findings.figure(
            "faithfulness",
            "Line charts: how far q falls, image by image in order, when the highlighted region is "
            "removed and when the same region is removed elsewhere.",
        ),
    ]


def _faithfulness_row(found: Mapping[str, Any]) -> list[str]:
    images = f"{found['images']:,}"
    if "difference_95" not in found:
        return [found["verdict"], images, "–", "–", "–", "–"]
    low, high = found["difference_95"]
    numbers = [f"{found[name]:.3f}" for name in ("fall_highlighted", "fall_random", "difference")]
    return [found["verdict"], images, *numbers, f"{low:.3f} to {high:.3f}"]


def _meaning(findings: Findings) -> list[Html | None] | None:
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
    best = ordered[0]
    return [
        paragraph(
            f"{record['attributes_recovered']} of {record['attributes_known']} known attributes are "
            "recovered by a single variable. Nothing told the model about any of them."
        ),
        table(
            _first_of("attributes", len(rows), len(ordered)),
            ("attribute", "recovered", "variable", "NMI", "by luck", "tree", "commonest value"),
            rows,
            texts=2,
        ),
        findings.figure(
            "meaning",
            "Bars and heat map: normalized mutual information of the best variable with every "
            f"attribute, at most {max(best[1]['nmi']):.2f}, and of the most specialized variables "
            "with all of them.",
        ),
        element("h3", "Small trees that read an attribute off the code"),
        paragraph(_first_of("trees", min(TREES_SHOWN, len(ordered)), len(ordered)) + "."),
        element("div", *(_tree(*item) for item in ordered[:TREES_SHOWN]), class_="trees"),
    ]


def _first_of(things: str, shown: int, total: int) -> str:
    """Say what a list is ordered by, and whether it is cut."""
    order = "the most strongly recovered first"
    return f"All {things}, {order}" if shown == total else f"{shown} of {total} {things}, {order}"


def _tree(name: str, found: Mapping[str, Any]) -> Html:
    accuracy = percent(found["tree"]["accuracy"])
    return element(
        "details",
        element("summary", named(name.replace("_", " ")), f": {accuracy} right"),
        element("pre", found["tree"]["text"]),
    )


SECTIONS = (
    Section("joint", "The theorem's five properties", _joint),
    Section("embeddings", "Two views of an image", _embeddings),
    Section("discreteness", "How discrete the codes are", _discreteness),
    Section("galleries", "What units respond to", galleries_section),
    Section("grad_cam", "Where the evidence is", _grad_cam),
    Section("faithfulness", "Whether the maps are true", _faithfulness),
    Section("meaning", "What variables mean", _meaning),
    Section("retrieval", "Similar images by shared units", retrieval_section),
)
"""In the order of the page."""
