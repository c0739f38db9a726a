import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from imsvd import distributed
from imsvd.errors import InputError
from imsvd.methods.memory_bank import MemoryBank
from tests import gloo


def build(momentum: float = 0.5) -> MemoryBank:
    torch.manual_seed(0)
    return MemoryBank(8, 3, momentum).double()


def embeddings() -> Tensor:
    return 5 * torch.randn(4, 3, generator=torch.Generator().manual_seed(1)).double()


SAMPLES = torch.tensor([6, 0, 3, 5])


def test_it_starts_at_different_unit_vectors() -> None:
    entries = build().entries
    torch.testing.assert_close(entries.norm(dim=1), torch.ones(8).double(), atol=1e-6, rtol=0)
    assert len({tuple(entry) for entry in entries.tolist()}) == 8


@pytest.mark.parametrize("momentum", [0.0, 0.3, 0.9])
def test_an_update_moves_the_named_vectors_and_no_others(momentum: float) -> None:
    bank = build(momentum)
    before = bank.entries.clone()
    bank.update(SAMPLES, embeddings())
    for row, sample in enumerate(SAMPLES.tolist()):
        vector = embeddings()[row] / embeddings()[row].norm()
        mixed = momentum * before[sample] + (1 - momentum) * vector
        torch.testing.assert_close(bank.entries[sample], mixed / mixed.norm())
    untouched = [1, 2, 4, 7]
    assert torch.equal(bank.entries[untouched], before[untouched])


def test_the_bank_is_part_of_the_state_and_needs_no_gradient() -> None:
    bank, other = build(), MemoryBank(8, 3, 0.5).double()
    bank.update(SAMPLES, embeddings().requires_grad_())
    assert not bank.entries.requires_grad
    other.load_state_dict(bank.state_dict())
    assert torch.equal(bank.entries, other.entries)


def test_too_few_images_are_refused() -> None:
    with pytest.raises(InputError, match=r"num_samples=0 .* number of images"):
        MemoryBank(0, 3, 0.5)


class Remembering(nn.Module):
    """A bank beside something to train, as methods have it."""

    def __init__(self) -> None:
        super().__init__()
        self.bank = build()
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
    expected = build()
    expected.update(SAMPLES, embeddings())
    first, second = gloo.run(2, update_on_one_rank)
    assert torch.equal(first["shared"], expected.entries)
    assert torch.equal(second["shared"], expected.entries)
    assert not second["after"].any()  # what this rank did to its bank was not overwritten
    torch.testing.assert_close(F.normalize(first["after"], dim=1), first["shared"])
