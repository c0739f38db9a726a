"""What is measured of runs beyond what the grid measures: transfer protocols and figures.

RUN/reproduction/<protocol>.json holds the result, written when it is whole; a measurement that is
there is not repeated unless it was asked for otherwise. At CPU scale there are stand-ins for the
data that are not given: drawn scenes in the forms of VOC 2007 and COCO, and the training images
with their own classes for Places205.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.markup import escape

from imsvd.datasets.drawn.scene_files import write_scenes
from imsvd.errors import InputError
from imsvd.evaluation.protocols import evaluate
from imsvd.explanations import explain
from imsvd.files import write_atomically
from imsvd.grid.jobs import Job, run_folder
from imsvd.reproduction.experiment import Experiment, Protocol
from imsvd.reproduction.variants import Setup

FOLDER = "reproduction"
SCENES = 500
"""Drawn scenes to train on; half as many are for testing."""


class Measurement(NamedTuple):
    """One protocol to be run on one trained run."""

    protocol: Protocol
    job: Job
    asked: Mapping[str, Any]
    """What decides the result beside the run; a result for anything else does not count."""


def measurements(experiment: Experiment, setup: Setup) -> list[Measurement]:
    """Return what has to be measured of the experiment's runs after the grid, without repetitions."""
    wanted = {
        (cell.measure.protocol, job): Measurement(
            cell.measure.protocol, job, _asked(cell.measure.protocol, job, experiment, setup)
        )
        for cell in experiment.cells(setup)
        for job in cell.jobs
        if cell.measure.protocol in _MEASURE
    }
    return list(wanted.values())


def read_measurement(measurement: Measurement, store: Path) -> dict[str, float] | None:
    """Return the metrics, or None if this has not been measured."""
    try:
        found = json.loads(_file(measurement, store).read_text())
    except (OSError, ValueError):
        return None
    if not isinstance(found, dict) or found.get("asked") != dict(measurement.asked):
        return None
    return dict(found["metrics"])


def measure_all(wanted: Sequence[Measurement], store: Path, console: Console) -> list[str]:
    """Measure what is missing of the runs that are finished; return a sentence for each failure.

    Raises:
        Interrupted: after Ctrl-C; the same call goes on where it was.
    """
    failures = []
    missing = [
        measurement
        for measurement in wanted
        if run_folder(store, measurement.job).joinpath("outcome.json").exists()
        and read_measurement(measurement, store) is None
    ]
    for number, measurement in enumerate(missing, start=1):
        title = f"{measurement.protocol} of {measurement.job.title}"
        console.print(f"[dim]{number} of {len(missing)}:[/dim] {escape(title)}", highlight=False)
        try:
            metrics = _MEASURE[measurement.protocol](measurement, store, console)
        except InputError as error:
            failures.append(f"{title}: {error}")
            continue
        content = {"asked": dict(measurement.asked), "metrics": metrics}
        write_atomically(_file(measurement, store), (json.dumps(content, indent=2) + "\n").encode())
    return failures


def _file(measurement: Measurement, store: Path) -> Path:
    name = "-".join([measurement.protocol, *measurement.asked.get("parts", ())])
    return run_folder(store, measurement.job) / FOLDER / f"{name}.json"


def _asked(protocol: Protocol, job: Job, experiment: Experiment, setup: Setup) -> dict[str, Any]:
    images = job.config.data.source
    if protocol == "explain":
        return {"data": images, "parts": list(experiment.parts)}
    given = {"voc07": setup.voc, "coco": setup.coco, "places205": setup.places}[protocol]
    return {"data": given or _STAND_INS[protocol], "images": images}


_STAND_INS = {"voc07": "scenes", "coco": "scenes", "places205": "own classes"}


def _measure_voc07(measurement: Measurement, store: Path, console: Console) -> dict[str, float]:
    data = _scenes(measurement, store, "voc", console)
    return evaluate("voc07", run_folder(store, measurement.job), data, console=console)


def _measure_coco(measurement: Measurement, store: Path, console: Console) -> dict[str, float]:
    data = _scenes(measurement, store, "coco", console)
    folder = run_folder(store, measurement.job)
    return evaluate("coco", folder, data, scale="small", console=console)


def _scenes(measurement: Measurement, store: Path, layout: str, console: Console) -> str | Path:
    """The data that were given, or scenes drawn in their form."""
    if measurement.asked["data"] != "scenes":
        return str(measurement.asked["data"])
    folder = store / "data" / f"scenes-{layout}"
    return write_scenes(folder, images=SCENES, layout=layout, console=console)


def _measure_places205(measurement: Measurement, store: Path, console: Console) -> dict[str, float]:
    stand_in = measurement.asked["data"] == _STAND_INS["places205"]
    data = measurement.asked["images" if stand_in else "data"]
    folder = run_folder(store, measurement.job)
    metrics = evaluate("places205", folder, data, stand_in=stand_in, console=console)
    return {name.replace("_adapted", ""): value for name, value in metrics.items()}


def _measure_figures(measurement: Measurement, store: Path, console: Console) -> dict[str, float]:
    folder, parts = run_folder(store, measurement.job), measurement.asked["parts"]
    summary = explain(folder, measurement.asked["data"], only=parts, console=console)
    return {
        name: float(value)
        for part in parts
        for name, value in summary["parts"][part].items()
        if isinstance(value, int | float)
    }


_MEASURE: dict[Protocol, Callable[[Measurement, Path, Console], dict[str, float]]] = {
    "voc07": _measure_voc07,
    "coco": _measure_coco,
    "places205": _measure_places205,
    "explain": _measure_figures,
}
