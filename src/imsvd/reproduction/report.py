"""Files and pages about results: tables, sentences, pictures and docs/reproduction.md.

STORE/experiments/NAME/        result.json, .md, .csv, and .png or .jpg, at the CPU budget
STORE/experiments-full/NAME/   the same at the full budget
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from imsvd.errors import InputError
from imsvd.files import complete_or_absent, write_atomically
from imsvd.grid.comparison import csv_text
from imsvd.grid.jobs import run_folder
from imsvd.progress import counted
from imsvd.provenance import environment
from imsvd.reproduction.experiment import CPU_EPOCHS, Budget, Experiment, Setup
from imsvd.reproduction.experiments import EXPERIMENTS
from imsvd.reproduction.plots import draw_picture, in_order, picture_name
from imsvd.reproduction.results import VERDICTS, Content, experiment_folder, gather
from imsvd.runs import RunFolder

SHOWN_REVERSALS = 6


def read_result(store: Path, name: str, budget: Budget = "cpu") -> Content | None:
    """Return result.json of an experiment, or None if it is missing or damaged."""
    try:
        content = json.loads((experiment_folder(store, name, budget) / "result.json").read_text())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def current_facts() -> dict[str, str]:
    """Return version, command, commit, hardware and date of this process."""
    return {"version": version("imsvd"), **environment()}


def write_result(content: Content, store: Path, facts: Mapping[str, str]) -> Content:
    """Write result.json, .md and .csv with the environment `facts`; return what result.json holds."""
    folder = experiment_folder(store, content["experiment"], content["budget"])
    content = json.loads(json.dumps(content))
    earlier = read_result(store, content["experiment"], content["budget"])
    # Unchanged numbers keep the command, commit and date that produced them.
    if earlier and (earlier["cells"], earlier["setup"]) == (content["cells"], content["setup"]):
        facts = earlier["environment"]
    content = {**content, "environment": dict(facts)}
    experiment = EXPERIMENTS[content["experiment"]]
    page = [f"# {experiment.name}: {experiment.source}", "", *body(content)]
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
    write_atomically(folder / "result.csv", csv_text(_csv_lines(content)).encode())
    write_atomically(folder / "result.md", ("\n".join(page) + "\n").encode())
    write_atomically(folder / "result.json", f"{text}\n".encode())
    return content


def _csv_lines(content: Content) -> list[dict[str, Any]]:
    """One line per cell and seed."""
    shared = ("row", "column", "setting", "measure", "paper")
    lines = [
        {"experiment": content["experiment"], **{name: cell[name] for name in shared}, **run}
        for cell in content["cells"]
        for run in cell["runs"]
    ]
    return lines or [{"experiment": content["experiment"]}]


def collect(
    experiments: Sequence[Experiment], setup: Setup, store: Path, console: Console
) -> list[Content]:
    """Write and show tables and plots of full-budget runs in `store`, complete or not.

    Raises:
        InputError: if the store has none of the runs.
    """
    if not any(has_runs(experiment, setup, store) for experiment in experiments):
        raise InputError(
            f"{store} holds none of these runs; pass the --out, --data, --seeds, --epochs and --set "
            "that they were trained with."
        )
    facts = current_facts()
    facts["cpu"] = f"not recorded by the runs; collected on {facts['cpu']}"
    contents = []
    for experiment in experiments:
        contents.append(write_result(gather(experiment, setup, store), store, facts))
        draw_picture(experiment, setup, contents[-1], store)
    show_results(contents, (), console)
    return contents


def has_runs(experiment: Experiment, setup: Setup, store: Path) -> bool:
    """Return whether any run of the experiment was started in `store`."""
    return any(RunFolder(run_folder(store, job)).exists() for job in experiment.jobs(setup))


def show_results(contents: Sequence[Content], failures: Sequence[str], console: Console) -> None:
    """Print a table with one line per experiment, and what holds of its order."""
    titles = ("experiment", "paper", "order holds", "kept", "tau")
    table = Table(*titles, box=None, padding=(0, 2, 0, 0))
    for content in contents:
        table.add_row(*_summary(content))
    console.print(table)
    for content in contents:
        for sentence in order_sentences(content):
            line = escape(f"{content['experiment']}: {sentence}")
            console.print(line, style="dim", highlight=False, soft_wrap=True)
    for failure in failures:
        console.print(escape(f"Failed: {failure}"), style="red", highlight=False, soft_wrap=True)


def body(content: Content, picture: str = "", comment: str = "") -> list[str]:
    """Return the Markdown lines of a result below its title.

    Args:
        content: content of result.json.
        picture: address of the picture, if not beside the page.
        comment: a person's remarks.
    """
    experiment, facts = EXPERIMENTS[content["experiment"]], content["environment"]
    runs = content["runs"]
    paragraphs = [
        experiment.shows,
        *([] if experiment.part else ["\n".join(value_table(content["cells"], experiment.axis))]),
        *_order_paragraphs(content),
        *([comment] if comment else []),
        *(
            []
            if content["complete"]
            else [f"{runs['finished']} of {runs['total']} runs are finished."]
        ),
        *_notes(content),
        *(f"Failed: {failure}" for failure in content["failures"]),
        f"![{experiment.name}]({picture or picture_name(experiment)})",
    ]
    return [
        *(line for paragraph in paragraphs for line in (*paragraph.split("\n"), "")),
        f"- command: `{facts['command']}`",
        f"- date: {facts['date']}",
        f"- hardware: {facts['cpu']}",
        f"- software: imsvd {facts['version']} (commit {facts['commit']}), "
        f"torch {facts['torch']}, Python {facts['python']}",
    ]


def _notes(content: Content) -> list[str]:
    """Budget and conditions of the numbers, then the notes of the experiment."""
    experiment, setup = EXPERIMENTS[content["experiment"]], content["setup"]
    seeds = 1 if experiment.part else len(setup["seeds"])
    budget = f"Full scale: recipe imagenet on {setup['data']}"
    if content["budget"] == "cpu":
        budget = (
            f"CPU scale: recipe cifar10-cpu on {setup['data']}, "
            f"{counted(setup['epochs'], 'epoch')} for every 100 of the paper"
        )
    spread = " Values are means ± sample deviations over seeds." if seeds > 1 else ""
    lines = [f"{budget}, {counted(seeds, 'seed')}.{spread}"]
    timed = any(cell["metric"] == "seconds_per_epoch" for cell in content["cells"])
    if timed and content["parallel"] > 1:
        lines.append(f"Times were measured with up to {content['parallel']} simultaneous runs.")
    return [*lines, *experiment.notes.get(content["budget"], ())]


def value_table(cells: Sequence[Content], axis: str) -> list[str]:
    """Return the table as Markdown: for every row, the paper's numbers and ours."""
    columns = in_order(cell["column"] for cell in cells)
    at = {(cell["row"], cell["column"]): cell for cell in cells}
    ours = _our_columns(cells, columns)
    lines = [
        ["", axis, *columns],
        ["---", "---", *["---:"] * len(columns)],
        *([["", "here", *ours]] if ours else []),
    ]
    for row in dict.fromkeys(cell["row"] for cell in cells):
        found = [at.get((row, column)) for column in columns]
        measures = {cell["measure"] for cell in found if cell}
        title = f"here: {measures.pop()}" if len(measures) == 1 else "here"
        lines.append([row, "paper", *(_paper_value(cell) for cell in found)])
        lines.append(["", title, *(_our_value(cell) for cell in found)])
    return [f"| {' | '.join(line)} |" for line in lines]


