"""`imsvd bench views`: two views of an image, by our pipeline and by its alternatives.

All pipelines are built from the same `ViewsSettings`, hence have the same distribution of
augmentations, and are used as their documentation recommends; each decodes an image once for all
its views. A batch is a list of JPEG files ("photographs") or uint8 (n, height, width, 3) in memory
("small"). Each measurement runs on one thread and counts processor time, so that other programs on
the machine have little influence.
"""

import io
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageFilter
from rich.console import Console
from torch import Tensor
from torchvision import transforms
from torchvision.io import ImageReadMode, decode_jpeg
from torchvision.transforms import v2

from imsvd.bench.comparison import Benchmark, Case, Column, Contender, Numbers, Ratio, Row
from imsvd.datasets import EncodedSource, ImageFolderSource
from imsvd.errors import InputError
from imsvd.views import (
    ViewSettings,
    ViewsSettings,
    batch_views,
    cifar_views,
    normalize,
    paper_views,
    read_batch,
)
from imsvd.views.settings import blur_kernel_size

TITLES = {
    "photographs": "JPEG files to two 224-pixel views",
    "small": "32-pixel images in memory to two views",
}
MAX_IMAGES = {"photographs": 500, "small": 4096}
_BATCH = {"photographs": 32, "small": 256}

Task = Literal["photographs", "small"]
Files = Sequence[bytes]
Pixels = npt.NDArray[np.uint8]
Items = Files | Pixels
Pipeline = Callable[[Any], list[Tensor]]
"""Turns a batch of images into one (n, 3, size, size) float32 tensor per view."""
Build = Callable[[ViewsSettings, Task], Pipeline]


class _InMemory(EncodedSource):
    """Files that are already in memory."""

    def __init__(self, files: Files) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def encoded(self, index: int) -> bytes:
        return self.files[index]

    def identity(self, index: int) -> str:
        return str(index)

    def fingerprint(self) -> str:
        return ""


def _one_by_one(
    read: Callable[[Any], Any], make_view: Callable[[ViewSettings], Callable[[Any], Any]]
) -> Build:
    """Return a pipeline that makes views image by image and stacks them, as a loader does."""

    def build(settings: ViewsSettings, _task: Task) -> Pipeline:
        views = [make_view(view) for view in settings.views]

        def run(items: Items) -> list[Tensor]:
            samples = [[view(image) for view in views] for image in map(read, items)]
            return [torch.stack(view) for view in zip(*samples, strict=True)]

        return run

    return build


def _ours(settings: ViewsSettings, task: Task) -> Pipeline:
    def photographs(files: Files) -> list[Tensor]:
        batch = read_batch(_InMemory(files), settings, 0, 0, range(len(files)))
        pairs = zip(batch.views, settings.every, strict=True)
        return [normalize(levels, view) for levels, view in pairs]

    def small(images: Pixels) -> list[Tensor]:
        batch = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()
        return batch_views(batch, settings, seed=0, epoch=0, indices=np.arange(len(images)))

    return photographs if task == "photographs" else small


def _read_pil(item: bytes | Pixels) -> Image.Image:
    if isinstance(item, bytes):
        return Image.open(io.BytesIO(item)).convert("RGB")
    return Image.fromarray(item)


def _pil_blur(view: ViewSettings) -> Callable[[Image.Image], Image.Image]:
    """Blur as the authors' code of VICReg and IMSVD does; faster than torchvision on PIL images."""

    def blur(image: Image.Image) -> Image.Image:
        radius = float(torch.empty(1).uniform_(*view.blur_sigma))
        return image.filter(ImageFilter.GaussianBlur(radius))

    return blur


def _pil_view(view: ViewSettings) -> Callable[[Any], Any]:
    colors = (view.brightness, view.contrast, view.saturation, view.hue)
    steps = [
        transforms.RandomResizedCrop(view.size, view.crop_scale, view.crop_ratio),
        transforms.RandomHorizontalFlip(view.flip_probability),
        transforms.RandomApply([transforms.ColorJitter(*colors)], view.jitter_probability),
        transforms.RandomGrayscale(view.gray_probability),
        transforms.RandomApply([transforms.Lambda(_pil_blur(view))], view.blur_probability),
        transforms.RandomSolarize(128, view.solarize_probability),
        transforms.ToTensor(),
        transforms.Normalize(view.mean, view.std),
    ]
    return transforms.Compose(steps)  # type: ignore[no-any-return]


def _read_tensor(item: bytes | Pixels) -> Tensor:
    if isinstance(item, bytes):
        data = torch.frombuffer(bytearray(item), dtype=torch.uint8)
        return decode_jpeg(data, mode=ImageReadMode.RGB)  # type: ignore[no-any-return]
    return torch.from_numpy(item).permute(2, 0, 1)


