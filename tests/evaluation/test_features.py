from collections.abc import Callable, Sequence

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn
from torchvision.transforms import v2

from imsvd.datasets import BadImage, ImageSource, UnreadableImage
from imsvd.errors import InputError
from imsvd.evaluation import Features, chance, extract_features
from imsvd.evaluation.features import center_crop, encode_source
from imsvd.processors import reading_processes
from tests.evaluation.coco import tiny

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)


class Pictures(ImageSource):
    """Noise pictures of the given (height, width), some of them unreadable."""

    def __init__(self, sizes: Sequence[tuple[int, int]], bad: Sequence[int] = ()) -> None:
        generator = torch.Generator().manual_seed(0)
        self.pictures = [
            torch.randint(0, 256, (3, *size), generator=generator, dtype=torch.uint8)
            for size in sizes
        ]
        self.bad = bad
        self.labels = torch.arange(len(sizes)) * 10
        self.attributes = {"parity": torch.arange(len(sizes)) % 2}

    def __len__(self) -> int:
        return len(self.pictures)

    def read(self, index: int) -> Tensor:
        if index in self.bad:
            raise UnreadableImage(self.identity(index), "truncated JPEG")
        return self.pictures[index]

    def identity(self, index: int) -> str:
        return f"{index}.jpg"

    def fingerprint(self) -> str:
        return "noise"


def flat(images: Tensor) -> Tensor:
    return images.flatten(1)


def extract(
    source: ImageSource,
    encode: Callable[[Tensor], Tensor] = flat,
    *,
    size: int = 8,
    batch_size: int = 4,
    workers: int = 0,
    images: Tensor | None = None,
) -> Features:
    return extract_features(
        encode,
        source,
        size=size,
        mean=MEAN,
        std=STD,
        device="cpu",
        batch_size=batch_size,
        workers=workers,
        images=images,
    )


def normalized(image: Tensor) -> Tensor:
    """The definition, from torchvision."""
    steps = v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)])
    result: Tensor = steps(image)
    return result.flatten()


@pytest.mark.parametrize("workers", [0, 2])
def test_order_and_the_short_last_batch_are_kept(workers: int) -> None:
    source = Pictures([(8, 8)] * 10)
    found = extract(source, workers=workers)
    expected = torch.stack([normalized(picture) for picture in source.pictures])
    torch.testing.assert_close(found.features, expected, rtol=0, atol=1e-5)
    assert found.features.dtype == torch.float32
    assert found.labels is not None
    assert found.labels.tolist() == list(range(0, 100, 10))
    assert found.skipped == ()


@pytest.mark.parametrize("workers", [0, 2])
def test_bad_images_are_left_out_and_reported(workers: int) -> None:
    # Batches of four: one bad image in the first, the whole second bad, the third untouched.
    bad = [2, 4, 5, 6, 7]
    found = extract(Pictures([(8, 8)] * 10, bad), workers=workers)
    rows = [0, 1, 3, 8, 9]
    assert torch.equal(found.features, extract(Pictures([(8, 8)] * 10)).features[rows])
    assert found.labels is not None
    assert found.labels.tolist() == [10 * row for row in rows]
    assert found.attributes["parity"].tolist() == [row % 2 for row in rows]
    assert found.skipped == tuple(BadImage(i, f"{i}.jpg", "truncated JPEG") for i in bad)


@pytest.mark.parametrize(("bad", "message"), [((0, 1), r"2 images.*0\.jpg"), (None, "no images")])
def test_nothing_readable_is_refused(bad: Sequence[int] | None, message: str) -> None:
    source = Pictures([]) if bad is None else Pictures([(8, 8)] * 2, bad)
    with pytest.raises(InputError, match=message):
        extract(source)


@pytest.mark.parametrize("side", [8, 13])
def test_images_in_memory_give_the_same_features(side: int) -> None:
    source = Pictures([(side, side)] * 6)
    in_memory = extract(source, images=torch.stack(source.pictures))
    streamed = extract(source)
    assert torch.equal(in_memory.features, streamed.features)
    assert in_memory.labels is not None
    assert streamed.labels is not None
    assert torch.equal(in_memory.labels, streamed.labels)
    with pytest.raises(ValueError, match="5 images in memory for a source of 6"):
        extract(source, images=torch.stack(source.pictures[:5]))


def test_unlabeled_images_have_no_labels() -> None:
    source = Pictures([(8, 8)] * 2)
    source.labels = None
    assert extract(source).labels is None


@pytest.mark.parametrize("shape", [(100, 100), (64, 150), (150, 64), (40, 56), (57, 56)])
def test_the_crop_is_the_standard_one(shape: tuple[int, int]) -> None:
    image = Pictures([shape]).pictures[0]
    standard = v2.Compose([v2.Resize(64, antialias=True), v2.CenterCrop(56)])
    assert torch.equal(center_crop(image, 56), standard(image))


