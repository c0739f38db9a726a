import ctypes
import resource
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest
import torch

from imsvd.config import override
from imsvd.engine.hardware import keep_freed_memory, use_processor_well
from imsvd.methods import build_method
from imsvd.networks import build_backbone
from imsvd.networks.winograd import WinogradConv2d
from imsvd.pretraining.optimizers import build_optimizer
from imsvd.recipes import recipe

SETTINGS = ["training.batch_size=8", "method.projector=[32, 64]", "method.units=4"]

ON_GLIBC = pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "gnu_get_libc_version"),
    reason="another C library",
)


def page_faults() -> int:
    """Of filling 256 MiB that have just been freed."""
    torch.ones(2**26)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(2**26)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def faults_before_and_after() -> tuple[int, bool, int]:
    torch.set_num_threads(1)  # threads do not survive a fork
    # glibc's defaults, which whatever trained in this process before has changed.
    for parameter, value in ((-1, 2**17), (-3, 2**17), (-4, 2**16)):
        assert ctypes.CDLL(None).mallopt(parameter, value)
    return page_faults(), keep_freed_memory(), min(page_faults() for _ in range(3))


def steps(*, faster: bool) -> list[float]:
    """Losses of a few steps on the same random views."""
    torch.manual_seed(0)
    config = override(recipe("cifar10-cpu"), SETTINGS)
    method = build_method(config.method, build_backbone(config.backbone), 8)
    method = method.to(memory_format=torch.channels_last)
    optimizer = build_optimizer(method, config)
    if faster:
        use_processor_well(method)
        assert any(isinstance(module, WinogradConv2d) for module in method.modules())
    losses = []
    for _ in range(4):
        views = [torch.randn(8, 3, 12, 12).to(memory_format=torch.channels_last) for _ in range(2)]
        output = method(views, torch.arange(8))
        optimizer.zero_grad()
        output.loss.backward()
        optimizer.step()
        losses.append(output.loss.item())
    return losses


def test_training_takes_the_same_course() -> None:
    plain = steps(faster=False)
    assert steps(faster=True) == pytest.approx(plain, rel=1e-3)
    assert len(set(plain)) > 1


@ON_GLIBC
def test_memory_that_was_freed_is_used_again() -> None:
    with ProcessPoolExecutor(1, get_context("fork")) as alone:
        before, kept, after = alone.submit(faults_before_and_after).result()
    assert kept
    assert after < before / 10


def test_other_systems_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not keep_freed_memory()
