import multiprocessing
import pickle
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from imsvd.datasets.decoding import UnreadableImage
from imsvd.datasets.opening import open_source
from imsvd.datasets.streams import StreamSource, is_remote, is_shard_folder
from imsvd.errors import InputError
from tests.datasets.containers import pictures, write_folder
from tests.datasets.malformed import MALFORMED

pytest.importorskip("litdata")
FILES = list(pictures(*(f"{number}.png" for number in range(7))).values())


def write_shards(folder: Path, samples: Sequence[Any]) -> Path:
    """Shards of three samples, as litdata's `optimize` writes them."""
    from litdata.streaming.writer import BinaryWriter  # noqa: PLC0415

    folder.mkdir(parents=True, exist_ok=True)
    writer = BinaryWriter(str(folder), chunk_size=3)
    for index, sample in enumerate(samples):
        writer[index] = sample
    writer.done()
    writer.merge()
    return folder


def stream(folder: Path, samples: Sequence[Any]) -> StreamSource:
    source = open_source(write_shards(folder, samples))
    assert isinstance(source, StreamSource)
    return source


def test_samples_of_several_shapes(tmp_path: Path) -> None:
    shapes: list[list[Any]] = [
        FILES,
        [{"image": data, "label": 1} for data in FILES],
        [(data, 1) for data in FILES],
    ]
    for number, samples in enumerate(shapes):
        source = stream(tmp_path / str(number), samples)
        assert len(source) == 7
        assert [source.encoded(index) for index in (6, 0, 3, 6)] == [FILES[i] for i in (6, 0, 3, 6)]
        assert source.read(5).shape == (3, 40, 48)
        assert source.labels is None


def test_jpeg_files_reach_our_own_decoder(tmp_path: Path) -> None:
    from PIL import Image  # noqa: PLC0415

    files = pictures("a.jpg", "b.jpg", file_format="JPEG")
    folder = write_folder(tmp_path / "images", files)
    source = stream(tmp_path / "s", [{"image": Image.open(folder / name)} for name in files])
    assert [source.encoded(index) for index in range(2)] == list(files.values())


def test_malformed_images_are_refused_with_their_reasons(tmp_path: Path) -> None:
    cases = list(MALFORMED.values())
    source = stream(tmp_path, [data for data, _ in cases])
    for index, (_, phrase) in enumerate(cases):
        with pytest.raises(UnreadableImage, match=f"sample {index}: ") as caught:
            source.read(index)
        assert phrase in caught.value.reason


def all_encoded(source: StreamSource, answers: Any) -> None:
    answers.put([source.encoded(index) for index in range(len(source))])


def test_threads_copies_and_forks_read_what_one_reads(tmp_path: Path) -> None:
    source = stream(tmp_path, FILES)
    with ThreadPoolExecutor(4) as executor:
        assert list(executor.map(source.encoded, list(range(7)) * 4)) == FILES * 4
    copy = pickle.loads(pickle.dumps(source))
    assert copy.encoded(4) == FILES[4]
    assert copy.fingerprint() == source.fingerprint()
    context: Any = multiprocessing.get_context("fork")
    answers = context.Queue()
    process = context.Process(target=all_encoded, args=(source, answers))
    process.start()
    assert answers.get(timeout=60) == FILES
    process.join()


def test_a_rank_sees_all_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_shards(tmp_path, FILES)
    for name, value in (("WORLD_SIZE", "2"), ("GLOBAL_RANK", "1"), ("NNODES", "1")):
        monkeypatch.setenv(name, value)
    source = open_source(tmp_path)
    assert len(source) == 7
    assert source.read(6).shape == (3, 40, 48)


def test_pickled_samples_are_not_unpickled(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="hold no image files"):
        stream(tmp_path, [{"image": Path("a.jpg"), "x": {1, 2}}] * 3)


def test_streams_are_for_training_only(tmp_path: Path) -> None:
    write_shards(tmp_path, FILES)
    with pytest.raises(InputError, match="streams are for training only"):
        open_source(tmp_path, "test")


def test_what_is_a_stream(tmp_path: Path) -> None:
    assert is_remote("s3://bucket/prefix")
    assert not is_remote("s3://")
    assert not is_remote("data/s3://bucket")
    for text in ("{}", "[]", "{"):
        (tmp_path / "index.json").write_text(text)
        assert not is_shard_folder(tmp_path)


def test_lost_shards_stop_the_run_instead_of_counting_as_bad_images(tmp_path: Path) -> None:
    source = stream(tmp_path, FILES)
    for shard in tmp_path.glob("*.bin"):
        shard.unlink()
    with pytest.raises(InputError, match=r"sample 6 of .* cannot be fetched .* resume the run"):
        source.read(6)


def test_without_litdata_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_shards(tmp_path, FILES)
    monkeypatch.setitem(sys.modules, "litdata", None)
    with pytest.raises(InputError, match=r"needs litdata: pip install 'imsvd\[data\]'"):
        open_source(tmp_path)
