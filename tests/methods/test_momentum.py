import pytest
import torch
from torch import nn

from imsvd.methods.momentum import cosine_momentum, momentum_copy, update_momentum


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).double()


def test_a_copy_is_equal_frozen_and_independent() -> None:
    online = network()
    copied = momentum_copy(online)
    values = torch.randn(5, 3, dtype=torch.float64)
    assert torch.equal(copied(values), online(values))
    assert not any(parameter.requires_grad for parameter in copied.parameters())
    assert all(parameter.requires_grad for parameter in online.parameters())
    with torch.no_grad():
        for old, new in zip(copied.parameters(), online.parameters(), strict=True):
            new.add_(1)
            assert not torch.equal(old, new)


@pytest.mark.parametrize("momentum", [0.0, 0.3, 0.9, 0.999, 1.0])
def test_parameters_are_averaged_and_buffers_taken_over(momentum: float) -> None:
    online = network()
    copied = momentum_copy(online)
    before = [parameter.clone() for parameter in copied.parameters()]
    with torch.no_grad():
        for parameter in online.parameters():
            parameter.add_(torch.randn_like(parameter))
    online(torch.randn(5, 3, dtype=torch.float64))  # moves the running statistics
    update_momentum(copied, online, momentum)
    for old, new, now in zip(before, copied.parameters(), online.parameters(), strict=True):
        torch.testing.assert_close(new.detach(), momentum * old + (1 - momentum) * now.detach())
    for buffer, current in zip(copied.buffers(), online.buffers(), strict=True):
        assert torch.equal(buffer, current)
        assert buffer is not current


def test_several_modules_are_copied_as_one_network() -> None:
    first, second = network(), nn.Linear(2, 3).double()
    copied = momentum_copy(first, second)
    with torch.no_grad():
        second.weight.add_(1)
    update_momentum(copied, nn.Sequential(first, second), 0.0)
    values = torch.randn(5, 3, dtype=torch.float64)
    torch.testing.assert_close(copied(values), second(first(values)))


def test_a_network_built_otherwise_is_refused() -> None:
    with pytest.raises(RuntimeError):
        update_momentum(momentum_copy(nn.Linear(2, 2)), nn.Linear(2, 2, bias=False), 0.5)


def test_the_cosine_runs_from_the_base_to_one() -> None:
    assert cosine_momentum(0.99, 0.0) == pytest.approx(0.99)
    assert cosine_momentum(0.99, 0.5) == pytest.approx(0.995)
    assert cosine_momentum(0.99, 1.0) == 1.0
    assert cosine_momentum(1.0, 0.3) == 1.0
