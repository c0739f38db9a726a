"""Results in words and tables: what result.json holds, as Markdown and in sentences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from imsvd.reproduction.order import VERDICTS

NAME = "result"
"""Of the files of an experiment, without what tells them apart."""
SHOWN_REVERSALS = 6

Content = Mapping[str, Any]
"""What result.json holds."""


OF_PHOTOGRAPHS = frozenset({"embeddings", "galleries", "grad_cam"})
"""Parts of an explanation whose figures show images."""


def page(content: Content) -> str:
    """Return a result as a Markdown page."""
    return "\n".join([f"# {content['experiment']}: {content['source']}", "", *body(content)]) + "\n"


def picture_suffix(content: Content) -> str:
    """Return .jpg for a figure of photographs, which as .png is five times as large, else .png."""
    return ".jpg" if OF_PHOTOGRAPHS.intersection(content["parts"]) else ".png"


def body(content: Content, picture: str = "", comment: str = "") -> list[str]:
    """Return the lines of a result below its title.

    Args:
        content: what result.json holds.
        picture: the address of its plot or figure, if not beside it.
        comment: what a person has to say about it.
    """
    picture = picture or f"{NAME}{picture_suffix(content)}"
    facts = content["environment"]
    runs = content["runs"]
    waiting = f"{runs['finished']} of {runs['total']} runs are finished."
    return [
        f"{content['shows']} (the paper's {content['source']})",
        "",
        *([] if content["parts"] else [*table(content), ""]),
        *_order_lines(content),
        *([comment, ""] if comment else []),
        *([] if content["complete"] else [waiting, ""]),
        *(line for note in content["notes"] for line in (note, "")),
        *(line for failure in content["failures"] for line in (f"Failed: {failure}", "")),
        f"![{content['experiment']}]({picture})",
        "",
        f"- command: `{facts['command']}`",
        f"- date: {facts['date']}",
        f"- hardware: {facts['cpu']}",
        f"- software: imsvd {facts['version']} (commit {facts['commit']}), "
        f"torch {facts['torch']}, Python {facts['python']}",
    ]


def table(content: Content) -> list[str]:
    """Return the table, two lines for every row: the paper's numbers and ours."""
    cells = content["cells"]
    columns = in_order(cell["column"] for cell in cells)
    rows = list(dict.fromkeys(cell["row"] for cell in cells))
    at = {(cell["row"], cell["column"]): cell for cell in cells}
    heads = _heads_of_ours(content, columns)
    lines = [
        ["", content["axis"], *columns],
        ["---", "---", *["---:"] * len(columns)],
        *([["", "here", *heads]] if heads else []),
    ]
    for row in rows:
        found = [at.get((row, column)) for column in columns]
        lines.append([row, "paper", *(_paper(cell) for cell in found)])
        lines.append(["", _ours_title(content, row), *(_ours(cell) for cell in found)])
    return [f"| {' | '.join(line)} |" for line in lines]


def order_sentences(content: Content) -> list[str]:
    """Return whether the paper's order is kept, in sentences."""
    order = content["order"]
    if not order["comparisons"]:
        return []
    counts = order["counts"]
    told = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict])
    answer = {
        "yes": "The paper's order holds",
        "within the spread": "The paper's order holds within the spread",
        "no": "The paper's order does not hold throughout",
    }[order["holds"]]
    sentences = [
        f"{answer}: of {order['comparisons']} comparisons {told}; Kendall's tau {order['tau']:.2f}."
    ]
    if order["best"]:
        same = sum(best["verdict"] != "another" for best in order["best"])
        others = [
            f"{best['line']}: {best['ours']} instead of {' or '.join(best['paper'])}"
            for best in order["best"]
            if best["verdict"] == "another"
        ]
        told = f" ({'; '.join(others)})" if others else ""
        sentences.append(
            f"The best is the paper's, or within the spread of it, in {same} of "
            f"{len(order['best'])} lines{told}."
        )
    return sentences


def in_order(names: Iterable[str]) -> list[str]:
    """Return names once each: numbers by their size, words as they come."""
    found = list(dict.fromkeys(names))
    return sorted(found, key=int) if all(name.isdigit() for name in found) else found


def summaries(contents: Sequence[Content]) -> list[list[str]]:
    """Return a line for every result: name, source, whether the order holds, counts, tau."""
    lines = []
    for content in contents:
        order = content["order"]
        kept = order["counts"]["kept"] + order["counts"]["kept within the spread"]
        figures = "drawn" if content["complete"] else "not yet drawn"
        lines.append(
            [
                content["experiment"],
                content["source"],
                figures if content["parts"] else order["holds"],
                f"{kept} of {order['comparisons']}" if order["comparisons"] else "",
                "" if order["tau"] is None else f"{order['tau']:.2f}",
            ]
        )
    return lines


def _order_lines(content: Content) -> list[str]:
    sentences = order_sentences(content)
    reversals = content["order"]["reversed"]
    lines = [f"**{sentences[0]}** {' '.join(sentences[1:])}", ""] if sentences else []
    if reversals:
        more = len(reversals) - SHOWN_REVERSALS
        shown = "; ".join(f"{one} above {other}" for one, other in reversals[:SHOWN_REVERSALS]) + (
            f"; and {more} more" if more > 0 else ""
        )
        lines += [f"In the paper, and clearly not here: {shown}.", ""]
    return lines


def _heads_of_ours(content: Content, columns: Sequence[str]) -> list[str]:
    """Return what columns have here, where that must be told: other settings, or different measures."""
    cells = content["cells"]
    settings = [next(c["setting"] for c in cells if c["column"] == name) for name in columns]
    if any(settings):
        return settings
    measures = [{c["measure"] for c in cells if c["column"] == name} for name in columns]
    named = ["; ".join(sorted(measured)) for measured in measures]
    return named if len({*named}) > 1 and named != list(columns) else []


def _ours_title(content: Content, row: str) -> str:
    """Return "here" and what is measured, unless that differs between the columns."""
    measures = {cell["measure"] for cell in content["cells"] if cell["row"] == row}
    return f"here: {measures.pop()}" if len(measures) == 1 else "here"


def _paper(cell: Content | None) -> str:
    return "" if cell is None or cell["paper"] is None else f"{cell['paper']:g}"


def _ours(cell: Content | None) -> str:
    if cell is None:
        return ""
    if cell["mean"] is None:
        return "–"
    digits = _digits(cell["mean"])
    shown = f"{cell['mean']:,.{digits}f}"
    return shown if cell["sd"] is None else f"{shown} ± {cell['sd']:,.{digits}f}"


def _digits(value: float) -> int:
    """Digits behind the point: accuracies and seconds have one, mebibytes none."""
    return 0 if value >= 100 else 1
