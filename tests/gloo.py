"""Run a function on several real gloo processes and collect what each of them returns."""

import multiprocessing
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import start_processes


def run(world_size: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Call `function(*arguments)` on every rank; results in the order of the ranks.

    The function must be importable (top level of a module) and its results must be something
    `torch.save` can write. An exception on any rank is raised here.
    """
    # The fork server imports once for all ranks of all calls: seconds saved per rank. DDP's
    # constructor imports torch._dynamo.
    multiprocessing.set_forkserver_preload(["torch.distributed", "torch._dynamo"])
    with tempfile.TemporaryDirectory() as folder:
        start_processes(  # type: ignore[no-untyped-call]
            _rank,
            args=(world_size, folder, function, arguments),
            nprocs=world_size,
            start_method="forkserver",
        )
        results = [Path(folder, f"{rank}.pt") for rank in range(world_size)]
        return [torch.load(path, weights_only=False) for path in results]


def _rank(
    rank: int,
    world_size: int,
    folder: str,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    torch.set_num_threads(1)
    # A file as meeting point cannot collide with a port that something else uses.
    meeting_point = f"file://{folder}/meeting-point"
    dist.init_process_group("gloo", init_method=meeting_point, rank=rank, world_size=world_size)
    try:
        torch.save(function(*arguments), Path(folder, f"{rank}.pt"))
        dist.barrier()
    finally:
        dist.destroy_process_group()
