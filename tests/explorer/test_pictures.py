"""Thumbnails and maps: encoded anew, cached, and true to what the encoder sees."""

import io
import shutil
from pathlib import Path

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
from imsvd.explorer.pictures import seen_square
from imsvd.explorer.seeing import unit_map
from imsvd.explorer.thumbnails import Thumbnails
from tests.explorer.conftest import BASE


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
    found = np.asarray(seen_square(ramp, size, size)).astype(int)
    assert np.abs(found - expected).max() <= 255 / min(height, width) + 4


def test_pictures_are_cached_for_good_only_where_the_address_names_the_explanation(
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


def test_thumbnails_of_photographs_are_kept_within_bounds(
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


def test_thumbnails_are_made_where_nothing_can_be_kept(
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


def test_an_image_that_was_deleted_since_is_a_sentence(
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
def test_maps_are_those_of_grad_cam(
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


def test_maps_of_different_units_differ_and_are_remembered(client: TestClient) -> None:
    path = "/api/runs/0/images/11/map"
    first = [client.get(f"{path}/{m}/0?size=128").content for m in range(4)]
    assert len(set(first)) > 1
    assert [client.get(f"{path}/{m}/0?size=128").content for m in range(4)] == first


def test_maps_of_photographs_lie_on_what_is_seen(
    client: TestClient, explained_photographs: Path
) -> None:
    run = open_run(explained_photographs)
    answer = client.get("/api/runs/1/images/3/map/1/2?size=128")
    seen = center_crop(run.read(3), run.description.size)
    evidence = whole_map(explained_photographs, seen, 6)
    large = Image.fromarray(evidence.numpy()).resize((128, 128), Image.Resampling.BILINEAR)
    colors = mpl.colormaps["inferno"](np.asarray(large))[..., :3] * 255
    gray = np.asarray(seen_square(run.read(3), run.description.size, 128)).mean(2)[..., None]
    shown = np.asarray(decoded(answer.content), dtype=float)
    assert np.abs(shown - (0.6 * colors + 0.4 * gray)).mean() < 3
