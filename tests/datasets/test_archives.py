import io
import os
import struct
import tarfile
import zipfile
from pathlib import Path

import pytest

from imsvd.datasets import archives
from imsvd.datasets.archives import scan_tars
from imsvd.datasets.decoding import MAX_FILE_BYTES, UnreadableImage
from imsvd.datasets.opening import open_source
from imsvd.datasets.sources import ImageSource
from imsvd.errors import InputError
from tests.datasets.containers import pictures, write_tar, write_zip


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 0xFF
    path.write_bytes(data)


def test_hidden_foreign_and_outward_names(tmp_path: Path) -> None:
    names = ("a.png", "__MACOSX/a.png", ".x/b.png", "../../c.png", "/d.png", "win\\e.png", "f.txt")
    source = open_source(write_zip(tmp_path / "a.zip", pictures(*names)))
    assert [source.identity(i) for i in range(len(source))] == [
        "a.png",
        "c.png",
        "d.png",
        "win/e.png",
    ]
    assert not (tmp_path.parent / "c.png").exists()


def test_of_members_with_one_name_the_last_counts(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    first, second = pictures("1.png", "2.png").values()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.png", first)
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("a.png", second)
    source = open_source(path)
    assert len(source) == 1
    assert source.encoded(0) == second  # type: ignore[attr-defined]


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_flipped_byte_is_a_bad_image(tmp_path: Path, method: int) -> None:
    path = write_zip(tmp_path / "a.zip", pictures("a.png", "b.png"), method)
    flip(path, 300)
    source = open_source(path)
    with pytest.raises(UnreadableImage, match=r"a\.png: damaged in the archive"):
        source.read(0)
    assert source.read(1).shape == (3, 40, 48)


def test_a_damaged_local_header_is_a_bad_image(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "a.zip", pictures("a.png", "b.png"))
    flip(path, 0)
    with pytest.raises(UnreadableImage, match="damaged in the archive"):
        open_source(path).read(0)


def declare_size(path: Path, size: int) -> None:
    """Write another size into the table of contents of an archive with one member."""
    data = bytearray(path.read_bytes())
    entry = data.index(b"PK\1\2")
    data[entry + 24 : entry + 28] = struct.pack("<I", size)
    path.write_bytes(data)


def test_a_bomb_is_a_bad_image_and_is_not_unpacked(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "a.zip", {"a.png": bytes(10_000)})
    declare_size(path, MAX_FILE_BYTES + 1)
    with pytest.raises(UnreadableImage, match="more than 256 MiB"):
        open_source(path).read(0)
    declare_size(path, 10)  # more inside than is declared
    with pytest.raises(UnreadableImage, match="damaged in the archive"):
        open_source(path).read(0)


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_a_cut_archive_gets_a_sentence(tmp_path: Path, share: float) -> None:
    path = write_zip(tmp_path / "a.zip", pictures("a.png", "b.png"))
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(InputError, match=r"a\.zip is truncated or not a zip .* download it again"):
        open_source(path)


def test_an_encrypted_archive_gets_a_sentence(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "a.zip", pictures("a.png"))
    data = bytearray(path.read_bytes())
    data[data.index(b"PK\1\2") + 8] |= 1
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"a\.zip is encrypted; unpack it"):
        open_source(path)


def test_another_compression_gets_a_sentence(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "a.zip", pictures("a.png"), zipfile.ZIP_BZIP2)
    with pytest.raises(InputError, match=r"compression method 12, .* pack it with plain zip"):
        open_source(path)


def test_an_archive_without_images_gets_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"a\.zip holds no images"):
        open_source(write_zip(tmp_path / "a.zip", {"readme.txt": b"x"}))


def test_an_archive_that_vanishes_makes_bad_images(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "a.zip", pictures("a.png"))
    source = open_source(path)
    path.unlink()
    with pytest.raises(UnreadableImage):
        source.read(0)


def test_a_member_without_a_name_is_passed_over(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "a.zip", pictures("a.png", "b.png"))
    path.write_bytes(path.read_bytes().replace(b"b.png", b"\0.png"))
    assert len(open_source(path)) == 1


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
    with pytest.raises(InputError, match=r"not beside b\.jpg; add the missing labels"):
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


@pytest.mark.parametrize(
    ("name", "mode"), [("a.tar.gz", "w:gz"), ("a.tgz", "w:gz"), ("a.tar", "w:xz")]
)
def test_compressed_archives_are_refused_with_the_reason(
    tmp_path: Path, name: str, mode: str
) -> None:
    path = write_tar(tmp_path / name, pictures("a.png"), mode)
    with pytest.raises(InputError, match=r"compressed as a whole.*everything before it; unpack"):
        open_source(path)


@pytest.mark.parametrize("share", [0.0001, 0.3, 0.6])
def test_a_cut_tar_gets_a_sentence(tmp_path: Path, share: float) -> None:
    path = write_tar(tmp_path / "a.tar", pictures("a.png", "b.png", "c.png"))
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(InputError, match=r"a\.tar is truncated, damaged or not a tar .* again"):
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


@pytest.fixture
def scanned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small tar archive whose scan is cached nonetheless."""
    monkeypatch.setattr(archives, "MIN_CACHED", 1)
    files = pictures("a.png", "b.png")
    return write_tar(tmp_path / "x.tar", {**files, "a.cls": b"1", "b.cls": b"0"})


def test_a_tar_is_scanned_again_only_when_it_changes(
    scanned: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = scan_tars([scanned])
    with monkeypatch.context() as scope:
        scope.setattr(archives, "_scan_tar", None)  # would fail if it were called
        again = scan_tars([scanned])
    assert (again.names, again.labels) == (first.names, first.labels)
    assert (first.names, first.labels) == (["a.png", "b.png"], ["1", "0"])
    assert again.table.tolist() == first.table.tolist()
    write_tar(scanned, pictures("c.png"))
    assert scan_tars([scanned]).names == ["c.png"]


def test_names_no_text_can_hold_survive_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "MIN_CACHED", 1)
    (data,) = pictures("a.png").values()
    path = write_tar(tmp_path / "x.tar", {os.fsdecode(b"\xff.png"): data})
    assert scan_tars([path]).names == scan_tars([path]).names == [os.fsdecode(b"\xff.png")]


@pytest.mark.parametrize("damage", [b"", b"not an archive", None])
def test_a_damaged_cache_is_replaced(scanned: Path, own_cache: Path, damage: bytes | None) -> None:
    first = scan_tars([scanned])
    (path,) = (own_cache / "index").iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] if damage is None else damage)
    assert scan_tars([scanned]).names == first.names
    assert path.read_bytes() == whole


def test_flipped_bytes_in_the_cache_never_crash(scanned: Path, own_cache: Path) -> None:
    first = scan_tars([scanned])
    (path,) = (own_cache / "index").iterdir()
    whole = path.read_bytes()
    for place in range(0, len(whole), 29):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        again = scan_tars([scanned])
        assert (again.names, again.labels) == (first.names, first.labels)
        assert again.table.tolist() == first.table.tolist()


def test_a_cache_that_cannot_be_written_does_no_harm(
    scanned: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("IMSVD_DATA", str(tmp_path / "file"))
    assert scan_tars([scanned]).names == scan_tars([scanned]).names == ["a.png", "b.png"]


def test_short_scans_are_not_cached(tmp_path: Path, own_cache: Path) -> None:
    scan_tars([write_tar(tmp_path / "x.tar", pictures("a.png"))])
    assert not (own_cache / "index").exists()
