"""`report.html`: everything an explanation found, in one file that needs nothing else.

No script and no network: images are embedded, and a content security policy forbids the rest. All
names come from users' files and are escaped where elements are made, see `report_html`.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from imsvd.errors import InputError
from imsvd.evaluation.results import collect
from imsvd.explanations.report_findings import Findings, named, percent
from imsvd.explanations.report_html import Html, element, figure, join, link, paragraph, table
from imsvd.explanations.report_methods import METHODS
from imsvd.explanations.report_sections import SECTIONS
from imsvd.explanations.subject import Subject
from imsvd.figures import draw_training
from imsvd.files import write_atomically
from imsvd.progress import counted
from imsvd.runs import RunFolder

FILE_NAME = "report.html"
PAPER = "arXiv 2501.03469"
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def write_report(subject: Subject, summary: Mapping[str, Any]) -> Path:
    """Write the page of all parts in the summary beside their files, and return its path."""
    path = subject.folder / FILE_NAME
    # A path of undecodable bytes holds what UTF-8 cannot; the page shows a question mark for it.
    write_atomically(path, report_page(subject, summary).encode("utf-8", "replace"))
    return path


def report_page(subject: Subject, summary: Mapping[str, Any]) -> Html:
    """The whole page."""
    findings = Findings(subject, summary)
    run = RunFolder(subject.folder.parent)
    title = f"What {Path(summary['run']).name} sees"
    sections = _sections(findings, run)
    contents = [element("li", link(name, heading)) for name, heading, _ in sections]
    header = element(
        "header",
        element("h1", title),
        element("p", _lead(summary), class_="lead"),
        _facts(run, summary),
        element("nav", element("ul", *contents), aria_label="Contents"),
    )
    body = element(
        "body",
        element("a", "Skip to the findings", href="#findings", class_="skip"),
        header,
        element(
            "main",
            *(
                element("section", element("h2", heading), *content, id=name)
                for name, heading, content in sections
            ),
            id="findings",
        ),
        _footer(summary),
    )
    return join((Html("<!doctype html>\n"), element("html", _head(title), body, lang="en"), "\n"))


def _head(title: str) -> Html:
    style = files("imsvd.explanations").joinpath("report.css").read_text(encoding="utf-8")
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
        element("style", Html(style)),
    )


def _lead(summary: Mapping[str, Any]) -> str:
    return (
        f"{_variables(summary['units'])}, looked at on {summary['images']:,} images. "
        "A variable chooses one of its units for every image; this page shows how decided the "
        "choices are, what they respond to, and how true the explanations are."
    )


def _variables(units: Sequence[int]) -> str:
    """The variables and units in words."""
    if len(set(units)) == 1:
        return f"{len(units):,} variables of {units[0]} units each"
    return f"{len(units):,} variables of {min(units)} to {max(units)} units"


def _facts(run: RunFolder, summary: Mapping[str, Any]) -> Html:
    config = run.config()
    records = run.metrics()
    epochs = (
        f"{records[-1]['epoch']} of {counted(config.training.epochs, 'epoch')}" if records else ""
    )
    trained = join((named(config.data.source), f", {epochs}" if epochs else ""))
    facts: dict[str, str] = {
        "Run": element("code", summary["run"]),
        "Method": f"{config.method.name}, {config.backbone.name} at {_size(config.views)} px",
        "Trained on": trained,
        "Explained on": join((named(summary["data"]), f" ({summary['split']})")),
    }
    rows = [join((element("dt", name), element("dd", value))) for name, value in facts.items()]
    return element("dl", *rows, class_="facts")


def _size(views: Any) -> int:
    return int(views.views[0].size)


def _sections(findings: Findings, run: RunFolder) -> list[tuple[str, str, list[Html]]]:
    """Id, heading and content of every section that has something to say."""
    made = []
    for section in SECTIONS:
        content = section.make(findings)
        if content is None:
            continue
        how = link(f"how-{section.part}", f"How this is measured: {METHODS[section.part].title}")
        kept = [part for part in content if part is not None]
        made.append((section.part, section.title, [*kept, element("p", how, class_="how")]))
    parts = [name for name, _, _ in made]
    training = _training(run)
    return [
        ("in-short", "In short", [_tiles(findings.summary["parts"], parts)]),
        *made,
        *([("training", "Training", training)] if training else []),
        ("how", "How each number is measured", [_methods(parts)]),
    ]


def _tiles(headlines: Mapping[str, Any], parts: Sequence[str]) -> Html:
    """The most important number of every part, linked to its section."""
    tiles = []
    for part in parts:
        for number, told in TILES.get(part, _no_tile)(headlines[part]):
            tiles.append(
                element("li", element("strong", number), element("span", link(part, told)))
            )
    if not tiles:
        return paragraph("No part has been finished yet.")
    return element("ul", *tiles, class_="tiles")


Tile = tuple[str, str]


def _no_tile(_: Mapping[str, Any]) -> list[Tile]:
    return []


def _joint_tile(found: Mapping[str, Any]) -> list[Tile]:
    return [
        (
            f"{found['properties_that_hold']} of {len(found['properties'])}",
            "properties of the theorem hold",
        )
    ]


def _discreteness_tile(found: Mapping[str, Any]) -> list[Tile]:
    return [
        (percent(found["share_above_0.9"]), "of choices are decided (q above 0.9)"),
        (
            f"{found['bits_lower']:.0f} to {found['bits_upper']:.0f} bits",
            f"in a code, of a capacity of {found['bits_capacity']:.0f}",
        ),
    ]


def _faithfulness_tile(found: Mapping[str, Any]) -> list[Tile]:
    if found.get("mean_difference") is None:
        return [("–", "no map has positive evidence")]
    low, high = found["mean_difference_95"]
    return [
        (
            f"{found['mean_difference']:+.2f}",
            f"more fall of q in highlighted regions (95 %: {low:.2f} to {high:.2f})",
        )
    ]


def _meaning_tile(found: Mapping[str, Any]) -> list[Tile]:
    if not found["attributes_known"]:
        return []
    return [
        (
            f"{found['attributes_recovered']} of {found['attributes_known']}",
            "known attributes recovered by single variables",
        )
    ]


def _retrieval_tile(found: Mapping[str, Any]) -> list[Tile]:
    if "code_recall_at_1" not in found:
        return []
    cosine = percent(found["cosine_recall_at_1"])
    return [(percent(found["code_recall_at_1"]), f"recall@1 by shared units (cosine: {cosine})")]


TILES = {
    "joint": _joint_tile,
    "discreteness": _discreteness_tile,
    "faithfulness": _faithfulness_tile,
    "meaning": _meaning_tile,
    "retrieval": _retrieval_tile,
}


def _training(run: RunFolder) -> list[Html]:
    """Curves and evaluations, as far as there are any."""
    content: list[Html] = []
    if records := run.metrics():
        first, last = records[0]["loss"], records[-1]["loss"]
        alt = (
            f"Line charts: the loss and its terms over {counted(records[-1]['epoch'], 'epoch')} beside "
            f"their bounds; the loss goes from {first:.2f} to {last:.2f}."
        )
        if (drawn := _training_figure(run, records, alt)) is not None:
            content.append(drawn)
    with contextlib.suppress(InputError):  # no evaluation was made
        rows = [
            (row.protocol, named(row.data), row.metric.replace("_", " "), f"{row.value:.2f}")
            for row in collect([run.path])
        ]
        head = ("protocol", "data", "measure", "%")
        content.append(table("Evaluations of this run, the latest of each", head, rows, texts=3))
    return content


def _training_figure(run: RunFolder, records: Sequence[Mapping[str, Any]], alt: str) -> Html | None:
    existing = run.path / "training.png"
    if existing.exists():
        return figure(existing, alt)
    with tempfile.TemporaryDirectory() as folder:
        return figure(draw_training(records, Path(folder) / "training.png"), alt)


def _methods(parts: Sequence[str]) -> Html:
    entries = [
        join((element("dt", method.title, id=f"how-{part}"), element("dd", method.text)))
        for part, method in METHODS.items()
        if part in parts
    ]
    return element("dl", *entries, class_="methods")


def _footer(summary: Mapping[str, Any]) -> Html:
    return element(
        "footer",
        paragraph(
            f"Made by imsvd {summary['version']}. Variables, units and images are numbered from 0. "
            f"The numbers are in the JSON files beside this page. The method: IMSVD, {PAPER}. "
            "Encoder and images: ",
            element("code", summary["key"]),
            ".",
        ),
    )
