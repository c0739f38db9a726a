"""Images that were encoded once are not encoded again, unless they have changed."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
from PIL import Image, ImageOps
from safetensors.numpy import load_file, save_file
from torch import Tensor

import imsvd
from imsvd.datasets import open_source
from imsvd.encoder import encoder_key
from imsvd.errors import InputError
from imsvd.explanations import explain
from imsvd.index import Index
from imsvd.index.encoding import Coder
from imsvd.index.known import PLACE, ContentKey, KnownCodes, read_known
from tests.pretraining.test_pretrain import write_images
from tests.pretraining.tiny import CommandLine

IMAGES = 10


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_images(tmp_path / "data", IMAGES)


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of images that an index gave to the encoder, without those that set its thresholds."""
    counts: list[int] = []
    encode: Callable[[Coder, Tensor], Any] = Coder.encode

    def counted(coder: Coder, crops: Tensor) -> Any:
        counts.append(len(crops))
        return encode(coder, crops)

    monkeypatch.setattr(Coder, "encode", counted)
    monkeypatch.setattr("imsvd.index.building.measure_copies", lambda *_: {})
    return counts


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy of a run, so that what is written to it stays here."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


def change(data: Path, number: int) -> Path:
    """Give an image the content of the next one, mirrored, and its own times."""
    source: Any = open_source(data)
    path, other = source.path(number), source.path(number + 1)
    ImageOps.mirror(Image.open(other)).save(path)
    return Path(path)


def test_an_index_takes_the_codes_of_explained_images(
    run: Path, data: Path, tmp_path: Path, encoded: list[int]
) -> None:
    fresh = Index.build(run, data, tmp_path / "fresh.index")
    assert sum(encoded) == IMAGES
    explain(run, data, only=["discreteness"])
    encoded.clear()
    index = Index.build(run, data, tmp_path / "a.index")
    assert encoded == []
    np.testing.assert_array_equal(index.codes(), fresh.codes())
    np.testing.assert_allclose(index.confidences(), fresh.confidences(), atol=0.02)
    assert index.column("hashes").tolist() == fresh.column("hashes").tolist()
    assert index.column("sizes").tolist() == fresh.column("sizes").tolist()


def test_only_changed_images_are_encoded_and_features_need_the_encoder(
    run: Path, data: Path, tmp_path: Path, encoded: list[int]
) -> None:
    explain(run, data, only=["discreteness"])
    path = change(data, 4)
    index = Index.build(run, data, tmp_path / "a.index")
    assert encoded == [1]
    row = index.find(path)
    assert row is not None
    assert index.codes()[row].tolist() == Coder(run).encode_file(path).codes[0].tolist()
    encoded.clear()
    assert Index.build(run, data, tmp_path / "b.index", features=True).features() is not None
    assert encoded == [IMAGES]
    encoded.clear()
    moved = write_images(tmp_path / "data", IMAGES).rename(tmp_path / "moved")
    assert index.add(moved).added == IMAGES
    assert encoded == []


def test_pixels_without_files_are_known_too(run: Path, tmp_path: Path, encoded: list[int]) -> None:
    explain(run, "shapes:12", only=["discreteness"])
    index = Index.build(run, "shapes:12", tmp_path / "a.index", split="train")
    assert len(index) == 12
    assert encoded == []


def test_a_damaged_or_foreign_file_of_known_codes_is_not_used(run: Path, data: Path) -> None:
    explain(run, data, only=["discreteness"])
    coder = Coder(run)
    path = run / PLACE
    content, tensors = path.read_bytes(), load_file(path)
    assert read_known(run, coder.key, coder.units) is not None
    assert read_known(run, "another", coder.units) is None
    assert read_known(run, coder.key, (*coder.units, 4)) is None
    assert read_known(run, coder.key, tuple(unit - 3 for unit in coder.units)) is None
    assert read_known(run / "nowhere", coder.key, coder.units) is None
    path.write_bytes(content[:-5])
    assert read_known(run, coder.key, coder.units) is None
    save_file({**tensors, "hashes": tensors["hashes"][:-1]}, path, {"encoder": coder.key})
    assert read_known(run, coder.key, coder.units) is None
    del tensors["levels"]
    save_file(tensors, path, {"encoder": coder.key})
    assert read_known(run, coder.key, coder.units) is None


