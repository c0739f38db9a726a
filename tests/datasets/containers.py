"""The same image files in every form that can be opened."""

import io
import tarfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.datasets.malformed import encoded, picture

Files = Mapping[str, bytes]


def pictures(*names: str, file_format: str = "PNG") -> dict[str, bytes]:
    """A distinct picture under every name."""
    return {name: encoded(picture(seed=seed), file_format) for seed, name in enumerate(names)}


def write_folder(folder: Path, files: Files) -> Path:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def write_zip(path: Path, files: Files, method: int = zipfile.ZIP_DEFLATED) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def write_tar(path: Path, files: Files, mode: str = "w") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def image_table(files: Files, labels: Sequence[Any] | None = None, plain: bool = False) -> Any:
    """A table as Hugging Face writes it, or with `plain` bytes in the column."""
    cells = [data if plain else {"bytes": data, "path": name} for name, data in files.items()]
    kind = pa.binary() if plain else pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    columns = {"image": pa.array(cells, kind)}
    if labels is not None:
        columns["label"] = pa.array(labels)
    return pa.table(columns)


def write_parquet(path: Path, table: Any, group: int = 3) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=group)
    return path


def write_stream(path: Path, table: Any, group: int = 3) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=group)
    return path


def write_list(path: Path, files: Files) -> Path:
    write_folder(path.parent, files)
    path.write_text("".join(f"{name}\n" for name in files))
    return path


# Each takes a folder to write into and files in the order of a folder; returns what to open.
WRITERS: dict[str, Callable[[Path, Files], Path]] = {
    "folder": lambda place, files: write_folder(place / "images", files),
    "zip": lambda place, files: write_zip(place / "a.zip", files),
    "stored zip": lambda place, files: write_zip(place / "a.zip", files, zipfile.ZIP_STORED),
    "tar": lambda place, files: write_tar(place / "a.tar", files),
    "parquet": lambda place, files: write_parquet(place / "a.parquet", image_table(files)),
    "arrow": lambda place, files: write_stream(place / "a.arrow", image_table(files)),
    "list": lambda place, files: write_list(place / "a.txt", files),
}
