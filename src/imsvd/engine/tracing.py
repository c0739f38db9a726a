"""A step under observation: which tensor was the first that held NaN or infinity.

Hooks look at every module's output, at the gradient of every output and at the gradient of every
weight, in the order in which a step computes them. They only read, so the step computes the bits that
it would compute unobserved.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.utils._pytree import keystr, tree_flatten_with_path


class Seen(NamedTuple):
    """One tensor of a step.

    Attributes:
        what: such as "output" or "gradient of the output".
        name: of the module or weight; dots separate levels.
        kind: class of the module, or of the module that owns the weight.
        call: how often the module had been called, this call included; 0 for weights.
        shape: of the tensor.
        dtype: such as "float32".
        bad: how many of its values are not finite.
        range: smallest and largest finite value; None if there is none.
        inputs: of a module whose output is not finite: what it was given and its weights.
    """

    what: str
    name: str
    kind: str
    call: int
    shape: tuple[int, ...]
    dtype: str
    bad: int
    range: tuple[float, float] | None
    inputs: tuple[Seen, ...] = ()

    def sentence(self) -> str:
        """Return it in words."""
        kind = [self.kind] * bool(self.kind) + [f"call {self.call}"] * (self.call > 1)
        described = f" ({', '.join(kind)})" if kind else ""
        size = 1
        for length in self.shape:
            size *= length
        values = "no value is finite"
        if self.range is not None:
            values = f"values from {self.range[0]:.4g} to {self.range[1]:.4g}"
        found = f"{self.bad:,} of {size:,} are not finite, " if self.bad else ""
        return f"{self.what} of {self.name}{described}: {found}{values}"

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Seen:
        """Read what `to_json` returned."""
        shape, limits = tuple(values["shape"]), values["range"]
        inputs = tuple(cls.from_json(item) for item in values["inputs"])
        return cls(
            **{
                **values,
                "shape": shape,
                "range": limits and (limits[0], limits[1]),
                "inputs": inputs,
            }
        )

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {**self._asdict(), "inputs": [item.to_json() for item in self.inputs]}


def look_at(tensor: Tensor, what: str, name: str, kind: str = "", call: int = 0) -> Seen:
    """Measure one tensor."""
    tensor = tensor.detach()
    values = tensor[tensor.isfinite()]
    limits = (float(values.min()), float(values.max())) if values.numel() else None
    dtype = str(tensor.dtype).removeprefix("torch.")
    bad = tensor.numel() - values.numel()
    return Seen(what, name, kind, call, tuple(tensor.shape), dtype, bad, limits)


class Trace:
    """While active, notes what the modules of `networks` compute, in order.

    Args:
        networks: by the prefix of their modules' names.
    """

    def __init__(self, networks: Mapping[str, nn.Module]) -> None:
        self.networks = networks
        self.seen: list[Seen] = []
        self._calls: Counter[str] = Counter()
        self._hooks: list[Any] = []

    def __enter__(self) -> Self:
        for prefix, network in self.networks.items():
            for path, module in network.named_modules():
                hook = self._module_hook(joined(prefix, path) or "the network")
                self._hooks.append(module.register_forward_hook(hook))
            for path, parameter in network.named_parameters():
                if parameter.requires_grad:
                    owner = type(network.get_submodule(path.rpartition(".")[0])).__name__
                    hook = self._gradient_hook("gradient", joined(prefix, path), owner, 0)
                    self._hooks.append(parameter.register_hook(hook))  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()

    @property
    def bad(self) -> list[Seen]:
        """The tensors that are not finite, the first one first."""
        return [seen for seen in self.seen if seen.bad]

    @property
    def last_good(self) -> Seen | None:
        """What was computed just before the first bad tensor."""
        before = next((place for place, seen in enumerate(self.seen) if seen.bad), 0)
        return self.seen[before - 1] if before else None

    def look_at_results(self, loss: Tensor) -> None:
        """Note what the step has left: loss, gradients averaged over ranks, weights."""
        self.seen.append(look_at(loss, "value", "the loss"))
        for name, tensor in gradients(self.networks):
            self.seen.append(look_at(tensor, "averaged gradient", name))
        for name, tensor in state_tensors(self.networks):
            self.seen.append(look_at(tensor, "value after the step", name))

    def _module_hook(self, name: str) -> Any:
        def hook(module: nn.Module, given: Any, made: Any) -> None:
            self._calls[name] += 1
            kind, call = type(module).__name__, self._calls[name]
            for place, tensor in float_tensors(made):
                seen = look_at(tensor, f"output{place}", name, kind, call)
                if seen.bad:
                    inputs = [
                        look_at(value, f"input{at}", name) for at, value in float_tensors(given)
                    ]
                    weights = module.named_parameters(recurse=False)
                    inputs += [look_at(value, key, name) for key, value in weights]
                    seen = seen._replace(inputs=tuple(inputs))
                self.seen.append(seen)
                if tensor.requires_grad:
                    what = f"gradient of output{place}"
                    tensor.register_hook(  # type: ignore[no-untyped-call]
                        self._gradient_hook(what, name, kind, call)
                    )

        return hook

    def _gradient_hook(self, what: str, name: str, kind: str, call: int) -> Any:
        def hook(gradient: Tensor) -> None:
            self.seen.append(look_at(gradient, what, name, kind, call))

        return hook


def float_tensors(values: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield the floating-point tensors of nested `values`, with their places, such as `.loss`."""
    if isinstance(values, tuple) and len(values) == 1:
        (values,) = values
    leaves, _ = tree_flatten_with_path(values)
    for path, value in leaves:
        if isinstance(value, Tensor) and value.is_floating_point():
            yield keystr(path), value


def state_tensors(networks: Mapping[str, nn.Module]) -> Iterator[tuple[str, Tensor]]:
    """Yield the floating-point weights and buffers of `networks` by name."""
    for prefix, network in networks.items():
        for path, tensor in (*network.named_parameters(), *network.named_buffers()):
            if tensor.is_floating_point():
                yield joined(prefix, path), tensor


def gradients(networks: Mapping[str, nn.Module]) -> Iterator[tuple[str, Tensor]]:
    """Yield the gradients of `networks` by the name of their weight."""
    for prefix, network in networks.items():
        for path, parameter in network.named_parameters():
            if parameter.grad is not None:
                yield joined(prefix, path), parameter.grad


def not_finite(tensors: Iterator[tuple[str, Tensor]]) -> list[str]:
    """Return the names of the tensors that hold NaN or infinity; the host waits only once."""
    named = list(tensors)
    if not named:
        return []
    flags = torch.stack([tensor.detach().isfinite().all() for _, tensor in named]).tolist()
    return [name for (name, _), finite in zip(named, flags, strict=True) if not finite]


def joined(prefix: str, path: str) -> str:
    """Join two parts of a name, either of which may be empty."""
    return ".".join(part for part in (prefix, path) if part)
