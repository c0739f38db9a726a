"""Several hosts, as network namespaces: training across them, and the loss of one."""

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from imsvd.bench.campaign import hosts
from imsvd.bench.campaign.commands import HOSTS
from imsvd.bench.campaign.hosts import Network, address, alike, obstacle, start
from imsvd.bench.campaign.processes import ForkServer
from imsvd.bench.campaign.stage import Stage
from imsvd.reproduction.launching import Machines, write_jobs
from imsvd.runs import RunFolder
from tests.reproduction.test_launching import plan, smallest

pytestmark = pytest.mark.slow
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0"}


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    if reason := obstacle():
        pytest.skip(reason)
    with ForkServer() as server:
        stage = Stage(tmp_path_factory.mktemp("world"), server)
        stage.prepare()
        yield stage


def run_on_hosts(network: Network, commands: list[list[str]], **variables: str) -> list[str]:
    """Run a command on each host at once; return what they print."""
    running = [
        subprocess.Popen(
            ["ip", "netns", "exec", name, *command],
            env={**ENVIRONMENT, **variables, "NODE_RANK": str(number)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for number, (name, command) in enumerate(zip(network.names, commands, strict=True))
    ]
    said = [process.communicate(timeout=600)[0] for process in running]
    assert [process.returncode for process in running] == [0] * len(running), said
    return said


@pytest.mark.parametrize("number", [2, 4])
def test_training_across_hosts_equals_one_process(stage: Stage, number: int) -> None:
    expected = stage.reference("pretrain, 1 hosts").losses
    stage.clear()
    with Network(number) as network:
        ended = start(stage, network, number).wait()
    assert ended.code == 0, ended.said
    assert "not synchronized between CPU processes" in ended.said  # said to several only
    assert len(expected) == 3
    assert alike(stage.losses(), expected)


def test_torchrun_trains_across_two_hosts(stage: Stage) -> None:
    expected = stage.reference("pretrain, 1 hosts").losses
    stage.clear()
    words = [*HOSTS["pretrain, 1 hosts"].words(stage.world), "--set", "compute.nodes=2"]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2"]
    launcher += ["--nproc-per-node", "1", "--master-addr", address(0), "--master-port", "29600"]
    commands = [
        [*launcher, "--node-rank", str(number), "-m", "imsvd", *words, "--set", "compute.devices=1"]
        for number in range(2)
    ]
    with Network(2) as network:
        said = run_on_hosts(network, commands)
    assert "not synchronized between CPU processes" in "".join(said)
    assert alike(stage.losses(), expected)


def test_the_job_files_train_across_two_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if reason := obstacle():
        pytest.skip(reason)
    monkeypatch.chdir(tmp_path)
    small = smallest(plan("loss-terms"))
    write_jobs(small, "torchrun", Path("jobs"), Machines(2, 1))
    with Network(2) as network:
        said = run_on_hosts(network, [["bash", "jobs/run.sh"]] * 2, MASTER_ADDR=address(0))
    assert all("All steps are finished." in each for each in said)
    folder = small.folder(small.runs[0])
    assert RunFolder(folder).config().compute.nodes == 2
    assert (folder / "encoder.safetensors").exists()


@pytest.mark.parametrize("way", hosts.LOSSES)
def test_a_lost_host_ends_all_ranks_in_time_and_costs_nothing(
    stage: Stage, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosts, "LOSSES", (way,))
    found = hosts.attempt(stage, "pretrain, 2 hosts", random.Random(0))
    assert found.verdict == "same", found.detail
    assert way in found.detail


def test_losses_must_agree_in_number_and_value() -> None:
    assert alike([1.0, 2.0], [1.00005, 2.0])
    assert not alike([1.0, 2.0], [1.001, 2.0])
    assert not alike([1.0], [1.0, 2.0])
