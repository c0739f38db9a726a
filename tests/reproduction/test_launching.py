"""`imsvd reproduce plan`: job files that survive quoting, failures and signals, and the dry run."""

import io
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from imsvd.config import Config, override
from imsvd.errors import InputError
from imsvd.grid.jobs import Job
from imsvd.methods import METHODS
from imsvd.recipes import recipe
from imsvd.reproduction import launching as module
from imsvd.reproduction.experiment import PlannedRun, Setup
from imsvd.reproduction.experiments import EXPERIMENTS, find_experiments
from imsvd.reproduction.launching import (
    SCRIPTS,
    Machines,
    Trial,
    check_full_size,
    dry_run,
    smallest_form,
    smallest_settings,
    take_step,
    write_jobs,
)
from imsvd.reproduction.plan import FullPlan, build_on_meta, plan_full
from imsvd.runs import RunFolder
from tests.engine.processes import ENVIRONMENT, saved_step
from tests.pretraining.tiny import CommandLine

NASTY = "a b'c\"d$HOME;`e`&(f)*%A"
"""Everything that a shell could trip over."""

INTERPRETER = """#!{python} -IS
import json, os, signal, sys, time
folder = os.environ["RECORDS"]
words = sys.argv[1:]
with open(os.path.join(folder, "calls"), "a") as file:
    file.write(json.dumps(words) + "\\n")
if os.environ.get("WAITING"):
    def stop(number, frame):
        with open(os.path.join(folder, "signals"), "a") as file:
            file.write(f"{{number}}\\n")
        sys.exit(128 + number)
    signal.signal(signal.SIGTERM, stop)
    with open(os.path.join(folder, "pid"), "w") as file:
        file.write(str(os.getpid()))
    time.sleep(60)
sys.exit(3 if os.environ.get("FAILING", "nothing") in " ".join(words) else 0)
"""
"""Stands for Python: writes down how it was called."""

SLURM = {
    "srun": 'echo "$@" >>"$RECORDS/srun"\nwhile [[ $1 == --* ]]; do shift; done\nexec "$@"',
    "scancel": 'echo "$@" >>"$RECORDS/scancel"\nkill -TERM "$(cat "$RECORDS/pid")"\nsleep "$DELAY"',
    "scontrol": 'echo "$@" >>"$RECORDS/scontrol"',
    "sbatch": 'printf "%s\\n" "$*" >>"$RECORDS/sbatch"\nwc -l <"$RECORDS/sbatch"',
}
"""Stand for the commands of SLURM."""


