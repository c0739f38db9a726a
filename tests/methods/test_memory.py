import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from imsvd import distributed
from imsvd.errors import InputError
from imsvd.methods.memory import (
    EmbeddingQueue,
    MemoryBank,
    cosine_momentum,
    momentum_copy,
    update_momentum,
)
from tests import gloo


def build_bank(momentum: float = 0.5) -> MemoryBank:
    torch.manual_seed(0)
    return MemoryBank(8, 3, momentum).double()


def embeddings() -> Tensor:
    return 5 * torch.randn(4, 3, generator=torch.Generator().manual_seed(1)).double()


SAMPLES = torch.tensor([6, 0, 3, 5])


def test_a_bank_starts_at_different_unit_vectors() -> None:
    entries = build_bank().entries
    torch.testing.assert_close(entries.norm(dim=1), torch.ones(8).double(), atol=1e-6, rtol=0)
    assert len({tuple(entry) for entry in entries.tolist()}) == 8


@pytest.mark.parametrize("momentum", [0.0, 0.3, 0.9])
def test_an_update_moves_the_named_vectors_and_no_others(momentum: float) -> None:
    bank = build_bank(momentum)
    before = bank.entries.clone()
    bank.update(SAMPLES, embeddings())
    for row, sample in enumerate(SAMPLES.tolist()):
        vector = embeddings()[row] / embeddings()[row].norm()
        mixed = momentum * before[sample] + (1 - momentum) * vector
        torch.testing.assert_close(bank.entries[sample], mixed / mixed.norm())
    untouched = [1, 2, 4, 7]
    assert torch.equal(bank.entries[untouched], before[untouched])


def test_the_bank_is_part_of_the_state_and_needs_no_gradient() -> None:
    bank, other = build_bank(), MemoryBank(8, 3, 0.5).double()
    bank.update(SAMPLES, embeddings().requires_grad_())
    assert not bank.entries.requires_grad
    other.load_state_dict(bank.state_dict())
    assert torch.equal(bank.entries, other.entries)


def test_too_few_images_are_refused() -> None:
    with pytest.raises(InputError, match=r"num_samples=0 .* number of training images"):
        MemoryBank(0, 3, 0.5)


class Remembering(nn.Module):
    """A bank beside something to train, as methods have it."""

    def __init__(self) -> None:
        super().__init__()
        self.bank = build_bank()
        self.norm = nn.BatchNorm1d(3).double()
        distributed.keep_from_broadcast(self, ["bank."])

    def forward(self, x: Tensor) -> Tensor:
        normed: Tensor = self.norm(x)
        return normed


def update_on_one_rank() -> dict[str, Tensor]:
    own = distributed.own_slice(4)
    module = Remembering()
    model = DistributedDataParallel(module)
    module.bank.update(SAMPLES[own], embeddings()[own])
    shared = module.bank.entries.clone()
    if distributed.rank() == 1:
        module.bank.entries.zero_()
        module.norm.running_mean = torch.ones(3).double()  # synchronized, so it must not survive
    with torch.no_grad():
        model(embeddings())
    mean = module.norm.running_mean
    assert mean is not None
    return {"shared": shared, "after": module.bank.entries, "mean": mean}


def test_ranks_update_alike_and_ddp_never_sends_the_bank() -> None:
    expected = build_bank()
    expected.update(SAMPLES, embeddings())
    first, second = gloo.run(2, update_on_one_rank)
    assert torch.equal(first["shared"], expected.entries)
    assert torch.equal(second["shared"], expected.entries)
    assert not second["after"].any()  # what this rank did to its bank was not overwritten
    torch.testing.assert_close(F.normalize(first["after"], dim=1), first["shared"])


def rows(first: int, count: int) -> Tensor:
    """Rows that hold their own number."""
    return torch.arange(first, first + count).float()[:, None].expand(-1, 2)


def test_a_queue_begins_with_random_unit_vectors() -> None:
    queue = EmbeddingQueue(7, 3)
    torch.testing.assert_close(queue.values.norm(dim=1), torch.ones(7))
    assert not queue.is_full()


@pytest.mark.parametrize("batch", [1, 2, 3, 5])
def test_a_queue_holds_the_newest_whether_or_not_the_batch_divides_it(batch: int) -> None:
    queue = EmbeddingQueue(5, 2)
    for step in range(6):
        queue.push(rows(step * batch, batch))
        pushed = (step + 1) * batch
        assert queue.is_full() == (pushed >= 5)
        held = set(queue.values[:, 0].tolist())
        assert set(range(max(0, pushed - 5), pushed)) <= held


def test_more_than_it_can_hold_is_refused_with_a_sentence() -> None:
    with pytest.raises(InputError, match=r"method\.queue_length=5 is shorter than the 6 images"):
        EmbeddingQueue(5, 2).push(rows(0, 6))


def push_on_one_rank() -> Tensor:
    torch.manual_seed(0)
    queue = EmbeddingQueue(5, 2)
    for step in range(3):
        queue.push(rows(10 * step + 2 * distributed.rank(), 2))
    return queue.values


def test_every_rank_holds_the_embeddings_of_all_in_rank_order() -> None:
    torch.manual_seed(0)
    expected = EmbeddingQueue(5, 2)
    for step in range(3):
        expected.push(rows(10 * step, 4))
    for values in gloo.run(2, push_on_one_rank):
        assert torch.equal(values, expected.values)


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
