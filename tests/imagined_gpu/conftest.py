from collections.abc import Iterator

import pytest
import torch

from tests.imagined_gpu.device import ImaginedGPU, register


@pytest.fixture(scope="session", autouse=True)
def device() -> torch.device:
    """The device, registered before the first backward pass: autograd counts devices only then."""
    return register()


@pytest.fixture
def gpu(device: torch.device) -> Iterator[torch.device]:
    with ImaginedGPU():  # type: ignore[no-untyped-call]
        yield device
