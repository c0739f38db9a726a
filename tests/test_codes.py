import json
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
import torch

import imsvd
from imsvd import codes
from imsvd.datasets import open_source
from imsvd.encoder import Encoder
from imsvd.errors import InputError
from imsvd.information import max_probabilities
from tests.datasets.malformed import MALFORMED
from tests.export.networks import encoder
from tests.pretraining.test_pretrain import write_images
from tests.pretraining.tiny import CommandLine


def read(path: Path) -> pyarrow.Table:
    return pyarrow.parquet.read_table(path)


def test_every_image_has_its_code_confidence_and_embedding(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codes, "ROWS_PER_GROUP", 4)
    data, out = write_images(tmp_path / "data", 10), tmp_path / "codes.parquet"
    written = imsvd.write_codes(trained, data, out, embedding=True)
    assert written == (10, 0)
    table = read(out)
    assert table.column_names == ["path", "codes", "confidence", "embedding"]
    source = open_source(data)
    assert table["path"].to_pylist() == [source.identity(index) for index in range(10)]
    network = imsvd.load(trained)
    images = torch.stack([source.read(index) for index in range(10)])
    with torch.no_grad():
        q, features = network.probabilities(images), network.features(images)
    assert table["codes"].to_pylist() == network.codes(images).tolist()
    confidence = max_probabilities(q, network.description.units)
    np.testing.assert_allclose(table["confidence"].to_pylist(), confidence, atol=1e-5)
    np.testing.assert_allclose(table["embedding"].to_pylist(), features, atol=1e-5)
    # Groups bound the memory, of the writer and of a reader.
    groups = pyarrow.parquet.ParquetFile(out).metadata
    assert [groups.row_group(number).num_rows for number in range(3)] == [4, 4, 2]


def test_types_and_metadata(trained: Path, tmp_path: Path) -> None:
    data, out = write_images(tmp_path / "data", 3), tmp_path / "codes.parquet"
    imsvd.write_codes(trained, data, out)
    schema = read(out).schema
    assert str(schema.field("codes").type).startswith("fixed_size_list<element: uint8>[4]")
    assert str(schema.field("confidence").type).startswith("fixed_size_list<element: float>[4]")
    assert json.loads(schema.metadata[b"units"]) == [4, 4, 4, 4]
    assert schema.metadata[b"run"] == str(trained).encode()


def test_many_units_need_wider_codes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = encoder(size=32, stem="stride_1", options={"channels": [8] * 4, "layers": [1] * 4})
    wide = made.description.model_copy(update={"projector": (16, 303), "units": (300, 3)})
    data, out = write_images(tmp_path / "data", 3), tmp_path / "codes.parquet"
    network = Encoder(wide).eval()
    monkeypatch.setattr(codes, "open_encoder", lambda _: network)
    codes.write_codes("wide", data, out)
    table = read(out)
    assert "uint16" in str(table.schema.field("codes").type)
    source = open_source(data)
    images = torch.stack([source.read(index) for index in range(3)])
    assert table["codes"].to_pylist() == network.codes(images).tolist()


def test_all_has_both_splits_and_says_which(
    command: CommandLine, trained: Path, tmp_path: Path
) -> None:
    data, out = tmp_path / "data", tmp_path / "codes.parquet"
    write_images(data / "train", 5)
    write_images(data / "test", 3)
    assert command(["codes", str(trained), str(data), "--out", str(out), "--split", "all"]) == 0
    assert "Codes of 8 images" in command.out
    assert read(out)["split"].to_pylist() == ["train"] * 5 + ["test"] * 3
    assert command(["codes", str(trained), str(data), "--out", str(out), "--split", "test"]) == 0
    assert read(out).column_names == ["path", "codes", "confidence"]
    assert read(out).num_rows == 3


def test_unreadable_images_have_no_row(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codes, "ROWS_PER_GROUP", 2)
    data, out = write_images(tmp_path / "data", 5), tmp_path / "codes.parquet"
    for name in ("0000", "0001", "0004"):  # a whole group, and one of another
        (data / f"{name}.png").write_bytes(MALFORMED["empty.jpg"][0])
    assert imsvd.write_codes(trained, data, out) == (2, 3)
    assert [Path(path).stem for path in read(out)["path"].to_pylist()] == ["0002", "0003"]


def test_refusals_leave_no_file(command: CommandLine, trained: Path, tmp_path: Path) -> None:
    data, out = write_images(tmp_path / "data", 2), tmp_path / "out" / "codes.parquet"
    base = ["codes", str(trained), str(data), "--out", str(out)]
    command.refuses([*base, "--split", "val"], "choose train, test, all")
    command.refuses([*base, "--split", "all"], "has no test images")
    command.refuses(
        ["codes", "timm:resnet18:random", str(data), "--out", str(out)], "no discrete variables"
    )
    for path in data.iterdir():
        path.write_bytes(b"")
    command.refuses(base, "none of the 2 images")
    assert not out.parent.exists() or list(out.parent.iterdir()) == []


def test_the_extra_is_named(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"imsvd\[data\]"):
        imsvd.write_codes(trained, "shapes:4", tmp_path / "codes.parquet")
