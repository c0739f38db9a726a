"""Training computes what it computed when the traces were recorded."""

import json

import pytest
import torch

from tests.traces.recording import RECORDED, SMALL_HEADS, TRACES, machine, record

EXPECTED = json.loads(RECORDED.read_text())


def test_every_recorded_trace_is_checked() -> None:
    assert set(EXPECTED["traces"]) <= set(TRACES)
    # Only a method that is new may lack a trace; none of these may lose its own.
    assert {*SMALL_HEADS, "linear", "finetune", "coco"} <= set(EXPECTED["traces"])


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if trace.slow else name
        for name, trace in TRACES.items()
    ],
)
def test_losses_and_weights_are_those_recorded(name: str) -> None:
    if name not in EXPECTED["traces"]:
        pytest.skip(f"record this new trace with: python -m tests.traces.recording {name}")
    made, expected = record(TRACES[name]), EXPECTED["traces"][name]
    if machine() == EXPECTED["machine"] and torch.get_num_threads() == 1:
        assert made == expected
        return
    losses, before = (
        [float.fromhex(value) for value in trace["losses"]] for trace in (made, expected)
    )
    assert len(losses) == len(before)
    # Elsewhere rounding differs, and training lets it grow: the first steps must agree all the same.
    assert losses[:5] == pytest.approx(before[:5], rel=1e-3)