class Cluster:
    """A folder with blanks and quotes in its name, and programs that write down their calls."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.place = place / NASTY
        self.jobs = self.place / "job files"
        self.records = place / "records"
        programs = place / "my programs"
        for folder in (self.place, self.records, programs):
            folder.mkdir()
        for name, body in SLURM.items():
            _program(programs / name, f"#!/usr/bin/env bash\n{body}\n")
        _program(programs / "python", INTERPRETER.format(python=sys.executable))
        monkeypatch.setattr("sys.executable", str(programs / "python"))
        monkeypatch.chdir(self.place)
        self.environment = {
            **os.environ,
            "PATH": f"{programs}:{os.environ['PATH']}",
            "RECORDS": str(self.records),
        }

    def write(self, launcher: str, plan: FullPlan, machines: Machines | None = None) -> None:
        write_jobs(plan, launcher, self.jobs, machines or Machines())

    def start(self, *words: str, **variables: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["bash", *words],
            env={**self.environment, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd="/",
            # A shell cannot trap what was ignored when it began, as Ctrl-C is in background jobs.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - no threads
        )

    def run(self, script: str, *words: str, **variables: str) -> tuple[int, str]:
        process = self.start(str(self.jobs / script), *words, **variables)
        output, _ = process.communicate(timeout=60)
        return process.returncode, output

    def calls(self) -> list[list[str]]:
        return [json.loads(line) for line in self.record("calls")]

    def record(self, name: str) -> list[str]:
        file = self.records / name
        return file.read_text().splitlines() if file.exists() else []

    def wait_for(self, name: str) -> None:
        end = time.monotonic() + 60
        while not (self.records / name).exists():
            assert time.monotonic() < end, f"no {name}"
            time.sleep(0.01)


def _program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(tmp_path, monkeypatch)


def plan(*names: str) -> FullPlan:
    setup = Setup("full", data=f"/data/{NASTY}", voc="voc 7", coco="co'co", places='pl"aces')
    return plan_full(find_experiments(names), setup, Path("the 'out'"))


def started(words: list[str]) -> list[str]:
    """The command of imsvd in a call of Python, without what the script has added."""
    words = words[len(words) - 1 - words[::-1].index("-m") + 1 :]
    return words[: words.index("compute.nodes=1") - 1] if "compute.nodes=1" in words else words


@pytest.mark.parametrize("launcher", SCRIPTS)
def test_scripts_are_clean(launcher: str, cluster: Cluster) -> None:
    cluster.write(launcher, plan("all"))
    scripts = [str(path) for path in cluster.jobs.iterdir() if path.suffix in (".sh", ".sbatch")]
    assert len(scripts) == len(SCRIPTS[launcher]) + 1
    for script in scripts:
        subprocess.run(["bash", "-n", script], check=True)
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", "-x", *scripts], check=True, cwd=cluster.jobs)


def test_every_word_survives_and_everything_is_run_once(cluster: Cluster) -> None:
    whole = plan("transfer", "knn", "grad-cam")
    cluster.write("torchrun", whole, Machines(1, 8))
    code, output = cluster.run("run.sh")
    assert code == 0, output
    expected = [shlex.split(command) for command in whole.commands()]
    assert sorted(map(started, cluster.calls())) == sorted(expected)
    trainings = cluster.calls()[: len(whole.runs)]
    for words in trainings:
        assert words[:5] == ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "8"]
        assert words[-4:] == ["--set", "compute.nodes=1", "--set", "compute.devices=8"]
    alone = [words for words in cluster.calls() if words[:2] == ["-m", "imsvd"]]
    assert {words[3] for words in alone if words[2] == "evaluate"} == {"voc07"}
    assert any(words[2] == "explain" for words in alone)
    # Again: nothing is left to do.
    before = len(cluster.calls())
    code, output = cluster.run("run.sh")
    assert (code, len(cluster.calls())) == (0, before)
    assert output.count("already finished") == before


def test_several_machines_meet_on_a_port_of_each_run(cluster: Cluster) -> None:
    cluster.write("torchrun", plan("loss-terms"), Machines(4, 8))
    code, output = cluster.run("run.sh")
    assert code != 0
    assert "NODE_RANK" in output
    code, output = cluster.run("run.sh", NODE_RANK="2", MASTER_ADDR="host0", MASTER_PORT="3000")
    assert code == 0, output
    calls = cluster.calls()
    assert len(calls) == 4  # evaluations are for the first machine
    for number, words in enumerate(calls, 1):
        given = dict(zip(words[2:10:2], words[3:11:2], strict=True))
        assert given == {
            "--nnodes": "4",
            "--node-rank": "2",
            "--master-addr": "host0",
            "--master-port": str(3000 + number),
        }
        assert "compute.nodes=4" in words


def test_a_failure_stops_nothing_else_and_is_tried_again(cluster: Cluster) -> None:
    some = plan("loss-terms")
    cluster.write("torchrun", some, Machines(1, 8))
    code, output = cluster.run("run.sh", FAILING="method.diagonal_weight=0")
    assert code == 1
    assert "Failed: 1\n" in output
    assert "train (exit code 3)" in output
    assert output.count("skipped, the run is not trained") == 1
    assert len(cluster.calls()) == 4 + 3
    code, output = cluster.run("run.sh")
    assert code == 0, output
    assert len(cluster.calls()) == 4 + 3 + 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_reaches_the_run_once_and_ends_the_loop(
    number: signal.Signals, cluster: Cluster
) -> None:
    cluster.write("torchrun", plan("loss-terms"), Machines(1, 8))
    process = cluster.start(str(cluster.jobs / "run.sh"), WAITING="1")
    cluster.wait_for("pid")
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 143
    assert "run the same command to resume" in output
    assert cluster.record("signals") == [str(int(signal.SIGTERM))]
    assert len(cluster.calls()) == 1
    code, _ = cluster.run("run.sh")
    assert code == 0
    assert len(cluster.calls()) == 1 + 4 + 4


def test_slurm_is_asked_for_one_array_and_evaluations_wait(cluster: Cluster) -> None:
    whole = plan("transfer", "cost")
    cluster.write("slurm", whole)
    code, output = cluster.run("submit.sh", "--partition=my gpus", AT_ONCE="3")
    assert code == 0, output
    trainings, evaluations, published = cluster.record("sbatch")
    runs = len(whole.runs)
    assert f"--array=1-{runs}%3 --nodes=4 --ntasks-per-node=8 --gpus-per-node=8" in trainings
    assert "--partition=my gpus" in trainings
    assert trainings.endswith(f"{cluster.jobs}/array.sbatch {cluster.jobs} train")
    assert "%%A/job files/logs/train-%A_%a.txt" in trainings
    assert f"--array=1-{runs} --nodes=1" in evaluations
    assert "--dependency=aftercorr:1 " in evaluations
    assert f"--array={runs + 1} --nodes=1" in published
    assert "--dependency" not in published
    assert published.endswith("evaluate")


def element(number: int, **variables: str) -> dict[str, str]:
    return {"SLURM_ARRAY_JOB_ID": "77", "SLURM_ARRAY_TASK_ID": str(number), **variables}


def test_an_element_of_the_array_is_a_line_of_the_table(cluster: Cluster) -> None:
    whole = plan("transfer")
    cluster.write("slurm", whole)
    code, output = cluster.run("array.sbatch", str(cluster.jobs), "train", **element(2))
    assert code == 0, output
    (words,) = cluster.calls()
    assert words[1 : -len(["--set", "", "--set", ""])] == list(
        whole.training_command(whole.runs[1])
    )
    assert words[-3::2] == ["compute.nodes=4", "compute.devices=8"]
    assert "--nodes=4 --ntasks-per-node=8" in cluster.record("srun")[0]
    code, output = cluster.run("array.sbatch", str(cluster.jobs), "train", **element(2))
    assert (code, len(cluster.calls())) == (0, 1)

    last = len(whole.runs) + 1
    code, output = cluster.run("array.sbatch", str(cluster.jobs), "evaluate", **element(last))
    assert code == 0, output
    published = [list(one.words) for one in whole.evaluations if one.published]
    found = [started(words) for words in cluster.calls()[1:]]
    assert sorted(found) == sorted(published)
    (single,) = [line for line in cluster.record("srun") if "voc07" in line]
    assert "--ntasks=1 --ntasks-per-node=1" in single


def test_an_element_fails_with_its_run(cluster: Cluster) -> None:
    cluster.write("slurm", plan("units"))
    arguments = (str(cluster.jobs), "train")
    code, _ = cluster.run("array.sbatch", *arguments, **element(1, FAILING="pretrain"))
    assert code == 3
    assert not cluster.record("scontrol")


# With the delay the run has ended before the script waits for it again.
@pytest.mark.parametrize("delay", ["0", "0.5"])
def test_before_the_time_is_over_the_run_saves_and_is_queued_again(
    cluster: Cluster, delay: str
) -> None:
    cluster.write("slurm", plan("units"))
    script, arguments = str(cluster.jobs / "array.sbatch"), (str(cluster.jobs), "train")
    process = cluster.start(script, *arguments, **element(3, WAITING="1", DELAY=delay))
    cluster.wait_for("pid")
    process.send_signal(signal.SIGUSR1)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 143, output
    # The element alone, and its processes alone: neither the array nor srun.
    assert cluster.record("scancel") == ["--signal=TERM 77_3"]
    assert cluster.record("signals") == ["15"]
    assert cluster.record("scontrol") == ["requeue 77_3"]
    code, _ = cluster.run("array.sbatch", *arguments, **element(3))
    assert code == 0
    assert len(cluster.calls()) == 2


def test_a_canceled_job_sends_no_second_signal(cluster: Cluster) -> None:
    cluster.write("slurm", plan("units"))
    script, arguments = str(cluster.jobs / "array.sbatch"), (str(cluster.jobs), "train")
    process = cluster.start(script, *arguments, **element(1, WAITING="1"))
    cluster.wait_for("pid")
    process.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    os.kill(int(cluster.record("pid")[0]), signal.SIGTERM)  # as SLURM does
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 143, output
    assert cluster.record("signals") == ["15"]
    assert not cluster.record("scancel") + cluster.record("scontrol")


def test_what_cannot_be_submitted_is_refused(tmp_path: Path) -> None:
    jobs = tmp_path / "jobs"
    some = plan("batch-size")
    with pytest.raises(InputError, match="slurm or torchrun"):
        write_jobs(some, "pbs", jobs, Machines())
    with pytest.raises(InputError, match="does not divide by 24 processes"):
        write_jobs(some, "slurm", jobs, Machines(3, 8))
    with pytest.raises(InputError, match="--gpus 0"):
        write_jobs(some, "slurm", jobs, Machines(1, 0))
    with pytest.raises(InputError, match="line break"):
        write_jobs(some._replace(out=tmp_path / "a\nb"), "slurm", jobs, Machines())
    assert not jobs.exists()


def smallest(some: FullPlan, *settings: str) -> FullPlan:
    """The first run of a plan in its smallest form."""
    run: Any = some.runs[0]
    changes = (*smallest_settings(run.job.config), *settings)
    config = smallest_form(run.job.config)
    small = run._replace(job=Job(config), settings=(*run.settings, *changes))
    return FullPlan(some.out, (small,), (), 1)


@pytest.mark.slow
def test_torchrun_really_starts_two_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "it's a place"
    place.mkdir()
    monkeypatch.chdir(place)
    small = smallest(plan("loss-terms"))
    write_jobs(small, "torchrun", Path("jobs"), Machines(1, 2))
    done = subprocess.run(
        ["bash", "jobs/run.sh"], env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Starting with 2 processes" in done.stderr
    folder = small.folder(small.runs[0])
    (record,) = RunFolder(folder).metrics()
    assert record["step"] == 1
    assert RunFolder(folder).config().compute.devices == 2
    assert (folder / "train.done").exists()
    assert (folder / "encoder.safetensors").exists()


@pytest.mark.slow
def test_torchrun_saves_when_it_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    endless = smallest(plan("loss-terms"), "training.epochs=100000")
    write_jobs(endless, "torchrun", Path("jobs"), Machines(1, 2))
    with Path("output").open("w") as output:
        process = subprocess.Popen(["bash", "jobs/run.sh"], env=ENVIRONMENT, stdout=output)
    folder = endless.folder(endless.runs[0])
    end = time.monotonic() + 300
    while saved_step(folder) < 3:
        assert time.monotonic() < end
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == 143
    assert "Stopped and saved at step" in Path("output").read_text()
    assert "run the same command to resume" in Path("output").read_text()
    assert not (folder / "train.done").exists()


def runs(*names: str) -> tuple[PlannedRun, ...]:
    return plan_full(find_experiments(names), Setup("full"), Path("out")).runs


def distinct(some: tuple[PlannedRun, ...]) -> list[Config]:
    return [job.config for job in dict.fromkeys(Job(smallest_form(run.job.config)) for run in some)]


def same_kind(config: Config) -> dict[str, object]:
    """What the smallest form must share with the configuration it stands for."""
    method = config.method.model_dump()
    weights = {name: value for name, value in method.items() if isinstance(value, float | str)}
    views = [view.model_dump(exclude={"size"}) for view in config.views.every]
    optimizer = config.optimizer.model_dump(exclude={"warmup_epochs"})
    return {"method": weights, "views": views, "optimizer": optimizer, "name": config.backbone.name}


@pytest.mark.parametrize("name", METHODS)
def test_the_smallest_form_is_small_and_of_the_same_kind(name: str) -> None:
    config = recipe("imagenet", name)
    smallest = smallest_form(config)
    assert same_kind(smallest) == same_kind(config)
    assert smallest_form(smallest) == smallest
    assert smallest.training.batch_size == 16
    weights = list(build_on_meta(smallest).parameters())
    assert sum([weight.numel() for weight in weights]) < 100_000
    settings = smallest_settings(config)
    assert len({setting.partition("=")[0] for setting in settings}) == len(settings)


def test_what_experiments_change_is_kept() -> None:
    units = {config.method.units for config in distinct(runs("units"))}  # type: ignore[attr-defined]
    assert units == {32, 64, 80, 96, 128}
    depths = {len(config.method.projector) for config in distinct(runs("projector-depth"))}  # type: ignore[attr-defined]
    assert depths == {2, 3, 4}
    assert len(distinct(runs("loss-terms"))) == 4
    assert len(distinct(runs("batch-size"))) == 3  # one for each method


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_built_in_full_size(name: str) -> None:
    # Some batch per process that all of them divide into.
    assert (
        check_full_size(override(recipe("imagenet", name), ["training.batch_size=4096"]), 32) > 2e7
    )


def test_the_parameters_of_the_papers_network_are_counted() -> None:
    assert check_full_size(recipe("imagenet")) == 107_156_544


@pytest.mark.parametrize("name", ["imsvd", "swav", "la"])
def test_a_step_is_taken(name: str) -> None:
    take_step(smallest_form(recipe("imagenet", name)))


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_every_method_takes_a_step(name: str) -> None:
    take_step(smallest_form(recipe("imagenet", name)))


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_passes(name: str) -> None:
    trials = dry_run(runs(name), 32, Console(quiet=True))
    assert [trial.error for trial in trials] == [""] * len(trials)


def test_a_step_that_moves_nothing_is_an_error() -> None:
    config = override(smallest_form(recipe("imagenet")), ["optimizer.lr=1e-300"])
    with pytest.raises(ValueError, match="the weights"):
        take_step(config)


def test_parameters_that_no_group_trains_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(method: torch.nn.Module, config: Config) -> torch.optim.Optimizer:
        return torch.optim.SGD(list(method.parameters())[1:], lr=config.optimizer.lr)

    monkeypatch.setattr(module, "build_optimizer", forgetful)
    module._check_network.cache_clear()
    with pytest.raises(ValueError, match="the optimizer"):
        check_full_size(recipe("imagenet"))


def test_failures_are_told_and_the_others_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def step(config: Config) -> None:
        tried.append(config)
        if config.method.name == "vicreg":
            raise RuntimeError("no\nstep")

    monkeypatch.setattr(module, "take_step", step)
    console = Console(record=True, width=200, file=io.StringIO())
    some = runs("batch-size")
    trials = dry_run(some, 24, console)
    by_method = {
        method: {trial.error for trial in trials if trial.run.method == method}
        for method in ("imsvd", "vicreg", "simsiam")
    }
    refusal = "training.batch_size=512 does not divide by 24 processes"
    assert all(any(refusal in error for error in errors) for errors in by_method.values())
    divisible = [run for run in some if run.job.config.training.batch_size % 24 == 0]
    assert not divisible  # 24 divides none of the paper's batches
    assert not tried

    trials = dry_run(some, 32, console)
    assert [bool(trial.error) for trial in trials] == [run.method == "vicreg" for run in some]
    assert len(tried) == 3
    failed = next(trial for trial in trials if trial.error)
    assert failed == Trial(failed.run, 174_552_128, "RuntimeError: no")
    shown = console.export_text()
    assert shown.count("✗") == len(some) + 4
    assert "8 of 12 configurations" in shown


UNITS = ["reproduce", "plan", "units", "--data", "/data/imagenet"]


def test_costs_and_commands_are_shown(
    command: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert command(UNITS) == 0
    assert "Table IX" in command.out
    assert "Runs: 5, for 10 values of the paper." in command.out
    assert "Hardware: 4 × 8 GPUs. The paper used 32 V100" in command.out
    # 8.5 h each, by the paper for three of them and for all but a hair by the fit.
    assert "Training: 43 h in sequence (1,360 GPU hours)." in command.out
    by_paper = [line for line in command.out.splitlines() if line.rstrip().endswith(" Table IV")]
    assert len(by_paper) == 3
    assert "Disk: at most 15 GB" in command.out
    lines = command.out.splitlines()
    assert (
        sum(line.startswith("imsvd pretrain /data/imagenet --recipe imagenet") for line in lines)
        == 5
    )
    assert sum(line.startswith("imsvd evaluate linear ") for line in lines) == 5


def test_other_hardware_is_scaled(command: CommandLine) -> None:
    assert command([*UNITS, "--nodes", "1", "--gpus", "16"]) == 0
    assert "85 h if they are V100" in command.out


def test_job_files_are_written(command: CommandLine, tmp_path: Path) -> None:
    jobs = tmp_path / "jobs"
    assert command([*UNITS, "--launcher", "torchrun", "--jobs", str(jobs)]) == 0
    assert {path.name for path in jobs.iterdir()} == {
        "README.md",
        "common.sh",
        "evaluate.tsv",
        "run.sh",
        "settings.sh",
        "train.tsv",
    }
    assert f"bash {jobs}/run.sh" in (jobs / "README.md").read_text()
    assert len((jobs / "train.tsv").read_text().splitlines()) == 5


def test_bad_requests_come_before_anything_is_shown(command: CommandLine, tmp_path: Path) -> None:
    jobs = ["--jobs", str(tmp_path / "jobs")]
    command.refuses([*UNITS, "--launcher", "pbs", *jobs], "no launcher 'pbs'", "slurm or torchrun")
    assert not command.out
    command.refuses([*UNITS, "--launcher", "slurm", "--nodes", "3", *jobs], "24 processes")
    command.refuses([*UNITS, "--launcher", "slurm", "--gpus", "0", *jobs], "--gpus 0")
    command.refuses([*UNITS, "--nodes", "0"], "--nodes 0")
    assert not (tmp_path / "jobs").exists()


@pytest.mark.parametrize(("error", "code"), [("", 0), ("no shape", 1)])
def test_a_dry_run_that_fails_ends_with_one(
    error: str, code: int, command: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def trials(runs: Sequence[PlannedRun], processes: int, console: object) -> list[Trial]:
        asked.append((len(runs), processes))
        return [Trial(run, 1, error) for run in runs]

    monkeypatch.setattr(module, "dry_run", trials)
    assert command([*UNITS, "--dry-run"]) == code
    assert asked == [(5, 32)]
    assert "Commands" not in command.out