def _v2_view(view: ViewSettings) -> Callable[[Any], Any]:
    colors = (view.brightness, view.contrast, view.saturation, view.hue)
    blur = v2.GaussianBlur(blur_kernel_size(view.size), view.blur_sigma)
    steps = [
        v2.RandomResizedCrop(view.size, view.crop_scale, view.crop_ratio, antialias=True),
        v2.RandomHorizontalFlip(view.flip_probability),
        v2.RandomApply([v2.ColorJitter(*colors)], view.jitter_probability),
        v2.RandomGrayscale(view.gray_probability),
        v2.RandomApply([blur], view.blur_probability),
        v2.RandomSolarize(128, view.solarize_probability),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(view.mean, view.std),
    ]
    return v2.Compose(steps)  # type: ignore[no-any-return]


def lightly_view(view: ViewSettings) -> Callable[[Any], Any]:
    """Return lightly's transform from a PIL image to a normalized tensor."""
    from lightly.transforms import byol_transform  # noqa: PLC0415 - an optional package

    made: Callable[[Any], Any] = byol_transform.BYOLView1Transform(
        input_size=view.size,
        min_scale=view.crop_scale[0],
        hf_prob=view.flip_probability,
        cj_prob=view.jitter_probability,
        cj_bright=view.brightness,
        cj_contrast=view.contrast,
        cj_sat=view.saturation,
        cj_hue=view.hue,
        random_gray_scale=view.gray_probability,
        gaussian_blur=view.blur_probability,
        sigmas=view.blur_sigma,
        solarization_prob=view.solarize_probability,
        normalize={"mean": list(view.mean), "std": list(view.std)},
    )
    return made


def _read_cv2(item: bytes | Pixels) -> Any:
    import cv2  # noqa: PLC0415 - an optional package

    if not isinstance(item, bytes):
        return item
    return cv2.imdecode(np.frombuffer(item, np.uint8), cv2.IMREAD_COLOR_RGB)


def _albumentations_view(area: str | None, view: ViewSettings) -> Callable[[Any], Any]:
    os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"  # no request to the network on import
    import albumentations as alb  # noqa: PLC0415 - an optional package
    import cv2  # noqa: PLC0415
    from albumentations.pytorch import ToTensorV2  # noqa: PLC0415

    cv2.setNumThreads(0)
    size, scale, ratio = (view.size, view.size), view.crop_scale, view.crop_ratio
    steps = [
        alb.RandomResizedCrop(size, scale, ratio, area_for_downscale=area),
        alb.HorizontalFlip(p=view.flip_probability),
        alb.ColorJitter(
            *((1 - s, 1 + s) for s in (view.brightness, view.contrast, view.saturation)),
            (-view.hue, view.hue),
            p=view.jitter_probability,
        ),
        alb.ToGray(p=view.gray_probability),
        alb.GaussianBlur(0, view.blur_sigma, p=view.blur_probability),
        alb.Solarize((0.5, 0.5), p=view.solarize_probability),
        alb.Normalize(view.mean, view.std),
        ToTensorV2(),
    ]
    compose = alb.Compose(steps)
    return lambda image: compose(image=image)["image"]


def _kornia(settings: ViewsSettings, task: Task) -> Pipeline:
    """Crop photographs one by one, as they differ in size; do the rest on whole batches."""
    import kornia.augmentation as kornia  # noqa: PLC0415 - an optional package

    crops = [
        kornia.RandomResizedCrop((view.size, view.size), view.crop_scale, view.crop_ratio)
        for view in settings.views
    ]
    colors = [_kornia_colors(view) for view in settings.views]

    def photographs(files: Files) -> list[Tensor]:
        images = [_read_tensor(file)[None].to(torch.float32).div_(255) for file in files]
        return [
            color(torch.cat([crop(image) for image in images]))
            for crop, color in zip(crops, colors, strict=True)
        ]

    def small(images: Pixels) -> list[Tensor]:
        batch = torch.from_numpy(images).permute(0, 3, 1, 2).to(torch.float32).div_(255)
        return [color(crop(batch)) for crop, color in zip(crops, colors, strict=True)]

    return photographs if task == "photographs" else small


def _kornia_colors(view: ViewSettings) -> Callable[[Tensor], Tensor]:
    import kornia.augmentation as kornia  # noqa: PLC0415 - an optional package

    colors = (view.brightness, view.contrast, view.saturation, view.hue)
    kernel = blur_kernel_size(view.size)
    steps = [
        kornia.RandomHorizontalFlip(p=view.flip_probability),
        kornia.ColorJitter(*colors, p=view.jitter_probability),
        kornia.RandomGrayscale(p=view.gray_probability),
        kornia.RandomGaussianBlur((kernel, kernel), view.blur_sigma, p=view.blur_probability),
        kornia.RandomSolarize(0.0, 0.0, p=view.solarize_probability),
        kornia.Normalize(torch.tensor(view.mean), torch.tensor(view.std)),
    ]
    return torch.nn.Sequential(*steps)