def _our_columns(cells: Sequence[Content], columns: Sequence[str]) -> list[str]:
    """Return our settings or measures of the columns, where they differ from the paper's."""
    settings = [next(c["setting"] for c in cells if c["column"] == name) for name in columns]
    if any(settings):
        return settings
    measures = [{c["measure"] for c in cells if c["column"] == name} for name in columns]
    named = ["; ".join(sorted(measured)) for measured in measures]
    return named if len({*named}) > 1 and named != list(columns) else []


def _paper_value(cell: Content | None) -> str:
    return "" if cell is None or cell["paper"] is None else f"{cell['paper']:g}"


def _our_value(cell: Content | None) -> str:
    if cell is None:
        return ""
    if cell["mean"] is None:
        return "–"
    digits = 0 if cell["mean"] >= 100 else 1
    shown = f"{cell['mean']:,.{digits}f}"
    return shown if cell["sd"] is None else f"{shown} ± {cell['sd']:,.{digits}f}"


def order_sentences(content: Content) -> list[str]:
    """Return sentences on whether the paper's order is kept."""
    order = content["order"]
    if not order["comparisons"]:
        return []
    counts = [f"{order['counts'][name]} {name}" for name in VERDICTS if order["counts"][name]]
    answer = {
        "yes": "The paper's order holds",
        "within the spread": "The paper's order holds within the spread",
        "no": "The paper's order does not hold throughout",
    }[order["holds"]]
    sentences = [
        f"{answer}: of {counted(order['comparisons'], 'comparison')}, {', '.join(counts)}; "
        f"Kendall's tau {order['tau']:.2f}."
    ]
    if order["best"]:
        others = "; ".join(
            f"{best['line']}: {best['ours']} instead of {' or '.join(best['paper'])}"
            for best in order["best"]
            if best["verdict"] == "another"
        )
        same = sum(best["verdict"] != "another" for best in order["best"])
        sentences.append(
            "The paper's best entry is also best here, or within the spread of the best, in "
            f"{same} of {len(order['best'])} lines{f' ({others})' if others else ''}."
        )
    return sentences


