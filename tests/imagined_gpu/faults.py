"""Faults of the GPU path, each a small change of the source, and whether the imagined GPU finds it.

    python -m tests.imagined_gpu.faults [tests/imagined_gpu/faults.md]

Every fault is planted in a copy of the source. Its tests, a part of those that `make test` runs on the
imagined GPU, must fail there; they pass without the fault. The file, if one is named, gets the table.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

ROOT = Path(__file__).parents[2]
STEPS, COMMANDS = "steps.py", "commands.py"


class Fault(NamedTuple):
    """One line of the source that becomes wrong on a GPU alone."""

    name: str
    file: str
    """Below src/imsvd."""
    before: str
    after: str
    tests: str
    """The file of the tests."""
    chosen: str
    """Which of them, as pytest's -k takes it."""


FAULTS = (
    Fault(
        "the images of a small dataset stay on the host",
        "engine/batches.py",
        "self.images = images.to(device)",
        "self.images = images",
        STEPS,
        "imsvd",
    ),
    Fault(
        "the positions of the samples stay on the host",
        "engine/batches.py",
        'samples = send({"samples": indices}, self.device)["samples"]',
        "samples = torch.from_numpy(indices)",
        STEPS,
        "npid",
    ),
    Fault(
        "parameters of views travel in a blocking transfer",
        "views/batched.py",
        "moved = buffer.to(device, non_blocking=True)",
        "moved = buffer.to(device)",
        STEPS,
        "imsvd",
    ),
    Fault(
        "parameters of views travel from pageable memory",
        "views/batched.py",
        ', pin_memory=device.type != "mps")',
        ")",
        STEPS,
        "imsvd",
    ),
    Fault(
        "a table of blurring stays on the host",
        "views/batched.py",
        "taps.reshape(kernel_size, size * size).to(device)",
        "taps.reshape(kernel_size, size * size)",
        STEPS,
        "imsvd",
    ),
    Fault(
        "the pixels of a resized axis are numbered on the host",
        "views/batched.py",
        "torch.arange(mask.shape[1], dtype=torch.float32, device=mask.device)",
        "torch.arange(mask.shape[1], dtype=torch.float32)",
        STEPS,
        "imsvd",
    ),
    Fault(
        "the loop reads the loss of every step",
        "engine/loop.py",
        "self._add_up(loss.detach())",
        "self._add_up(torch.tensor(loss.item()))",
        STEPS,
        "imsvd",
    ),
    Fault(
        "the metrics read every term of every step",
        "pretraining/metrics.py",
        'self._add("statistics", statistics)',
        'self._add("statistics", {k: v.cpu() for k, v in statistics.items()})',
        STEPS,
        "vicreg",
    ),
    Fault(
        "a health statistic is computed with a tensor of the host",
        "methods/base.py",
        "spread = directions.std(dim=0).mean() * directions.shape[-1] ** 0.5",
        "spread = directions.std(dim=0).mean() * torch.ones(1)",
        STEPS,
        "vicreg",
    ),
    Fault(
        "buffers of a momentum network take a detour through the host",
        "methods/memory.py",
        "        buffer.copy_(current)",
        "        buffer.copy_(current.cpu())",
        STEPS,
        "byol",
    ),
    Fault(
        "places in a queue are counted on the host",
        "methods/memory.py",
        "places = (self.pushed + torch.arange(len(newest), device=newest.device)) % length",
        "places = (int(self.pushed) + torch.arange(len(newest))) % length",
        STEPS,
        "moco_v2",
    ),
    Fault(
        "the counter of a queue is read",
        "methods/memory.py",
        "self.pushed += len(newest)",
        "self.pushed.fill_(int(self.pushed) + len(newest))",
        STEPS,
        "moco_v2",
    ),
    Fault(
        "the diagonal of a covariance is made on the host",
        "losses/corinfomax.py",
        "torch.eye(len(mean), dtype=mean.dtype, device=mean.device)",
        "torch.eye(len(mean), dtype=mean.dtype)",
        STEPS,
        "corinfomax",
    ),
    Fault(
        "own samples are numbered on the host",
        "losses/simclr.py",
        "torch.arange(len(own), device=own.device)",
        "torch.arange(len(own))",
        STEPS,
        "simclr",
    ),
    Fault(
        "negatives are drawn on the host",
        "losses/npid.py",
        "generator=generator, device=generator.device)",
        'generator=torch.Generator(), device="cpu")',
        STEPS,
        "npid",
    ),
    Fault(
        "prototypes are chosen by positions of the host",
        "methods/pcl.py",
        "negatives = drawn.to(samples.device)",
        "negatives = drawn",
        STEPS,
        "pcl",
    ),
    Fault(
        "the frequencies of an integral are made on the host",
        "losses/lejepa.py",
        "torch.arange(points // 2 + 1, dtype=like.dtype, device=like.device)",
        "torch.arange(points // 2 + 1, dtype=like.dtype)",
        STEPS,
        "lejepa",
    ),
    Fault(
        "the seed of random directions is read from the device at every step",
        "methods/slicing.py",
        "if self._step is None:",
        "if self.steps is not None:",
        STEPS,
        "visreg",
    ),
    Fault(
        "the prototypes of SwAV are frozen by a number of the host",
        "methods/swav.py",
        "(self.steps >= self.freeze_steps) * (self.prototypes - constant)",
        "bool(self.steps >= self.freeze_steps) * (self.prototypes - constant)",
        STEPS,
        "swav",
    ),
    Fault(
        "a code head reads its loss in every step",
        "pretraining/code.py",
        "self.sums += torch.stack([loss,",
        "self.sums += torch.stack([torch.tensor(loss.item(), device=loss.device),",
        STEPS,
        "code_head",
    ),
    Fault(
        "the pairs of a code are counted on the host",
        "pretraining/code.py",
        "self.joint = torch.zeros(width, width, device=device)",
        "self.joint = torch.zeros(width, width)",
        STEPS,
        "code_head",
    ),
    Fault(
        "cached features are compared where they were read",
        "discretizing/neighborhoods.py",
        "np.full(len(chunk), -1)).to(device)).half()",
        "np.full(len(chunk), -1))).half()",
        COMMANDS,
        "head_learns",
    ),
    Fault(
        "held-out features stay on the host",
        "discretizing/held_out.py",
        "np.full(len(rows), view)).to(device)",
        "np.full(len(rows), view))",
        COMMANDS,
        "head_learns",
    ),
    Fault(
        "the linear probe compares labels of the host",
        "evaluation/linear_probe.py",
        "torch.unique(train_labels.to(train.device), return_inverse=True)",
        "torch.unique(train_labels, return_inverse=True)",
        COMMANDS,
        "probe_fits",
    ),
    Fault(
        "an index is built from features of the device",
        "index/encoding.py",
        "features.float().cpu().numpy(),",
        "features.float().numpy(),",
        COMMANDS,
        "an_index",
    ),
    Fault(
        "an encoder expects images on its device",
        "encoder.py",
        "images = images.to(self.mean.device)",
        "images = images",
        COMMANDS,
        "an_encoder_takes",
    ),
    Fault(
        "features are extracted from images of the host",
        "evaluation/features.py",
        "batch.images.to(device).float()",
        "batch.images.float()",
        COMMANDS,
        "knn and cosine",
    ),
    Fault(
        "candidates of a search are numbered on the host",
        "evaluation/neighbors.py",
        "torch.arange(offset, offset + tile.shape[1], device=tile.device)",
        "torch.arange(offset, offset + tile.shape[1])",
        COMMANDS,
        "knn and cosine",
    ),
    Fault(
        "labels of a classifier stay on the host",
        "evaluation/classifier.py",
        "splits.train_labels.to(fabric.device, copy=True)",
        "splits.train_labels.clone()",
        COMMANDS,
        "classifiers and linear",
    ),
    Fault(
        "targets of a detector stay on the host",
        "evaluation/coco/training.py",
        "{name: value.to(device, non_blocking=True) for name, value in target.items()}",
        "dict(target)",
        COMMANDS,
        "detector and False",
    ),
    Fault(
        "boxes of a detector are computed in bfloat16",
        "evaluation/coco/model.py",
        "return [value.float() for value in objectness], [value.float() for value in deltas]",
        "return objectness, deltas",
        COMMANDS,
        "detector and True",
    ),
    Fault(
        "the sizes of variables are counted on the host",
        "explanations/grad_cam.py",
        "torch.arange(len(units), device=scores.device).repeat_interleave(sizes)",
        "torch.arange(len(units)).repeat_interleave(sizes.cpu())",
        COMMANDS,
        "explanation",
    ),
    Fault(
        "views that are explained stay on the host",
        "explanations/subject.py",
        "tuple(view.to(subject.device) for view in made)",
        "tuple(made)",
        COMMANDS,
        "explanation",
    ),
)