_ALBUMENTATIONS = ("albumentations", "cv2")
CONTENDERS: dict[str, Contender[Build]] = {
    "ours": Contender("imsvd", _ours),
    "torchvision-pil": Contender("torchvision, PIL", _one_by_one(_read_pil, _pil_view)),
    "torchvision-v2": Contender("torchvision v2, tensors", _one_by_one(_read_tensor, _v2_view)),
    "lightly": Contender("lightly", _one_by_one(_read_pil, lightly_view), ("lightly",)),
    "albumentations": Contender(
        "albumentations, aliased",
        _one_by_one(_read_cv2, partial(_albumentations_view, None)),
        _ALBUMENTATIONS,
    ),
    "albumentations-area": Contender(
        "albumentations, antialiased",
        _one_by_one(_read_cv2, partial(_albumentations_view, "image")),
        _ALBUMENTATIONS,
    ),
    "kornia": Contender("kornia", _kornia, ("kornia",)),
}


@dataclass(frozen=True)
class ViewsCase(Case):
    """A pipeline on the images of a folder, for at least so many seconds."""

    task: Task
    folder: str
    seconds: float


class _Views(Benchmark[ViewsCase]):
    case = ViewsCase
    contenders = CONTENDERS
    heading = "Two views of an image"
    first_column = "pipeline"
    columns = (
        Column("images/s per core", "images_per_second", ",.0f"),
        Column("ms per image", "milliseconds", ".3f"),
        Column("time / ours", "times_ours"),
    )
    ratios = (Ratio("times_ours", "milliseconds", {"contender": "ours"}),)
    hidden = ("folder", "seconds")
    packages = (
        *("torchvision", "pillow", "opencv-python-headless", "simplejpeg"),
        *("lightly", "albumentations", "kornia"),
    )

    def title(self, row: Row) -> str:
        return TITLES[row["task"]]

    def variables(self, case: ViewsCase) -> Mapping[str, str]:
        del case
        # Every batch needs as much memory as the one before. Returning it to the system in between
        # causes page faults that can cost more than the work itself.
        kept = {"MALLOC_MMAP_THRESHOLD_": str(2**25), "MALLOC_TRIM_THRESHOLD_": str(2**30)}
        return {"OMP_NUM_THREADS": "1", **kept}

    def measure(self, case: ViewsCase) -> Numbers:
        torch.set_num_threads(1)
        settings = paper_views() if case.task == "photographs" else cifar_views()
        items, batch = read_items(case.task, Path(case.folder)), _BATCH[case.task]
        pipeline = CONTENDERS[case.contender].make(settings, case.task)
        pipeline(items[:batch])
        images, seconds, start = 0, 0.0, 0
        # Whole passes, so that every contender sees each image equally often.
        while seconds < case.seconds or start:
            chosen = items[start : start + batch]
            before = time.process_time()
            pipeline(chosen)
            seconds += time.process_time() - before
            images += len(chosen)
            start = start + batch if start + batch < len(items) else 0
        return {"images_per_second": images / seconds, "milliseconds": 1000 * seconds / images}


def read_items(task: Task, folder: Path) -> Items:
    """Return images spread evenly over a folder: files, or small ones as (n, height, width, 3)."""
    source = ImageFolderSource(folder)
    count = min(MAX_IMAGES[task], len(source))
    spread = np.linspace(0, len(source) - 1, count).astype(int).tolist()
    if task == "photographs":
        return [source.encoded(index) for index in spread]
    return np.stack([source.read(index).permute(1, 2, 0).numpy() for index in spread])


BENCHMARK = _Views()


def run(
    images: Path | None,
    small: Path | None = None,
    seconds: float = 3.0,
    console: Console | None = None,
    output: Path | None = None,
    *,
    repeats: int = 3,
    contenders: Sequence[str] = tuple(CONTENDERS),
) -> list[Row]:
    """Compare pipelines on a folder of JPEG photographs, of `small` images of one size, or both.

    A measurement takes `seconds` of processor time, rounded up to a whole pass over the images.
    """
    if seconds <= 0:
        raise InputError(f"seconds = {seconds}: choose more than 0.")
    if images is None and small is None:
        raise InputError("give a folder of photographs, of small images, or both.")
    folders: dict[Task, Path | None] = {"photographs": images, "small": small}
    cases = [
        ViewsCase(contender, task, str(folder), seconds)
        for task, folder in folders.items()
        if folder is not None
        for contender in contenders
    ]
    return BENCHMARK.run(cases, repeats, console, output)