def _order_paragraphs(content: Content) -> list[str]:
    first, *others = order_sentences(content) or [""]
    reversals = content["order"]["reversed"]
    paragraphs = [f"**{first}** {' '.join(others)}"] if first else []
    if reversals:
        shown = [f"{one} above {other}" for one, other in reversals[:SHOWN_REVERSALS]]
        more = len(reversals) - len(shown)
        shown += [f"and {more} more"] if more else []
        paragraphs.append(f"In the paper but clearly reversed here: {'; '.join(shown)}.")
    return paragraphs


def _summary(content: Content) -> list[str]:
    """Return name, source, whether the order holds, kept comparisons and tau."""
    experiment, order = EXPERIMENTS[content["experiment"]], content["order"]
    kept = order["counts"]["kept"] + order["counts"]["kept within the spread"]
    drawn = "drawn" if content["complete"] else "not yet drawn"
    return [
        experiment.name,
        experiment.source,
        drawn if experiment.part else order["holds"],
        f"{kept} of {order['comparisons']}" if order["comparisons"] else "",
        "" if order["tau"] is None else f"{order['tau']:.2f}",
    ]


def write_page(store: Path, path: Path) -> list[str]:
    """Write the page and its pictures in images/; return the names of experiments with results."""
    budgets: tuple[Budget, ...] = ("cpu", "full")
    found = {
        budget: {
            name: content for name in EXPERIMENTS if (content := read_result(store, name, budget))
        }
        for budget in budgets
    }
    small, full = found["cpu"], found["full"]
    if not small and not full and path.exists():
        raise InputError(
            f"{store} holds no results, so {path} would lose its content; "
            "pass the store with its results as --out, or delete the page first."
        )
    introduction = files("imsvd.reproduction").joinpath("page.md").read_text(encoding="utf-8")
    lines = [introduction.format(CPU_EPOCHS=CPU_EPOCHS), "## Overview", ""]
    lines += _overview(small) if small or full else ["No experiment has been run yet."]
    lines += ["", "At the paper's scale:", "", *_overview(full)] if full else []
    comment = read_comment(store)
    lines += ["", comment] if comment else []
    for name, experiment in EXPERIMENTS.items():
        lines += ["", f"## {name}: {experiment.source}", ""]
        lines += _section(store, small[name], path) if name in small else _placeholder(experiment)
        if name in full:
            lines += ["", "### At the paper's scale", "", *_section(store, full[name], path)]
    write_atomically(path, ("\n".join(lines) + "\n").encode())
    return [name for name in EXPERIMENTS if name in small or name in full]


def read_comment(folder: Path) -> str:
    """Return the content of comment.md in `folder`; empty if there is none."""
    try:
        return (folder / "comment.md").read_text().strip()
    except OSError:
        return ""


def _overview(contents: Mapping[str, Content]) -> list[str]:
    titles = ["experiment", "paper", "order holds", "kept", "Kendall's tau"]
    rows = [titles, ["---", "---", "---", "---:", "---:"], *map(_summary, contents.values())]
    return [f"| {' | '.join(row)} |" for row in rows] if contents else []


def _placeholder(experiment: Experiment) -> list[str]:
    command = f"imsvd reproduce run {experiment.name} --data DIR"
    return [
        experiment.shows,
        "",
        f"Not run yet: `{command}`.",
    ]


def _section(store: Path, content: Content, path: Path) -> list[str]:
    """A result with its picture, copied beside the page, and its comment."""
    name, budget = content["experiment"], content["budget"]
    folder = experiment_folder(store, name, budget)
    source = folder / picture_name(EXPERIMENTS[name])
    address = f"images/reproduction-{name}{'-full' * (budget == 'full')}{source.suffix}"
    if source.exists():
        with complete_or_absent(path.parent / address) as target:
            target.write_bytes(source.read_bytes())
    # Paths of the machine that made the results are of no use to readers.
    data = content["setup"]["data"]
    lines = [
        line.replace(data, Path(data).name) for line in body(content, address, read_comment(folder))
    ]
    return [re.sub(r"(--out )\S*/", r"\1", line) for line in lines]
