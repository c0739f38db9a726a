import contextlib
import io
import threading
import tracemalloc
import warnings
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from imsvd.datasets.decoding import (
    NotPlainError,
    UnreadableImage,
    _quiet_pillow,
    decode_image,
    decode_rows,
    read_header,
    read_image_size,
)
from tests.datasets.malformed import MALFORMED, encoded, patched, picture, png

CORNERS = ((255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 0))


def as_tensor(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def corners(width: int = 24, height: int = 16) -> Image.Image:
    """Red, green / blue, yellow quarters."""
    image = Image.new("RGB", (width, height))
    for number, color in enumerate(CORNERS):
        box = (width // 2 * (number % 2), height // 2 * (number // 2))
        image.paste(color, (*box, box[0] + width // 2, box[1] + height // 2))
    return image


@pytest.mark.parametrize("file_format", ["PNG", "BMP", "TIFF", "WEBP"])
def test_lossless_formats_give_the_exact_pixels(file_format: str) -> None:
    options = {"lossless": True} if file_format == "WEBP" else {}
    decoded = decode_image(encoded(picture(), file_format, **options), "x")
    assert decoded.dtype == torch.uint8
    assert decoded.is_contiguous()
    assert torch.equal(decoded, as_tensor(picture()))


def test_jpeg_is_close_to_the_original() -> None:
    decoded = decode_image(encoded(corners(), "JPEG", quality=95, subsampling=0), "x")
    assert (decoded.int() - as_tensor(corners()).int()).abs().float().mean() < 4


def test_a_path_gives_the_same_as_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    picture().save(path)
    assert torch.equal(decode_image(path, "a"), decode_image(path.read_bytes(), "a"))


@pytest.mark.parametrize("mode", ["L", "1"])
def test_gray_and_one_bit_have_three_equal_channels(mode: str) -> None:
    image = corners().convert("L").convert(mode)
    expected = np.array(image.convert("L"))
    decoded = decode_image(encoded(image, "PNG"), "x").numpy()
    assert all((channel == expected).all() for channel in decoded)


def test_palette_gives_its_colors() -> None:
    image = corners().convert("P", palette=Image.Palette.ADAPTIVE)
    assert image.mode == "P"
    assert torch.equal(decode_image(encoded(image, "PNG"), "x"), as_tensor(corners()))


def test_a_transparent_palette_entry_is_white() -> None:
    image = corners().convert("P", palette=Image.Palette.ADAPTIVE)
    red = image.getpixel((0, 0))
    decoded = decode_image(encoded(image, "PNG", transparency=red), "x")
    assert decoded[:, 0, 0].tolist() == [255, 255, 255]
    assert decoded[:, 0, -1].tolist() == [0, 255, 0]


def test_palette_with_an_alpha_per_entry_is_blended() -> None:
    image = corners().convert("P", palette=Image.Palette.ADAPTIVE)
    decoded = decode_image(encoded(image, "PNG", transparency=bytes([128] * 4)), "x")
    blended = [round(value * 128 / 255 + 127) for value in (255, 0, 0)]
    assert (decoded[:, 0, 0].int() - torch.tensor(blended)).abs().max() <= 1


def test_a_transparent_color_of_rgb_is_white() -> None:
    decoded = decode_image(encoded(corners(), "PNG", transparency=(0, 0, 255)), "x")
    assert decoded[:, -1, 0].tolist() == [255, 255, 255]
    assert decoded[:, 0, 0].tolist() == [255, 0, 0]


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
@pytest.mark.parametrize(("alpha", "expected"), [(0, 255), (255, 0), (128, 127)])
def test_alpha_is_laid_on_white(mode: str, alpha: int, expected: int) -> None:
    black = (0,) * (len(mode) - 1)
    image = Image.new(mode, (8, 8), (*black, alpha))
    decoded = decode_image(encoded(image, "PNG"), "x")
    assert decoded.shape == (3, 8, 8)
    assert (decoded.int() == expected).all()


@pytest.mark.parametrize("file_format", ["JPEG", "TIFF"])
def test_cmyk_is_not_inverted(file_format: str) -> None:
    """JPEG holds Adobe's inverted values, TIFF plain ones; both must come out the same."""
    image = Image.new("CMYK", (16, 16), (0, 255, 255, 0))  # red
    decoded = decode_image(encoded(image, file_format), "x")
    assert (decoded[:, 8, 8].int() - torch.tensor([255, 0, 0])).abs().max() <= 4


def test_sixteen_bit_gray_is_scaled_not_clipped() -> None:
    values = np.linspace(0, 65535, 64 * 64).reshape(64, 64).astype(np.uint16)
    decoded = decode_image(encoded(Image.fromarray(values), "PNG"), "x")
    expected = np.rint(values / 257).astype(np.uint8)
    assert (decoded[0].numpy() == expected).all()
    assert torch.equal(decoded[0], decoded[2])


@pytest.mark.parametrize("byte_order", ["<u2", ">u2"])
def test_sixteen_bit_tiff_of_either_byte_order(byte_order: str) -> None:
    values = (np.arange(256).reshape(16, 16) * 257).astype(np.uint16)
    header = encoded(Image.fromarray(values), "TIFF")
    if byte_order == ">u2":
        mode = Image.frombytes("I;16B", (16, 16), values.astype(">u2").tobytes())
        header = encoded(mode, "TIFF")
    assert decode_image(header, "x")[0].flatten().tolist() == list(range(256))


def test_sixteen_bit_color_png() -> None:
    row = b"\0" + b"\xff\xff\x80\x00\x00\x00" * 4
    decoded = decode_image(png(4, 2, zlib.compress(row * 2), bits=16), "x")
    assert decoded[:, 1, 3].tolist() == [255, 128, 0]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.array([[0, 65535]], np.int32), [0, 255]),
        (np.array([[0, 255]], np.int32), [0, 1]),
        (np.array([[-100, 0, 100]], np.int32), [0, 128, 255]),
        (np.array([[0, 2**30]], np.int32), [0, 255]),
        (np.array([[0.0, 0.5, 1.0]], np.float32), [0, 128, 255]),
        (np.array([[0.0, 50.0, 100.0]], np.float32), [0, 128, 255]),
        (np.array([[np.nan, 1.0]], np.float32), [0, 255]),
    ],
)
def test_deep_gray_is_scaled(values: NDArray[np.generic], expected: list[int]) -> None:
    decoded = decode_image(encoded(Image.fromarray(values), "TIFF"), "x")
    assert decoded[0, 0].tolist() == expected


@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_undone(file_format: str, orientation: int) -> None:
    """The stored picture is the upright one, turned as a camera of that orientation stores it."""
    stored = {
        1: lambda image: image,
        2: lambda image: image[:, ::-1],
        3: lambda image: image[::-1, ::-1],
        4: lambda image: image[::-1],
        5: lambda image: image.swapaxes(0, 1),
        6: lambda image: np.rot90(image, 1),
        7: lambda image: image[::-1, ::-1].swapaxes(0, 1),
        8: lambda image: np.rot90(image, -1),
    }[orientation](np.array(corners()))
    exif = Image.Exif()
    exif[0x0112] = orientation
    faithful: dict[str, dict[str, object]] = {
        "WEBP": {"lossless": True},
        "JPEG": {"quality": 95, "subsampling": 0},
    }
    options = faithful.get(file_format, {})
    data = encoded(Image.fromarray(np.ascontiguousarray(stored)), file_format, exif=exif, **options)
    decoded = decode_image(data, "x")
    assert decoded.shape == (3, 16, 24)
    assert (decoded.int() - as_tensor(corners()).int()).abs().max() <= 40
    assert read_image_size(data, "x") == (16, 24)


def test_damaged_exif_does_not_spoil_the_picture() -> None:
    data = encoded(picture(), "PNG", exif=b"Exif\0\0MM\0*\xff\xff\xff\xff")
    assert torch.equal(decode_image(data, "x"), as_tensor(picture()))


@pytest.mark.parametrize("file_format", ["GIF", "WEBP", "TIFF", "PNG"])
def test_the_first_of_several_frames_is_taken(file_format: str) -> None:
    first, second = Image.new("RGB", (16, 16), "red"), Image.new("RGB", (16, 16), "blue")
    options = {"lossless": True} if file_format == "WEBP" else {}
    data = encoded(first, file_format, save_all=True, append_images=[second], **options)
    assert decode_image(data, "x")[:, 8, 8].tolist() == [255, 0, 0]


def test_a_phone_picture_with_a_second_picture_behind_it() -> None:
    first, second = Image.new("RGB", (16, 16), "red"), Image.new("RGB", (16, 16), "blue")
    data = encoded(first, "MPO", save_all=True, append_images=[second])
    assert Image.open(io.BytesIO(data)).format == "MPO"
    difference = decode_image(data, "x")[:, 8, 8].int() - torch.tensor([255, 0, 0])
    assert difference.abs().max() <= 4


def test_at_least_thirty_malformed_cases() -> None:
    assert len(MALFORMED) >= 30


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_images_give_their_reason(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    data, phrase = MALFORMED[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UnreadableImage) as caught:
            decode_image(data, name)
    assert capfd.readouterr() == ("", "")
    assert caught.value.identity == name
    assert phrase in caught.value.reason
    assert len(caught.value.reason) < 60
    assert "\n" not in caught.value.reason


def test_a_folder_a_missing_file_and_a_dangling_link(tmp_path: Path) -> None:
    (tmp_path / "x.jpg").mkdir()
    (tmp_path / "y.jpg").symlink_to(tmp_path / "nowhere")
    for name, reason in [("x.jpg", "folder"), ("z.jpg", "missing"), ("y.jpg", "missing")]:
        with pytest.raises(UnreadableImage, match=reason):
            decode_image(tmp_path / name, name)


def test_a_bomb_is_refused_without_allocating() -> None:
    tracemalloc.start()
    with pytest.raises(UnreadableImage):
        decode_image(MALFORMED["bomb.png"][0], "bomb")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10_000_000


def test_memory_running_out_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(image: Image.Image) -> None:
        raise MemoryError

    monkeypatch.setattr("imsvd.datasets.decoding._to_rgb", exhausted)
    with pytest.raises(UnreadableImage, match="not enough memory"):
        decode_image(encoded(picture(), "PNG"), "x")


def test_no_warning_of_pillow_leaks_for_a_good_but_large_picture(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1500)  # 48 x 40 pixels warn, without an error
    data = encoded(picture(), "PNG")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert decode_image(data, "x").shape == (3, 40, 48)


def test_warnings_stay_silenced_until_the_last_of_several_is_done() -> None:
    before = list(warnings.filters)
    with _quiet_pillow:
        with _quiet_pillow:
            pass
        assert list(warnings.filters) != before
    assert list(warnings.filters) == before


def test_overlapping_threads_leave_the_warning_filters_as_they_were() -> None:
    data = encoded(picture(), "PNG")
    before = list(warnings.filters)
    threads = [
        threading.Thread(target=lambda: [decode_image(data, "x") for _ in range(50)])
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(warnings.filters) == before


@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF"])
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_damage_gives_a_picture_or_a_reason(file_format: str, data: st.DataObject) -> None:
    whole = encoded(picture(), file_format)
    offset = data.draw(st.integers(0, min(len(whole) - 1, 400)))
    damaged = patched(whole, offset, data.draw(st.binary(min_size=1, max_size=4)))
    damaged = damaged[: data.draw(st.integers(0, len(damaged)))]
    with contextlib.suppress(UnreadableImage):
        assert decode_image(damaged, "x").dtype == torch.uint8


@given(st.binary(max_size=200))
@settings(max_examples=100, deadline=None)
def test_arbitrary_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(UnreadableImage):
        decode_image(data, "x")


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
