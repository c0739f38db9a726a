import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from imsvd.datasets import tables as arrow_files
from imsvd.datasets.decoding import UnreadableImage
from imsvd.datasets.opening import open_source
from imsvd.datasets.sources import ImageSource
from imsvd.errors import InputError
from tests.datasets.containers import (
    image_table,
    pictures,
    write_folder,
    write_parquet,
    write_stream,
)

FILES = pictures(*(f"{number}.png" for number in range(7)))
LABELS = [0, 1, 1, 0, 1, 0, 0]


def labels(source: ImageSource) -> list[int] | None:
    return None if source.labels is None else source.labels.tolist()


def described(table: Any, **features: dict[str, object]) -> Any:
    """The table with Hugging Face's description of some columns."""
    text = json.dumps({"info": {"features": features}})
    return table.replace_schema_metadata({"huggingface": text})


@pytest.mark.parametrize("plain", [False, True])
def test_rows_in_groups(tmp_path: Path, plain: bool) -> None:
    path = write_parquet(tmp_path / "a.parquet", image_table(FILES, LABELS, plain))
    source = open_source(path)
    assert labels(source) == LABELS
    assert source.classes == ("0", "1")
    assert source.identity(5) == "a.parquet row 5"
    assert [source.encoded(i) for i in (6, 0, 3, 6)] == [  # type: ignore[attr-defined]
        list(FILES.values())[i] for i in (6, 0, 3, 6)
    ]


def test_several_files_and_their_splits(tmp_path: Path) -> None:
    table = image_table(FILES, LABELS)
    write_parquet(tmp_path / "data" / "train-00000-of-00002.parquet", table)
    write_parquet(tmp_path / "data" / "train-00001-of-00002.parquet", table.slice(0, 2))
    write_parquet(tmp_path / "data" / "test-00000-of-00001.parquet", table.slice(1, 2))
    for data in (tmp_path, f"{tmp_path}/data/*.parquet"):
        source = open_source(data)
        assert labels(source) == LABELS + LABELS[:2]
        assert source.identity(8) == "train-00001-of-00002.parquet row 1"
        assert labels(open_source(data, "test")) == [1, 1]


def test_hugging_face_names_classes_and_columns(tmp_path: Path) -> None:
    table = image_table(FILES, LABELS).rename_columns(["photo", "species"])
    table = described(
        table, photo={"_type": "Image"}, species={"_type": "ClassLabel", "names": ["cat", "dog"]}
    )
    source = open_source(write_parquet(tmp_path / "a.parquet", table))
    assert source.classes == ("cat", "dog")
    assert labels(source) == LABELS


@pytest.mark.parametrize("values", [[-1] * 7, [None] * 7, [[1]] * 7, [0.5] * 7])
def test_what_is_no_class_is_no_label(tmp_path: Path, values: list[Any]) -> None:
    source = open_source(write_parquet(tmp_path / "a.parquet", image_table(FILES, values)))
    assert source.labels is None


def test_a_saved_dataset(tmp_path: Path) -> None:
    for split, rows in (("train", 7), ("test", 2)):
        folder = tmp_path / split
        write_stream(
            folder / "data-00000-of-00001.arrow", image_table(FILES, LABELS).slice(0, rows)
        )
        state = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}
        (folder / "state.json").write_text(json.dumps(state))
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    assert labels(open_source(tmp_path)) == LABELS
    assert labels(open_source(tmp_path, "test")) == LABELS[:2]
    assert open_source(tmp_path / "train").read(6).shape == (3, 40, 48)
    (tmp_path / "train" / "state.json").write_text("{}")
    with pytest.raises(InputError, match=r"state\.json is damaged; save the dataset again"):
        open_source(tmp_path)
    (tmp_path / "dataset_dict.json").write_text("{")
    with pytest.raises(InputError, match=r"dataset_dict\.json is missing or damaged"):
        open_source(tmp_path)


def test_an_arrow_file_as_well_as_a_stream(tmp_path: Path) -> None:
    table = image_table(FILES, LABELS)
    path = str(tmp_path / "a.arrow")
    with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    assert labels(open_source(path)) == LABELS


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_a_cut_table_gets_a_sentence(tmp_path: Path, form: str, share: float) -> None:
    write = write_parquet if form == "parquet" else write_stream
    path = write(tmp_path / f"a.{form}", image_table(FILES))
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(InputError, match=rf"a\.{form} (cannot be read as a table|has no rows)"):
        open_source(path)


def test_flipped_bytes_make_bad_images_or_a_sentence_but_no_crash(tmp_path: Path) -> None:
    for write, name in ((write_parquet, "a.parquet"), (write_stream, "a.arrow")):
        path = write(tmp_path / name, image_table(FILES))
        whole = path.read_bytes()
        for place in range(0, len(whole), len(whole) // 40):
            # A new file each time: the old one may still be mapped into memory.
            path.unlink()
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
            try:
                source = open_source(path)
            except InputError:
                continue
            for index in range(len(source)):
                try:
                    source.read(index)
                except UnreadableImage:
                    continue


def test_wrong_columns_get_a_sentence(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", pa.table({"x": [1], "y": ["a"]}))
    with pytest.raises(InputError, match=r"no image column \(looked for image.*found x, y\)"):
        open_source(path)
    for values in (["a.png"], [[1, 2]], [{"path": "a.png"}]):
        write_parquet(path, pa.table({"image": values}))
        with pytest.raises(
            InputError, match=r"column image of .*a\.parquet holds .* must hold the"
        ):
            open_source(path)
    write_parquet(tmp_path / "b" / "a.parquet", image_table(FILES, LABELS))
    write_parquet(tmp_path / "b" / "b.parquet", image_table(FILES))
    with pytest.raises(InputError, match=r"b\.parquet lacks the column label"):
        open_source(tmp_path / "b")


def test_no_rows_and_no_bytes(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", image_table({}))
    with pytest.raises(InputError, match="has no rows"):
        open_source(path)
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    none, nowhere = {"bytes": None, "path": None}, {"bytes": None, "path": "x.png"}
    cells = pa.array([None, none, nowhere, {"bytes": b"", "path": "x"}], kind)
    source = open_source(write_parquet(path, pa.table({"image": cells})))
    reasons = ("no bytes in the table", "no bytes in the table", "missing file", "empty file")
    for index, reason in enumerate(reasons):
        with pytest.raises(UnreadableImage, match=reason):
            source.read(index)


def test_files_that_are_not_embedded_are_found_by_their_paths(tmp_path: Path) -> None:
    write_folder(tmp_path, {"sub/a.png": FILES["0.png"]})
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    paths = ["sub/a.png", f"{tmp_path}/sub/a.png"]
    cells = pa.array([{"bytes": None, "path": path} for path in paths], kind)
    path = write_parquet(tmp_path / "a.parquet", pa.table({"image": cells}))
    source = open_source(path)
    assert all(source.read(index).shape == (3, 40, 48) for index in range(2))


def test_a_label_beyond_the_named_classes_gets_a_sentence(tmp_path: Path) -> None:
    table = image_table(FILES, [0, 1, 2, 0, 0, 0, 0])
    table = described(table, label={"_type": "ClassLabel", "names": ["cat", "dog"]})
    with pytest.raises(InputError, match="a label 2 but names only 2 classes"):
        open_source(write_parquet(tmp_path / "a.parquet", table))


def test_without_pyarrow_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_parquet(tmp_path / "a.parquet", image_table(FILES))
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"needs pyarrow: pip install 'imsvd\[data\]'"):
        arrow_files.ParquetTable(path)
