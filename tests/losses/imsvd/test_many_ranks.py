"""The plan of the loss for 128 ranks, rank by rank in one process with PyTorch's fake backend."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from imsvd import distributed
from imsvd.losses.imsvd.kernel import keep_positive_, off_diagonal

RANKS = 128
SCALE = 2.0


@contextmanager
def fake_rank(rank: int, ranks: int = RANKS) -> Iterator[None]:
    """Be one of many ranks; collectives return at once and move nothing."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
    try:
        yield
    finally:
        dist.destroy_process_group()


class Exchange:
    """Notes what a rank sends, and hands out what all ranks together would have gathered."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, q1: Tensor, q2: Tensor) -> None:
        self.whole = (q1, q2)
        self.gathered = 0
        self.values: list[Tensor] = []
        self.sent: list[list[int]] = []
        self.expected: list[list[int]] = []
        self.columns: list[Tensor] = []
        self.partials: list[Tensor] = []
        monkeypatch.setattr(dist, "all_gather_into_tensor", self.gather)
        monkeypatch.setattr(dist, "all_to_all_single", self.all_to_all)
        monkeypatch.setattr(dist, "reduce_scatter_tensor", self.reduce_scatter)
        monkeypatch.setattr(dist, "all_reduce", self.values.append)

    def gather(self, gathered: Tensor, own: Tensor) -> None:
        whole = self.whole[self.gathered % 2]
        self.gathered += 1
        batch = len(own)
        place = dist.get_rank() * batch
        assert torch.equal(whole[place : place + batch], own)
        assert gathered.shape == whole.shape
        gathered.copy_(whole)

    def all_to_all(self, received: Tensor, sent: Tensor, receive: Any, send: Any) -> None:
        assert received.numel() == sum(receive)
        assert sent.numel() == sum(send)
        self.expected.append(receive)
        self.sent.append(send)
        self.columns.append(sent.clone())

    def reduce_scatter(self, own: Tensor, partial: Tensor) -> None:
        assert own.shape[0] * RANKS == partial.shape[0]
        self.partials.append(partial.clone())


@pytest.mark.parametrize("variables", [50, 24], ids=["uneven rows", "ranks without rows"])
def test_128_ranks_share_the_rows_and_meet_in_every_exchange(
    variables: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = [4] * variables
    width = sum(sizes)
    torch.manual_seed(0)
    q1, q2 = (
        keep_positive_(torch.rand(RANKS, variables, 4, dtype=torch.float64).softmax(-1).flatten(1))
        for _ in range(2)
    )
    alone = off_diagonal(q1, q2, sizes, SCALE, 16)
    assert alone.gradients is not None
    exchange = Exchange(monkeypatch, q1, q2)
    owned: list[int] = []
    for rank in range(RANKS):
        with fake_rank(rank):
            own = distributed.own_slice(width)
            owned += range(own.start, own.stop)
            assert distributed.share_sizes(width)[rank] == own.stop - own.start
            off_diagonal(q1[rank : rank + 1], q2[rank : rank + 1], sizes, SCALE, 16)
    assert owned == list(range(width))
    assert exchange.gathered == 2 * RANKS
    # What a rank sends to another is what that one expects of it.
    assert torch.equal(torch.tensor(exchange.sent).T, torch.tensor(exchange.expected))
    torch.testing.assert_close(torch.stack(exchange.values).sum(), alone.value)
    columns = torch.cat([each.view(RANKS, -1) for each in exchange.columns if each.numel()], dim=1)
    torch.testing.assert_close(columns, alone.gradients[0])
    torch.testing.assert_close(torch.stack(exchange.partials).sum(0), alone.gradients[1])
