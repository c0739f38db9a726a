"""The two scales, and what a person may change about them."""

import pytest

from imsvd.errors import InputError
from imsvd.evaluation.coco import full, resolve_settings, small
from imsvd.evaluation.coco.settings import protocol_name
from tests.oracles.detection_losses import learning_rate


def test_the_full_scale_is_the_1x_schedule_of_the_paper() -> None:
    settings = full()
    assert (settings.iterations, settings.batch_size, settings.lr) == (90_000, 16, 0.1)
    assert (settings.sizes[0], settings.sizes[-1], settings.max_size) == (640, 800, 1333)
    for step in (0, 1, 500, 998, 999, 1000, 59_999, 60_000, 79_999, 80_000, 89_999):
        expected = learning_rate(step, 0.1, 1000, [60_000, 80_000])
        assert settings.learning_rate(step) == pytest.approx(expected, rel=1e-12)


def test_fewer_iterations_keep_the_form_of_the_schedule() -> None:
    settings = resolve_settings("full", 9_000)
    for step in (0, 99, 100, 5_999, 6_000, 8_000):
        expected = learning_rate(step, 0.1, 100, [6_000, 8_000])
        assert settings.learning_rate(step) == pytest.approx(expected, rel=1e-12)


def test_overrides_are_read_as_yaml() -> None:
    changed = resolve_settings("small", None, ["lr=0.02", "sizes=[64]", "compute.workers=1"])
    assert (changed.lr, changed.sizes, changed.compute.workers) == (0.02, (64,), 1)
    assert changed.iterations == small().iterations


@pytest.mark.parametrize(
    ("assignment", "phrase"),
    [
        ("learning_rate=1", "no setting 'learning_rate'"),
        ("iteration=1", "did you mean iterations?"),
        ("compute.worker=1", "did you mean compute.workers?"),
        ("compute=1", "no setting 'compute'"),
        ("lr", "has no '='"),
        ("lr=[", "not valid YAML"),
        ("lr=-1", "lr=-1 cannot be used"),
        ("norm=group", "norm='group' is not possible; choose 'trained' or 'frozen'"),
        ("sizes=[400]", "exceed max_size=256"),
        ("sizes=[0]", "only numbers above 0"),
        ("decay_at=[600]", "decay_at: [600.0] must be fractions of the iterations"),
    ],
)
def test_bad_settings_are_one_sentence(assignment: str, phrase: str) -> None:
    with pytest.raises(InputError) as caught:
        resolve_settings("small", None, [assignment])
    assert phrase in str(caught.value)
    assert str(caught.value).endswith((".", "?"))


def test_an_unknown_scale_is_refused() -> None:
    with pytest.raises(InputError, match="choose full or small"):
        resolve_settings("huge")


def test_only_the_papers_protocol_bears_its_name() -> None:
    assert protocol_name(resolve_settings("full", None, ["seed=3", "compute.devices=8"])) == "coco"
    assert protocol_name(resolve_settings("full", 1_000)) == "coco-adapted"
    assert protocol_name(resolve_settings("full", None, ["lr=0.02"])) == "coco-adapted"
    random = resolve_settings("small", None, ["weights=random"])
    assert protocol_name(random) == "coco-adapted-random"
