"""Images that are dropped in: told apart from bombs, wrecks and other files; seen as explained ones."""

import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

from imsvd.encoder import load
from imsvd.explorer import ExplainedRun
from imsvd.explorer.explained_run import AbsentError
from imsvd.explorer.own_images import MAX_FILE_BYTES, OwnImages, UnusableImageError, decode_safely
from tests.explorer.conftest import Ask


def png(picture: Image.Image) -> bytes:
    content = io.BytesIO()
    picture.save(content, "PNG")
    return content.getvalue()


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def bomb(width: int, height: int) -> bytes:
    """A PNG of black pixels, a thousand times smaller than what it holds."""
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
    return client.post(f"/api/runs/{run}/own", content=content, headers=headers)


def test_an_explained_image_is_found_again(
    client: TestClient, ask: Ask, opened: ExplainedRun
) -> None:
    picture = Image.fromarray(opened.source.read(40).permute(1, 2, 0).numpy())
    answer = send(client, png(picture))
    assert answer.status_code == 200
    record = answer.json()
    for found, expected in zip(record["code"], ask("runs/0/images/40")["code"], strict=True):
        assert (found["variable"], found["unit"]) == (expected["variable"], expected["unit"])
        assert found["confidence"] == pytest.approx(expected["confidence"], abs=1e-3)
    assert record["neighbors"][0]["score"] == 1
    by_features = ask(f"runs/0/own/{record['own']}?by=features&count=3")
    assert by_features["neighbors"][0]["image"] == 40
    assert by_features["neighbors"][0]["score"] == pytest.approx(1, abs=1e-3)
    assert ask(f"runs/0/own/{record['own']}") == record
    own = client.get(f"/api/own/{record['own']}/map/0/2/1?size=128")
    expected_map = client.get("/api/runs/0/images/40/map/2/1?size=128")
    assert _difference(own.content, expected_map.content) < 6


def _difference(first: bytes, second: bytes) -> float:
    pixels = [np.asarray(Image.open(io.BytesIO(part)), dtype=float) for part in (first, second)]
    return float(np.abs(pixels[0] - pixels[1]).mean())


def test_an_own_image_is_shown_and_known_to_every_run(client: TestClient, ask: Ask) -> None:
    name = send(client, photograph()).json()["own"]
    for size in (64, 128, 256):
        answer = client.get(f"/api/own/{name}/thumbnail?size={size}&run=1")
        assert Image.open(io.BytesIO(answer.content)).size == (size, size)
        assert answer.headers["cache-control"] == "no-store"
    other = ask(f"runs/1/own/{name}")
    assert sorted(item["image"] for item in other["neighbors"]) == [1, 2, 3, 4, 5]
    ask.error(f"runs/2/own/{name}", 404)
    ask.error(f"own/{name}/map/0/9/0", 404)
    assert "drop it in again" in ask.error(f"runs/0/own/{'0' * 32}", 404)


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
def test_what_is_no_usable_image_is_a_sentence_and_the_server_lives(
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
    # What is longer than it says.
    assert send(client, large, length="10").status_code == 413
    assert send(client, large[:-1]).status_code == 400


def test_kind_and_length_must_be_said(client: TestClient) -> None:
    form = client.post("/api/runs/0/own", data={"a": "b"})
    assert form.status_code == 415
    json = {"Content-Type": "application/json"}
    assert client.post("/api/runs/0/own", content=b"{}", headers=json).status_code == 415
    chunked = client.post(
        "/api/runs/0/own", content=iter([photograph()]), headers={"Content-Type": "image/jpeg"}
    )
    assert chunked.status_code == 411
    assert send(client, b"x", length="ten").status_code == 411
    assert send(client, photograph(), run=7).status_code == 404
    octets = {"Content-Type": "application/octet-stream"}
    assert client.post("/api/runs/0/own", content=photograph(), headers=octets).status_code == 200


def test_the_oldest_images_are_forgotten(explained: Path) -> None:
    encoder = load(explained)
    own = OwnImages(most_images=3, most_bytes=10_000_000)
    content = photograph()
    names = [own.add(content, {}) for _ in range(5)]
    assert len(set(names)) == 5
    for name in names[:2]:
        with pytest.raises(AbsentError):
            own.prepared(name, 0, encoder)
    assert own.prepared(names[4], 0, encoder).picture.shape == (3, 32, 32)
    small = OwnImages(most_images=100, most_bytes=2 * len(content))
    names = [small.add(content, {}) for _ in range(3)]
    with pytest.raises(AbsentError):
        small.prepared(names[0], 0, encoder)
    assert small.prepared(names[1], 0, encoder).square.size == (256, 256)


def test_transparency_and_rotation_are_those_of_the_safe_reader() -> None:
    red = Image.new("RGBA", (30, 20), (255, 0, 0, 0))
    assert decode_safely(png(red)).float().mean() == 255
    with pytest.raises(UnusableImageError):
        decode_safely(b"\x89PNG")
