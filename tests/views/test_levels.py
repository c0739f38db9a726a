import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from imsvd.views import ViewSettings, normalize


@given(
    count=st.integers(1, 3),
    size=st.integers(1, 9),
    mean=st.tuples(*[st.floats(-1, 1)] * 3),
    std=st.tuples(*[st.floats(0.05, 2)] * 3),
)
def test_every_byte_is_scaled_shifted_and_divided(
    count: int, size: int, mean: tuple[float, ...], std: tuple[float, ...]
) -> None:
    settings = ViewSettings(size=8, mean=mean, std=std)
    generator = torch.Generator().manual_seed(size)
    levels = torch.randint(0, 256, (count, 3, size, size), generator=generator, dtype=torch.uint8)
    found = normalize(levels, settings)
    for channel in range(3):
        expected = (levels[:, channel].double() / 255 - mean[channel]) / std[channel]
        error = (found[:, channel].double() - expected).abs().max()
        # Both terms are rounded before one is taken from the other.
        assert error <= 3e-7 * (1 + abs(mean[channel])) / std[channel]


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_the_result_is_laid_out_for_convolutions(memory_format: torch.memory_format) -> None:
    levels = torch.randint(0, 256, (2, 3, 8, 8), dtype=torch.uint8)
    before = levels.clone()
    found = normalize(levels.contiguous(memory_format=memory_format), ViewSettings(size=8))
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert found.dtype == torch.float32
    assert torch.equal(levels, before)
