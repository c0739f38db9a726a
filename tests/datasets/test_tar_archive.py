import io
import tarfile
from pathlib import Path

import pytest

from imsvd.datasets import random_access
from imsvd.datasets.opening import open_source
from imsvd.datasets.source import ImageSource, UnreadableImage
from imsvd.errors import InputError
from tests.datasets.containers import pictures, write_tar


def labels(source: ImageSource) -> list[int] | None:
    return None if source.labels is None else source.labels.tolist()


def shards(folder: Path, **contents: dict[str, bytes]) -> Path:
    for name, files in contents.items():
        write_tar(folder / f"{name.replace('_', '-')}.tar", files)
    return folder


def test_labels_beside_the_images(tmp_path: Path) -> None:
    files = {**pictures("a.jpg", "b.seg.png"), "a.cls": b"2\n", "b.cls": b"0", "a.txt": b"words"}
    source = open_source(write_tar(tmp_path / "a.tar", files))
    assert labels(source) == [2, 0]
    assert source.classes == ("0", "1", "2")


def test_labels_in_json_and_names_as_labels(tmp_path: Path) -> None:
    files = {**pictures("x/a.jpg", "x/b.jpg"), "x/a.json": b'{"label": "dog"}'}
    files["x/b.json"] = b'{"cls": "cat"}'
    source = open_source(write_tar(tmp_path / "a.tar", files))
    assert labels(source) == [1, 0]
    assert source.classes == ("cat", "dog")


@pytest.mark.parametrize("text", [b'{"caption": "a dog"}', b"not json", b"[1]", b'{"label": [1]}'])
def test_json_without_a_label_is_no_label(tmp_path: Path, text: bytes) -> None:
    source = open_source(write_tar(tmp_path / "a.tar", {**pictures("a.jpg"), "a.json": text}))
    assert labels(source) is None


def test_a_missing_label_gets_a_sentence(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", {**pictures("a.jpg", "b.jpg"), "a.cls": b"0"})
    with pytest.raises(InputError, match=r"not beside b\.jpg; add the missing ones"):
        open_source(path)


def test_shards_from_a_folder_a_glob_and_braces(tmp_path: Path) -> None:
    first = {**pictures("0.jpg", "1.jpg"), "0.cls": b"0", "1.cls": b"1"}
    shards(tmp_path, s_000=first, s_001={**pictures("2.jpg"), "2.cls": b"0"})
    for data in (tmp_path, f"{tmp_path}/*.tar", f"{tmp_path}/s-{{000..001}}.tar"):
        source = open_source(data)
        assert labels(source) == [0, 1, 0]
        assert source.identity(2) == "s-001.tar/2.jpg"
        assert source.read(2).shape == (3, 40, 48)
    with pytest.raises(InputError, match=r"there is no file .*s-002\.tar"):
        open_source(f"{tmp_path}/s-{{000..002}}.tar")
    with pytest.raises(InputError, match="no file matches"):
        open_source(f"{tmp_path}/*.parquet")


def test_splits_by_the_names_of_shards(tmp_path: Path) -> None:
    train = {**pictures("0.jpg", "1.jpg"), "0.cls": b"cat", "1.cls": b"dog"}
    shards(tmp_path, train_0=train, val_0={**pictures("2.jpg"), "2.cls": b"dog"})
    assert labels(open_source(tmp_path)) == [0, 1]
    assert labels(open_source(tmp_path, "test")) == [1]
    shards(tmp_path, val_0={**pictures("2.jpg"), "2.cls": b"eel"})
    with pytest.raises(InputError, match="a class 'eel' that the training images lack"):
        open_source(tmp_path, "test")


def test_splits_by_the_folders_of_shards(tmp_path: Path) -> None:
    shards(tmp_path / "train", a=pictures("0.jpg", "1.jpg"))
    shards(tmp_path / "test", a=pictures("2.jpg"))
    assert (len(open_source(tmp_path)), len(open_source(tmp_path, "test"))) == (2, 1)


def test_many_shards_are_not_kept_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random_access, "_MAX_OPEN", 1)
    source = open_source(shards(tmp_path, a=pictures("0.png"), b=pictures("1.png")))
    assert source.read(0).shape == source.read(1).shape == (3, 40, 48)
    assert not source._files._open  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "mode"), [("a.tar.gz", "w:gz"), ("a.tgz", "w:gz"), ("a.tar", "w:xz")]
)
def test_compressed_archives_are_refused_with_the_reason(
    tmp_path: Path, name: str, mode: str
) -> None:
    path = write_tar(tmp_path / name, pictures("a.png"), mode)
    with pytest.raises(InputError, match=r"compressed as a whole.*without all before it; unpack"):
        open_source(path)


@pytest.mark.parametrize("share", [0.0001, 0.3, 0.6])
def test_a_cut_archive_gets_a_sentence(tmp_path: Path, share: float) -> None:
    path = write_tar(tmp_path / "a.tar", pictures("a.png", "b.png", "c.png"))
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(InputError, match=r"a\.tar is cut off, damaged or no tar .* again"):
        open_source(path)


def test_a_damaged_header_is_not_taken_for_the_end(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", pictures("a.png", "b.png", "c.png"))
    data = bytearray(path.read_bytes())
    data[data.index(b"b.png") + 150] ^= 0xFF  # in the checksum
    path.write_bytes(data)
    with pytest.raises(InputError, match="damaged"):
        open_source(path)


def test_links_in_an_archive(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        (data,) = pictures("a.png").values()
        member = tarfile.TarInfo("a.png")
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
        for name, kind in (("b.png", tarfile.LNKTYPE), ("c.png", tarfile.SYMTYPE)):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = kind, "a.png"
            archive.addfile(link)
    source = open_source(tmp_path / "a.tar")
    assert source.read(1).shape == (3, 40, 48)
    with pytest.raises(UnreadableImage, match=r"c\.png: a link, not a file"):
        source.read(2)


def test_an_archive_cut_while_in_use_makes_bad_images(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", pictures("a.png"))
    source = open_source(path)
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(UnreadableImage, match="cut off with its archive"):
        source.read(0)


def test_long_names(tmp_path: Path) -> None:
    name = "/".join(["a" * 90] * 4) + "/ä.png"
    for number, layout in enumerate((tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)):
        path = tmp_path / f"{number}.tar"
        with tarfile.open(path, "w", format=layout) as archive:
            (data,) = pictures(name).values()
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
        source = open_source(path)
        assert source.identity(0) == name.removeprefix("a" * 90 + "/")
        assert source.read(0).shape == (3, 40, 48)
