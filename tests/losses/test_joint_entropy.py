import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from imsvd.losses import joint_entropy
from imsvd.losses.joint_entropy import off_diagonal_entropy_sum
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
    value = off_diagonal_entropy_sum(q1, q2, sizes, tile_rows)
    expected = expected_sum(q1, q2, sizes)
    assert_equal_relative(value.detach(), expected.detach(), 1e-12)
    with torch.no_grad():
        assert_equal_relative(
            off_diagonal_entropy_sum(q1, q2, sizes, tile_rows), expected.detach(), 1e-12
        )
    if len(sizes) > 1:
        actual_gradients = torch.autograd.grad(value, (q1, q2))
        for actual, gradient in zip(
            actual_gradients, torch.autograd.grad(expected, (q1, q2)), strict=True
        ):
            assert_equal_relative(actual, gradient, 1e-12)


def test_gradcheck() -> None:
    q1, q2 = positive(3, 9, 0), positive(3, 9, 1)
    assert torch.autograd.gradcheck(
        lambda a, b: off_diagonal_entropy_sum(a, b, [2, 3, 4], 4), (q1, q2)
    )


@pytest.mark.parametrize("skipped", [0, 1, 2, 3])
def test_every_tile_counts(skipped: int, monkeypatch: pytest.MonkeyPatch) -> None:
    q1, q2 = positive(4, 12, 0), positive(4, 12, 1)
    expected = expected_sum(q1, q2, [3] * 4)
    complete = off_diagonal_entropy_sum(q1, q2, 3, tile_rows=3)
    torch.testing.assert_close(complete, expected)
    all_rows = joint_entropy._Tiles._rows

    def all_but_one(tiles: joint_entropy._Tiles) -> list[slice]:
        rows = all_rows(tiles)
        assert len(rows) == 4
        return rows[:skipped] + rows[skipped + 1 :]

    monkeypatch.setattr(joint_entropy._Tiles, "_rows", all_but_one)
    incomplete = off_diagonal_entropy_sum(q1, q2, 3, tile_rows=3)
    assert abs(float((incomplete - expected).detach())) > 0.01


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_exact_zeros_and_exact_collapse_stay_finite(dtype: torch.dtype) -> None:
    collapsed = torch.zeros(4, 6, dtype=dtype)
    collapsed[:, [0, 3]] = 1
    q1, q2 = collapsed.clone().requires_grad_(), collapsed.clone().requires_grad_()
    value = off_diagonal_entropy_sum(q1, q2, 3)
    assert abs(float(value.detach())) < 1e-6
    for gradient in torch.autograd.grad(value, (q1, q2)):
        assert gradient.isfinite().all()


def test_inputs_are_not_changed() -> None:
    q = torch.eye(4)
    off_diagonal_entropy_sum(q, q, 2)
    assert torch.equal(q, torch.eye(4))


def test_second_derivatives_are_refused_with_a_sentence() -> None:
    q1, q2 = positive(3, 4, 0), positive(3, 4, 1)
    value = off_diagonal_entropy_sum(q1, q2, 2)
    with pytest.raises(RuntimeError, match="cannot be differentiated again: call backward without"):
        torch.autograd.grad(value, q1, create_graph=True)


def test_a_kept_graph_gives_the_same_gradient_twice() -> None:
    q1, q2 = positive(3, 4, 0), positive(3, 4, 1)
    value = off_diagonal_entropy_sum(q1, q2, 2)
    (once,) = torch.autograd.grad(value * 2, q1, retain_graph=True)
    (again,) = torch.autograd.grad(value * 2, q1)
    torch.testing.assert_close(once, again)


def test_default_tiles_are_tall_and_bounded_at_every_width() -> None:
    for width in (64, 8160, 16320, 65280):
        rows = joint_entropy.default_tile_rows(width, 4)
        assert 500 <= rows <= joint_entropy.MAX_TILE_ROWS
        assert rows * width * 4 <= joint_entropy.TILE_BYTES
