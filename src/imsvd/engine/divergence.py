"""The step at which a training went wrong: found, kept in the run folder, and repeated.

Steps do not look for NaN or infinity, which would make the device wait; the loop looks when it saves.
A training that has diverged therefore goes back to its last checkpoint and repeats its steps, bit for
bit the same, this time looking at every loss, gradient and weight. What the first bad step began with
and what it computed is kept in `divergence/`:

step.json                 which step, its first bad tensors on every rank, hashes of its results
state.safetensors         weights, optimizer and random state before the step
rank-0.safetensors, …     each rank's batch, and its buffers that differ from those of the first rank
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from rich.console import Console
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from imsvd.checkpoints import load_newest_checkpoint, read_checkpoint, write_checkpoint
from imsvd.distributed import any_rank, gather_lists, on_first_rank, rank, together, world_size
from imsvd.engine.tracing import Seen, Trace, gradients, not_finite, state_tensors
from imsvd.errors import InputError
from imsvd.files import write_atomically
from imsvd.progress import progress_bar

if TYPE_CHECKING:
    from imsvd.engine.loop import Training

FOLDER = "divergence"
_RECORD, _STATE = "step.json", "state.safetensors"
_MOST = 10
"""How many bad tensors of a rank are named."""


class Repeated(NamedTuple):
    """What a step has computed on one rank.

    Attributes:
        bits: hashes of loss, gradients and state after the step.
        bad: the first tensors that were not finite, in the order of the step.
        last_good: what was computed just before them.
        order: how many tensors were computed before; tells on which rank it began.
    """

    bits: dict[str, str]
    bad: list[Seen]
    last_good: Seen | None
    order: int


def copied(state: dict[str, Any]) -> dict[str, Any]:
    """Return `state` with copies of its tensors in the host's memory."""
    copy: dict[str, Any] = tree_map_only(Tensor, lambda value: value.detach().cpu().clone(), state)
    return copy


def keep_bad_step(training: Training[Any], console: Console) -> str:
    """Find the first bad step of a training that has diverged, keep it, and say so in a sentence.

    Every rank must call this.
    """
    try:
        found = _find(training, console)
        if found is None:
            return (
                "Repeating the steps since then gave finite numbers, so there is nothing to replay."
            )
        record = _keep(training, *found)
    except (InputError, OSError) as error:  # such as a full disk; the divergence is the news
        return f"The step could not be kept: {error}"
    cause = first_cause(record)
    where = "" if cause is None else f": {cause.sentence()}"
    more = f"{training.place / FOLDER / _RECORD} names more tensors"
    if training.can_be_replayed:
        more = f"see it again with `imsvd replay {training.place}`"
    return f"It began in step {record['step'] + 1:,}{where}; {more}."


def _find(training: Training[Any], console: Console) -> tuple[Any, dict[str, Any]] | None:
    """Repeat the steps since the last checkpoint; return the first bad one's batch and state before."""
    noticed = training.step
    state = together(lambda: load_newest_checkpoint(training.plan.checkpoints)[0]) or training.start
    if state is None:
        raise InputError("there is no checkpoint to begin with.")
    training.restore(copied(state))
    known = set(not_finite(state_tensors(training.networks())))
    steps = range(training.step, noticed)
    with progress_bar(console) as bar, training.display(Console(quiet=True)):
        task = bar.add_task("looking for the step that went wrong", total=len(steps))
        training.begin_epoch()
        for batch in training.batches(steps):
            before = copied(training.state())
            training.loss_sum.zero_()
            training.train_step(batch)
            if any_rank(_went_wrong(training, known), training.fabric.device):
                return batch, before
            bar.advance(task)
            if training.step % training.steps_per_epoch == 0 and training.step < noticed:
                training.begin_epoch()
    return None


def _went_wrong(training: Training[Any], known: set[str]) -> bool:
    networks = training.networks()
    if not training.is_finite() or set(not_finite(state_tensors(networks))) - known:
        return True
    # Where gradients are scaled, those that overflow are dropped, as they should be.
    scaled = getattr(training.fabric.strategy.precision, "scaler", None) is not None
    return not scaled and bool(not_finite(gradients(networks)))


def _keep(training: Training[Any], batch: Any, before: dict[str, Any]) -> dict[str, Any]:
    bits = _bits(training)
    own = _own_buffers(training, before)
    repeated = repeat(training, batch, before)
    folder = training.place / FOLDER
    ranks = gather_lists([_as_json(repeated)])
    record = {
        "format": 1,
        "step": before["step"],
        "ranks": ranks,
        "repeats": all(gather_lists([repeated.bits == bits])),
        "facts": training.replay_facts(),
        "made_by": surroundings(training),
    }
    kept = {"batch": [_with_strides(leaf) for leaf in tree_leaves(batch)], "buffers": own}
    on_first_rank(lambda: (folder / _RECORD).unlink(missing_ok=True))
    if training.can_be_replayed:
        together(lambda: write_checkpoint(folder / f"rank-{rank()}.safetensors", kept))
        on_first_rank(lambda: write_checkpoint(folder / _STATE, before))
    # The record comes last: where it is, everything is.
    text = json.dumps(record, indent=1)
    on_first_rank(lambda: write_atomically(folder / _RECORD, text.encode()))
    return record


