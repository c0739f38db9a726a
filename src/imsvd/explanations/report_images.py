"""The sections of a report that show images: galleries of units, and images that share units."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from imsvd.explanations.galleries import MOST_REPEATED, TellingUnit, common_values
from imsvd.explanations.report_findings import Findings, named, percent
from imsvd.explanations.report_html import Html, element, image, join, link, paragraph, table


def galleries_section(findings: Findings) -> list[Html | None] | None:
    """The best images of the most telling units."""
    if not findings.units:
        return None
    total = sum(findings.subject.units)
    return [
        paragraph(
            f"The images that excite a unit most, for {len(findings.units)} of {total:,} units. "
            "Chosen are the units whose best images have the highest mean probability, one of each "
            f"variable; a unit is passed over when more than {MOST_REPEATED:.0%} of its images are "
            "shown already. The others are in ",
            element("code", "galleries/"),
            ", one sheet per variable.",
        ),
        element("div", *(_gallery(findings, unit) for unit in findings.units), class_="units"),
    ]


def unit_id(variable: int, unit: int) -> str:
    """Where the gallery of a unit is in the page."""
    return f"unit-{variable}-{unit}"


def _gallery(findings: Findings, unit: TellingUnit) -> Html:
    pictures = []
    for item in unit.top:
        picture = findings.picture(int(item["index"]))
        if picture is not None:
            name = findings.label(int(item["index"])) or item["path"]
            alt = f"{name}, q {item['score']:.2f}"
            pictures.append(element("li", image(picture, alt)))
    indices = [int(item["index"]) for item in unit.top]
    common = [
        join(
            (
                f"{found.images} of {len(indices)} ",
                "" if found.attribute == "label" else f"{found.attribute.replace('_', ' ')} ",
                named(found.value),
            )
        )
        for found in common_values(findings.attributes, indices)[:3]
    ]
    told = join(
        [f"{unit.images_taking_it:,} images take it", f"q {unit.sureness:.2f} on average", *common],
        " · ",
    )
    return element(
        "article",
        element("h3", f"Variable {unit.variable}, unit {unit.unit}"),
        element("ul", *pictures, class_="strip"),
        element("p", told, class_="note"),
        id=unit_id(unit.variable, unit.unit),
    )


def retrieval_section(findings: Findings) -> list[Html | None] | None:
    """Both ways of searching in numbers, and examples with the units that agree."""
    record = findings.record("retrieval", "retrieval.json")
    if record is None or not record["queries"]:
        return None
    names = {"code": "units shared", "cosine": "cosine of features"}
    columns = [name for name in record["code"] if name != "queries_per_second"]
    rows = [
        (
            title,
            *(percent(record[way][name]) for name in columns),
            f"{record[way]['queries_per_second']:,.0f}",
        )
        for way, title in names.items()
    ]
    shared = percent(record["shared_with_cosine_at_10"])
    return [
        paragraph(
            f"{record['queries']:,} of {record['images']:,} images ask for those most like them. "
            f"Both ways of searching have {shared} of the ten nearest in common."
        ),
        table(
            "Share with the query's label, and speed",
            ("ranked by", *(_at(name) for name in columns), "queries / s"),
            rows,
        ),
        element("h3", "Examples"),
        paragraph("The query comes first, then the images that share most units with it."),
        element(
            "div",
            *(_query(findings, example) for example in record["examples"]),
            class_="queries",
        ),
    ]


def _at(name: str) -> str:
    """recall_at_10 as recall@10."""
    return name.replace("_at_", "@")


def _query(findings: Findings, example: Mapping[str, Any]) -> Html:
    variables = len(findings.subject.units)
    answers = [_answer(findings, example, "query")]
    answers += [
        _answer(findings, neighbor, f"{neighbor['shared_units']} of {variables} units")
        for neighbor in example["neighbors"]
    ]
    lists = [
        element("li", named(neighbor["path"]), ": ", _unit_list(findings, neighbor))
        for neighbor in example["neighbors"]
    ]
    return element(
        "div",
        element("ul", *answers, class_="answers"),
        element(
            "details",
            element("summary", "Which units ", named(example["path"]), " shares"),
            element("p", "As variable/unit, the first of them:", class_="note"),
            element("ul", *lists, class_="note"),
        ),
    )


def _answer(findings: Findings, found: Mapping[str, Any], told: str) -> Html:
    name = findings.label(int(found["index"])) or str(found["path"])
    picture = findings.picture(int(found["index"]))
    shown = Html() if picture is None else image(picture, f"{name}: {told}")
    return element("li", shown, named(name), element("small", told))


def _unit_list(findings: Findings, neighbor: Mapping[str, Any]) -> Html:
    """Shared units, those linked whose gallery is in the page."""
    shown = {(unit.variable, unit.unit) for unit in findings.units}
    units = [
        link(unit_id(m, d), f"{m}/{d}") if (m, d) in shown else f"{m}/{d}"
        for m, d in neighbor["units"]
    ]
    return join([*units, *(["…"] if neighbor["shared_units"] > len(units) else [])], ", ")
