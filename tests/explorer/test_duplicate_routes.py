"""Duplicates over HTTP: groups, marks, lists; long computations in the background."""

import threading
import time
from typing import Any

import pytest

from imsvd.errors import InputError
from imsvd.explorer.background import MOST_KEPT, MOST_WAITING, Background, Working
from imsvd.explorer.explorer import BusyError
from imsvd.index import Index
from tests.explorer.conftest import Api


def ready(ask: Api, path: str) -> dict[str, Any]:
    """Ask until the result is there."""
    until = time.monotonic() + 60
    while not (answer := ask(path))["ready"] and time.monotonic() < until:
        assert answer.keys() == {"ready", "done", "total"}
        time.sleep(0.02)
    return answer


def test_groups_are_those_of_the_index(ask: Api, planted: Index) -> None:
    found = ready(ask, "indexes/0/duplicates")
    wanted = planted.duplicates()
    assert found["total"] == len(wanted.groups) == 2
    assert found["copies"] == 5
    assert found["distance"] == wanted.distance
    assert found["changed"] == wanted.changed == 0
    images = [[copy["image"] for copy in group["copies"]] for group in found["groups"]]
    assert images == [[copy.position for copy in group] for group in wanted.groups]
    assert sorted(map(sorted, images)) == [[0, 1], [2, 3, 4]]
    exact = found["groups"][1]["copies"]
    assert [copy["keep"] for copy in exact] == [True, False]
    assert exact[1]["kind"] == "exact"
    assert exact[0]["bytes"] == planted.image(exact[0]["image"]).size
    later = ready(ask, "indexes/0/duplicates?offset=1&count=5")
    assert [group["group"] for group in later["groups"]] == [1]
    assert later["groups"] == found["groups"][1:]


def test_duplicates_between_parts_are_none_where_nothing_leaks(ask: Api) -> None:
    assert ready(ask, "indexes/0/duplicates?first=train&second=test")["total"] == 0
    assert "two splits" in ask.error("indexes/0/duplicates?first=train", 400)
    ask.error("indexes/0/duplicates?within=65", 422)
    for cosine in ("1.1", "-2", "nan", "x"):
        ask.error(f"indexes/0/duplicates?cosine={cosine}", 422)


def test_limits_that_are_given_replace_the_measured_ones(ask: Api, planted: Index) -> None:
    found = ready(ask, "indexes/0/duplicates?within=3&cosine=1")
    wanted = planted.duplicates(within=3, cosine=1)
    assert found["distance"] == 3 > ready(ask, "indexes/0/duplicates")["distance"]
    assert found["cosine"] == wanted.cosine
    assert found["copies"] == sum(map(len, wanted.groups)) > 5


@pytest.mark.parametrize(
    ("parts", "status"), [("first=train&second=train", 409), ("first=(&second=test", 400)]
)
def test_what_cannot_be_compared_is_refused_in_a_sentence(
    ask: Api, parts: str, status: int
) -> None:
    until = time.monotonic() + 30
    while (answer := ask.client.get(f"/api/indexes/0/duplicates?{parts}")).status_code == 200:
        assert time.monotonic() < until
    assert answer.status_code == status
    assert answer.json()["error"].endswith(".")


def test_marks_decide_what_is_listed(ask: Api, planted: Index) -> None:
    groups = ready(ask, "indexes/0/duplicates")["groups"]
    suggested = [copy["image"] for group in groups for copy in group["copies"] if copy["keep"]]

    def listed(status: int = 200, **wanted: Any) -> list[str]:
        answer = ask.client.post("/api/indexes/0/duplicates/list", json=wanted)
        assert answer.status_code == status, answer.text
        return answer.text.splitlines()

    paths = planted.paths
    assert listed(what="kept") == [paths[image] for image in suggested]
    redundant = {paths[image] for image in range(5) if image not in suggested}
    assert set(listed(what="redundant")) == redundant
    assert set(listed(what="kept", marks={"0": [3, 4]})) == {
        paths[3],
        paths[4],
        paths[suggested[1]],
    }
    assert paths[2] in listed(what="redundant", marks={"0": [3, 4]})
    listed(422, what="kept", marks={"0": [0]})
    listed(422, what="kept", marks={"9": [0]})
    listed(422, what="kept", marks={"../x": [0]})
    listed(422, what="others")
    listed(409, what="kept", first="train", second="test")


def test_long_work_is_done_once_one_at_a_time_and_reported() -> None:
    background, go_on, calls = Background(), threading.Event(), []

    def work(progress: Any) -> str:
        calls.append(1)
        progress(3, 7)
        assert go_on.wait(20)
        return "made"

    assert isinstance(background.result("a", work), Working)
    until = time.monotonic() + 20
    while background.result("a", work) != Working(3, 7):
        assert time.monotonic() < until
    for number in range(MOST_WAITING - 1):
        background.result(number, work)
    with pytest.raises(BusyError):
        background.result("one too many", work)
    go_on.set()
    while isinstance(background.result("a", work), Working):
        assert time.monotonic() < until
    assert background.result("a", work) == "made"
    assert calls.count(1) <= MOST_WAITING
    background.close()


def test_failed_work_is_raised_and_tried_again() -> None:
    background, calls = Background(), []

    def fail(_: Any) -> None:
        calls.append(1)
        raise InputError("cannot be done.")

    for _ in range(2):
        with pytest.raises(InputError):  # noqa: PT012 - the first calls start it
            while True:
                background.result("a", fail)
    assert len(calls) == 2
    for number in range(3 * MOST_KEPT):
        while isinstance(background.result(number, lambda _: "x" * 10), Working):
            pass
    assert len(background._tasks) <= MOST_KEPT
    background.close()