def repeat(
    training: Training[Any],
    batch: Any,
    before: dict[str, Any],
    own: Mapping[str, Tensor] | None = None,
) -> Repeated:
    """Repeat one step under observation; every rank must call this.

    Args:
        training: the training.
        batch: this rank's.
        before: state before the step.
        own: this rank's buffers that differ from those of `before`.
    """
    training.restore(copied(before))  # optimizers change the tensors that they load
    with torch.no_grad():
        for name, buffer in _buffers(training):
            if own is not None and name in own:
                buffer.copy_(own[name])
    with Trace(training.networks()) as trace:
        training.train_step(batch)
    trace.look_at_results(training.loss_sum)
    order = next((place for place, seen in enumerate(trace.seen) if seen.bad), len(trace.seen))
    return Repeated(_bits(training), trace.bad[:_MOST], trace.last_good, order)


def _bits(training: Training[Any]) -> dict[str, str]:
    """Hash the loss, gradients and state that the last step has left; all NaN count as equal."""
    networks = training.networks()
    return {
        "loss": _hash([("", training.loss_sum)]),
        "gradients": _hash(gradients(networks)),
        "weights": _hash(state_tensors(networks)),
    }


def _hash(tensors: Iterable[tuple[str, Tensor]]) -> str:
    digest = hashlib.sha256()
    for name, tensor in tensors:
        digest.update(name.encode())
        plain = tensor.detach().cpu().contiguous().view(-1)
        if plain.is_floating_point():
            plain = plain.where(~plain.isnan(), torch.nan)
        digest.update(plain.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _buffers(training: Training[Any]) -> Iterator[tuple[str, Tensor]]:
    for prefix, network in training.networks().items():
        yield from ((f"{prefix}/{name}", buffer) for name, buffer in network.named_buffers())


def _own_buffers(training: Training[Any], before: dict[str, Any]) -> dict[str, Tensor]:
    """Return copies of the buffers before the step that are not those of the first rank."""
    training.restore(copied(before))  # optimizers change the tensors that they load
    hashes = {name: _hash([("", buffer)]) for name, buffer in _buffers(training)}
    first = gather_lists([hashes])[0]
    return {
        name: buffer.detach().cpu().clone()
        for name, buffer in _buffers(training)
        if hashes[name] != first[name]
    }


def _with_strides(leaf: Any) -> Any:
    """Return a tensor with its strides, on which the rounding of a convolution can depend."""
    return (leaf, list(leaf.stride())) if isinstance(leaf, Tensor) else leaf


def surroundings(training: Training[Any]) -> dict[str, Any]:
    """Return what the bits of a step depend on besides its numbers."""
    return {
        "torch": torch.__version__,
        "device": training.fabric.device.type,
        "precision": str(training.fabric.strategy.precision.precision),
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
    }


def _as_json(repeated: Repeated) -> dict[str, Any]:
    good = repeated.last_good
    return {
        "bits": repeated.bits,
        "bad": [seen.to_json() for seen in repeated.bad],
        "last_good": good and good.to_json(),
        "order": repeated.order,
    }


def from_json(values: dict[str, Any]) -> Repeated:
    """Read one rank's part of a record."""
    good = values["last_good"]
    bad = [Seen.from_json(item) for item in values["bad"]]
    return Repeated(values["bits"], bad, good and Seen.from_json(good), values["order"])


def first_rank_of(record: dict[str, Any]) -> int:
    """Return the rank on which it began; all ranks compute the same tensors in the same order."""
    orders = [part["order"] for part in record["ranks"]]
    return orders.index(min(orders))


def first_cause(record: dict[str, Any]) -> Seen | None:
    """Return the first tensor that was not finite, on any rank."""
    bad = from_json(record["ranks"][first_rank_of(record)]).bad
    return bad[0] if bad else None


def read_record(place: Path) -> dict[str, Any]:
    """Read what is known of the bad step that `place` keeps."""
    path = place / FOLDER / _RECORD
    try:
        record: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise InputError(
            f"{place} keeps no step to replay (no {FOLDER}/{_RECORD}); there is one after a training "
            "has ended because its loss was no longer finite."
        ) from error
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}.") from error
    if record.get("format") != 1:
        raise InputError(f"{path} was written by another version of imsvd; use that version.")
    return record


def read_step(
    place: Path, record: dict[str, Any]
) -> tuple[dict[str, Any], list[Any], dict[str, Any]]:
    """Return the state before the step, and this rank's batch and buffers."""
    count = len(record["ranks"])
    if count != world_size():
        raise InputError(
            f"the number of processes that computed the step in {place} was {count}, and now it is "
            f"{world_size()}; start as many with torchrun or compute.devices."
        )
    own = read_checkpoint(place / FOLDER / f"rank-{rank()}.safetensors")
    leaves = [_laid_out(*leaf) if isinstance(leaf, tuple) else leaf for leaf in own["batch"]]
    return read_checkpoint(place / FOLDER / _STATE), leaves, own["buffers"]


def _laid_out(tensor: Tensor, strides: list[int]) -> Tensor:
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype).copy_(tensor)
