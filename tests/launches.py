"""Operations that a GPU would have to start, counted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class Launches(TorchDispatchMode):
    """While active, counts operations that compute or move numbers; views of tensors are free."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count: int = 0

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        self.count += not func.is_view
        return func(*args, **(kwargs or {}))
