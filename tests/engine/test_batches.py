from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from imsvd.datasets import ImageSource, open_source
from imsvd.engine.batches import EpochOrder, MemoryBatches, StreamedBatches
from imsvd.errors import InputError
from imsvd.views import Batch, ViewsSettings, paper_views

CPU = torch.device("cpu")
COUNT, SIZE, STEPS = 22, 6, 5
"""Three steps an epoch, four images left over: `STEPS` end inside the second epoch."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> ImageSource:
    """Images of different sizes, one of them unreadable."""
    folder = tmp_path_factory.mktemp("images")
    random = np.random.default_rng(0)
    for number in range(COUNT):
        values = random.integers(0, 256, (20 + number, 45 - number, 3), dtype=np.uint8)
        Image.fromarray(values).save(folder / f"{number:02d}.png")
    (folder / "03.png").write_bytes(b"")
    return open_source(folder)


def streamed(
    source: ImageSource, workers: int = 0, first: int = 0, rank: int = 0, world: int = 1
) -> list[Batch]:
    order = EpochOrder(len(source), SIZE, 0, rank, world)
    batches = StreamedBatches(source, order, paper_views(16), 0, CPU, workers)
    return list(batches.steps(first, STEPS))


@pytest.fixture(scope="module")
def expected(source: ImageSource) -> list[Batch]:
    return streamed(source)


def assert_same(batches: list[Batch], expected: list[Batch]) -> None:
    assert len(batches) == len(expected)
    for batch, other in zip(batches, expected, strict=True):
        assert batch.bad == other.bad
        for view, same in zip(batch.views, other.views, strict=True):
            assert torch.equal(view, same)


@pytest.mark.parametrize(("workers", "first"), [(1, 0), (4, 0), (0, 2), (2, 2), (0, 3), (0, 4)])
def test_neither_workers_nor_the_first_step_change_a_batch(
    workers: int, first: int, source: ImageSource, expected: list[Batch]
) -> None:
    assert_same(streamed(source, workers, first), expected[first:])


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_share_the_batch_of_one_process(
    world: int, source: ImageSource, expected: list[Batch]
) -> None:
    ranks = [streamed(source, rank=rank, world=world) for rank in range(world)]
    joined = [
        Batch(
            [torch.cat(views) for views in zip(*(part.views for part in parts), strict=True)],
            torch.cat([part.samples for part in parts]),
            [bad for part in parts for bad in part.bad],
        )
        for parts in zip(*ranks, strict=True)
    ]
    assert_same(joined, expected)


def test_every_view_is_normalized_by_its_own_mean_and_local_views_come_last(
    source: ImageSource,
) -> None:
    first, second = paper_views(16).views
    plain = ViewsSettings(views=(first, second), local_views=2, local_size=8)
    dark = second.model_copy(update={"mean": (0.0, 0.1, 0.2), "std": (1.0, 0.5, 2.0)})
    other = plain.model_copy(update={"views": (first, dark)})
    made = []
    for views in (plain, other):
        batches = StreamedBatches(source, EpochOrder(len(source), SIZE, 0), views, 0, CPU, 0)
        made.append(next(iter(batches.steps(0, 1))).views)
    assert [tuple(view.shape) for view in made[0]] == [(SIZE, 3, s, s) for s in (16, 16, 8, 8)]
    for number, settings in enumerate(other.every):
        mean, std = (torch.tensor(value)[:, None, None] for value in (settings.mean, settings.std))
        levels = 255 * (made[1][number] * std + mean)
        assert (levels - levels.round()).abs().max() <= 1e-3
        same = plain.every[number]
        mean, std = (torch.tensor(value)[:, None, None] for value in (same.mean, same.std))
        assert torch.equal(levels.round(), (255 * (made[0][number] * std + mean)).round())


def test_batches_epochs_and_views_all_differ(expected: list[Batch]) -> None:
    views = [view for batch in expected for view in batch.views]
    for place, view in enumerate(views):
        assert not any(torch.equal(view, other) for other in views[:place])


def test_a_bad_image_is_reported_by_the_batch_that_met_it(expected: list[Batch]) -> None:
    found = [bad.identity for batch in expected for bad in batch.bad]
    assert set(found) == {"03.png"}


def test_another_seed_gives_another_order_and_other_views(source: ImageSource) -> None:
    orders = [EpochOrder(COUNT, SIZE, seed) for seed in (0, 1)]
    assert orders[0].indices(0)[1].tolist() != orders[1].indices(0)[1].tolist()
    one = [
        StreamedBatches(source, orders[0], paper_views(16), seed, CPU, 0).steps(0, 1)
        for seed in (0, 1)
    ]
    assert not torch.equal(next(one[0]).views[0], next(one[1]).views[0])


def test_the_global_generator_is_left_alone(source: ImageSource) -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    streamed(source, workers=1)
    streamed(source, workers=0)
    assert torch.equal(torch.get_rng_state(), before)


def test_an_epoch_visits_every_image_at_most_once() -> None:
    order = EpochOrder(COUNT, SIZE, 0)
    assert order.steps_per_epoch == 3
    epochs = [[order.indices(3 * epoch + step) for step in range(3)] for epoch in range(2)]
    for number, steps in enumerate(epochs):
        assert {epoch for epoch, _ in steps} == {number}
        visited = np.concatenate([indices for _, indices in steps])
        assert len(set(visited.tolist())) == 18
        assert 0 <= visited.min() <= visited.max() < COUNT
    assert epochs[0][0][1].tolist() != epochs[1][0][1].tolist()


@pytest.mark.parametrize("step", [0, 2, 4])
def test_rank_slices_join_to_the_batch_of_one_process(step: int) -> None:
    whole = EpochOrder(COUNT, SIZE, 0).indices(step)[1]
    parts = [EpochOrder(COUNT, SIZE, 0, rank, 3).indices(step)[1] for rank in range(3)]
    assert np.concatenate(parts).tolist() == whole.tolist()


@pytest.mark.parametrize(
    ("count", "batch", "world", "phrase"),
    [
        (10, 11, 1, "batch_size=11 is larger than the dataset of 10 images; set it to 10 or less"),
        (1, 2, 1, "dataset of 1 images; give more"),
        (100, 10, 4, "does not divide by 4 processes; set it to 8 or 12"),
    ],
)
def test_impossible_batches_are_refused(count: int, batch: int, world: int, phrase: str) -> None:
    with pytest.raises(InputError, match=phrase):
        EpochOrder(count, batch, 0, 0, world)


def test_images_in_memory_start_anywhere_and_split_over_ranks() -> None:
    images = torch.randint(0, 256, (COUNT, 3, 16, 16), dtype=torch.uint8)

    def batches(first: int, rank: int = 0, world: int = 1) -> list[Batch]:
        order = EpochOrder(COUNT, SIZE, 0, rank, world)
        return list(MemoryBatches(images, order, paper_views(16), 0, CPU).steps(first, STEPS))

    whole = batches(0)
    assert_same(batches(2), whole[2:])
    for one, other, both in zip(batches(0, 0, 2), batches(0, 1, 2), whole, strict=True):
        for number in range(2):
            assert torch.equal(
                torch.cat([one.views[number], other.views[number]]), both.views[number]
            )


@pytest.mark.parametrize("workers", [0, 2])
def test_when_nothing_can_be_read_one_sentence_says_so(workers: int, tmp_path: Path) -> None:
    for number in range(SIZE):
        (tmp_path / f"{number}.png").write_bytes(b"")
    with pytest.raises(
        InputError, match=r"^none of the 6 images can be read; the first is"
    ) as caught:
        streamed(open_source(tmp_path), workers)
    assert "\n" not in str(caught.value)
