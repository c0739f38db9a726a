"""The result of an experiment as files: result.json, .md and .csv; the others follow from the first."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from imsvd.files import write_atomically
from imsvd.grid.comparison import csv_text
from imsvd.progress import counted
from imsvd.provenance import environment
from imsvd.reproduction.markdown import NAME, Content, page
from imsvd.reproduction.order import Order
from imsvd.reproduction.results import Found, Result, sources
from imsvd.reproduction.variants import Scale

FOLDERS: dict[Scale, str] = {"cpu": "experiments", "full": "experiments-full"}


def experiment_folder(store: Path, name: str, scale: Scale = "cpu") -> Path:
    """Return where the results of an experiment are in `store`."""
    return store / FOLDERS[scale] / name


def current_facts() -> dict[str, str]:
    """Return command, commit, hardware and versions of this process, and the date."""
    facts = {"version": version("imsvd"), **environment()}
    facts["command"] = facts["command"].replace("__main__.py", "imsvd", 1)
    return facts


def write_result(result: Result, store: Path, facts: Mapping[str, str]) -> Content:
    """Write the result as it stands, made under `facts`, and return what result.json holds."""
    name, scale = result.experiment.name, result.setup.scale
    folder = experiment_folder(store, name, scale)
    content = describe(result, store)
    earlier = read_result(store, name, scale)
    # Numbers keep the command, commit and date that they were made with.
    if earlier is not None and _numbers(earlier) == _numbers(content):
        facts = earlier["environment"]
    content["environment"] = dict(facts)
    write_atomically(folder / f"{NAME}.csv", csv_text(_lines(content)).encode())
    write_atomically(folder / f"{NAME}.md", page(content).encode())
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    write_atomically(folder / f"{NAME}.json", text.encode())
    return content


def read_result(store: Path, name: str, scale: Scale = "cpu") -> Content | None:
    """Return result.json of an experiment, or None if there is none that can be read."""
    try:
        content = json.loads((experiment_folder(store, name, scale) / f"{NAME}.json").read_text())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def read_comment(folder: Path) -> str:
    """Return what a person has written to comment.md in a folder of the store; empty if nothing."""
    try:
        return (folder / "comment.md").read_text().strip()
    except OSError:
        return ""


def describe(result: Result, store: Path) -> dict[str, Any]:
    """Return the result as plain values."""
    experiment, setup = result.experiment, result.setup
    return {
        "experiment": experiment.name,
        "source": experiment.source,
        "shows": experiment.shows,
        "scale": setup.scale,
        "setup": setup._asdict()
        | {
            "epochs": setup.hundred,
            "seeds": list(setup.seeds),
            "settings": list(setup.settings),
        },
        "axis": experiment.axis,
        "parts": list(experiment.parts),
        "runs": {"finished": result.finished, "total": result.total},
        "complete": result.complete,
        "parallel": result.parallel,
        "cells": [_cell(found, store) for found in result.found],
        "order": _order(result.order),
        "notes": [*_budget(result), *experiment.notes.get(setup.scale, ())],
        "failures": result.failures,
    }


def _cell(found: Found, store: Path) -> dict[str, Any]:
    cell, spread = found.cell, found.spread
    return {
        "row": cell.row,
        "column": cell.column,
        "setting": cell.setting,
        "protocol": cell.measure.protocol,
        "measure": cell.measure.title,
        "metric": cell.measure.metric,
        "paper": cell.paper,
        "paper_measure": cell.paper_title,
        "mean": spread and spread.mean,
        "sd": spread and spread.deviation,
        "runs": [
            {"seed": seed, "value": value, "folder": _beside(folder, store)}
            for (seed, folder), value in zip(sources(cell, store), found.values, strict=True)
        ],
    }


def _beside(folder: Path, store: Path) -> str:
    return str(folder.relative_to(store) if folder.is_relative_to(store) else folder)


def _order(order: Order) -> dict[str, Any]:
    return {
        "holds": order.holds,
        "comparisons": len(order.comparisons),
        "counts": order.counts,
        "tau": order.tau,
        "best": [best._asdict() | {"paper": list(best.paper)} for best in order.best],
        "reversed": [
            [comparison.larger.name, comparison.smaller.name]
            for comparison in order.comparisons
            if comparison.verdict == "reversed"
        ],
    }


def _budget(result: Result) -> list[str]:
    """What the numbers were made with, so that nobody takes them for the paper's."""
    setup = result.setup
    seeds = len(setup.seeds[:1] if result.experiment.parts else setup.seeds)
    spread = " Numbers are means ± sample deviation over them." if seeds > 1 else ""
    scale = (
        f"CPU scale: the recipe cifar10-cpu, for the paper's 100 epochs {setup.hundred}"
        if setup.scale == "cpu"
        else "Full scale: the recipe imagenet"
    )
    lines = [f"{scale}, on {setup.data}, with {counted(seeds, 'seed')}.{spread}"]
    timed = any(found.cell.measure.metric == "seconds_per_epoch" for found in result.found)
    if timed and result.parallel > 1:
        lines.append(f"Times were measured with up to {result.parallel} runs at a time.")
    return lines


def _numbers(content: Content) -> Any:
    return content["cells"], content["setup"]


def _lines(content: Content) -> list[dict[str, Any]]:
    """One line for every cell and seed."""
    shared = ("row", "column", "setting", "measure", "paper")
    lines = [
        {
            "experiment": content["experiment"],
            **{name: cell[name] for name in shared},
            "seed": run["seed"],
            "value": run["value"],
            "folder": run["folder"],
        }
        for cell in content["cells"]
        for run in cell["runs"]
    ]
    return lines or [{"experiment": content["experiment"]}]
