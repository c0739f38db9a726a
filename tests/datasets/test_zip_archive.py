import struct
import zipfile
from pathlib import Path

import pytest

from imsvd.datasets.encoded import MAX_FILE_BYTES
from imsvd.datasets.opening import open_source
from imsvd.datasets.source import UnreadableImage
from imsvd.errors import InputError
from tests.datasets.containers import pictures, write_zip


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
    with pytest.raises(InputError, match=r"a\.zip is cut off or no zip .* download it again"):
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
    with pytest.raises(InputError, match=r"another method than deflate .* pack it with plain zip"):
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
