"""Thumbnails and maps show what the encoder sees; uploads are checked before they are decoded."""

import io
import shutil
import struct
import zlib
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
import torch
from PIL import Image
from starlette.testclient import TestClient
from torch import Tensor

from imsvd.datasets import open_source
from imsvd.encoder import load
from imsvd.evaluation.features import center_crop
from imsvd.explanations.grad_cam import grad_cam
from imsvd.explorer import ExplainedRun, create_app, open_run
from imsvd.explorer.explained_run import NotFoundError
from imsvd.explorer.pictures import (
    MAX_FILE_BYTES,
    Thumbnails,
    UploadError,
    Uploads,
    decode_upload,
    encoder_crop,
    unit_map,
)
from tests.explorer.conftest import BASE, Api


def decoded(content: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(content))
    assert image.format == "JPEG"
    image.load()
    return image


@pytest.mark.parametrize("size", [64, 128, 256])
def test_thumbnails_are_encoded_anew(client: TestClient, photographs: Path, size: int) -> None:
    original = photographs / "left" / "2.jpg"
    assert b"secret place" in original.read_bytes()
    answer = client.get(f"/api/runs/1/images/1/thumbnail?size={size}")
    assert answer.headers["content-type"] == "image/jpeg"
    picture = decoded(answer.content)
    assert picture.size == (size, size)
    assert answer.content != original.read_bytes()
    assert b"secret" not in answer.content
    assert b"Exif" not in answer.content
    assert dict(picture.getexif()) == {}
    # Image 1 is left/2.jpg: left/0.jpg is image 0, and unreadable.
    shown = np.asarray(picture.resize((32, 32)), dtype=float)
    whole = center_crop(open_source(photographs).read(1), 32).permute(1, 2, 0).numpy()
    assert np.abs(shown - whole).mean() < 6


@pytest.mark.parametrize(
    ("height", "width", "size"), [(200, 300, 64), (333, 111, 40), (32, 32, 40), (32, 32, 32)]
)
def test_a_thumbnail_shows_what_the_encoder_sees(height: int, width: int, size: int) -> None:
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    ramp = torch.stack([rows * 255 // height, columns * 255 // width, rows * 0]).to(torch.uint8)
    expected = center_crop(ramp, size).permute(1, 2, 0).numpy().astype(int)
    found = np.asarray(encoder_crop(ramp, size, size)).astype(int)
    assert np.abs(found - expected).max() <= 255 / min(height, width) + 4


def test_pictures_are_cached_permanently_only_if_the_address_names_the_explanation(
    client: TestClient, opened: ExplainedRun
) -> None:
    for path in ("/api/runs/0/images/3/thumbnail?size=64", "/api/runs/0/images/3/map/0/1?size=128"):
        plain = client.get(path)
        assert plain.headers["cache-control"] == "no-cache"
        assert opened.key in plain.headers["etag"]
        named = client.get(f"{path}&v={opened.key}")
        assert "immutable" in named.headers["cache-control"]
        assert client.get(f"{path}&v=another").headers["cache-control"] == "no-cache"
        known = client.get(path, headers={"If-None-Match": plain.headers["etag"]})
        assert (known.status_code, known.content) == (304, b"")


def test_saved_thumbnails_of_photographs_stay_within_the_limit(
    explained_photographs: Path, tmp_path: Path
) -> None:
    path = Path(shutil.copytree(explained_photographs, tmp_path / "run"))
    run = open_run(path)
    folder = path / "explanations" / "thumbnails"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "an-old-key").mkdir(parents=True)
    first = Thumbnails(run).jpeg(1, 256)
    kept = list(folder.rglob("*.jpg"))
    assert [file.read_bytes() for file in kept] == [first]
    assert not (folder / "an-old-key").exists()
    kept[0].write_bytes(b"from the disk")
    assert Thumbnails(run).jpeg(1, 256) == b"from the disk"
    bounded = Thumbnails(run, max_bytes=4 * len(first))
    for size in (64, 128, 256):
        for image in (1, 2, 3, 4, 5):
            assert bounded.jpeg(image, size)
    assert sum(file.stat().st_size for file in folder.rglob("*.jpg")) <= 4 * len(first)


def test_thumbnails_work_when_nothing_can_be_saved(
    explained_photographs: Path, tmp_path: Path
) -> None:
    path = Path(shutil.copytree(explained_photographs, tmp_path / "run"))
    shutil.rmtree(path / "explanations" / "thumbnails", ignore_errors=True)
    (path / "explanations" / "thumbnails").write_text("in the way")
    made = Thumbnails(open_run(path))
    assert made.jpeg(1, 64) == made.jpeg(1, 64)


def test_thumbnails_of_small_images_leave_no_files(client: TestClient, explained: Path) -> None:
    assert client.get("/api/runs/0/images/5/thumbnail").status_code == 200
    assert not (explained / "explanations" / "thumbnails").exists()


def test_a_deleted_image_is_reported_in_a_sentence(
    explained_photographs: Path, tmp_path: Path
) -> None:
    run = open_run(explained_photographs)
    shutil.rmtree(explained_photographs / "explanations" / "thumbnails", ignore_errors=True)
    file = explained_photographs.parent / "data" / "right" / "5.jpg"
    hidden = file.rename(tmp_path / "5.jpg")
    try:
        client = TestClient(create_app([run]), base_url=BASE)
        answer = client.get("/api/runs/0/images/5/thumbnail")
        assert answer.status_code == 404
        assert "missing file" in answer.json()["error"]
    finally:
        hidden.rename(file)


def whole_map(run: Path, picture: Tensor, place: int) -> Tensor:
    encoder = load(run)
    return grad_cam(encoder, encoder.normalize(picture[None]), torch.tensor([place]))[0]


@pytest.mark.parametrize(("image", "variable", "unit"), [(0, 0, 0), (17, 2, 3), (99, 3, 1)])
def test_maps_are_drawn_from_grad_cam(
    client: TestClient, explained: Path, opened: ExplainedRun, image: int, variable: int, unit: int
) -> None:
    picture = opened.source.read(image)
    place = 4 * variable + unit
    expected = whole_map(explained, picture, place)
    found = unit_map(load(explained), picture, place)
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-6)
    answer = client.get(f"/api/runs/0/images/{image}/map/{variable}/{unit}?size=256")
    shown = np.asarray(decoded(answer.content), dtype=float)
    assert shown.shape == (256, 256, 3)
    large = Image.fromarray(expected.numpy()).resize((256, 256), Image.Resampling.BILINEAR)
    colors = mpl.colormaps["inferno"](np.asarray(large))[..., :3] * 255
    whole = Image.fromarray(picture.permute(1, 2, 0).numpy())
    gray = np.asarray(whole.resize((256, 256), Image.Resampling.LANCZOS)).mean(2)[..., None]
    assert np.abs(shown - (0.6 * colors + 0.4 * gray)).mean() < 3


