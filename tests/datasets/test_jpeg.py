import contextlib
import io

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from imsvd.datasets.decoding import decode_image
from imsvd.datasets.jpeg import NotPlainError, decode_rows, read_header
from tests.datasets.malformed import MALFORMED

pytest.importorskip("simplejpeg")

HEIGHT, WIDTH = 150, 203
ALL_ROWS = 10**6


def noisy() -> npt.NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)


def smooth(height: int = HEIGHT, width: int = WIDTH) -> npt.NDArray[np.uint8]:
    y, x = np.mgrid[:height, :width] / 40
    waves = np.stack((np.sin(y + x), np.cos(x), np.sin(y - 2 * x)), axis=-1)
    return (127.5 + 120 * waves).astype(np.uint8)


def jpeg(values: npt.NDArray[np.uint8], mode: str = "RGB", **options: object) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(values).convert(mode).save(buffer, "JPEG", **options)
    return buffer.getvalue()


def with_orientation(orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return jpeg(noisy(), exif=exif.tobytes())


def general(data: bytes) -> npt.NDArray[np.uint8]:
    return decode_image(data, "it").permute(1, 2, 0).numpy()


PLAIN = {
    "4:4:4": jpeg(noisy(), subsampling=0, quality=95),
    "4:2:2": jpeg(noisy(), subsampling=1),
    "4:2:0": jpeg(noisy(), subsampling=2),
    "gray": jpeg(noisy(), "L"),
    "progressive": jpeg(noisy(), progressive=True),
    "restarts": jpeg(noisy(), restart_marker_rows=1),
    "optimized": jpeg(noisy(), optimize=True, quality=30),
    **{f"turned {orientation}": with_orientation(orientation) for orientation in range(1, 9)},
}


@pytest.mark.parametrize("data", PLAIN.values(), ids=PLAIN)
def test_whole_pictures_are_those_of_the_general_decoder(data: bytes) -> None:
    header = read_header(data)
    expected = general(data)
    assert header.size == expected.shape[:2]
    assert np.array_equal(decode_rows(header, ALL_ROWS), expected)


@pytest.mark.parametrize("data", PLAIN.values(), ids=PLAIN)
@pytest.mark.parametrize("bottom", [1, 15, 16, 33, 100, 149])
def test_the_rows_above_the_bottom_do_not_depend_on_it(bottom: int, data: bytes) -> None:
    rows = decode_rows(read_header(data), bottom)
    assert len(rows) >= bottom
    assert np.array_equal(rows[:bottom], general(data)[:bottom])


def test_rows_below_the_bottom_are_left_out_where_they_can_be() -> None:
    assert len(decode_rows(read_header(PLAIN["4:2:0"]), 10)) == 16
    assert len(decode_rows(read_header(PLAIN["progressive"]), 10)) == HEIGHT


@pytest.mark.parametrize("reduction", [2, 4, 8])
@pytest.mark.parametrize("orientation", [1, 6])
def test_a_reduced_picture_is_the_average_of_its_pixels(reduction: int, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = jpeg(smooth(160, 240), quality=95, subsampling=0, exif=exif.tobytes())
    full = general(data).astype(float)
    height, width = (side // reduction for side in full.shape[:2])
    blocks = full.reshape(height, reduction, width, reduction, 3).mean(axis=(1, 3))
    reduced = decode_rows(read_header(data), ALL_ROWS, reduction)
    assert reduced.shape == (height, width, 3)
    assert np.abs(reduced - blocks).max() <= 5
    assert np.abs(reduced - blocks).mean() <= 0.6


@pytest.mark.parametrize("reduction", [2, 4, 8])
def test_sizes_that_do_not_divide_are_rounded_up(reduction: int) -> None:
    reduced = decode_rows(read_header(PLAIN["4:2:0"]), 100, reduction)
    assert reduced.shape[1] == -(-WIDTH // reduction)
    assert len(reduced) >= 100 / reduction


@pytest.mark.parametrize("name", MALFORMED)
def test_damaged_files_are_left_to_the_general_decoder(name: str) -> None:
    with pytest.raises(NotPlainError):
        decode_rows(read_header(MALFORMED[name][0]), 5)


@pytest.mark.parametrize("kept", [0.3, 0.7, 0.97])
@pytest.mark.parametrize("progressive", [False, True])
def test_a_cut_file_is_noticed_even_above_the_cut(progressive: bool, kept: float) -> None:
    whole = jpeg(noisy(), progressive=progressive)
    with pytest.raises(NotPlainError):
        decode_rows(read_header(whole[: int(kept * len(whole))]), 1)


def test_unusual_pictures_are_left_to_the_general_decoder() -> None:
    cmyk = io.BytesIO()
    Image.fromarray(noisy()).convert("CMYK").save(cmyk, "JPEG")
    png = io.BytesIO()
    Image.fromarray(noisy()).save(png, "PNG")
    for data in (cmyk.getvalue(), png.getvalue(), b"", b"\xff\xd8\xff\xe0\0\0" * 9):
        with pytest.raises(NotPlainError):
            read_header(data)


def test_damaged_exif_does_not_spoil_a_good_picture() -> None:
    data = jpeg(noisy(), exif=b"Exif\0\0II*\0\xff\xff\xff\x7f")
    with contextlib.suppress(NotPlainError):  # the general decoder is then asked
        assert np.array_equal(decode_rows(read_header(data), ALL_ROWS), general(data))


def test_a_file_may_be_cut_anywhere() -> None:
    whole = jpeg(smooth(24, 32))
    for length in range(len(whole)):
        try:
            decode_rows(read_header(whole[:length]), 24)
        except NotPlainError:
            continue


@pytest.mark.parametrize("channels", [0, 2, 255])
def test_impossible_headers_are_left_to_the_general_decoder(channels: int) -> None:
    data = bytearray(jpeg(smooth(24, 32)))
    frame = read_header(bytes(data)).frame
    data[frame + 9] = channels
    with pytest.raises(NotPlainError):
        read_header(bytes(data))
    data[frame + 9] = 3
    for channel in range(3):
        data[frame + 11 + 3 * channel] = 0x10  # no rows of blocks
    with pytest.raises(NotPlainError):
        read_header(bytes(data))
