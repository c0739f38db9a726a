import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from imsvd.datasets import ShapesSource
from imsvd.datasets.named import open_places205
from imsvd.datasets.sources import ArraySource
from imsvd.errors import InputError
from imsvd.evaluation.classification import (
    FINETUNE_SETTINGS,
    LINEAR_RECIPES,
    PLACES205_SETTINGS,
    ClassificationSettings,
    LabeledSplits,
    adapted,
    checked_splits,
    count_hits,
    linear_settings,
    listed,
    open_labeled,
    semi_settings,
    semi_splits,
    stratified_draw,
)
from tests.datasets.places import write_places
from tests.pretraining.test_pretrain import write_images

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
        (["milestones=[8, 6]"], r"milestones=\[8, 6\] must be increasing"),
        (["epochs=5", "milestones=[6]"], r"milestones=\[6\] exceed epochs=5; .* --epochs"),
        (["crop_scale=[0.5, 1.5]"], "increasing fractions of at most 1"),
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


def test_the_size_of_the_images_chooses_the_recipe() -> None:
    assert linear_settings(ShapesSource(count=8, size=32)) == LINEAR_RECIPES["cifar10"]
    assert linear_settings(ShapesSource(count=8, size=128)) == LINEAR_RECIPES["imagenet"]
    assert linear_settings(ShapesSource(count=8), "imagenet") == LINEAR_RECIPES["imagenet"]


def test_an_unknown_recipe_is_refused() -> None:
    with pytest.raises(
        InputError, match="no recipe 'cifar' for linear evaluation; choose imagenet"
    ):
        linear_settings(ShapesSource(count=8), "cifar")


def test_linear_settings_are_the_papers() -> None:
    imagenet, cifar = LINEAR_RECIPES["imagenet"], LINEAR_RECIPES["cifar10"]
    for recipe in (imagenet, cifar):
        assert recipe.frozen
        assert (recipe.epochs, recipe.batch_size, recipe.momentum) == (100, 256, 0.9)
        assert recipe.crop_scale == (0.2, 1.0)
    assert (imagenet.head_lr, imagenet.weight_decay, imagenet.milestones) == (0.02, 1e-6, ())
    assert (cifar.head_lr, cifar.weight_decay, cifar.milestones) == (30, 0, (60, 80))


def test_everything_trains_and_the_head_faster() -> None:
    settings = FINETUNE_SETTINGS
    assert not settings.frozen
    assert (settings.backbone_lr, settings.head_lr, settings.weight_decay) == (0.01, 0.1, 0)
    assert (settings.epochs, settings.batch_size, settings.milestones) == (20, 256, ())
    assert settings.crop_scale == (0.08, 1.0)


def unequal(*counts: int) -> LabeledSplits:
    """`counts[c]` training images of class c, mixed."""
    labels = sorted(
        (place / count, label) for label, count in enumerate(counts) for place in range(count)
    )
    classes = tuple(f"class{label}" for label in range(len(counts)))
    train = source(*(label for _, label in labels), classes=classes)
    return checked_splits("here", train, source(0, 1, classes=classes))


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(1, 60), min_size=2, max_size=6),
    st.floats(0.01, 0.99),
    st.integers(0, 2**32),
)
def test_every_class_gives_its_share_and_at_least_one(
    counts: list[int], fraction: float, seed: int
) -> None:
    splits = unequal(*counts)
    chosen = stratified_draw(splits, fraction, seed)
    assert chosen == sorted(set(chosen))
    drawn = [int(splits.train_labels[place]) for place in chosen]
    expected = [max(1, round(fraction * count)) for count in counts]
    assert [drawn.count(label) for label in range(len(counts))] == expected


def test_a_draw_is_reproducible_and_part_of_a_larger_one() -> None:
    splits = unequal(300, 100)
    tenth = stratified_draw(splits, 0.1, seed=3)
    assert tenth == stratified_draw(splits, 0.1, seed=3)
    assert tenth != stratified_draw(splits, 0.1, seed=4)
    assert set(tenth) < set(stratified_draw(splits, 0.2, seed=3))
    # Not simply the first ones.
    assert max(tenth) > 200


