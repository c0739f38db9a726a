import pytest
import torch
from torch import Tensor

from imsvd import distributed
from imsvd.errors import InputError
from imsvd.methods.queue import EmbeddingQueue
from tests import gloo


def rows(first: int, count: int) -> Tensor:
    """Rows that hold their own number."""
    return torch.arange(first, first + count).float()[:, None].expand(-1, 2)


def test_it_begins_with_random_unit_vectors() -> None:
    queue = EmbeddingQueue(7, 3)
    torch.testing.assert_close(queue.values.norm(dim=1), torch.ones(7))
    assert not queue.is_full()


@pytest.mark.parametrize("batch", [1, 2, 3, 5])
def test_it_holds_the_newest_whether_or_not_the_batch_divides_it(batch: int) -> None:
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


def on_one_rank() -> Tensor:
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
    for values in gloo.run(2, on_one_rank):
        assert torch.equal(values, expected.values)
