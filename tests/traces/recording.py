"""Records what training computes: the loss of every step and the weights at the end.

`python -m tests.traces.recording NAME` trains the trace NAME, such as a new method, and adds it to
recorded.json; without a name it records everything anew. Replace a recorded trace only if a change of numbers
is intended; a refactoring must leave the file as it is.

Everything goes through the command line and `Fabric.backward`, so that a trace does not depend on how the
code between them is arranged.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
from safetensors import safe_open
from torch import Tensor

from imsvd import cli
from imsvd.engine.fabric import Fabric
from imsvd.methods import METHODS

RECORDED = Path(__file__).parent / "recorded.json"


class Trace(NamedTuple):
    """Commands whose steps are recorded, and where the last of them leaves its checkpoints."""

    commands: tuple[tuple[str, ...], ...]
    checkpoints: str
    slow: bool = False


def pretraining(
    data: str, recipe: str, method: str, *settings: str, out: str = "run"
) -> tuple[str, ...]:
    sets = [part for setting in settings for part in ("--set", setting)]
    return ("pretrain", data, "--recipe", recipe, "--method", method, "--out", out, *sets)


# 4 epochs of 5 steps, so that phases counted in epochs, clusters and queues all take part.
TINY = (
    "backbone.options={layers: [1, 1, 1, 1], channels: [8, 8, 8, 8], stem_type: deep, stem_width: 8}",
    "optimizer.warmup_epochs=1",
    "training.epochs=4",
    "training.batch_size=32",
    "training.knn_every=0",
    "compute.accelerator=cpu",
)
# As recorded; a method added later is recorded in its own smallest form.
SMALL_HEADS = {
    "imsvd": ("method.projector=[32, 32]", "method.units=4"),
    "npid": ("method.projector=[16]", "method.num_negatives=6"),
    "vicreg": ("method.projector=[16, 16]",),
    "simclr": ("method.projector=[16, 16]",),
    "byol": ("method.projector=[16, 16]", "method.predictor=16"),
    "simsiam": ("method.projector=[16, 16]", "method.predictor=8"),
    "barlow_twins": ("method.projector=[16, 16]",),
    "moco_v2": ("method.projector=[16, 16]", "method.queue_length=64"),
    "corinfomax": ("method.projector=[16, 8]",),
    "la": (
        "method.projector=[16]",
        "method.num_background=8",
        "method.clusters=[3, 5]",
        "method.warmup_epochs=1",
        "method.num_negatives=6",
    ),
    "wmse": ("method.projector=[16, 4]", "method.whitening_size=8"),
    "pcl": (
        "method.projector=[16, 16]",
        "method.queue_length=64",
        "method.clusters=[3, 5]",
        "method.warmup_epochs=1",
    ),
    "swav": (
        "method.projector=[16, 16]",
        "method.prototypes=6",
        "method.freeze_steps=1",
        "method.queue_length=64",
        "method.queue_start_epoch=1",
    ),
    "dissl": ("method.teacher=[16]", "method.classes=12"),
}
CPU = ("--set", "compute.accelerator=cpu")
LINEAR = (
    "evaluate",
    "linear",
    "run",
    "shapes:160",
    "--epochs",
    "4",
    "--set",
    "batch_size=32",
    *CPU,
)
FINETUNE = (
    "evaluate",
    "finetune",
    "run",
    "shapes:160",
    "--epochs",
    "2",
    "--set",
    "batch_size=32",
    *CPU,
)
DETECTOR = (
    *("evaluate", "coco", "run", "scenes", "--scale", "small", "--iterations", "10"),
    *("--set", "batch_size=2", "--set", "sizes=[64]", "--set", "precise_batches=2", *CPU),
)
RUN = pretraining("shapes:160", "shapes", "imsvd", *TINY, *SMALL_HEADS["imsvd"])


def smallest_heads(method: str) -> tuple[str, ...]:
    smallest = METHODS[method][0]().smallest().model_dump(mode="json", exclude={"name"})
    return tuple(f"method.{name}={value}" for name, value in smallest.items())


TRACES = {
    **{
        name: Trace(
            (
                pretraining(
                    "shapes:160",
                    "shapes",
                    name,
                    *TINY,
                    *(SMALL_HEADS[name] if name in SMALL_HEADS else smallest_heads(name)),
                ),
            ),
            "run/checkpoints",
        )
        for name in METHODS
    },
    "linear": Trace((RUN, LINEAR), "run/evaluations/*/checkpoints"),
    "finetune": Trace((RUN, FINETUNE), "run/evaluations/*/checkpoints"),
    "coco": Trace(
        (("scenes", "scenes", "--images", "8", "--size", "64"), RUN, DETECTOR), "run/coco/*"
    ),
    "imsvd at full width": Trace(
        (pretraining("shapes:1280", "shapes", "imsvd", "training.epochs=3", *TINY[-2:]),),
        "run/checkpoints",
        slow=True,
    ),
    **{
        f"{name} at full width": Trace(
            (
                pretraining(
                    "shapes:1280",
                    "cifar10-cpu",
                    name,
                    "training.epochs=3",
                    "optimizer.warmup_epochs=1",
                    *TINY[-2:],
                ),
            ),
            "run/checkpoints",
            slow=True,
        )
        for name in ("vicreg", "moco_v2")
    },
}


def record(trace: Trace) -> dict[str, Any]:
    """Run the commands in a folder of their own; return the losses in hexadecimal and the weights' hash."""
    with tempfile.TemporaryDirectory() as folder:
        places = {"run": f"{folder}/run", "scenes": f"{folder}/scenes"}
        for command in trace.commands:
            verb, *rest = command
            with recorded_losses() as losses:
                run_command([verb, *(places.get(word, word) for word in rest)])
        (checkpoints,) = Path(folder).glob(trace.checkpoints)
        newest = max(checkpoints.glob("step-*.safetensors"))
        return {"losses": [value.hex() for value in losses], "weights": hash_weights(newest)}


