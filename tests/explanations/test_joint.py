import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from imsvd.explanations.joint import (
    JointMatrix,
    deviations,
    most_dependent,
    mutual_information,
    theorem_properties,
)
from tests.explanations.made_up import softmax_rows
from tests.oracles import explanations as oracle


def add_up(q1: Tensor, q2: Tensor, units: tuple[int, ...], batch: int, tile: int) -> JointMatrix:
    joint = JointMatrix(units, tile_rows=tile)
    for start in range(0, len(q1), batch):
        joint.add(q1[start : start + batch], q2[start : start + batch])
    return joint


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.integers(2, 4), min_size=1, max_size=3),
    st.integers(1, 9),
    st.integers(1, 5),
    st.integers(1, 13),
)
def test_sums_equal_the_definition_for_any_batch_and_tile(
    sizes: list[int], count: int, batch: int, tile: int
) -> None:
    units = tuple(sizes)
    q1, q2 = softmax_rows(count, units, 0), softmax_rows(count, units, 1)
    joint = add_up(q1, q2, units, batch, tile)
    dense = oracle.joint_matrix(q1.numpy(), q2.numpy())
    np.testing.assert_allclose(joint.rows(0, sum(units)), dense, rtol=0, atol=1e-14)
    np.testing.assert_allclose(
        mutual_information(joint), oracle.mutual_information(dense, units), rtol=0, atol=1e-12
    )
    for measured, expected in zip(joint.marginals(), (q1.mean(0), q2.mean(0)), strict=True):
        np.testing.assert_allclose(measured, expected, rtol=0, atol=1e-14)
    cells = oracle.off_block_deviation(dense, units)
    found = deviations(joint)
    assert found.off_block_mean == pytest.approx(cells.mean() if cells.size else 0, abs=1e-12)
    assert found.off_block_largest == pytest.approx(cells.max() if cells.size else 0, abs=1e-12)


def test_agreement_and_one_hot_share_by_hand() -> None:
    first = torch.tensor([[0.95, 0.05, 0.5, 0.5], [0.0, 1.0, 1.0, 0.0]], dtype=torch.float64)
    second = torch.tensor([[1.0, 0.0, 0.5, 0.5], [1.0, 0.0, 0.85, 0.15]], dtype=torch.float64)
    joint = add_up(first, second, (2, 2), 1, 3)
    assert joint.agreement() == pytest.approx((0.95 + 0.5 + 0.0 + 0.85) / 4)
    assert joint.one_hot_share() == 5 / 8


def ideal_codes() -> Tensor:
    """Every combination of two units of 4 and 5 once: one-hot, even and independent."""
    pairs = [(a, b) for a in range(4) for b in range(5)]
    q = torch.zeros(len(pairs), 9, dtype=torch.float64)
    for row, (a, b) in zip(q, pairs, strict=True):
        row[a] = row[4 + b] = 1
    return q


def test_an_ideal_model_has_all_five_properties() -> None:
    joint = add_up(ideal_codes(), ideal_codes(), (4, 5), 7, 4)
    information = mutual_information(joint)
    properties = theorem_properties(joint, information, deviations(joint))
    assert [row.verdict for row in properties] == ["holds"] * 5
    assert [row.measured for row in properties] == pytest.approx([1, 1, 0, 0, 0], abs=1e-12)
    np.testing.assert_allclose(information.diagonal(), [math.log(4), math.log(5)], atol=1e-12)


def test_collapsed_and_copied_variables_are_told() -> None:
    collapsed = torch.zeros(2000, 8, dtype=torch.float64)
    collapsed[:, [0, 4]] = 1
    joint = add_up(collapsed, collapsed, (4, 4), 64, 8)
    rows = theorem_properties(joint, mutual_information(joint), deviations(joint))
    assert [row.verdict for row in rows] == ["holds", "holds", *["does not hold"] * 2, "holds"]
    copied = torch.eye(4, dtype=torch.float64).repeat(500, 2)
    joint = add_up(copied, copied, (4, 4), 64, 8)
    information = mutual_information(joint)
    rows = theorem_properties(joint, information, deviations(joint))
    assert [row.verdict for row in rows][2:] == ["holds", *["does not hold"] * 2]
    assert most_dependent(information) == [
        {"variables": [0, 1], "nats": pytest.approx(math.log(4), abs=1e-6)}
    ]


def test_the_floor_is_what_independent_codes_show() -> None:
    count, size = 400, 8
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(size, (count, 6), generator=generator)
    q = torch.nn.functional.one_hot(codes, size).double().flatten(1)
    joint = add_up(q, q, (size,) * 6, 100, 16)
    rows = theorem_properties(joint, mutual_information(joint), deviations(joint))
    for row in rows[2:]:
        assert row.verdict == "holds"
        assert row.measured == pytest.approx(row.floor, rel=0.25)


def soft_codes(count: int, variables: int, size: int, sharpness: float) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(count, variables, size, generator=generator, dtype=torch.float64)
    return (sharpness * logits).softmax(-1)


@pytest.mark.parametrize(("count", "size", "sharpness"), [(300, 32, 3.0), (500, 8, 1.0)])
def test_the_floor_of_soft_codes_is_what_they_show_and_hides_no_copies(
    count: int, size: int, sharpness: float
) -> None:
    q = soft_codes(count, 6, size, sharpness)
    joint = add_up(q.flatten(1), q.flatten(1), (size,) * 6, 100, 16)
    rows = theorem_properties(joint, mutual_information(joint), deviations(joint))
    for row in rows[2:]:
        assert row.verdict == "holds"
        assert row.measured == pytest.approx(row.floor, rel=0.3)
    copied = q[:, :1].expand(-1, 6, -1).flatten(1)
    joint = add_up(copied, copied, (size,) * 6, 100, 16)
    rows = theorem_properties(joint, mutual_information(joint), deviations(joint))
    assert rows[4].measured > 3 * rows[4].floor
    assert rows[3].measured > 1.2 * rows[3].floor


def test_where_noise_could_hide_anything_nothing_is_said() -> None:
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(80, (100, 1), generator=generator).expand(-1, 4)
    q = torch.nn.functional.one_hot(codes, 80).double().flatten(1)
    joint = add_up(q, q, (80,) * 4, 100, 16)
    rows = theorem_properties(joint, mutual_information(joint), deviations(joint))
    assert rows[4].verdict == "too few images"
