"""Whether a configuration can be trained on this device, and the largest batch that fits its memory."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from imsvd.config import Config, override
from imsvd.errors import InputError
from imsvd.methods import Method, build_method
from imsvd.networks import build_backbone, feature_width

_USABLE = 0.85
"""Share of a device's memory that tensors can fill; fragments and cuDNN's workspaces take the rest."""
_COPIES = 4
"""Weights, their gradients, the optimizer's state, and the copies that DDP's buckets hold."""
_SMALLEST_BATCH = 2


def check_view_sizes(method: Method, config: Config) -> None:
    """Pass one empty image of each size through the backbone; raise if it cannot take the size."""
    for size in {view.size for view in config.views.every} | {config.views.whole_image_size}:
        try:
            with torch.no_grad():
                features = method.backbone.eval()(torch.zeros(1, 3, size, size))
            if features.shape != (1, feature_width(method.backbone)):
                raise RuntimeError(f"it gives {tuple(features.shape)} instead of a vector")
        except (RuntimeError, AssertionError) as error:
            raise InputError(
                f"backbone {config.backbone.name!r} cannot take images of {size} pixels "
                f"({str(error).splitlines()[0].rstrip('.')}); change views or backbone.options."
            ) from error
    method.backbone.train()


def check_precision(method: Method, config: Config, device: torch.device) -> None:
    """Raise for a method that computes in float64 on an Apple GPU, which has no such numbers."""
    if device.type == "mps" and any(buffer.dtype == torch.float64 for buffer in method.buffers()):
        raise InputError(
            f"{config.method.name} computes in float64, which this GPU does not support; "
            "add --set compute.accelerator=cpu."
        )


def fit_to_memory(config: Config, images: int) -> Config:
    """Return `config` with the largest batch, halved as often as needed, that the GPUs can hold."""
    memory = smallest_memory()
    if memory is None:
        return config
    processes = device_count(config)
    batch = fitting_batch(config, images, memory, processes)
    return override(config, [f"training.batch_size={batch}"])


def fitting_batch(config: Config, images: int, memory: int, processes: int = 1) -> int:
    """Return the largest global batch, halved from the configured one, estimated to fit into `memory`.

    Args:
        config: of the run.
        images: how many there are to train on; some methods remember each.
        memory: bytes of one device.
        processes: how many devices share the batch.
    """
    fixed, per_image = memory_needs(config, images)
    batch = config.training.batch_size
    while batch // 2 >= _SMALLEST_BATCH * processes and (
        fixed + per_image * batch / processes > _USABLE * memory
    ):
        batch //= 2
    return batch


def memory_needs(config: Config, images: int) -> tuple[int, int]:
    """Return the bytes of a run that do not depend on the batch, and those of one more image.

    The backbone's forward pass runs on the meta device, which has shapes and no data; what autograd
    saves for the backward pass is added up. Heads and losses are small beside it.
    """
    with torch.device("meta"):
        method = build_method(config.method, build_backbone(config.backbone), images)
    state = [*method.parameters(), *method.buffers()]
    fixed = _COPIES * sum(tensor.numel() * tensor.element_size() for tensor in state)
    # Mixed precision keeps activations as 16-bit numbers.
    share = 1.0 if config.compute.precision == "32-true" else 0.5
    sizes = [view.size for view in config.views.every]
    saved = {size: _saved_bytes(method.backbone, size) for size in set(sizes)}
    return fixed, int(share * sum(saved[size] for size in sizes))


def _saved_bytes(backbone: nn.Module, size: int) -> int:
    """Return the bytes that autograd keeps of one image of `size` pixels."""
    kept: dict[int, Tensor] = {}
    weights = {id(parameter) for parameter in backbone.parameters()}

    def keep(tensor: Tensor) -> Tensor:
        if id(tensor) not in weights:
            kept[id(tensor)] = tensor  # held, so that its id is not used again
        return tensor

    count = 2  # BatchNorm refuses a single value
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        backbone(torch.empty(count, 3, size, size, device="meta"))
    return sum(tensor.numel() * tensor.element_size() for tensor in kept.values()) // count


def smallest_memory() -> int | None:
    """Return the bytes of the smallest CUDA device; None where there is none."""
    if not torch.cuda.is_available():
        return None
    return min(
        torch.cuda.get_device_properties(index).total_memory
        for index in range(torch.cuda.device_count())
    )


def device_count(config: Config) -> int:
    """Return how many GPUs will share a batch."""
    devices = config.compute.devices
    local = torch.cuda.device_count() if devices == "auto" else devices
    return max(1, local) * config.compute.nodes


def out_of_memory_message(config: Config, images: int) -> str:
    """Return one sentence that says which batch would fit."""
    batch = config.training.batch_size
    memory = smallest_memory()
    fits = batch // 2
    held = "the device's memory"
    if memory is not None:
        fits = min(fits, fitting_batch(config, images, memory, device_count(config)))
        held = f"the {memory / 2**30:.0f} GiB of this GPU"
    return (
        f"training.batch_size={batch} does not fit into {held}; "
        f"add --set training.batch_size={max(_SMALLEST_BATCH, fits)}, or use more devices."
    )
