"""A GPU that does not exist: real tensors behind a device that PyTorch knows only from Python.

Tensors of the device `imagined` hold their values in a CPU tensor that nobody else sees, so everything
computes as on a CPU. As on a GPU, however, an operation that mixes devices is an error, and whatever
makes the host wait for the device is noted with the function of imsvd that asked for it. The device
stays registered until the process ends.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_iter, tree_map
from torch.utils.backend_registration import (
    _DummyBackendModule,
    _setup_privateuseone_for_python_backend,
)
from torch.utils.weak import WeakTensorKeyDictionary

NAME = "imagined"
aten = torch.ops.aten

_TRANSFERS = {aten._to_copy.default, aten.copy_.default}
_INDEXING = {aten.index.Tensor, aten.index_put_.default, aten.index_put.default}
_WAITING = {  # the size of the result, or the result itself, must reach the host
    aten._local_scalar_dense.default,
    aten.nonzero.default,
    aten.equal.default,
    aten.bincount.default,
    aten.masked_select.default,
    aten.repeat_interleave.Tensor,
    aten._unique2.default,
    aten.unique_consecutive.default,
    aten.unique_dim.default,
}


class ImaginedTensor(Tensor):
    """A tensor on the imagined device; `held` holds its values."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> ImaginedTensor:
        made: ImaginedTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            layout=held.layout,
            device=torch.device(NAME, 0),
            requires_grad=held.requires_grad,
        )
        made.held = held
        return made

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        """Let `Module.to` swap parameters in place."""
        return ["held"], None

    @staticmethod
    def __tensor_unflatten__(parts: dict[str, Tensor], *_: object) -> ImaginedTensor:
        return ImaginedTensor(parts["held"])

    def tolist(self) -> Any:
        """Wait, and return the values."""
        WAITS.note()
        return self.held.tolist()

    def __repr__(self) -> str:  # type: ignore[override]
        return f"imagined {self.held!r}"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        return run(func, args, kwargs or {})


_Generator: Any = torch.Generator


class Generator(_Generator):  # type: ignore[misc]
    """A random generator of any device, the imagined one included."""

    imagined = False

    def __new__(cls, device: torch.device | str = "cpu") -> Any:
        imagined = torch.device(device).type == NAME
        made = _Generator.__new__(cls, "cpu" if imagined else device)
        made.imagined = imagined
        return made

    @property
    def device(self) -> torch.device:
        """Where it draws."""
        found: torch.device = super().device
        return torch.device(NAME, 0) if self.imagined else found


class _Backend(_DummyBackendModule):
    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]

    def set_device(self, device: object) -> None: ...

    def synchronize(self, device: object = None) -> None: ...


class Waits:
    """Where the host has waited for the device, by function of imsvd."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self.watching = False
        self.pinned = WeakTensorKeyDictionary()

    def note(self) -> None:
        """Count a wait of the innermost function of imsvd on the stack."""
        if self.watching:
            self.seen[_caller()] += 1


WAITS = Waits()


def _caller() -> str:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if "/imsvd/" in frame.f_code.co_filename:
            return frame.f_code.co_qualname
        frame = frame.f_back
    return "?"


@contextmanager
def watching() -> Iterator[Counter[str]]:
    """Count what makes the host wait."""
    WAITS.seen, WAITS.watching = Counter(), True
    try:
        yield WAITS.seen
    finally:
        WAITS.watching = False


def _is_here(value: object) -> bool:
    return isinstance(value, ImaginedTensor)


def _unwrap(value: Any) -> Any:
    if isinstance(value, ImaginedTensor):
        return value.held
    if isinstance(value, torch.device) and value.type == NAME:
        return torch.device("cpu")
    return value


def _wrap(value: Any) -> Any:
    if isinstance(value, Tensor) and not _is_here(value):
        return ImaginedTensor(value)
    return value


def run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an operation that concerns the device, as a GPU would, or refuse it."""
    tensors = [value for value in tree_iter((args, kwargs)) if isinstance(value, Tensor)]
    here = [value for value in tensors if _is_here(value)]
    wanted = kwargs.get("device")
    target = None if wanted is None else torch.device(wanted).type
    if func in _TRANSFERS:
        _note_transfer(func, args, kwargs, target)
    elif here:
        _refuse_mixture(func, args, tensors)
        if func in _WAITING:
            WAITS.note()
    on_device = target == NAME if target is not None else bool(here)
    if func is aten.copy_.default:
        on_device = _is_here(args[0])
    plain_args, plain_kwargs = tree_map(_unwrap, (args, kwargs))
    made = func(*plain_args, **plain_kwargs)
    if func is aten._to_copy.default and target is not None and made is plain_args[0]:
        made = made.clone()
    if not on_device:
        return made
    wrapped = tree_map(_wrap, made)
    if not here:
        return wrapped
    return return_and_correct_aliasing(func, args, kwargs, wrapped)  # type: ignore[no-untyped-call]


