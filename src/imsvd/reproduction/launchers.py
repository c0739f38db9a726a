"""Job files for a cluster: scripts that never change, and tables and settings that they read.

settings.sh     interpreter, machines, numbers of the array
train.tsv       a line per run: number, folder, step, processes, command
evaluate.tsv    a line per evaluation, numbered as its run
common.sh …     the scripts, see the folder job_files
README.md       how to submit
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from imsvd.errors import InputError
from imsvd.files import write_atomically
from imsvd.reproduction.full_networks import IMAGENET_IMAGES
from imsvd.reproduction.full_plan import Evaluation, FullPlan
from imsvd.training.batches import EpochOrder

SCRIPTS = {
    "slurm": ("common.sh", "array.sbatch", "submit.sh"),
    "torchrun": ("common.sh", "run.sh"),
}
"""The scripts of each launcher."""

SUBMITTING = {
    "slurm": "Submit with `bash {folder}/submit.sh --partition=… --time=24:00:00 --cpus-per-task=8`; "
    "all options go to `sbatch`, and `AT_ONCE=4` in front lets four trainings run at a time.",
    "torchrun": "Start with `bash {folder}/run.sh`; on several machines, on each of them with "
    "`NODE_RANK=0 MASTER_ADDR=host0 MASTER_PORT=29500` in front, NODE_RANK being its number.",
}


class Machines(NamedTuple):
    """What a run is trained on."""

    nodes: int = 4
    gpus: int = 8
    """Of each machine; a process for each of them."""

    @property
    def processes(self) -> int:
        """Processes of a run."""
        return self.nodes * self.gpus


def check_machines(machines: Machines) -> None:
    """Refuse a cluster without machines or GPUs."""
    if min(machines) < 1:
        raise InputError(
            f"--nodes {machines.nodes} --gpus {machines.gpus} is too few; give at least one of each."
        )


def check_jobs(plan: FullPlan, launcher: str, machines: Machines) -> None:
    """Refuse what could not be submitted, before anything is shown or written."""
    if launcher not in SCRIPTS:
        raise InputError(f"--launcher {launcher!r} is not possible; choose {' or '.join(SCRIPTS)}.")
    check_machines(machines)
    for run in plan.runs:
        # A batch that does not divide by the processes is better refused now than on the cluster.
        EpochOrder(IMAGENET_IMAGES, run.job.config.training.batch_size, 0, world=machines.processes)


def write_jobs(plan: FullPlan, launcher: str, folder: Path, machines: Machines) -> None:
    """Write everything that `launcher` needs to carry out `plan` to `folder`."""
    check_jobs(plan, launcher, machines)
    numbers = _number(plan)
    contents = {
        "settings.sh": _settings(plan, machines, numbers),
        "train.tsv": _train_table(plan),
        "evaluate.tsv": _evaluation_table(plan, numbers),
        "README.md": _readme(plan, launcher, folder, machines),
    }
    scripts = files("imsvd.reproduction") / "job_files"
    for name in SCRIPTS[launcher]:
        contents[name] = scripts.joinpath(name).read_text(encoding="utf-8")
    for name, content in contents.items():
        write_atomically(folder / name, content.encode())


def _number(plan: FullPlan) -> dict[str, int]:
    """Number the encoders that are evaluated: runs as they are trained, then published ones."""
    numbers = {str(plan.folder(run)): number for number, run in enumerate(plan.runs, 1)}
    for evaluation in plan.evaluations:
        numbers.setdefault(evaluation.encoder, len(numbers) + 1)
    return numbers


def _settings(plan: FullPlan, machines: Machines, numbers: Mapping[str, int]) -> str:
    evaluated = {numbers[one.encoder] for one in plan.evaluations if not one.published}
    published = {numbers[one.encoder] for one in plan.evaluations if one.published}
    values = {
        "python": sys.executable,
        "start": str(Path.cwd()),
        "nodes": machines.nodes,
        "gpus": machines.gpus,
        "last_run": len(plan.runs),
        "trained": _ranges(range(1, len(plan.runs) + 1)),
        "evaluated": _ranges(evaluated),
        "published": _ranges(published),
    }
    return (
        "# shellcheck shell=bash disable=SC2034,SC2016\n"
        "# Interpreter, folder in which commands are started, machines, GPUs of each, and numbers of\n"
        "# the lines in the tables. Change the first four as your cluster needs it.\n"
        + "".join(f"{name}={shlex.quote(str(value))}\n" for name, value in values.items())
    )


def _train_table(plan: FullPlan) -> str:
    return _table(
        (str(number), str(plan.folder(run)), "train", "all", _line(plan.training_command(run)))
        for number, run in enumerate(plan.runs, 1)
    )


def _evaluation_table(plan: FullPlan, numbers: Mapping[str, int]) -> str:
    # By number, so that everything of an encoder stands together.
    ordered = sorted(plan.evaluations, key=lambda one: numbers[one.encoder])
    return _table(
        (
            str(numbers[one.encoder]),
            _place(one, plan.out),
            one.label,
            "one" if one.single_process else "machine",
            _line(one.command),
        )
        for one in ordered
    )


def _place(evaluation: Evaluation, out: Path) -> str:
    """Where it is remembered that an evaluation is done."""
    if not evaluation.published:
        return evaluation.encoder
    return str(out / "published" / re.sub(r"[^\w.]+", "-", evaluation.encoder))


def _table(lines: Iterable[Sequence[str]]) -> str:
    text = []
    for line in lines:
        for field in line:
            if re.search(r"[\t\r\n]", field):
                raise InputError(
                    f"{field!r} has a tab or a line break, which job files cannot hold; "
                    "use paths without."
                )
        text.append("\t".join(line) + "\n")
    return "".join(text)


def _line(command: Sequence[str]) -> str:
    return shlex.join(command)


def _ranges(numbers: Iterable[int]) -> str:
    """Write numbers as SLURM does, such as 1-3,5."""
    parts = []
    for _, group in groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0]):
        run = [number for _, number in group]
        parts.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
    return ",".join(parts)


def _readme(plan: FullPlan, launcher: str, folder: Path, machines: Machines) -> str:
    submitting = SUBMITTING[launcher].format(folder=shlex.quote(str(folder)))
    return f"""# {len(plan.runs)} runs, {len(plan.evaluations)} evaluations

{submitting}

`train.tsv` and `evaluate.tsv` have a command a line, `settings.sh` the machines (now {machines.nodes}
of {machines.gpus} GPUs). Runs are in `{plan.out / "runs"}`; an empty file such as `train.done` in a
run's folder says that a step is finished and not to be repeated. Submitting again goes on with what
was interrupted or has failed. More: docs/cluster.md of imsvd.
"""
