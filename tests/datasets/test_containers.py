"""What holds for every form of data alike."""

import json
import multiprocessing
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from imsvd.datasets import EncodedSource, ImageSource, Quarantine, UnreadableImage, open_source
from imsvd.datasets.decoding import decode_image
from imsvd.datasets.reading import read_or_replace
from imsvd.errors import InputError
from imsvd.views import make_view, paper_views, sample_parameters
from tests.datasets.containers import WRITERS, Files, pictures
from tests.datasets.malformed import MALFORMED

each_form = pytest.mark.parametrize("write", WRITERS.values(), ids=list(WRITERS))
Writer = Callable[[Path, Files], Path]
NAMES = ("cat/1.jpg", "cat/2.jpg", "dog/1.jpg", "dog/2.jpg", "dog/3.jpg")


def malformed() -> dict[str, bytes]:
    return {name: MALFORMED[name][0] for name in sorted(MALFORMED)}


def test_there_are_enough_malformed_cases() -> None:
    assert len(MALFORMED) >= 30


@each_form
def test_every_malformed_image_is_refused_with_its_reason(tmp_path: Path, write: Writer) -> None:
    source = open_source(write(tmp_path, malformed()))
    assert len(source) == len(MALFORMED)
    for index, (name, (_, phrase)) in enumerate(sorted(MALFORMED.items())):
        with pytest.raises(UnreadableImage) as caught:
            source.read(index)
        assert caught.value.identity == source.identity(index)
        assert phrase in caught.value.reason, name
        copy = pickle.loads(pickle.dumps(caught.value))
        assert (copy.identity, copy.reason) == (caught.value.identity, caught.value.reason)


@each_form
def test_every_malformed_image_is_reported_once_and_replaced(tmp_path: Path, write: Writer) -> None:
    good = pictures("zz-good.png")
    source = open_source(write(tmp_path, {**malformed(), **good}))
    path = tmp_path / "bad.jsonl"
    quarantine = Quarantine(source, limit=1.0, path=path)
    for index in range(len(source)):
        _, actual, bad = read_or_replace(source, index)
        assert actual == len(MALFORMED)
        quarantine.report(bad)
    reported = [json.loads(line)["index"] for line in path.read_text().splitlines()]
    assert sorted(reported) == list(range(len(MALFORMED)))
    assert quarantine.replacements().tolist() == [len(MALFORMED)] * len(source)


@each_form
def test_too_many_bad_images_stop_the_run(tmp_path: Path, write: Writer) -> None:
    source = open_source(write(tmp_path, {**malformed(), **pictures("zz-good.png")}))
    with pytest.raises(
        InputError,
        match=r"of 45 images .* more than the 5\.0% allowed.*; remove them or raise data\.bad_image_limit\.",
    ):
        Quarantine(source, limit=0.05).report(read_or_replace(source, 0)[2])


class Views(Dataset[Tensor]):
    """The first view of every image, as training makes it."""

    def __init__(self, source: ImageSource) -> None:
        self.source = source

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Tensor:
        view = paper_views().views[0]
        image = self.source.read(index)
        height, width = np.array(image.shape[-2:]).reshape(2, 1)
        parameters = sample_parameters(
            view, height, width, seed=3, epoch=1, indices=np.array([index]), view=0
        )
        return make_view(image, parameters, 0, view)


def all_views(source: ImageSource, workers: int) -> Tensor:
    return torch.cat(list(DataLoader(Views(source), batch_size=2, num_workers=workers)))


def test_all_forms_give_the_same_bytes_and_the_same_views(tmp_path: Path) -> None:
    files = pictures(*NAMES, file_format="JPEG")
    expected: Tensor | None = None
    for number, write in enumerate(WRITERS.values()):
        source = open_source(write(tmp_path / str(number), files))
        assert isinstance(source, EncodedSource)
        assert [source.encoded(index) for index in range(5)] == list(files.values())
        assert source.size(0) == (40, 48)
        for workers in (0, 2):
            views = all_views(source, workers)
            expected = views if expected is None else expected
            assert torch.equal(views, expected)