@contextmanager
def recorded_losses() -> Iterator[list[float]]:
    """Collect every loss that is differentiated."""
    losses: list[float] = []
    backward = Fabric.backward

    def spy(self: Fabric, tensor: Tensor, *args: Any, **options: Any) -> None:
        losses.append(tensor.item())
        backward(self, tensor, *args, **options)

    with mock.patch.object(Fabric, "backward", spy):
        yield losses


def run_command(arguments: Sequence[str]) -> None:
    with mock.patch.object(sys, "argv", ["imsvd", *arguments]):
        try:
            cli.main()
        except SystemExit as stop:
            if stop.code:
                raise RuntimeError(f"imsvd {' '.join(arguments)} ended with {stop.code}") from stop


def hash_weights(checkpoint: Path) -> str:
    """SHA-256 of all weights of a checkpoint, whatever their names and order."""
    with safe_open(checkpoint, "np") as file:
        state = json.loads(file.metadata()["state"])
        (weights,) = (value for key, value in state["dict"] if key == "weights")
        contents = [file.get_tensor(tensor["tensor"]).tobytes() for _, tensor in weights["dict"]]
    digests = sorted(hashlib.sha256(content).digest() for content in contents)
    return hashlib.sha256(b"".join(digests)).hexdigest()


def machine() -> str:
    """What rounding depends on: on another machine or with another torch only the first digits agree."""
    processor = platform.machine()
    if (path := Path("/proc/cpuinfo")).exists():
        fields = ("vendor_id", "cpu family", "model\t", "stepping")
        processor += "".join(
            line.partition(":")[2]
            for line in path.read_text().split("\n\n")[0].splitlines()
            if line.startswith(fields)
        )
    return f"{processor}, {torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}"


def main(names: Sequence[str]) -> None:
    torch.set_num_threads(1)
    known = json.loads(RECORDED.read_text())["traces"] if names else {}
    made = {name: record(TRACES[name]) for name in names or TRACES}
    content = {"machine": machine(), "traces": {**known, **made}}
    RECORDED.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
