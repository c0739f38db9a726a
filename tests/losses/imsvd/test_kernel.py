import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from imsvd.losses.imsvd import kernel
from imsvd.losses.imsvd.kernel import keep_positive_, off_diagonal
from tests.oracles import imsvd as oracle


def positive(batch: int, width: int, seed: int) -> Tensor:
    """Not normalized: the gradients must hold for any q, not only on the simplex."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.rand(batch, width, generator=generator, dtype=torch.float64) + 0.01
    return values.requires_grad_()


def expected_sum(q1: Tensor, q2: Tensor, sizes: list[int]) -> Tensor:
    pairs = max(1, len(sizes) * (len(sizes) - 1))
    return oracle.terms_of_probabilities(q1, q2, sizes).off_diagonal_entropy * pairs


def assert_equal_relative(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    difference = (actual - expected).abs().max()
    assert float(difference) <= tolerance * max(float(expected.abs().max()), 1e-3)


@given(
    batch=st.integers(1, 6),
    sizes=st.lists(st.integers(2, 5), min_size=1, max_size=5),
    tile_rows=st.integers(1, 30),
    seed=st.integers(0, 1000),
)
@settings(max_examples=60, deadline=None)
def test_value_and_both_gradients_equal_the_dense_matrix(
    batch: int, sizes: list[int], tile_rows: int, seed: int
) -> None:
    q1, q2 = positive(batch, sum(sizes), seed), positive(batch, sum(sizes), seed + 1)
    expected = expected_sum(q1, q2, sizes)
    alone = off_diagonal(q1.detach(), q2.detach(), sizes, None, tile_rows)
    assert_equal_relative(alone.value, expected.detach(), 1e-12)
    assert alone.gradients is None
    found = off_diagonal(q1.detach(), q2.detach(), sizes, 0.5, tile_rows)
    assert_equal_relative(found.value, expected.detach(), 1e-12)
    assert found.gradients is not None
    if len(sizes) > 1:
        literal = torch.autograd.grad(expected, (q1, q2))
        for actual, gradient in zip(found.gradients, literal, strict=True):
            assert_equal_relative(actual, 0.5 * gradient, 1e-12)


@pytest.mark.parametrize("scale", [None, 1.0])
@pytest.mark.parametrize("skipped", [0, 1, 2, 3])
def test_every_tile_counts(
    skipped: int, scale: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    q1, q2 = positive(4, 12, 0).detach(), positive(4, 12, 1).detach()
    expected = expected_sum(q1, q2, [3] * 4)
    torch.testing.assert_close(off_diagonal(q1, q2, [3] * 4, scale, 3).value, expected)
    all_rows = kernel._Tiles._rows

    def all_but_one(tiles: kernel._Tiles) -> list[slice]:
        rows = all_rows(tiles)
        assert len(rows) == 4
        return rows[:skipped] + rows[skipped + 1 :]

    monkeypatch.setattr(kernel._Tiles, "_rows", all_but_one)
    incomplete = off_diagonal(q1, q2, [3] * 4, None, 3).value
    assert abs(float(incomplete - expected)) > 0.01


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_exact_zeros_and_exact_collapse_stay_finite(dtype: torch.dtype) -> None:
    collapsed = torch.zeros(4, 6, dtype=dtype)
    collapsed[:, [0, 3]] = 1
    q1, q2 = keep_positive_(collapsed.clone()), keep_positive_(collapsed.clone())
    value, gradients = off_diagonal(q1, q2, [3, 3], 1.0, None)
    assert abs(float(value)) < 1e-6
    assert gradients is not None
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_default_tiles_are_tall_and_bounded_at_every_width() -> None:
    for width in (64, 8160, 16320, 65280):
        rows = kernel.default_tile_rows(width, 4)
        assert 500 <= rows <= kernel.MAX_TILE_ROWS
        assert rows * width * 4 <= kernel.TILE_BYTES
