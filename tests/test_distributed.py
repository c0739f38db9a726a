from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from imsvd import distributed
from imsvd.datasets.drawn.shapes import ShapesSource
from imsvd.datasets.reading import Quarantine
from imsvd.engine.loop import shared_quarantine
from imsvd.engine.stopping import require_same_start
from imsvd.errors import InputError
from tests import gloo
from tests.datasets.test_reading import PartlyBad, bad_images


def local_values(rank: int) -> Tensor:
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(2, 5, generator=generator, dtype=torch.float64)


def joined_values(world_size: int) -> Tensor:
    return torch.cat([local_values(rank) for rank in range(world_size)])


def global_loss(values: Tensor) -> Tensor:
    return (values.T @ values).pow(2).sum() + values.exp().sum()


def statistic_loss(mean: Tensor) -> Tensor:
    return (mean.pow(3) + mean.exp()).sum()


def everything_on_one_rank() -> dict[str, Any]:
    rank, own = distributed.rank(), local_values(distributed.rank()).requires_grad_()
    (gathered,) = torch.autograd.grad(global_loss(distributed.all_gather_with_gradient(own)), own)
    mean = distributed.mean_over_ranks_with_gradient(own.mean(0))
    (averaged,) = torch.autograd.grad(statistic_loss(mean), own)
    ranks = distributed.world_size()
    widths = distributed.share_sizes(7)
    table = torch.arange(2 * ranks * 7).view(2 * ranks, 7).double()
    means = distributed.mean_over_ranks(
        {"a": torch.tensor(float(rank)), "b": torch.tensor([rank, 1])}
    )
    distributed.barrier()
    return {
        "stacked": distributed.all_gather(own),
        "gathered": gathered,
        "averaged": averaged,
        "sum": distributed.all_reduce_sum(own),
        "broadcast": distributed.broadcast(own, source=ranks - 1),
        "scattered": distributed.reduce_scatter_sum(joined_values(ranks) * (rank + 1)),
        "columns": distributed.columns_to_owners(table[:, distributed.own_slice(7)], widths),
        "means": means,
        "any": [distributed.any_rank(rank == 0), distributed.any_rank(False)],
        "largest": distributed.largest(10 - rank),
        "lists": distributed.gather_lists([f"{rank}.{i}" for i in range(rank)]),
        "rows": distributed.all_gather_rows(torch.full((2 * rank, 3), float(rank))),
    }


@pytest.mark.parametrize("world_size", [1, 3])
def test_collectives_and_their_gradients(world_size: int) -> None:
    results = gloo.run(world_size, everything_on_one_rank)
    joined = joined_values(world_size).requires_grad_()
    (gathered,) = torch.autograd.grad(global_loss(joined), joined)
    (averaged,) = torch.autograd.grad(statistic_loss(joined.mean(0)), joined)
    table = torch.arange(2 * world_size * 7).view(2 * world_size, 7).double()
    sums = sum(local_values(rank) for rank in range(world_size))
    for rank, result in enumerate(results):
        own = slice(2 * rank, 2 * rank + 2)
        torch.testing.assert_close(result["stacked"], joined.detach())
        torch.testing.assert_close(result["gathered"], world_size * gathered[own])
        torch.testing.assert_close(result["averaged"], world_size * averaged[own])
        torch.testing.assert_close(result["sum"], sums)
        assert torch.equal(result["broadcast"], local_values(world_size - 1))
        factor = world_size * (world_size + 1) / 2
        torch.testing.assert_close(result["scattered"], factor * joined[own].detach())
        torch.testing.assert_close(result["columns"], table[own])
        assert result["means"]["a"] == (world_size - 1) / 2
        assert result["means"]["b"].tolist() == [(world_size - 1) / 2, 1]
        assert result["any"] == [True, False]
        assert result["largest"] == 10
        assert result["lists"] == [f"{r}.{i}" for r in range(world_size) for i in range(r)]
        assert result["rows"].tolist() == [[r] * 3 for r in range(world_size) for _ in range(2 * r)]


def test_without_a_process_group_the_world_is_one_rank() -> None:
    values = torch.ones(2, 3)
    assert not distributed.is_distributed()
    assert (distributed.world_size(), distributed.rank()) == (1, 0)
    assert distributed.own_slice(9) == slice(0, 9)
    assert distributed.all_gather_with_gradient(values) is values
    assert distributed.mean_over_ranks({}) == {}


def failing() -> None:
    raise ValueError("on purpose")


def test_a_failing_rank_is_reported() -> None:
    with pytest.raises(Exception, match="on purpose"):
        gloo.run(2, failing)


def fail_on_the_last_rank() -> list[str]:
    """What each rank hears of a failure of the last one, and of one of the first."""

    def act() -> int:
        if distributed.rank() == distributed.world_size() - 1:
            raise OSError("the disk of the last one is gone")
        return distributed.rank()

    heard = []
    for attempt in (lambda: distributed.together(act), lambda: distributed.on_first_rank(act)):
        try:
            heard.append(f"got {attempt()}")
        except (OSError, InputError) as error:
            heard.append(f"{type(error).__name__}: {error}")
    return heard


def test_a_failure_of_one_rank_is_that_of_all() -> None:
    first, last = gloo.run(2, fail_on_the_last_rank)
    sentence = "the disk of the last one is gone"
    assert first == [f"InputError: {sentence}", "got None"]
    assert last == [f"OSError: {sentence}", "got None"]
    assert fail_on_the_last_rank() == [f"OSError: {sentence}"] * 2


def share_quarantine(folder: str) -> list[int]:
    """What each rank knows of the bad images that the first one's file lists."""
    own = Path(folder, str(distributed.rank()))
    quarantine = shared_quarantine(PartlyBad(4, {1, 3}), 1.0, own)
    quarantine.report(bad_images(3))
    return [item.index for item in quarantine.listed]


def test_bad_images_that_one_rank_has_listed_are_known_to_all(tmp_path: Path) -> None:
    for name in ("0", "1"):
        (tmp_path / name).mkdir()
    known = Quarantine(PartlyBad(4, {1, 3}), 1.0, tmp_path / "0" / "bad_images.jsonl")
    known.report(bad_images(1))
    assert gloo.run(2, share_quarantine, str(tmp_path)) == [[1, 3], [1, 3]]
    assert len((tmp_path / "0" / "bad_images.jsonl").read_text().splitlines()) == 2
    assert not (tmp_path / "1" / "bad_images.jsonl").exists()


def start(step: int) -> str:
    try:
        require_same_start(step * distributed.rank(), ShapesSource(count=4).fingerprint())
    except InputError as error:
        return str(error)
    return ""


def test_ranks_must_begin_at_the_same_step() -> None:
    assert gloo.run(2, start, 0) == ["", ""]
    for sentence in gloo.run(2, start, 1):
        assert "do not see the same checkpoint" in sentence
