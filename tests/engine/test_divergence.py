"""The search for a bad step, on networks of a few weights."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from imsvd.distributed import rank
from imsvd.engine.divergence import first_cause, first_rank_of, read_record, read_step, repeat
from imsvd.engine.tracing import Trace
from imsvd.errors import InputError
from tests import gloo
from tests.engine.test_loop import QUIET, Line


class Root(nn.Module):
    """A square root, whose gradient at 0 is infinite while its value is finite."""

    def forward(self, values: Tensor) -> Tensor:
        return values.sqrt()


def test_a_gradient_is_named_by_the_output_that_it_belongs_to() -> None:
    linear = nn.Linear(1, 1, bias=False)
    nn.init.ones_(linear.weight)
    network = nn.Sequential(linear, nn.ReLU(), Root())
    with Trace({"net": network}) as trace:
        network(torch.zeros(1, 1)).sum().backward()
    assert trace.bad[0].what == "gradient of output"
    assert trace.bad[0].name == "net.1"
    assert trace.last_good is not None
    assert trace.last_good.name == "net"  # the same tensor is the output of net.2
    (weight,) = [seen for seen in trace.seen if seen.what == "gradient"]
    assert weight.name == "net.0.weight"


def test_hooks_are_gone_afterwards() -> None:
    network = nn.Linear(1, 1)
    with Trace({"": network}) as trace:
        network(torch.ones(1, 1))
    count = len(trace.seen)
    network(torch.ones(1, 1)).sum().backward()
    assert len(trace.seen) == count


class Overflowing(Line):
    """Gets an infinite number in its seventh step; of several ranks, only the second does."""

    can_be_replayed = True

    def batches(self, steps: range) -> Any:
        for step in steps:
            bad = step == 6 and rank() == self.fabric_ranks - 1
            yield [torch.full((1, 1), float("inf") if bad else step / 12)]

    fabric_ranks = 1

    def loss(self, batch: Any) -> Tensor:
        error: Tensor = self.model(batch[0]) - 2 * batch[0]
        return error.square().sum()


class OverflowingOnTheSecond(Overflowing):
    fabric_ranks = 2


def overflow_on_one_rank(folder: str) -> tuple[str, int, list[bool], bool]:
    training = OverflowingOnTheSecond(Path(folder))
    with pytest.raises(InputError) as raised:
        training.fit(QUIET)
    record = read_record(Path(folder))
    before, leaves, own = read_step(Path(folder), record)
    again = repeat(training, leaves, before, own)
    finite = [not part["bad"] for part in record["ranks"]]
    same = again.bits == record["ranks"][rank()]["bits"]
    return str(raised.value), first_rank_of(record), finite, same


def test_of_several_ranks_each_keeps_its_batch_and_the_first_to_fail_is_known(
    tmp_path: Path,
) -> None:
    for said, first, finite, same in gloo.run(2, overflow_on_one_rank, str(tmp_path)):
        assert "It began in step 7" in said
        assert (first, finite, same) == (1, [True, False], True)
    names = {path.name for path in (tmp_path / "divergence").glob("*.safetensors")}
    assert names == {"state.safetensors", "rank-0.safetensors", "rank-1.safetensors"}


def test_another_number_of_processes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="It began in step 7"):
        Overflowing(tmp_path).fit(QUIET)
    record = read_record(tmp_path)
    cause = first_cause(record)
    assert cause is not None
    assert cause.name == "the network"
    record["ranks"] *= 2
    with pytest.raises(InputError, match="was 2, and now it is 1"):
        read_step(tmp_path, record)


def test_a_step_that_cannot_be_kept_does_not_hide_the_divergence(tmp_path: Path) -> None:
    (tmp_path / "divergence").write_text("in the way")
    with pytest.raises(InputError, match=r"no longer finite at step 8.*could not be kept"):
        Overflowing(tmp_path).fit(QUIET)


def test_a_device_that_does_not_repeat_says_so(tmp_path: Path) -> None:
    class Once(Overflowing):
        happened = False

        def loss(self, batch: Any) -> Tensor:
            if batch[0].isinf():
                if self.happened:
                    return super().loss([torch.ones(1, 1)])
                self.happened = True
            return super().loss(batch)

    with pytest.raises(InputError, match="nothing to replay"):
        Once(tmp_path).fit(QUIET)
