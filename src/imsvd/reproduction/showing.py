"""Results for people: the picture of an experiment, and what a terminal says of several."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

from PIL import Image
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from imsvd.files import write_atomically
from imsvd.grid.jobs import Job, run_folder
from imsvd.reproduction.experiment import Experiment
from imsvd.reproduction.markdown import NAME, Content, order_sentences, picture_suffix, summaries
from imsvd.reproduction.plots import draw_result
from imsvd.reproduction.report import experiment_folder

PICTURES = {
    "joint": "joint_matrix.png",
    "embeddings": "embeddings.png",
    "galleries": "galleries/*.jpg",
    "grad_cam": "grad_cam.png",
}
"""What a part of an explanation draws, below a run's explanations/; of several, the first is shown."""

WIDEST = 1000
"""Most pixels across of a figure that is copied."""


def draw(experiment: Experiment, jobs: Sequence[Job], content: Content, store: Path) -> bool:
    """Draw the plot of an experiment, or copy its figure; whether there was something to see."""
    folder = experiment_folder(store, experiment.name, content["scale"])
    picture = folder / f"{NAME}{picture_suffix(content)}"
    if experiment.parts:
        figures = [
            path for job in jobs for path in drawn_figures(run_folder(store, job), experiment)
        ]
        if figures:
            _copy_figure(figures[0], picture)
        return bool(figures)
    if any(cell["mean"] is not None for cell in content["cells"]):
        draw_result(content, picture)
        return True
    return False


def drawn_figures(run: Path, experiment: Experiment) -> list[Path]:
    """Return the pictures of a figure that a run's explanations hold."""
    return [
        path
        for part in experiment.parts
        for path in sorted((run / "explanations").glob(PICTURES[part]))
    ]


def _copy_figure(source: Path, target: Path) -> None:
    with Image.open(source) as image:
        image.thumbnail((WIDEST, 2 * WIDEST))
        content = io.BytesIO()
        if target.suffix == ".jpg":
            image.convert("RGB").save(content, "JPEG", quality=85)
        else:
            image.save(content, "PNG", optimize=True)
    write_atomically(target, content.getvalue())


def show(contents: Sequence[Content], failures: Sequence[str], console: Console) -> None:
    """Print a line for every experiment, and what can be said of its order."""
    table = Table(
        "experiment", "paper", "order holds", "kept", "tau", box=None, padding=(0, 2, 0, 0)
    )
    for line in summaries(contents):
        table.add_row(*line)
    console.print(table)
    for content in contents:
        for sentence in order_sentences(content):
            told = f"{content['experiment']}: {sentence}"
            console.print(escape(told), style="dim", highlight=False, soft_wrap=True)
    for failure in failures:
        console.print(escape(f"Failed: {failure}"), style="red", highlight=False, soft_wrap=True)
