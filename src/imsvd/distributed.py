"""All collectives of the package, and what they mean for gradients.

One convention holds everywhere. A loss of the *global* batch is evaluated identically on every
rank, and `DistributedDataParallel` averages the gradients of the ranks. The gradient of a rank's
own samples must therefore be `world_size` times their share of the global gradient; the functions
named `..._with_gradient` ensure that. Without a process group, all functions describe a world of
one rank.

All ranks hold the same number of samples, and stacked tensors are ordered by rank. `ReduceOp.AVG`
is not used, because gloo's is unreliable: sums are divided here.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from imsvd.errors import InputError

Item = TypeVar("Item")
Result = TypeVar("Result")


def is_distributed() -> bool:
    """Return whether there is more than one rank."""
    return world_size() > 1


def world_size() -> int:
    """Return the number of ranks."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Return the index of this rank."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def barrier() -> None:
    """Wait until every rank has reached this point."""
    if is_distributed():
        dist.barrier()


def own_slice(length: int) -> slice:
    """Return this rank's contiguous share of `length` items; the shares cover all items once."""
    return slice(*_share(length, rank()))


def share_sizes(length: int) -> list[int]:
    """Return the share sizes of all ranks for `length` items."""
    return [stop - start for start, stop in (_share(length, r) for r in range(world_size()))]


def _share(length: int, owner: int) -> tuple[int, int]:
    ranks = world_size()
    return length * owner // ranks, length * (owner + 1) // ranks


def all_reduce_sum(tensor: Tensor) -> Tensor:
    """Return the sum over ranks as a new tensor, outside autograd."""
    result = tensor.detach().clone(memory_format=torch.contiguous_format)
    if is_distributed():
        dist.all_reduce(result)
    return result


def all_gather(tensor: Tensor) -> Tensor:
    """Stack `(batch, ...)` of every rank into `(world_size * batch, ...)`, outside autograd."""
    tensor = tensor.detach()
    if not is_distributed():
        return tensor
    gathered = tensor.new_empty((world_size() * tensor.shape[0], *tensor.shape[1:]))
    dist.all_gather_into_tensor(gathered, tensor.contiguous())
    return gathered


def own_row(rows: Tensor) -> Tensor:
    """Return this rank's row of what `all_gather` has stacked; the mean if there were other ranks then."""
    return rows[rank()].clone() if len(rows) == world_size() else rows.mean(0)


def all_gather_rows(tensor: Tensor) -> Tensor:
    """Stack `(rows, ...)` of every rank, outside autograd; ranks may have different numbers of rows."""
    tensor = tensor.detach()
    if not is_distributed():
        return tensor
    counts = all_gather(torch.tensor([len(tensor)], device=tensor.device)).tolist()
    gathered = tensor.new_empty((sum(counts), *tensor.shape[1:]))
    # Broadcast in place: a gather would pad every part to the longest and hold that copy as well.
    for owner, part in enumerate(torch.split(gathered, counts)):
        if owner == rank():
            part.copy_(tensor)
        if len(part):
            dist.broadcast(part, src=owner)
    return gathered


def broadcast(tensor: Tensor, source: int = 0) -> Tensor:
    """Return the tensor of rank `source` on every rank, outside autograd; shapes must be equal."""
    result = tensor.detach().clone(memory_format=torch.contiguous_format)
    if is_distributed():
        dist.broadcast(result, src=source)
    return result


@torch.no_grad()
def share_buffers(network: nn.Module) -> None:
    """Give every rank the buffers of the first one."""
    if is_distributed():
        for buffer in network.buffers():
            buffer.copy_(broadcast(buffer))


def reduce_scatter_sum(tensor: Tensor) -> Tensor:
    """Sum `(world_size * batch, ...)` over ranks and keep this rank's `(batch, ...)`.

    The input may be overwritten. Gloo has no reduce-scatter: it performs a whole all-reduce.
    """
    if not is_distributed():
        return tensor
    batch = tensor.shape[0] // world_size()
    if dist.get_backend() == "gloo":
        dist.all_reduce(tensor)
        return tensor[rank() * batch : (rank() + 1) * batch].clone()
    own = tensor.new_empty((batch, *tensor.shape[1:]))
    dist.reduce_scatter_tensor(own, tensor.contiguous())
    return own


