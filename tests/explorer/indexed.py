"""A small index of real files with made-up codes, in which everything to be found was planted."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from imsvd.index import Index
from imsvd.index.encoding import modified_at
from imsvd.index.storage import Root
from tests.index.made_up import made_up_index, rows

IMAGES = 120
UNITS = (4, 3, 32, 5, 6, 2, 4, 4)
NEAR = {
    "copy_distances": [0, 0, 0, 0, 0],
    "copy_cosines": [0.9, 0.95, 0.97, 0.98, 0.99],
}


def planted_index(folder: Path) -> Index:
    """Images 0 to 59 are for training, 60 to 119 for tests.

    1 is the same file as 0, 3 and 4 have the code of 2. Variable 0 takes unit 1 for training images only
    and unit 2 for test images only; all else is random.
    """
    random = np.random.default_rng(0)
    photos = folder / "photos"
    photos.mkdir(parents=True)
    names = [f"{number:05d}.jpg" for number in range(IMAGES)]
    for number, name in enumerate(names):
        small = random.integers(0, 256, (3, 4, 3)).astype(np.uint8)
        exif = Image.Exif()
        exif[0x010E] = "secret place"
        size = (48, 24) if number % 2 else (24, 24)
        Image.fromarray(small).resize(size).save(photos / name, exif=exif)
    shutil.copy(photos / names[0], photos / names[1])
    codes = random.integers(0, UNITS, (IMAGES, len(UNITS))).astype(np.uint8)
    codes[:, 0] = np.where(np.arange(IMAGES) < IMAGES // 2, 1, 2)
    codes[1], codes[3], codes[4] = codes[0], codes[2], codes[2]
    made = rows(IMAGES, units=UNITS, codes=codes)
    hashes = made.hashes.copy()
    hashes[1] = hashes[0]
    made = replace(
        made,
        hashes=hashes,
        sizes=np.array([(photos / name).stat().st_size for name in names], dtype=np.uint32),
        modified=np.array([modified_at(photos / name) for name in names], dtype=np.uint64),
        facets={**made.facets, "split": np.repeat([1, 2], IMAGES // 2).astype(np.uint32)},
    )
    return made_up_index(
        folder / "photos.index",
        made,
        units=UNITS,
        names={"1.2": "stripes", "2.7": "red dots"},
        root=Root(data=str(photos), split="", folder=str(photos)),
        facets={"label": ("cat", "polar bear"), "split": ("train", "test")},
        near=NEAR,
    )
