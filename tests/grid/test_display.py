from imsvd.grid.display import ActiveRun, remaining_seconds
from imsvd.grid.jobs import Job
from tests.grid import made_up
from tests.pretraining import tiny

FAST = [Job(tiny.config(f"seed={seed}", "training.epochs=10")) for seed in range(3)]
SLOW = [
    Job(tiny.config(f"seed={seed}", "training.epochs=10", "training.batch_size=16"))
    for seed in range(2)
]
UNTRAINED = Job(tiny.config(), trained=False)


def test_nothing_is_guessed_without_any_epoch() -> None:
    active = [ActiveRun(FAST[0], 10, None)]
    assert remaining_seconds([FAST[1]], active, {}, 1) is None
    assert remaining_seconds([FAST[1]], [], {UNTRAINED: made_up.outcome()}, 1) is None


def test_nothing_left_takes_no_time() -> None:
    assert remaining_seconds([], [], {FAST[0]: made_up.outcome()}, 1) == 0


def test_runs_take_as_long_as_others_of_their_kind() -> None:
    finished = {
        FAST[0]: made_up.outcome(training_seconds=20, evaluation_seconds=1),  # 2.1 per epoch
        SLOW[0]: made_up.outcome(training_seconds=49, evaluation_seconds=1),  # 5 per epoch
    }
    active = [ActiveRun(FAST[1], 4, 99.0)]
    found = remaining_seconds([FAST[2], SLOW[1]], active, finished, 1)
    assert found is not None
    assert abs(found - (21 + 50 + 4 * 2.1)) < 1e-9
    halved = remaining_seconds([FAST[2], SLOW[1]], active, finished, 2)
    assert halved == found / 2


def test_a_kind_not_seen_yet_takes_the_average_of_all() -> None:
    active = [ActiveRun(FAST[0], 5, 3.0)]
    assert remaining_seconds([SLOW[0], UNTRAINED], active, {}, 1) == 5 * 3 + 10 * 3
