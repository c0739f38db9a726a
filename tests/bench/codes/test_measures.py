"""Measures of a code whose answers are known."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from imsvd.bench.codes.inputs import Inputs, Split
from imsvd.bench.codes.measures import as_variables, make_database, measure
from imsvd.bench.codes.quantizers import Code, one_hot


class Columns(Code):
    """Features are codes already: column m is the unit of variable m; `sure` is its probability."""

    def __init__(self, units: tuple[int, ...] | None, sure: float | None = None) -> None:
        self.units, self.sure = units, sure

    def codes(self, features: Tensor) -> Tensor:
        return features > 0 if self.units is None else features.long()

    def vectors(self, codes: Tensor) -> Tensor:
        return codes.float() if self.units is None else one_hot(codes, self.units)

    def query(self, features: Tensor) -> Tensor:
        return self.vectors(self.codes(features))

    def probabilities(self, features: Tensor) -> Tensor | None:
        if self.sure is None:
            return None
        hard = self.vectors(self.codes(features))
        return hard * self.sure + (1 - hard) * (1 - self.sure)


def independent(count: int = 4000, variables: int = 4) -> Tensor:
    """Variables of two units, every combination equally often."""
    numbers = torch.arange(count) % 2**variables
    return torch.stack([(numbers >> bit) & 1 for bit in range(variables)], 1).float()


def inputs(plain: Tensor, second: Tensor | None = None, labels: Tensor | None = None) -> Inputs:
    """The same images as training and test images; the second view may differ."""
    views = [plain, plain if second is None else second, plain]
    features = torch.stack(views, 1).numpy().astype(np.float16)
    split = Split(features, plain[:, 0].long() if labels is None else labels)
    nearest = torch.arange(len(plain))[:, None].expand(-1, 10)
    return Inputs("", None, "", None, split, split, nearest, plain, {})  # type: ignore[arg-type]


def test_independent_decided_equal_variables_have_all_properties() -> None:
    found, codes = measure(Columns((2,) * 4, sure=0.999), inputs(independent()), 0)
    assert found["decided"] == found["agreeing"] == 100
    assert found["properties"] == 5, found["verdicts"]
    assert found["shared_nats"] == pytest.approx(0, abs=1e-3)
    assert np.array_equal(codes, independent().numpy().astype(int))
    # The label is the first variable: units of it are pure, those of the others half.
    assert found["purity"] == pytest.approx(100 * (1 + 3 * 0.5) / 4)


def test_a_repeated_variable_shares_all_of_its_entropy() -> None:
    repeated = independent(variables=1).repeat(1, 3)
    found, _ = measure(Columns((2, 2, 2)), inputs(repeated), 0)
    assert found["shared_nats"] == pytest.approx(math.log(2), abs=1e-3)
    assert found["shared_share"] == pytest.approx(100, abs=0.1)
    assert found["verdicts"]["independent"] == "does not hold"
    assert "decided" not in found


def test_undecided_variables_are_counted() -> None:
    found, _ = measure(Columns((2,) * 4, sure=0.8), inputs(independent()), 0)
    assert found["decided"] == 0
    assert found["verdicts"]["one_hot"] == "does not hold"


def test_agreement_of_views_is_a_share_of_variables() -> None:
    first = independent()
    second = first.clone()
    second[:, 0] = 1 - second[:, 0]
    found, _ = measure(Columns((2,) * 4), inputs(first, second), 0)
    assert found["agreeing"] == 75


def test_agreement_of_sets_is_a_share_of_active_units() -> None:
    first = torch.zeros(100, 6)
    first[:, :3] = 1
    second = torch.zeros(100, 6)
    second[:, 2:5] = 1
    found, codes = measure(Columns(None), inputs(first, second), 0)
    assert found["agreeing"] == pytest.approx(100 / 3)
    assert codes.dtype == np.bool_


def test_a_set_is_read_as_variables_of_two_units() -> None:
    sets = torch.tensor([[True, False, True]])
    codes, units = as_variables(sets, None)
    assert codes.tolist() == [[1, 0, 1]]
    assert units == (2, 2, 2)


def test_equal_codes_share_a_row_of_the_database() -> None:
    features = independent(64)
    database = make_database(Columns((2,) * 4), features, torch.zeros(64, dtype=torch.long))
    assert database.vectors.shape == (16, 8)
    torch.testing.assert_close(
        database.vectors[database.places], one_hot(features.long(), (2,) * 4)
    )
