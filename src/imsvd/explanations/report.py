"""`report.html`: everything an explanation found, in one self-contained file.

No script and no network: images are embedded, and a content security policy forbids the rest. All
names come from users' files and are escaped where elements are made, see `sections`.
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
from imsvd.explanations.sections import (
    Findings,
    Html,
    Part,
    element,
    figure,
    join,
    link,
    named,
    paragraph,
    table,
)
from imsvd.explanations.subject import Subject
from imsvd.figures import draw_capacity, draw_training
from imsvd.files import write_atomically
from imsvd.progress import counted
from imsvd.runs import RunFolder

FILE_NAME = "report.html"
PAPER = "arXiv 2501.03469"
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def write_report(subject: Subject, summary: Mapping[str, Any], parts: Mapping[str, Part]) -> Path:
    """Write the page of all finished parts and return its path."""
    path = subject.folder / FILE_NAME
    # UTF-8 cannot represent undecodable bytes of a path; the page shows question marks instead.
    write_atomically(path, report_page(subject, summary, parts).encode("utf-8", "replace"))
    return path


def report_page(subject: Subject, summary: Mapping[str, Any], parts: Mapping[str, Part]) -> Html:
    """Return the whole page."""
    run, findings = RunFolder(subject.folder.parent), Findings(subject, summary)
    made = {name: part.section(findings) for name, part in parts.items()}
    shown = {name: part for name, part in parts.items() if made[name] is not None}
    sections = {}
    if tiles := _tiles(summary["parts"], shown):
        sections["summary"] = ("Summary", [tiles])
    for name, part in shown.items():
        content = [each for each in made[name] or [] if each is not None]
        how = link(f"how-{name}", f"How this is measured: {part.method[0]}")
        sections[name] = (part.title, [*content, element("p", how, class_="how")])
    if training := _training(run):
        sections["training"] = ("Training", training)
    sections["how"] = ("How each number is measured", [_methods(shown)])
    title = f"What {Path(summary['run']).name} sees"
    body = element(
        "body",
        element("a", "Skip to the findings", href="#findings", class_="skip"),
        _header(title, run, summary, {name: heading for name, (heading, _) in sections.items()}),
        element(
            "main",
            *(
                element("section", element("h2", heading), *content, id=name)
                for name, (heading, content) in sections.items()
            ),
            id="findings",
        ),
        _footer(summary),
    )
    return join(
        (Html("<!doctype html>\n"), element("html", page_head(title), body, lang="en"), "\n")
    )


def _header(
    title: str, run: RunFolder, summary: Mapping[str, Any], headings: Mapping[str, str]
) -> Html:
    contents = [element("li", link(name, heading)) for name, heading in headings.items()]
    note = training_note(run, summary)
    return element(
        "header",
        element("h1", title),
        element("p", _lead(summary), class_="lead"),
        _facts(run, summary),
        *([element("p", note, class_="note")] if note else []),
        element("nav", element("ul", *contents), aria_label="Contents"),
    )


def page_head(title: str) -> Html:
    """Return the head of a page in the style of reports, which loads nothing."""
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
    units = summary["units"]
    sizes = f"{units[0]} units each"
    if len(set(units)) > 1:
        sizes = f"{min(units)} to {max(units)} units"
    return (
        f"{len(units):,} variables of {sizes}, measured on {summary['images']:,} images. Each "
        "variable takes one of its units for every image. This page shows how decided these choices "
        "are, what they respond to, and how far the explanations can be trusted."
    )


def _facts(run: RunFolder, summary: Mapping[str, Any]) -> Html:
    config, records = run.config(), run.metrics()
    epochs = ""
    if records:
        epochs = f", {records[-1]['epoch']} of {counted(config.training.epochs, 'epoch')}"
    size = config.views.views[0].size
    facts: dict[str, str] = {
        "Run": element("code", summary["run"]),
        "Method": f"{config.method.name}, {config.backbone.name} at {size} px",
        "Trained on": join((named(config.data.source), epochs)),
        "Explained on": join((named(summary["data"]), f" ({summary['split']})")),
    }
    rows = [join((element("dt", name), element("dd", value))) for name, value in facts.items()]
    return element("dl", *rows, class_="facts")


def training_note(run: RunFolder, summary: Mapping[str, Any]) -> str | None:
    """Return a warning if the images explained were trained on, with what held-out images showed."""
    config, records = run.config(), run.metrics()
    if summary["split"] != "train" or summary["data"] != config.data.source:
        return None
    note = "The run was trained on these images, so that its code may fit them better than others."
    health = records[-1]["health"] if records else {}
    if config.frozen is None or "share_agreeing" not in health:
        return f"{note} --split test explains test images, if there are any."
    count = records[-1].get("held_out_images")  # unknown in runs of earlier versions
    images = "held-out images" if count is None else counted(count, "held-out image")
    return (
        f"{note} On {images} of them, which only measured the code, {health['share_decided']:.0%} of "
        f"the choices were decided and {health['share_agreeing']:.0%} equal in two views."
    )


def _tiles(headlines: Mapping[str, Any], parts: Mapping[str, Part]) -> Html:
    """Return the headline numbers of all parts, linked to their sections."""
    tiles = [
        element("li", element("strong", tile.number), element("span", link(name, tile.text)))
        for name, part in parts.items()
        for tile in part.tiles(headlines[name])
    ]
    if not parts:
        return paragraph("No part has been finished yet.")
    return element("ul", *tiles, class_="tiles") if tiles else Html()


def _training(run: RunFolder) -> list[Html]:
    """Return training curves and evaluation results, if there are any."""
    content: list[Html] = []
    if records := run.metrics():
        first, last = records[0]["loss"], records[-1]["loss"]
        alt = (
            f"Line charts: the loss and its terms over {counted(records[-1]['epoch'], 'epoch')} with "
            f"their bounds; the loss goes from {first:.2f} to {last:.2f}."
        )
        if (drawn := _training_figure(run, records, alt)) is not None:
            content.append(drawn)
    if (trials := run.trials()) and (drawn := _capacity_figure(trials)) is not None:
        content.append(drawn)
    with contextlib.suppress(InputError):  # there are no results
        rows = [
            (row.protocol, named(row.data), row.metric.replace("_", " "), f"{row.value:.2f}")
            for row in collect([run.path])
        ]
        head = ("protocol", "data", "metric", "%")
        content.append(table("Latest result of each evaluation of this run", head, rows, texts=3))
    return content


def _training_figure(run: RunFolder, records: Sequence[Mapping[str, Any]], alt: str) -> Html | None:
    existing = run.path / "training.png"
    if existing.exists():
        return figure(existing, alt)
    with tempfile.TemporaryDirectory() as folder:
        return figure(draw_training(records, Path(folder) / "training.png"), alt)


def _capacity_figure(trials: Sequence[Mapping[str, Any]]) -> Html | None:
    best = next(trial for trial in trials if trial["best"])
    alt = (
        f"Line chart: information that lasts in codes of {len(trials)} sizes, measured on held-out "
        f"images without labels. {best['variables']} variables of {best['units']} units have the "
        f"most, {best['lasting_nats']:.1f} nats; this size was chosen."
    )
    with tempfile.TemporaryDirectory() as folder:
        return figure(draw_capacity(trials, Path(folder) / "capacity.png"), alt)


def _methods(parts: Mapping[str, Part]) -> Html:
    entries = [
        join((element("dt", part.method[0], id=f"how-{name}"), element("dd", part.method[1])))
        for name, part in parts.items()
    ]
    return element("dl", *entries, class_="methods")


def _footer(summary: Mapping[str, Any]) -> Html:
    return element(
        "footer",
        paragraph(
            f"Made by imsvd {summary['version']}. Variables, units and images are numbered from 0. "
            f"All numbers are in the JSON files of the same folder. Method: IMSVD, {PAPER}. "
            "Encoder and images: ",
            element("code", summary["key"]),
            ".",
        ),
    )