def is_found(fault: Fault) -> bool:
    """Plant a fault in a copy of the source and return whether a test fails for it."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(shutil.copytree(ROOT / "src", Path(folder) / "src"))
        _plant(fault, source)
        return not _passes(fault.tests, fault.chosen, source)


def _plant(fault: Fault, source: Path) -> None:
    path = source / "imsvd" / fault.file
    text = path.read_text()
    if text.count(fault.before) != 1:
        raise ValueError(f"{fault.file} holds {text.count(fault.before)} times: {fault.before}")
    path.write_text(text.replace(fault.before, fault.after))


def _passes(tests: str, chosen: str, source: Path) -> bool:
    options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=no", "-k", chosen]
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")
    }
    places = os.pathsep.join((str(source), str(ROOT)))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, f"tests/imagined_gpu/{tests}"],
        cwd=ROOT,
        env=environment | {"PYTHONPATH": places, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode not in (0, 1):  # no tests, or tests that cannot be collected
        raise RuntimeError(done.stdout + done.stderr)
    return done.returncode == 0


def write_table(path: Path, found: list[bool]) -> None:
    """Write which faults were found."""
    lines = [
        "# Faults of the GPU path that the imagined GPU finds",
        "",
        "`python -m tests.imagined_gpu.faults tests/imagined_gpu/faults.md` plants each fault in a copy of "
        "the source and runs its tests.",
        "",
        f"Found: {sum(found)} of {len(FAULTS)}.",
        "",
        "| file | fault | found |",
        "|---|---|---|",
    ]
    for fault, is_there in zip(FAULTS, found, strict=True):
        lines.append(f"| {fault.file} | {fault.name} | {'yes' if is_there else '**no**'} |")
    path.write_text("\n".join(lines) + "\n")


def main() -> int:
    """Print a line for every fault; return how many were not found."""
    console = Console(highlight=False, soft_wrap=True)
    if not all(_passes(tests, "", ROOT / "src") for tests in (STEPS, COMMANDS)):
        console.print("The tests fail without any fault.")
        return len(FAULTS)
    found: list[bool] = []
    for fault in FAULTS:
        found.append(is_found(fault))
        console.print(f"{'found ' if found[-1] else 'MISSED'}  {fault.file}: {fault.name}")
    console.print(f"{sum(found)} of {len(FAULTS)} faults found")
    if len(sys.argv) > 1:
        write_table(Path(sys.argv[1]), found)
    return len(FAULTS) - sum(found)


if __name__ == "__main__":
    sys.exit(main())