def test_semi_supervised_settings_are_vicregs() -> None:
    few, more = semi_settings(0.01), semi_settings(0.1)
    assert (few.backbone_lr, few.head_lr) == (0.03, 0.08)
    assert (more.backbone_lr, more.head_lr) == (0.01, 0.1)
    for chosen in (few, more):
        assert not chosen.frozen
        assert (chosen.epochs, chosen.batch_size, chosen.weight_decay) == (20, 256, 0)


@pytest.mark.parametrize("fraction", [-0.1, 0, 1, 10, float("nan")])
def test_a_fraction_out_of_range_is_refused(fraction: float) -> None:
    with pytest.raises(InputError, match=f"--fraction {fraction:g} must lie between 0 and 1"):
        semi_settings(fraction)


@pytest.fixture
def folders(tmp_path: Path) -> LabeledSplits:
    for split in ("train", "test"):
        write_images(tmp_path / split, 12, classes=2)
    return open_labeled(tmp_path)


def write(folder: Path, *lines: str) -> Path:
    path = folder / "names.txt"
    path.write_text("\n".join(lines))
    return path


def test_a_list_names_images_with_or_without_their_folders(
    folders: LabeledSplits, tmp_path: Path
) -> None:
    names = write(tmp_path, "# mine", "0003.png", "", "class0/0004.png\r", "0003.png")
    part = semi_splits(folders, 0.1, names=names)
    found = {part.train.identity(place) for place in range(len(part.train))}
    assert found == {"class1/0003.png", "class0/0004.png"}
    assert len(part.train) == 2
    assert part.test is folders.test


def test_a_draw_keeps_the_test_images(folders: LabeledSplits) -> None:
    part = semi_splits(folders, 0.5)
    assert len(part.train) == 6
    assert part.test is folders.test


def test_a_list_that_leaves_a_class_out_is_refused(folders: LabeledSplits, tmp_path: Path) -> None:
    names = write(tmp_path, "0001.png", "0003.png")
    with pytest.raises(InputError, match=r"names.txt has no training image of the class 'class0'"):
        semi_splits(folders, 0.1, names=names)


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        (["0001.png", "nowhere.png"], "lists nowhere.png, which is not among the training images"),
        (["class1/0000.png"], "lists class1/0000.png, which is not among"),
        (["# nothing", ""], "lists no images; write one file name per line"),
    ],
)
def test_what_a_list_must_not_hold(
    lines: list[str], sentence: str, folders: LabeledSplits, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=sentence):
        listed(folders.train, write(tmp_path, *lines))


def test_a_name_that_several_images_have_is_refused(tmp_path: Path) -> None:
    for split in ("train", "test"):
        for name in ("a", "b"):
            write_images(tmp_path / split / name, 2)
    train = open_labeled(tmp_path).train
    with pytest.raises(InputError, match=r"lists 0001.png, the name of 2 training images"):
        listed(train, write(tmp_path, "0001.png"))
    assert len(listed(train, write(tmp_path, "a/0001.png", "b/0001.png"))) == 2


def test_a_missing_list_is_refused(folders: LabeledSplits, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none.txt cannot be opened: No such file"):
        listed(folders.train, tmp_path / "none.txt")


def test_places205_settings_are_the_papers() -> None:
    settings = PLACES205_SETTINGS
    assert settings.frozen
    assert (settings.epochs, settings.batch_size, settings.momentum) == (14, 256, 0.9)
    assert (settings.head_lr, settings.milestones, settings.weight_decay) == (0.01, (5, 10), 5e-4)
    factors = [settings.rate_factor(epoch) for epoch in (0, 4, 5, 9, 10, 13)]
    assert factors == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01])


def test_an_empty_class_is_named(tmp_path: Path) -> None:
    base = write_places(tmp_path)
    path = base / "train_places205.csv"
    lines = [line for line in path.read_text().splitlines() if not line.endswith(" 1")]
    path.write_text("\n".join(lines))
    with pytest.raises(InputError, match="no training image of the class '1'"):
        checked_splits(base, *open_places205(base))


def test_a_validation_label_beyond_the_trained_ones_is_named(tmp_path: Path) -> None:
    base = write_places(tmp_path)
    path = base / "val_places205.csv"
    path.write_text(path.read_text().replace(" 2\n", " 3\n"))
    with pytest.raises(InputError, match="label 3 among its test images, outside 0 to 2"):
        checked_splits(base, *open_places205(base))
