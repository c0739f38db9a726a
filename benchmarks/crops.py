"""Cut photographs into crops, as folders of JPEGs: one class per photograph, train/ and test/.

The pages here call such a folder `crops`. Which photograph a crop is from needs no labels of people:

    python benchmarks/crops.py imagenet-sample.zip crops

Of every photograph, squares of 40 to 80 % of its shorter side are cut at random places and scaled to
128 pixels.
"""

import argparse
import random
from pathlib import Path

from PIL import Image
from torchvision.transforms.functional import to_pil_image

from imsvd.datasets import open_source
from imsvd.errors import InputError

SIDE = 128
SHARES = 0.4, 0.8


def crop(image: Image.Image, draw: random.Random) -> Image.Image:
    """Return a random square of `image`, scaled to `SIDE` pixels."""
    side = int(min(image.size) * draw.uniform(*SHARES))
    left, top = (draw.randint(0, whole - side) for whole in image.size)
    return image.crop((left, top, left + side, top + side)).resize(
        (SIDE, SIDE), Image.Resampling.BICUBIC
    )


def main() -> None:
    """Read the command line and write the crops."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", help="photographs, any data that imsvd reads")
    parser.add_argument("out", type=Path, help="a folder that does not exist yet")
    parser.add_argument("--train", type=int, default=8, help="training crops per photograph (8)")
    parser.add_argument("--test", type=int, default=2, help="test crops per photograph (2)")
    options = parser.parse_args()
    if options.out.exists():
        raise SystemExit(f"{options.out} exists; name a new folder.")
    try:
        source = open_source(options.data, "train")
    except InputError as error:
        raise SystemExit(str(error)) from None
    draw = random.Random(0)
    for photograph in range(len(source)):
        image = to_pil_image(source.read(photograph))
        for number in range(options.train + options.test):
            split = "train" if number < options.train else "test"
            folder = options.out / split / f"{photograph:04}"
            folder.mkdir(parents=True, exist_ok=True)
            crop(image, draw).save(folder / f"{number}.jpg", quality=92)


if __name__ == "__main__":
    main()
