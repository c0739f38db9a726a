import torch

from imsvd.losses.base import Loss, sum_of_means
from imsvd.losses.imsvd import IMSVDLoss
from imsvd.losses.npid import NPIDLoss


def test_print_shows_the_settings_and_nothing_else() -> None:
    assert repr(NPIDLoss(temperature=0.3)) == (
        "NPIDLoss(form='nce', temperature=0.3, proximal_weight=0.0)"
    )
    shown = repr(IMSVDLoss(4, normalization="paper", off_diagonal_weight=3.0))
    assert "units=4" in shown
    assert "normalization='paper'" in shown
    assert "off_diagonal_entropy=3.0" in shown
    assert repr(Loss()) == "Loss()"


def test_the_sum_has_a_gradient_and_its_terms_have_none() -> None:
    first, second = torch.tensor(2.0, requires_grad=True), torch.tensor(3.0)
    output = sum_of_means(first=first, second=second)
    assert float(output.loss.detach()) == 5
    assert {name: float(value) for name, value in output.terms.items()} == {"first": 2, "second": 3}
    assert not any(value.requires_grad for value in output.terms.values())
    (gradient,) = torch.autograd.grad(output.loss, first)
    assert gradient == 1