def test_maps_of_different_units_differ_and_are_cached(client: TestClient) -> None:
    path = "/api/runs/0/images/11/map"
    first = [client.get(f"{path}/{m}/0?size=128").content for m in range(4)]
    assert len(set(first)) > 1
    assert [client.get(f"{path}/{m}/0?size=128").content for m in range(4)] == first


def test_maps_of_photographs_cover_what_the_encoder_sees(
    client: TestClient, explained_photographs: Path
) -> None:
    run = open_run(explained_photographs)
    answer = client.get("/api/runs/1/images/3/map/1/2?size=128")
    seen = center_crop(run.read(3), run.description.size)
    evidence = whole_map(explained_photographs, seen, 6)
    large = Image.fromarray(evidence.numpy()).resize((128, 128), Image.Resampling.BILINEAR)
    colors = mpl.colormaps["inferno"](np.asarray(large))[..., :3] * 255
    gray = np.asarray(encoder_crop(run.read(3), run.description.size, 128)).mean(2)[..., None]
    shown = np.asarray(decoded(answer.content), dtype=float)
    assert np.abs(shown - (0.6 * colors + 0.4 * gray)).mean() < 3


def png(picture: Image.Image) -> bytes:
    content = io.BytesIO()
    picture.save(content, "PNG")
    return content.getvalue()


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def bomb(width: int, height: int) -> bytes:
    """A PNG of black pixels, a thousand times smaller than its content."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    packer = zlib.compressobj(9)
    row = bytes(1 + 3 * width)
    body = b"".join(packer.compress(row) for _ in range(min(height, 500))) + packer.flush()
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")
    )


def photograph() -> bytes:
    small = np.random.default_rng(3).integers(0, 256, (6, 9, 3)).astype(np.uint8)
    content = io.BytesIO()
    Image.fromarray(small).resize((300, 200)).save(content, "JPEG", quality=95)
    return content.getvalue()


def send(client: TestClient, content: bytes, run: int = 0, length: str | None = None) -> Any:
    headers = {"Content-Type": "image/jpeg"}
    if length is not None:
        headers["Content-Length"] = length
    return client.post(f"/api/runs/{run}/uploads", content=content, headers=headers)


def test_an_explained_image_is_found_again(
    client: TestClient, api: Api, opened: ExplainedRun
) -> None:
    picture = Image.fromarray(opened.source.read(40).permute(1, 2, 0).numpy())
    answer = send(client, png(picture))
    assert answer.status_code == 200
    record = answer.json()
    for found, expected in zip(record["code"], api("runs/0/images/40")["code"], strict=True):
        assert (found["variable"], found["unit"]) == (expected["variable"], expected["unit"])
        assert found["confidence"] == pytest.approx(expected["confidence"], abs=1e-3)
    assert record["neighbors"][0]["score"] == 1
    by_features = api(f"runs/0/uploads/{record['upload']}?by=features&count=3")
    assert by_features["neighbors"][0]["image"] == 40
    assert by_features["neighbors"][0]["score"] == pytest.approx(1, abs=1e-3)
    assert api(f"runs/0/uploads/{record['upload']}") == record
    own = client.get(f"/api/uploads/{record['upload']}/map/0/2/1?size=128")
    expected_map = client.get("/api/runs/0/images/40/map/2/1?size=128")
    assert _difference(own.content, expected_map.content) < 6


def _difference(first: bytes, second: bytes) -> float:
    pixels = [np.asarray(Image.open(io.BytesIO(part)), dtype=float) for part in (first, second)]
    return float(np.abs(pixels[0] - pixels[1]).mean())


def test_an_upload_is_shown_for_every_run(client: TestClient, api: Api) -> None:
    name = send(client, photograph()).json()["upload"]
    for size in (64, 128, 256):
        answer = client.get(f"/api/uploads/{name}/thumbnail?size={size}&run=1")
        assert Image.open(io.BytesIO(answer.content)).size == (size, size)
        assert answer.headers["cache-control"] == "no-store"
    other = api(f"runs/1/uploads/{name}")
    assert sorted(item["image"] for item in other["neighbors"]) == [1, 2, 3, 4, 5]
    api.error(f"runs/2/uploads/{name}", 404)
    api.error(f"uploads/{name}/map/0/9/0", 404)
    assert "upload it again" in api.error(f"runs/0/uploads/{'0' * 32}", 404)


@pytest.mark.parametrize(
    ("content", "status", "words"),
    [
        (bomb(40_000, 40_000), 400, "pixels"),
        (bomb(12_000, 9_000), 413, "12,000 × 9,000 pixels"),
        (bomb(30_000, 3), 400, "strip"),
        (photograph()[:3000], 400, "truncated JPEG"),
        (photograph()[:10], 400, "JPEG"),
        (png(Image.effect_noise((60, 60), 50))[:900], 400, "truncated PNG"),
        (b"", 400, "empty file"),
        (b"#!/bin/sh\nrm -rf /\n", 400, "not an image"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", 400, "not an image"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n(secret) run\n", 400, "not an image"),
        (b"GIF89a" + bytes(40), 400, "GIF"),
    ],
    ids=[
        "bomb",
        "large",
        "strip",
        "truncated",
        "head",
        "png",
        "empty",
        "script",
        "svg",
        "eps",
        "gif",
    ],
)
def test_an_unusable_file_is_rejected_in_a_sentence_and_the_server_survives(
    client: TestClient, content: bytes, status: int, words: str
) -> None:
    answer = send(client, content)
    assert answer.status_code == status, answer.text
    assert words in answer.json()["error"]
    assert "Traceback" not in answer.text
    assert send(client, photograph()).status_code == 200


def test_a_file_that_is_too_large_is_refused_by_its_header_and_while_it_is_read(
    client: TestClient,
) -> None:
    large = bytes(MAX_FILE_BYTES + 1)
    assert send(client, large).status_code == 413
    assert send(client, b"x", length=str(10**15)).status_code == 413
    # Longer than its header claims.
    assert send(client, large, length="10").status_code == 413
    assert send(client, large[:-1]).status_code == 400


def test_content_type_and_length_are_required(client: TestClient) -> None:
    form = client.post("/api/runs/0/uploads", data={"a": "b"})
    assert form.status_code == 415
    json = {"Content-Type": "application/json"}
    assert client.post("/api/runs/0/uploads", content=b"{}", headers=json).status_code == 415
    chunked = client.post(
        "/api/runs/0/uploads", content=iter([photograph()]), headers={"Content-Type": "image/jpeg"}
    )
    assert chunked.status_code == 411
    assert send(client, b"x", length="ten").status_code == 411
    assert send(client, photograph(), run=7).status_code == 404
    octets = {"Content-Type": "application/octet-stream"}
    assert (
        client.post("/api/runs/0/uploads", content=photograph(), headers=octets).status_code == 200
    )


def test_the_oldest_uploads_are_discarded(explained: Path) -> None:
    encoder = load(explained)
    kept = Uploads(max_images=3, max_bytes=10_000_000)
    content = photograph()
    names = [kept.add(content, {}) for _ in range(5)]
    assert len(set(names)) == 5
    for name in names[:2]:
        with pytest.raises(NotFoundError):
            kept.prepared(name, 0, encoder)
    assert kept.prepared(names[4], 0, encoder).picture.shape == (3, 32, 32)
    small = Uploads(max_images=100, max_bytes=2 * len(content))
    names = [small.add(content, {}) for _ in range(3)]
    with pytest.raises(NotFoundError):
        small.prepared(names[0], 0, encoder)
    assert small.prepared(names[1], 0, encoder).square.size == (256, 256)


def test_uploads_are_decoded_like_datasets() -> None:
    red = Image.new("RGBA", (30, 20), (255, 0, 0, 0))
    assert decode_upload(png(red)).float().mean() == 255
    with pytest.raises(UploadError):
        decode_upload(b"\x89PNG")
