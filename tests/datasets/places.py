"""Places205 in small: three classes, their images and lists."""

from pathlib import Path

import numpy as np
from PIL import Image

NAMES = ("a/abbey", "b/bar", "c/castle")
OFFICIAL = "data/vision/torralba/deeplearning/images256"


def write_places(
    base: Path, train: int = 4, val: int = 2, images: str = "", lists: str = "", side: int = 40
) -> Path:
    """`train` and `val` images of every class, and the two lists."""
    random = np.random.default_rng(0)
    (base / lists).mkdir(parents=True, exist_ok=True)
    for split, count in (("train", train), ("val", val)):
        lines = []
        for label, folder in enumerate(NAMES):
            (base / images / folder).mkdir(parents=True, exist_ok=True)
            for number in range(count):
                name = f"{folder}/{split}_{number}.jpg"
                pixels = random.integers(0, 256, (side, side, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(base / images / name)
                lines.append(f"{name} {label}\n")
        (base / lists / f"{split}_places205.csv").write_text("".join(lines))
    return base