def columns_to_owners(columns: Tensor, widths: Sequence[int]) -> Tensor:
    """Exchange columns of all samples for all columns of this rank's samples, by one all-to-all.

    Args:
        columns: `(world_size * batch, own_width)`, this rank's columns for the global batch.
        widths: `own_width` of every rank.

    Returns:
        `(batch, sum(widths))`, all columns for this rank's samples.
    """
    if not is_distributed():
        return columns
    batch = columns.shape[0] // world_size()
    received = columns.new_empty(batch * sum(widths))
    received_sizes = [batch * width for width in widths]
    sent_sizes = [batch * columns.shape[1]] * world_size()
    dist.all_to_all_single(received, columns.contiguous().view(-1), received_sizes, sent_sizes)
    blocks = zip(torch.split(received, received_sizes), widths, strict=True)
    return torch.cat([block.view(batch, width) for block, width in blocks], dim=1)


def mean_over_ranks(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Average tensors of any shape over ranks with a single collective, for logging."""
    detached = {name: value.detach() for name, value in values.items()}
    if not is_distributed() or not detached:
        return detached
    flat = torch.cat([value.to(torch.get_default_dtype()).flatten() for value in detached.values()])
    means = all_reduce_sum(flat) / world_size()
    parts = torch.split(means, [value.numel() for value in detached.values()])
    named = zip(detached.items(), parts, strict=True)
    return {name: part.view(value.shape) for (name, value), part in named}


def any_rank(flag: bool, device: torch.device | str = "cpu") -> bool:
    """Return whether `flag` is set on any rank; the backend must be able to reduce on `device`."""
    return bool(largest(int(flag), device))


def largest(value: int, device: torch.device | str = "cpu") -> int:
    """Return the largest `value` of all ranks; the backend must be able to reduce on `device`."""
    return largest_of([value], device)[0]


def largest_of(values: Sequence[int], device: torch.device | str = "cpu") -> list[int]:
    """Return the largest of all ranks for each of `values`, with a single collective."""
    if not is_distributed():
        return list(values)
    result = torch.tensor(values, device=device)
    dist.all_reduce(result, dist.ReduceOp.MAX)
    return [int(value) for value in result.tolist()]


def together(action: Callable[[], Result]) -> Result:
    """Run `action` on every rank; if any rank fails, all raise, which avoids a deadlock.

    The action must not use collectives.
    """
    result: Result | None = None
    problem: Exception | None = None
    try:
        result = action()
    except Exception as error:  # of any kind: the other ranks must not wait
        problem = error
    sentences = gather_lists([] if problem is None else [str(problem)])
    if problem is not None:
        raise problem
    if sentences:
        raise InputError(sentences[0])
    return cast(Result, result)


def on_first_rank(action: Callable[[], object]) -> None:
    """Run `action` on rank 0 only; if it fails, all ranks raise."""
    together(action if rank() == 0 else lambda: None)


def gather_lists(items: Sequence[Item]) -> list[Item]:
    """Concatenate the lists of all ranks in rank order; items are pickled between processes."""
    if not is_distributed():
        return list(items)
    lists: list[list[Item]] = [[] for _ in range(world_size())]
    dist.all_gather_object(lists, list(items))
    return [item for part in lists for item in part]


def keep_from_broadcast(model: nn.Module, buffers: Sequence[str]) -> None:
    """Exclude large `buffers`, named by prefix, from DDP's broadcast at every step.

    For buffers that all ranks initialize from the same seed and update identically.
    """
    names = [name for name, _ in model.named_buffers() if name.startswith(tuple(buffers))]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(  # type: ignore[no-untyped-call]
        model, names
    )


def all_gather_with_gradient(tensor: Tensor) -> Tensor:
    """Gather like `all_gather`, with gradients.

    The backward pass sums the gradients of all ranks and returns this rank's slice: `world_size`
    times its samples' share if every rank evaluates the same global loss.
    """
    return _apply(_AllGather, tensor) if is_distributed() else tensor


def mean_over_ranks_with_gradient(tensor: Tensor) -> Tensor:
    """Average over ranks with gradients, for statistics that every rank uses in the same way.

    The backward pass leaves the gradient unchanged: the mean contributes 1 / world_size, which the
    convention of this module multiplies by `world_size`. A mean that is compared with a rank's own
    samples, as in centering, has a different gradient on each rank: gather the samples instead.
    """
    return _apply(_MeanOverRanks, tensor) if is_distributed() else tensor


def _apply(function: type[torch.autograd.Function], tensor: Tensor) -> Tensor:
    result: Tensor = function.apply(tensor)
    return result


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(_ctx: Any, tensor: Tensor) -> Tensor:
        return all_gather(tensor)

    @staticmethod
    def backward(_ctx: Any, *gradients: Tensor) -> Tensor:
        return reduce_scatter_sum(gradients[0].clone(memory_format=torch.contiguous_format))


class _MeanOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(_ctx: Any, tensor: Tensor) -> Tensor:
        return all_reduce_sum(tensor) / world_size()

    @staticmethod
    def backward(_ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]
