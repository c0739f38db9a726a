"""docs/reproduction.md, made from what a store holds and never edited by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from imsvd.atomic_files import complete_or_absent
from imsvd.checkpoints import write_atomically
from imsvd.reproduction.experiments import EXPERIMENTS, Experiment
from imsvd.reproduction.markdown import NAME, Content, body, summaries
from imsvd.reproduction.report import experiment_folder, read_result
from imsvd.reproduction.variants import CPU_EPOCHS

INTRODUCTION = f"""\
# The paper's tables and figures

<!-- Made by `imsvd reproduce --write-docs`; changes by hand are lost. -->

Every table and figure of the paper (arXiv 2501.03469) is an experiment with a name. `--scale full`
is the experiment itself, for a cluster: see [cluster.md](cluster.md). `--scale cpu` is the same
experiment at a size that two cores can carry: the recipe `cifar10-cpu`, {CPU_EPOCHS} epochs for the
paper's 100, and settings in the same proportions. Its numbers are far below the paper's and are not
meant to be compared with them one by one. What can be compared is their order.

```
imsvd reproduce                                                  # what there is
imsvd reproduce all --data DIR --parallel 2                      # all of it, here
imsvd reproduce units width --data DIR --seeds 3 --epochs 10     # two tables, more carefully
imsvd reproduce units --scale full --data /data/imagenet         # hardware, hours, commands
imsvd reproduce --write-docs docs/reproduction.md                # this page
```

`DIR` holds labelled images in `train/` and `test/`. Kill the command at any moment and give it
again: finished runs are not repeated, unfinished ones go on, and a run that several experiments
need is trained once.

## How the order is judged

A comparison is a pair of numbers that the paper sets against each other: two rows of a column, or
two columns of a row. It is *kept* if ours differ in the same direction, else *reversed*; *within
the spread* if they differ by no more than the standard deviation over seeds (pooled over the
table), so that nothing is shown either way. *Order holds* is "yes" if no comparison is reversed,
"within the spread" if some are, but none beyond it, and else "no". Kendall's tau is the number kept
minus the number reversed, over all comparisons: 1 for the paper's order, -1 for its opposite. Where
the paper has a tie, nothing is compared.
"""


def write_page(store: Path, path: Path) -> list[str]:
    """Write the page, and the plots beside it in images/; return the names it has results of."""
    contents = {name: read_result(store, name) for name in EXPERIMENTS}
    found = {name: content for name, content in contents.items() if content is not None}
    lines = [INTRODUCTION, *_overview(list(found.values()))]
    for name, experiment in EXPERIMENTS.items():
        lines += ["", f"## {name}: {experiment.source}", ""]
        if name in found:
            lines += _portable(body(found[name], _copy_plot(store, name, path)), found[name])
        else:
            lines += _announcement(experiment)
    write_atomically(path, ("\n".join(lines) + "\n").encode())
    return list(found)


def _overview(contents: Sequence[Content]) -> list[str]:
    lines = ["## What there is", ""]
    if not contents:
        return [*lines, "Nothing has been run yet. Below is what each experiment will show."]
    titles = ["experiment", "paper", "order holds", "kept", "Kendall's tau"]
    rows = [titles, ["---", "---", "---", "---:", "---:"], *summaries(contents)]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows)]


def _announcement(experiment: Experiment) -> list[str]:
    return [
        f"{experiment.shows} (the paper's {experiment.source})",
        "",
        f"Not run yet: `imsvd reproduce {experiment.name} --data DIR`.",
    ]


def _copy_plot(store: Path, name: str, path: Path) -> str:
    """Copy a plot to the page's images/ and return its address from the page."""
    source = experiment_folder(store, name) / f"{NAME}.png"
    address = f"images/reproduction-{name}.png"
    if source.exists():
        with complete_or_absent(path.parent / address) as target:
            target.write_bytes(source.read_bytes())
    return address


def _portable(lines: Sequence[str], content: Content) -> list[str]:
    """Name the images by their folder alone: where it lay on one machine helps nobody."""
    data = content["setup"]["data"]
    return [line.replace(data, Path(data).name) for line in lines]