def test_the_crop_keeps_the_middle() -> None:
    image = torch.zeros(3, 64, 192, dtype=torch.uint8)
    image[:, :, 64:128] = 255
    assert center_crop(image, 56).float().mean() == 255


@pytest.mark.parametrize("shape", [(1, 60_000), (60_000, 1)])
def test_a_strip_is_not_enlarged_as_a_whole(shape: tuple[int, int]) -> None:
    # Enlarged as a whole it would be 256 × 15,360,000 pixels of three bytes.
    image = torch.zeros(3, *shape, dtype=torch.uint8)
    image.view(3, -1)[:, 29_992:30_008] = 200
    assert torch.equal(center_crop(image, 224), torch.full((3, 224, 224), 200, dtype=torch.uint8))


@pytest.mark.parametrize("side", [224, 32])
def test_an_image_of_the_right_size_is_untouched(side: int) -> None:
    image = Pictures([(side, side)]).pictures[0]
    assert torch.equal(center_crop(image, side), image)


def test_images_of_different_sizes_share_a_batch() -> None:
    source = Pictures([(8, 8), (20, 9), (11, 30)])
    expected = torch.stack([normalized(center_crop(image, 8)) for image in source.pictures])
    torch.testing.assert_close(extract(source).features, expected, rtol=0, atol=1e-5)


class Network(nn.Module):
    """Batch normalization makes the mode visible, a convolution makes the layout visible."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.frozen = nn.BatchNorm2d(3).eval()
        self.body = nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.ReLU())
        self.layouts: set[bool] = set()

    def forward(self, images: Tensor) -> Tensor:
        self.layouts.add(images.is_contiguous(memory_format=torch.channels_last))
        result: Tensor = self.body(self.frozen(images))
        return result.mean(dim=(2, 3))

    def failing(self, images: Tensor) -> Tensor:
        raise RuntimeError("out of memory")


def test_features_do_not_depend_on_the_batch_size_and_carry_no_gradient() -> None:
    source, network = Pictures([(8, 8)] * 10), Network()
    whole = extract(source, network, batch_size=10).features
    for batch_size in (1, 3, 256):
        parts = extract(source, network, batch_size=batch_size).features
        torch.testing.assert_close(parts, whole, rtol=1e-5, atol=1e-6)
    assert not whole.requires_grad
    assert network.layouts == {True}
    # Usable by a classifier that is trained on top.
    nn.Linear(5, 2)(whole).sum().backward()


def test_the_mode_of_every_part_is_restored_even_after_a_failure() -> None:
    network = Network()
    statistics = {name: value.clone() for name, value in network.state_dict().items()}
    modes = [module.training for module in network.modules()]
    assert set(modes) == {True, False}
    expected = extract(Pictures([(8, 8)] * 3), network).features
    assert torch.equal(extract(Pictures([(8, 8)] * 3), network.forward).features, expected)
    with pytest.raises(RuntimeError, match="out of memory"):
        extract(Pictures([(8, 8)] * 3), network.failing)
    assert [module.training for module in network.modules()] == modes
    assert all(torch.equal(value, statistics[n]) for n, value in network.state_dict().items())


@pytest.mark.parametrize("workers", [0, 1])
def test_the_global_generator_is_left_alone(workers: int) -> None:
    state = torch.get_rng_state()
    extract(Pictures([(8, 8)] * 3), workers=workers)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("side", [32, 300])
def test_photographs_are_read_by_other_processes(
    side: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[int] = []

    def extract(*_: object, workers: int, **__: object) -> Features:
        given.append(workers)
        return Features(torch.zeros(0, 1), None, {})

    monkeypatch.setattr("imsvd.evaluation.features.extract_features", extract)
    source = Pictures([(side, side)] * 2)
    encode_source(tiny.encoder(), source, "test", Console(quiet=True), torch.device("cpu"))
    assert given == [0 if side == 32 else reading_processes("cpu")]


def test_progress_counts_every_image_once() -> None:
    calls: list[tuple[int, int]] = []
    extract_features(
        flat,
        Pictures([(8, 8)] * 10, bad=[5]),
        size=8,
        mean=MEAN,
        std=STD,
        device="cpu",
        batch_size=4,
        progress=lambda done, total: calls.append((done, total)),
    )
    assert calls == [(4, 10), (8, 10), (10, 10)]


def test_chance_is_the_share_of_the_most_frequent_class() -> None:
    assert chance(torch.tensor([5, 0, 5, 9, 5, 5, 1, 1])) == 50.0
    assert chance(torch.arange(4)) == 25.0
