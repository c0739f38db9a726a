"""Weights and images outside the repository; tests that need them skip where they are absent."""

import os
from pathlib import Path

import pytest

DATA = Path(os.environ.get("IMSVD_SHARED", Path(__file__).parents[2] / "shared")) / "data"
LITE0 = DATA / "tf_efficientnet_lite0.safetensors"
PHOTOGRAPHS = DATA / "imagenet-sample.zip"
CIFAR10 = DATA / "cifar10-jpeg.zip"


def needs(*files: Path) -> pytest.MarkDecorator:
    """Skip a test unless all `files` are there."""
    absent = [str(file) for file in files if not file.exists()]
    return pytest.mark.skipif(bool(absent), reason=f"needs {', '.join(absent)} (or IMSVD_SHARED)")
