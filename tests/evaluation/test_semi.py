from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imsvd.errors import InputError
from imsvd.evaluation.classification import LabeledSplits, checked_splits, open_labeled
from imsvd.evaluation.semi import listed, semi_settings, semi_splits, stratified_draw
from tests.evaluation.test_classification import source
from tests.test_api import write_images


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


def test_the_published_settings() -> None:
    few, more = semi_settings(0.01), semi_settings(0.1)
    assert (few.backbone_lr, few.head_lr) == (0.03, 0.08)
    assert (more.backbone_lr, more.head_lr) == (0.01, 0.1)
    for chosen in (few, more):
        assert not chosen.frozen
        assert (chosen.epochs, chosen.batch_size, chosen.weight_decay) == (20, 256, 0)


@pytest.mark.parametrize("fraction", [-0.1, 0, 1, 10, float("nan")])
def test_a_fraction_out_of_range_is_refused(fraction: float) -> None:
    with pytest.raises(InputError, match=f"--fraction {fraction:g} is no share of the labels"):
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
        (["# nothing", ""], "lists no images; write one file name a line"),
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
    with pytest.raises(InputError, match=r"lists 0001.png, which 2 training images are called"):
        listed(train, write(tmp_path, "0001.png"))
    assert len(listed(train, write(tmp_path, "a/0001.png", "b/0001.png"))) == 2


def test_a_missing_list_is_refused(folders: LabeledSplits, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none.txt cannot be opened: No such file"):
        listed(folders.train, tmp_path / "none.txt")
