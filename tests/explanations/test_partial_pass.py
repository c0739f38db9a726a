"""A pass that was stopped goes on, and ends as if it had not been."""

import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from imsvd.explanations import encodings, partial_pass
from imsvd.explanations import part_making as parts
from imsvd.explanations.encodings import encode
from imsvd.explanations.pairs import view_pairs
from imsvd.explanations.part_making import measure_joint
from imsvd.explanations.partial_pass import PartialPass
from imsvd.explanations.subject import Progress
from tests.explanations.made_up import UNITS, subject


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Save after every batch of 4 images."""
    monkeypatch.setattr(partial_pass, "INTERVAL", 0.0)
    monkeypatch.setattr(partial_pass, "_COST", float("inf"))
    monkeypatch.setattr(encodings, "_CHUNK", 4)


def stop_at(number: int, told: list[int]) -> Progress:
    def progress(done: int, _: int) -> None:
        told.append(done)
        if done >= number:
            raise KeyboardInterrupt

    return progress


def test_stopped_encodings_go_on(tmp_path: Path) -> None:
    whole = encode(subject(tmp_path / "whole"))
    stopped = subject(tmp_path / "stopped")
    told: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        encode(stopped, stop_at(12, told))
    assert (stopped.folder / encodings.PARTIAL_NAME).exists()
    told.clear()
    resumed = encode(stopped, lambda done, _: told.append(done))
    assert told == [8, 12, 16, 20]
    for name, expected in whole._asdict().items():
        np.testing.assert_array_equal(getattr(resumed, name), expected, err_msg=name)
    assert not (stopped.folder / encodings.PARTIAL_NAME).exists()


def test_a_stopped_joint_matrix_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "view_pairs", partial(view_pairs, batch_size=4))
    explained = subject(tmp_path)
    whole = measure_joint(explained)
    saved = PartialPass(tmp_path / "joint.npz", explained.key)
    told: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        measure_joint(explained, stop_at(12, told), saved)
    told.clear()
    again = PartialPass(tmp_path / "joint.npz", explained.key)
    resumed = measure_joint(explained, lambda done, _: told.append(done), again)
    assert told == [12, 16, 20]
    assert resumed.count == whole.count == 20
    np.testing.assert_array_equal(resumed.rows(0, sum(UNITS)), whole.rows(0, sum(UNITS)))
    assert resumed.agreement() == whole.agreement()
    assert resumed.one_hot_share() == whole.one_hot_share()


def test_the_state_of_others_and_damaged_ones_are_not_used(tmp_path: Path) -> None:
    path = tmp_path / "state.npz"
    saved = PartialPass(path, "mine")
    assert saved.read() is None
    saved.save_when_due(lambda: {"done": np.array(3)})
    state = saved.read()
    assert state is not None
    assert list(state) == ["done"]
    assert int(state["done"]) == 3
    assert PartialPass(path, "other").read() is None
    content = path.read_bytes()
    for damaged in (b"", content[: len(content) // 2], b"nothing of the kind"):
        path.write_bytes(damaged)
        assert saved.read() is None
    saved.remove()
    saved.remove()


def test_saving_keeps_to_its_interval_and_its_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr(partial_pass, "INTERVAL", 15.0)
    monkeypatch.setattr(partial_pass, "_COST", 0.05)
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    saved = PartialPass(tmp_path / "state.npz", "key")
    made: list[float] = []

    def slow_state() -> dict[str, np.ndarray]:
        made.append(clock[0])
        clock[0] += 2.0
        return {"done": np.array(0)}

    for _ in range(60):
        clock[0] += 1.0
        saved.save_when_due(slow_state)
    # The first after 15 s; it took 2 s, and 2 s are 5 % of 40 s.
    assert made == [115.0, 157.0]
