"""docs/reproduction.md, made from what a store holds and never edited by hand."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from imsvd.errors import InputError
from imsvd.files import complete_or_absent, write_atomically
from imsvd.reproduction.experiments import EXPERIMENTS, Experiment
from imsvd.reproduction.markdown import NAME, Content, body, picture_suffix, summaries
from imsvd.reproduction.report import experiment_folder, read_comment, read_result
from imsvd.reproduction.variants import CPU_EPOCHS, Scale

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
imsvd reproduce units --scale full --data /data/imagenet --collect   # tables of what they brought
imsvd reproduce --out benchmarks/reproduction --write-docs docs/reproduction.md   # this page
```

A file `comment.md` beside a result, or in the store itself, is quoted on this page.

`DIR` holds labeled images in `train/` and `test/`. Kill the command at any moment and give it
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
    small, full = _results(store, "cpu"), _results(store, "full")
    if not small and not full and path.exists():
        raise InputError(
            f"{store} holds no results, and {path} would lose what it shows; "
            "name the store of its results with --out, or delete it first."
        )
    lines = [INTRODUCTION, *_overview(list(small.values()), list(full.values()))]
    comment = read_comment(store)
    lines += ["", comment] if comment else []
    for name, experiment in EXPERIMENTS.items():
        lines += ["", f"## {name}: {experiment.source}", ""]
        if name in small:
            lines += _section(store, small[name], path)
        else:
            lines += _announcement(experiment)
        if name in full:
            lines += ["", "### At the paper's scale", "", *_section(store, full[name], path)]
    write_atomically(path, ("\n".join(lines) + "\n").encode())
    return [name for name in EXPERIMENTS if name in small or name in full]


def _results(store: Path, scale: Scale) -> dict[str, Content]:
    contents = {name: read_result(store, name, scale) for name in EXPERIMENTS}
    return {name: content for name, content in contents.items() if content is not None}


def _section(store: Path, content: Content, path: Path) -> list[str]:
    """A result with its plot and its comment."""
    comment = read_comment(experiment_folder(store, content["experiment"], content["scale"]))
    return _portable(body(content, _copy_plot(store, content, path), comment), content)


def _overview(small: Sequence[Content], full: Sequence[Content]) -> list[str]:
    lines = ["## What there is", ""]
    if not small and not full:
        return [*lines, "Nothing has been run yet. Below is what each experiment will show."]
    lines += _summary_table(small) if small else []
    return [*lines, "", "At the paper's scale:", "", *_summary_table(full)] if full else lines


def _summary_table(contents: Sequence[Content]) -> list[str]:
    titles = ["experiment", "paper", "order holds", "kept", "Kendall's tau"]
    rows = [titles, ["---", "---", "---", "---:", "---:"], *summaries(contents)]
    return [f"| {' | '.join(row)} |" for row in rows]


def _announcement(experiment: Experiment) -> list[str]:
    return [
        f"{experiment.shows} (the paper's {experiment.source})",
        "",
        f"Not run yet: `imsvd reproduce {experiment.name} --data DIR`.",
    ]


def _copy_plot(store: Path, content: Content, path: Path) -> str:
    """Copy a plot to the page's images/ and return its address from the page."""
    name, scale = content["experiment"], content["scale"]
    suffix = picture_suffix(content)
    source = experiment_folder(store, name, scale) / f"{NAME}{suffix}"
    address = f"images/reproduction-{name}{'-full' * (scale == 'full')}{suffix}"
    if source.exists():
        with complete_or_absent(path.parent / address) as target:
            target.write_bytes(source.read_bytes())
    return address


def _portable(lines: Sequence[str], content: Content) -> list[str]:
    """Name images and store by their folder alone: where it lay on one machine helps nobody."""
    data = content["setup"]["data"]
    named = [line.replace(data, Path(data).name) for line in lines]
    return [re.sub(r"(--out )\S*/", r"\1", line) for line in named]