@each_form
def test_threads_read_what_one_reads(tmp_path: Path, write: Writer) -> None:
    files = pictures(*(f"{number:03}.png" for number in range(20)))
    source = open_source(write(tmp_path, files))
    expected = [decode_image(data, name) for name, data in files.items()]
    indices = [index * 7 % 20 for index in range(100)]
    with ThreadPoolExecutor(8) as executor:
        found = list(executor.map(source.read, indices))
    assert all(torch.equal(read, expected[i]) for i, read in zip(indices, found, strict=True))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_read_what_one_reads_after_it_has_read(tmp_path: Path, method: str) -> None:
    files = pictures(*NAMES)
    sources = [
        open_source(write(tmp_path / str(number), files))
        for number, write in enumerate(WRITERS.values())
    ]
    expected = [
        sum(int(picture.sum()) for picture in source.read_many(range(5))) for source in sources
    ]
    context: Any = multiprocessing.get_context(method)
    answers = context.Queue()
    process = context.Process(target=all_checksums, args=(sources, answers))
    process.start()
    assert answers.get(timeout=60) == expected
    process.join()


def all_checksums(sources: list[ImageSource], answers: "multiprocessing.Queue[list[int]]") -> None:
    answers.put([sum(int(p.sum()) for p in source.read_many(range(5))) for source in sources])


@each_form
def test_the_fingerprint_is_stable_and_follows_the_data(tmp_path: Path, write: Writer) -> None:
    first = open_source(write(tmp_path / "1", pictures(*NAMES))).fingerprint()
    assert open_source(write(tmp_path / "2", pictures(*NAMES))).fingerprint() == first
    assert open_source(write(tmp_path / "3", pictures(*NAMES[:4]))).fingerprint() != first


@pytest.mark.parametrize("form", ["zip", "tar"])
def test_an_archive_has_the_fingerprint_and_labels_of_its_folder(tmp_path: Path, form: str) -> None:
    files = pictures("b/deep/1.png", "b/2.png", "a/x.png", "a-b/1.png", "a/.hidden.png")
    folder = open_source(WRITERS["folder"](tmp_path, files))
    archive = open_source(WRITERS[form](tmp_path, files))
    assert archive.fingerprint() == folder.fingerprint()
    assert archive.classes == folder.classes == ("a", "a-b", "b")
    assert [archive.identity(i) for i in range(4)] == [folder.identity(i) for i in range(4)]
    assert archive.labels is not None
    assert folder.labels is not None
    assert archive.labels.tolist() == folder.labels.tolist() == [0, 1, 2, 2]


@each_form
def test_an_index_out_of_range_is_an_error(tmp_path: Path, write: Writer) -> None:
    source = open_source(write(tmp_path, pictures("a.png")))
    for index in (-1, 1):
        with pytest.raises(IndexError):
            source.read(index)


@pytest.mark.parametrize("form", ["zip", "tar"])
@pytest.mark.parametrize("wrapper", ["", "cifar10/", "./"])
def test_splits_inside_an_archive(tmp_path: Path, form: str, wrapper: str) -> None:
    names = (
        "train/cat/1.png",
        "train/dog/1.png",
        "train/eel/1.png",
        "val/cat/1.png",
        "val/eel/1.png",
    )
    path = WRITERS[form](tmp_path, pictures(*(wrapper + name for name in names)))
    assert [open_source(path).identity(i) for i in range(3)] == [
        "cat/1.png",
        "dog/1.png",
        "eel/1.png",
    ]
    test = open_source(path, "test")
    assert test.classes == ("cat", "dog", "eel")
    assert test.labels is not None
    assert test.labels.tolist() == [0, 2]


@pytest.mark.parametrize("form", list(WRITERS))
def test_without_test_images_the_sentence_says_what_to_give(tmp_path: Path, form: str) -> None:
    path = WRITERS[form](tmp_path, pictures("a.png", "b.png"))
    with pytest.raises(InputError, match=r"has no test images: (give|name|save) .*test"):
        open_source(path, "test")


@pytest.mark.parametrize("form", ["zip", "tar", "parquet", "list"])
def test_a_test_file_beside_train(tmp_path: Path, form: str) -> None:
    for split, names in (("train", ("a.png", "b.png")), ("val", ("c.png",))):
        path = WRITERS[form](tmp_path / split, pictures(*names))
        path.rename(tmp_path / f"{split}{path.suffix}")
    train = tmp_path / f"train{path.suffix}"
    assert (len(open_source(train)), len(open_source(train, "test"))) == (2, 1)
