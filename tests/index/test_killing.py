"""Whatever moment a kill comes at, the index is that of before or that of after."""

import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from imsvd.index import Index, storage
from imsvd.index.storage import verify
from tests.index.killing import killed_after, killed_at_step
from tests.index.made_up import add, made_up_index, rows
from tests.pretraining.test_pretrain import write_images

State = list[tuple[str, bytes, list[int]]]


def state(index: Index) -> State:
    images = [index.image(number) for number in range(len(index))]
    codes = index.codes().tolist() if images else []
    return [(image.path, image.hash, code) for image, code in zip(images, codes, strict=True)]


def add_many(index: Index) -> None:
    add(index, rows(20, first=45, seed=9))


def remove_many(index: Index) -> None:
    index.remove("/photos/00003.jpg", *(f"/photos/{number:05d}.jpg" for number in range(42, 48)))


CHANGES: dict[str, Callable[[Index], None]] = {
    "adding": add_many,
    "removing": remove_many,
    "compacting": Index.compact,
}


def before_and_after(folder: Path, change: Callable[[Index], None]) -> tuple[State, State]:
    index = made_up_index(folder / "whole.index", rows(40), rows(10, first=40, seed=1))
    index.remove("/photos/00007.jpg", "/photos/00041.jpg")
    shutil.copytree(index.path, folder / "first.index")
    before = state(index)
    change(index)
    return before, state(index)


@pytest.mark.parametrize(
    "name", ["adding", "removing", pytest.param("compacting", marks=pytest.mark.slow)]
)
def test_a_change_is_whole_or_not_there_whichever_step_is_its_last(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "TAIL_IMAGES", 20)
    before, after = before_and_after(tmp_path, CHANGES[name])
    path, outcomes = tmp_path / "a.index", []
    for step in range(1, 200):
        shutil.copytree(tmp_path / "first.index", path)
        if not killed_at_step(step, lambda: CHANGES[name](Index(path))):
            break
        found = state(Index(path))
        assert found in (before, after)
        verify(path)
        outcomes.append(found == after)
        CHANGES["compacting"](Index(path))  # the lock is free, and leftovers are no obstacle
        assert not list(path.glob(".*"))
        shutil.rmtree(path)
    assert len(outcomes) >= 8
    if before != after:  # compacting changes nothing that can be seen
        assert {*outcomes} == {False, True}
        assert outcomes == sorted(outcomes)


KILLS = 50


class Outcomes:
    """What kills at random moments left; printed by `pytest -rP` for the table in docs/searching.md."""

    def __init__(self, name: str, work: Callable[[], object]) -> None:
        start = time.perf_counter()
        work()
        self._name, self._seconds = name, time.perf_counter() - start
        self._counts = {"before": 0, "after": 0}
        self._tries = 0

    def killed(self, work: Callable[[], object]) -> bool:
        """Do `work` in a process that is killed at a moment up to how long it took; whether it was."""
        self._tries += 1
        return killed_after(random.uniform(0, 1.2 * self._seconds), work)

    def count(self, is_before: bool, is_after: bool) -> None:
        """Note what a kill left, which must be one of the two."""
        assert is_before or is_after
        self._counts["before" if is_before else "after"] += 1

    def enough(self) -> bool:
        """Whether there were enough kills; if so, print the counts."""
        kills = sum(self._counts.values())
        if kills >= KILLS:
            print(f"{self._name}: {self._tries} tries, {kills} killed: {self._counts}, 0 else")  # noqa: T201 - for the table
        return kills >= KILLS


@pytest.mark.slow
@pytest.mark.parametrize("name", ["adding", "removing"])
def test_a_change_is_whole_or_not_there_whenever_it_is_killed(tmp_path: Path, name: str) -> None:
    before, after = before_and_after(tmp_path, CHANGES[name])
    path = tmp_path / "a.index"
    shutil.copytree(tmp_path / "first.index", path)
    outcomes = Outcomes(name, lambda: CHANGES[name](Index(path)))
    while not outcomes.enough():
        shutil.rmtree(path)
        shutil.copytree(tmp_path / "first.index", path)
        was_killed = outcomes.killed(lambda: CHANGES[name](Index(path)))
        found = state(Index(path))
        verify(path)
        if was_killed:
            outcomes.count(found == before, found == after)
        else:
            assert found == after


@pytest.fixture
def light(monkeypatch: pytest.MonkeyPatch) -> None:
    """Build without measuring thresholds, which takes most of the time and writes nothing."""
    monkeypatch.setattr("imsvd.index.building.measure_copies", lambda *_: {})
    monkeypatch.setattr("imsvd.index.building.BATCH_SIZE", 4)


@pytest.mark.usefixtures("light")
def test_building_leaves_nothing_or_all_whichever_step_is_its_last(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "SEGMENT_IMAGES", 6)
    data, out = write_images(tmp_path / "data", 10), tmp_path / "a.index"
    whole = state(Index.build(trained, data, tmp_path / "whole.index"))
    # One after the other, on what the kills before have left.
    for step in (*range(28, 100, 3), 400):
        killed = killed_at_step(step, lambda: Index.build(trained, data, out))
        if out.exists():
            assert state(Index(out)) == whole
            verify(out)
            assert not (tmp_path / ".a.index.building").exists()
            break
        assert killed
    assert out.exists()


@pytest.mark.slow
@pytest.mark.usefixtures("light")
def test_building_leaves_nothing_or_all_whenever_it_is_killed(
    trained: Path, tmp_path: Path
) -> None:
    data, out, whole = write_images(tmp_path / "data", 12), tmp_path / "a.index", tmp_path / "w"
    outcomes = Outcomes("building", lambda: Index.build(trained, data, whole))
    wanted = state(Index(whole))
    while not outcomes.enough():
        was_killed = outcomes.killed(lambda: Index.build(trained, data, out))
        complete = out.exists()
        if complete:
            assert state(Index(out)) == wanted
            verify(out)
            shutil.rmtree(out)
        assert was_killed or complete
        if was_killed:
            outcomes.count(not complete, complete)
