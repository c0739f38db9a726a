import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from imsvd.datasets import ImageSource, Subset, open_source
from imsvd.datasets.decoding import PlainJpeg, decode_rows
from imsvd.engine.batches import EpochOrder, StreamedBatches
from imsvd.views import (
    Batch,
    ViewSettings,
    ViewsSettings,
    image_views,
    normalize,
    paper_views,
    samples,
)
from imsvd.views.samples import choose_reduction, make_samples, takes_fast_path

pytest.importorskip("cv2")
pytest.importorskip("simplejpeg")

VIEWS = paper_views(32)
COUNT = 14


def waves(height: int, width: int, phase: int) -> Image.Image:
    """Smooth, so that a decoder's filter and a resizer's agree."""
    y, x = np.mgrid[:height, :width] / (height + width) * 9
    colors = np.stack((np.sin(y + x + phase), np.cos(x), np.sin(y - 2 * x)), axis=-1)
    return Image.fromarray((127.5 + 120 * colors).astype(np.uint8))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> ImageSource:
    """JPEGs large and small, plain, turned, progressive, CMYK, damaged; and a PNG."""
    folder = tmp_path_factory.mktemp("photographs")
    for number in range(COUNT):
        image = waves(60 + 40 * number, 500 - 25 * number, number)
        image.save(folder / f"{number:02d}.jpg", quality=92, progressive=number == 4)
    exif = Image.Exif()
    exif[0x0112] = 6
    waves(300, 200, 0).save(folder / "05.jpg", exif=exif.tobytes())
    waves(90, 80, 1).convert("CMYK").save(folder / "06.jpg")
    buffer = io.BytesIO()
    waves(90, 80, 1).save(buffer, "PNG")
    (folder / "07.jpg").write_bytes(buffer.getvalue())
    whole = (folder / "10.jpg").read_bytes()
    (folder / "10.jpg").write_bytes(whole[: len(whole) // 2])
    (folder / "11.jpg").write_bytes(b"")
    return open_source(folder)


def levels(view: torch.Tensor, expected: torch.Tensor, views: ViewsSettings) -> torch.Tensor:
    """How far a view made of bytes is from a normalized one, in levels."""
    std = torch.tensor(views.views[0].std)[:, None, None]
    return (normalize(view[None], views.views[0])[0] - expected).abs() * std * 255


def test_views_are_those_of_the_general_path_to_within_levels(source: ImageSource) -> None:
    indices = [index for index in range(COUNT) if index not in (10, 11)]
    made = make_samples(source, VIEWS, 5, 2, indices)
    for index, (_, views, bad) in zip(indices, made, strict=True):
        assert not bad
        expected = image_views(source.read(index), VIEWS, seed=5, epoch=2, index=index)
        for view, other in zip(views, expected, strict=True):
            assert view.shape == (3, 32, 32)
            assert view.dtype == torch.uint8
            assert levels(view, other, VIEWS).max() <= 9
            assert levels(view, other, VIEWS).mean() <= 1.5


def test_without_the_extra_views_are_exactly_those_of_the_general_path(
    source: ImageSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samples, "HAS_OPENCV", False)
    ((_, views, _),) = make_samples(source, VIEWS, 5, 2, [3])
    for view, other in zip(
        views, image_views(source.read(3), VIEWS, seed=5, epoch=2, index=3), strict=True
    ):
        assert torch.equal(normalize(view[None], VIEWS.views[0])[0], other)


@pytest.mark.parametrize("decoder", [True, False])
def test_bad_pictures_are_replaced_and_reported_with_their_reason(
    decoder: bool, source: ImageSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samples, "HAS_SIMPLEJPEG", decoder)
    ((_, views, bad),) = make_samples(source, VIEWS, 0, 0, [10])
    assert [(item.identity, item.reason) for item in bad] == [
        ("10.jpg", "truncated JPEG"),
        ("11.jpg", "empty file"),
    ]
    # The draw is that of place 10, the picture that of place 12.
    expected = image_views(source.read(12), VIEWS, seed=0, epoch=0, index=10)
    assert levels(views[0], expected[0], VIEWS).mean() <= 1.5


def test_the_fast_path_needs_a_jpeg_and_both_packages(
    source: ImageSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waves(90, 80, 1).save(tmp_path / "one.png")
    assert takes_fast_path(source)
    assert takes_fast_path(Subset(source, [2]))
    assert not takes_fast_path(Subset(source, [7]))
    assert not takes_fast_path(open_source(tmp_path))
    monkeypatch.setattr(samples, "HAS_OPENCV", False)
    assert not takes_fast_path(source)


def test_a_sample_does_not_depend_on_its_batch(source: ImageSource) -> None:
    together = make_samples(source, VIEWS, 0, 3, list(range(COUNT)) * 3)
    for index in range(COUNT):
        ((_, alone, _),) = make_samples(source, VIEWS, 0, 3, [index])
        for place in (index, index + 2 * COUNT):
            for view, other in zip(alone, together[place].views, strict=True):
                assert torch.equal(view, other)


def test_a_subset_goes_the_same_way_as_the_whole(source: ImageSource) -> None:
    ((_, whole, _),) = make_samples(source, VIEWS, 0, 0, [2])
    ((_, part, _),) = make_samples(Subset(source, [8, 9, 2]), VIEWS, 0, 0, [2])
    assert all(torch.equal(*pair) for pair in zip(whole, part, strict=True))


@pytest.mark.parametrize("workers", [1, 4])
def test_workers_do_not_change_photographs(workers: int, source: ImageSource) -> None:
    def batches(workers: int) -> list[Batch]:
        order = EpochOrder(len(source), 7, 0)
        cpu = torch.device("cpu")
        return list(StreamedBatches(source, order, VIEWS, 0, cpu, workers).steps(0, 3))

    for batch, other in zip(batches(workers), batches(0), strict=True):
        assert batch.bad == other.bad
        assert all(torch.equal(*pair) for pair in zip(batch.views, other.views, strict=True))
        assert batch.views[0].is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("shrinkages", "reduction"),
    [([0.3, 9.0], 1), ([2.9, 9.0], 1), ([3.0, 9.0], 2), ([6.0], 4), ([12.0, 13.0], 8), ([99.0], 8)],
)
def test_every_view_keeps_half_as_many_pixels_again(
    shrinkages: list[float], reduction: int
) -> None:
    assert choose_reduction(shrinkages) == reduction


def watch_reductions(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that every reduction used from now on is added to."""
    seen: list[int] = []

    def watched(jpeg: PlainJpeg, bottom: int, reduction: int) -> object:
        seen.append(reduction)
        return decode_rows(jpeg, bottom, reduction)

    monkeypatch.setattr(samples, "decode_rows", watched)
    return seen


def test_large_photographs_are_decoded_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waves(900, 1200, 0).save(tmp_path / "one.jpg", quality=95)
    waves(900, 1200, 1).save(tmp_path / "two.jpg", quality=95)
    seen = watch_reductions(monkeypatch)
    make_samples(open_source(tmp_path), VIEWS, 0, 0, [0, 1] * 8)
    assert set(seen) <= {1, 2, 4, 8}
    assert max(seen) >= 4


def white_noise(height: int, width: int, seed: int) -> Image.Image:
    """No two pixels related: the worst case for a decoder that filters otherwise than a resizer."""
    values = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(values)


@pytest.mark.parametrize("reduction", [2, 4, 8])
@pytest.mark.parametrize(
    ("draw", "mean_bound", "worst_bound"), [(waves, 0.4, 0.6), (white_noise, 2.5, 4.0)]
)
def test_decoding_small_changes_a_view_by_a_bounded_number_of_levels(
    draw: Callable[[int, int, int], Image.Image],
    mean_bound: float,
    worst_bound: float,
    reduction: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Crop alone, so that nothing but the decoding differs; averages over pixels, in levels."""
    side = 96 * reduction
    draw(side, side + 40, 3).save(tmp_path / "one.jpg", quality=95)
    # The smallest crop is just large enough for this reduction.
    scale = ((1.5 * 32 * reduction + 8) / side) ** 2
    view = ViewSettings(
        size=32,
        crop_scale=(scale, 1.0),
        crop_ratio=(1.0, 1.0),
        jitter_probability=0,
        gray_probability=0,
    )
    views = ViewsSettings(views=(view, view))
    source = open_source(tmp_path)
    seen = watch_reductions(monkeypatch)
    found = []
    for epoch in range(20):
        ((_, made, _),) = make_samples(source, views, 0, epoch, [0])
        expected = image_views(source.read(0), views, seed=0, epoch=epoch, index=0)
        found += [levels(*pair, views).mean().item() for pair in zip(made, expected, strict=True)]
    assert reduction in seen
    assert np.mean(found) <= mean_bound
    assert max(found) <= worst_bound
