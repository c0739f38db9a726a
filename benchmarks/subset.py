"""Write the first images of each class of a labeled dataset as folders of JPEGs, train/ and test/.

The pages here call two such folders `c10sub` (or `DIR`) and `hold`:

    python benchmarks/subset.py cifar10 c10sub            # tested on all test images
    python benchmarks/subset.py cifar10 hold --hold-out 500   # on 500 further training images of each class

"First" is meant in the dataset's own order. JPEGs have Pillow's default quality, 75.
"""

import argparse
from pathlib import Path

import torch
from torchvision.transforms.functional import to_pil_image

from imsvd.datasets import ImageSource, open_source
from imsvd.errors import InputError


def images_of_each_class(source: ImageSource, begin: int, end: int | None) -> dict[str, list[int]]:
    """Indices of the images from `begin` to `end` of every class, by the class's name."""
    if source.labels is None:
        raise SystemExit("The images have no labels; give a dataset with classes.")
    return {
        name: torch.nonzero(source.labels == label).flatten().tolist()[begin:end]
        for label, name in enumerate(source.classes)
    }


def write(source: ImageSource, chosen: dict[str, list[int]], folder: Path) -> None:
    """Write the chosen images as `folder`/CLASS/0000.jpg and so on."""
    for name, indices in chosen.items():
        (folder / name).mkdir(parents=True)
        for number, index in enumerate(indices):
            to_pil_image(source.read(index)).save(folder / name / f"{number:04}.jpg")


def main() -> None:
    """Read the command line and write both parts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", help="cifar10, or any labeled data that imsvd reads")
    parser.add_argument("out", type=Path, help="a folder that does not exist yet")
    parser.add_argument("--per-class", type=int, default=1000, help="training images (1000)")
    parser.add_argument(
        "--hold-out", type=int, default=0, help="so many further training images for test/"
    )
    options = parser.parse_args()
    if options.out.exists():
        raise SystemExit(f"{options.out} exists; name a new folder.")
    try:
        train = open_source(options.data)
        test = train if options.hold_out else open_source(options.data, "test")
    except InputError as error:
        raise SystemExit(str(error)) from None
    count = options.per_class
    tested = (count, count + options.hold_out) if options.hold_out else (0, None)
    write(train, images_of_each_class(train, 0, count), options.out / "train")
    write(test, images_of_each_class(test, *tested), options.out / "test")


if __name__ == "__main__":
    main()