def _note_transfer(func: Any, args: Any, kwargs: dict[str, Any], target: str | None) -> None:
    if func is aten.copy_.default:
        source, away = args[1], _is_here(args[0]) != _is_here(args[1])
        smooth = len(args) > 2 and args[2]
        smooth = smooth or kwargs.get("non_blocking", False)
    else:
        source = args[0]
        away = target is not None and (target == NAME) != _is_here(source)
        smooth = kwargs.get("non_blocking", False)
    if away and not (smooth and (_is_here(source) or source in WAITS.pinned)):
        WAITS.note()


def _refuse_mixture(func: Any, args: Any, tensors: list[Tensor]) -> None:
    strangers = [value for value in tensors if not _is_here(value)]
    if not strangers:
        return
    if func in _INDEXING and _is_here(args[0]):  # allowed, but the indices have to travel
        if any(value is not None and not _is_here(value) for value in args[1]):
            WAITS.note()
        strangers = [value for value in strangers if not any(value is place for place in args[1])]
    if any(value.ndim for value in strangers):  # scalars of the host may join
        shapes = [f"{value.device.type}{tuple(value.shape)}" for value in tensors]
        raise RuntimeError(f"{func}: all tensors must be on one device, not {', '.join(shapes)}")


class ImaginedGPU(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sends to the device what is created there; everything else runs as it is."""

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in (aten._pin_memory.default, aten.pin_memory.default):
            made = args[0].clone()
            WAITS.pinned[made] = True
            return made
        if func is aten.is_pinned.default:
            return args[0] in WAITS.pinned
        if kwargs.get("pin_memory"):
            made = func(*args, **kwargs | {"pin_memory": False})
            WAITS.pinned[made] = True
            return made
        wanted = kwargs.get("device")
        concerns = wanted is not None and torch.device(wanted).type == NAME
        if concerns or any(_is_here(value) for value in tree_iter((args, kwargs))):
            return run(func, args, kwargs)
        return func(*args, **kwargs)


def _rule(operation: Any, dtype: torch.dtype | None) -> Callable[..., Any]:
    """Return `operation` with its arguments cast to `dtype`, or to autocast's if that is None."""
    key: Any = torch._C.DispatchKey
    autocasting = torch._C.DispatchKeySet(key.AutocastPrivateUse1)

    def autocast(*args: Any, **kwargs: Any) -> Any:
        wanted = dtype or torch.get_autocast_dtype(NAME)
        with torch._C._ExcludeDispatchKeyGuard(autocasting):
            args, kwargs = tree_map(lambda value: _cast(value, wanted), (args, kwargs))
            return operation(*args, **kwargs)

    return autocast


def _cast(value: Any, dtype: torch.dtype) -> Any:
    low = (torch.float32, torch.float16, torch.bfloat16)
    return value.to(dtype) if isinstance(value, Tensor) and value.dtype in low else value


_LOWER = ("conv2d", "convolution", "linear", "addmm", "mm", "bmm", "matmul", "baddbmm", "einsum")
_HIGHER = ("exp", "log", "softmax.int", "log_softmax.int", "cross_entropy_loss", "logsumexp")
_libraries: list[Any] = []


def register() -> torch.device:
    """Register the device with its autocast rules, those of a CUDA device in short; once a process."""
    if not _libraries:
        _setup_privateuseone_for_python_backend(NAME, backend_module=_Backend())
        library: Any = torch.library.Library
        others = library("_", "IMPL", "AutocastPrivateUse1")
        others.fallback(torch.library.fallthrough_kernel)
        rules = library("aten", "IMPL", "AutocastPrivateUse1")
        _libraries.extend((others, rules))  # their rules end with them
        for names, dtype in ((_LOWER, None), (_HIGHER, torch.float32)):
            for name in names:
                operation: Any = aten
                for part in (name if "." in name else f"{name}.default").split("."):
                    operation = getattr(operation, part)
                rules.impl(name, _rule(operation, dtype))
        torch.Generator = Generator  # type: ignore[misc, assignment]
        # torch.tensor(…, device=…) then creates on the host and moves, where it can be seen.
        torch._C._set_only_lift_cpu_tensors(True)
    return torch.device(NAME, 0)
