import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from imsvd.datasets import ShapesSource
from imsvd.datasets.arrays import ArraySource
from imsvd.errors import InputError
from imsvd.evaluation.classification import (
    ClassificationSettings,
    adapted,
    checked_splits,
    count_hits,
    open_labeled,
)
from tests.test_api import write_images

COSINE = ClassificationSettings(head_lr=0.1)
STEPS = ClassificationSettings(head_lr=0.1, milestones=(60, 80))


def source(*labels: int, classes: tuple[str, ...] = ("cat", "dog", "owl")) -> ArraySource:
    images = torch.zeros(len(labels), 3, 8, 8, dtype=torch.uint8)
    return ArraySource("made up", images, torch.tensor(labels), classes)


def test_hits_by_hand() -> None:
    logits = torch.tensor(
        [
            [0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3],
            [0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3],
            [0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3],
            [-1.0, -2.0, -3.0, -4.0, -5.0, -6.0, 2.0],
        ]
    )
    labels = torch.tensor([0, 4, 5, 6])  # first, fifth, sixth, first
    assert count_hits(logits, labels, 1) == 2
    assert count_hits(logits, labels, 5) == 3
    assert count_hits(logits[:, :3], torch.tensor([0, 1, 2, 2]), 5) == 4


def test_the_cosine_ends_just_above_zero() -> None:
    assert COSINE.rate_factor(0) == 1
    assert COSINE.rate_factor(50) == pytest.approx(0.5, abs=1e-12)
    assert COSINE.rate_factor(99) == pytest.approx((1 + math.cos(0.99 * math.pi)) / 2, abs=1e-12)


def test_milestones_divide_the_rate_by_ten() -> None:
    factors = [STEPS.rate_factor(epoch) for epoch in (0, 59, 60, 79, 80, 99)]
    assert factors == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01], abs=1e-12)


def test_milestones_keep_their_share_of_the_epochs() -> None:
    assert STEPS.for_epochs(10).milestones == (6, 8)
    assert STEPS.for_epochs(1).milestones == (1,)
    assert COSINE.for_epochs(7).epochs == 7


@settings(deadline=None)
@given(st.integers(2, 10**7))
def test_a_batch_leaves_some_steps_and_never_exceeds_the_published(count: int) -> None:
    batch = COSINE.for_images(count).batch_size
    assert 2 <= batch <= 256
    assert count < 8 or count // batch >= 4
    assert batch == 256 or 2 * batch > max(2, count // 4)


@pytest.mark.parametrize(
    ("assignments", "sentence"),
    [
        (["headlr=1"], "no setting 'headlr'; did you mean head_lr?"),
        (["compute.device=1"], "no setting 'compute.device'; did you mean compute.devices?"),
        (["optimizer.lr=1"], "no setting 'optimizer.lr'"),
        (["compute=1"], "no setting 'compute'"),
        (["head_lr"], "has no '='"),
        (["head_lr=[1"], "not valid YAML"),
        (["head_lr=-1"], "head_lr=-1 cannot be used"),
        (["epochs=0"], "epochs=0 cannot be used"),
        (["frozen=false"], "backbone_lr=0 trains no backbone"),
        (["milestones=[8, 6]"], r"milestones=\[8, 6\] must be rising"),
        (["epochs=5", "milestones=[6]"], r"milestones=\[6\] lie beyond epochs=5; .* --epochs"),
        (["crop_scale=[0.5, 1.5]"], "rising shares of at most 1"),
        (["batch_size=97"], "batch_size=97 is larger than the 96 training images; set it to 96"),
    ],
)
def test_bad_settings_get_a_sentence(assignments: list[str], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        adapted(COSINE, ShapesSource(count=96), None, assignments)


def test_epochs_of_nought_get_a_sentence() -> None:
    with pytest.raises(InputError, match="epochs=0 cannot be used"):
        adapted(STEPS, ShapesSource(count=96), 0, [])


def test_the_users_settings_come_last() -> None:
    wishes = ["batch_size=48", "epochs=9", "compute.workers=3", "milestones=[2]"]
    found = adapted(STEPS, ShapesSource(count=96), 10, wishes)
    assert (found.batch_size, found.epochs, found.milestones) == (48, 9, (2,))
    assert found.compute.workers == 3
    assert adapted(STEPS, ShapesSource(count=96), 10, []).batch_size == 16


def test_a_class_without_training_images_is_named() -> None:
    with pytest.raises(InputError, match="here has no training image of the class 'dog'"):
        checked_splits("here", source(0, 2, 2), source(0, 1, 2))


@pytest.mark.parametrize("wrong", [-1, 3])
def test_a_label_out_of_range_is_named(wrong: int) -> None:
    good = source(0, 1, 2)
    with pytest.raises(InputError, match=f"label {wrong} among its test images, outside 0 to 2"):
        checked_splits("here", good, source(0, wrong))
    with pytest.raises(InputError, match=f"label {wrong} among its training images"):
        checked_splits("here", source(0, 1, 2, wrong), good)


def test_a_single_class_is_refused() -> None:
    with pytest.raises(InputError, match="a single class, 'cat'"):
        checked_splits("here", source(0, 0, classes=("cat",)), source(0, classes=("cat",)))


def test_a_class_missing_from_the_test_images_is_no_problem() -> None:
    assert checked_splits("here", source(0, 1, 2), source(0, 2)).class_names == (
        "cat",
        "dog",
        "owl",
    )
    assert checked_splits("here", source(0, 1, classes=()), source(1)).class_names == ("0", "1")


def test_folders_without_labels_or_test_images_are_refused(tmp_path: Path) -> None:
    write_images(tmp_path / "flat" / "train", 4)
    write_images(tmp_path / "flat" / "test", 4)
    with pytest.raises(InputError, match="has no labels in its train split"):
        open_labeled(tmp_path / "flat")
    write_images(tmp_path / "half", 4, classes=2)
    with pytest.raises(InputError, match="has no test images"):
        open_labeled(tmp_path / "half")