def test_images_are_told_apart_by_the_whole_hash_and_by_size() -> None:
    hashes = np.zeros((3, 12), dtype=np.uint8)
    hashes[1, 11], hashes[2, 0] = 1, 1
    sizes, codes = np.array([5, 6, 7], dtype=np.uint32), np.zeros((3, 2), dtype=np.uint8)
    known = KnownCodes(hashes, sizes, codes, codes)
    for row in range(3):
        assert known.row(ContentKey(hashes[row].tobytes(), int(sizes[row]))) == row
    assert known.row(ContentKey(hashes[0].tobytes(), 6)) == -1
    assert known.row(ContentKey(bytes(range(12)), 5)) == -1


def test_a_file_of_codes_takes_them_from_an_index(
    run: Path,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: CommandLine,
) -> None:
    imsvd.write_codes(run, data, tmp_path / "fresh.parquet", embedding=True)
    fresh = pyarrow.parquet.read_table(tmp_path / "fresh.parquet").to_pydict()
    index = Index.build(run, data, tmp_path / "a.index", features=True)
    out = tmp_path / "codes.parquet"
    with monkeypatch.context() as patch:
        patch.setattr("imsvd.codes.extract_features", lambda *_, **__: pytest.fail("encoded again"))
        options = ["--embedding", "--index", str(index.path)]
        assert command(["codes", str(run), str(data), "--out", str(out), *options]) == 0
    found = pyarrow.parquet.read_table(out).to_pydict()
    assert found["path"] == fresh["path"]
    assert found["codes"] == fresh["codes"]
    np.testing.assert_allclose(found["confidence"], fresh["confidence"], atol=0.026)
    np.testing.assert_allclose(found["embedding"], fresh["embedding"], rtol=2e-3, atol=1e-4)


def test_a_file_of_codes_encodes_what_the_index_does_not_hold(
    run: Path, data: Path, tmp_path: Path
) -> None:
    index = Index.build(run, data, tmp_path / "a.index")
    path = change(data, 4)
    source: Any = open_source(data)
    source.path(7).write_bytes(b"no image")
    out = tmp_path / "codes.parquet"
    assert imsvd.write_codes(run, data, out, index=index.path) == (IMAGES - 1, 1)
    found = pyarrow.parquet.read_table(out).to_pydict()
    imsvd.write_codes(run, data, out)
    fresh = pyarrow.parquet.read_table(out).to_pydict()
    assert found["path"] == fresh["path"]
    assert found["codes"] == fresh["codes"]
    changed = [name.endswith(path.name) for name in found["path"]].index(True)
    assert found["confidence"][changed] == pytest.approx(fresh["confidence"][changed], abs=1e-6)


def test_an_index_of_another_encoder_or_without_features_is_refused(
    run: Path, data: Path, tmp_path: Path
) -> None:
    index = Index.build(run, data, tmp_path / "a.index")
    with pytest.raises(InputError, match="keeps no features"):
        imsvd.write_codes(run, data, tmp_path / "c.parquet", index=index.path, embedding=True)
    weights = load_file(run / "encoder.safetensors")
    name = next(iter(sorted(weights)))
    save_file({**weights, name: weights[name] + 1}, run / "encoder.safetensors", {"epoch": "1"})
    other = imsvd.load(run)
    assert encoder_key(other.description, other.state_dict()) != index.manifest.encoder
    with pytest.raises(InputError, match="another encoder"):
        imsvd.write_codes(run, data, tmp_path / "c.parquet", index=index.path)
    assert not (tmp_path / "c.parquet").exists()
