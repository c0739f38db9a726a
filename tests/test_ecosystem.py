"""docs/ecosystem.md runs as it is written, from top to bottom, beside two runs and some images."""

import json
import re
import shlex
import shutil
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import torch

import imsvd
from tests.pretraining.test_pretrain import write_images
from tests.pretraining.tiny import CommandLine
from tests.trained import train_tiny

ROOT = Path(__file__).parents[1]
BLOCKS = re.findall(
    r"^```(\w*)\n(.*?)^```$", (ROOT / "docs/ecosystem.md").read_text(), re.DOTALL | re.MULTILINE
)


class FiftyOneDataset:
    """Takes what FiftyOne's documentation says its importer of classifications takes."""

    def __init__(self) -> None:
        self.labels: dict[str, Any] = {}
        self.fields: dict[str, dict[str, int]] = {}

    @classmethod
    def from_dir(cls, dataset_type: str, labels_path: str, label_field: str) -> "FiftyOneDataset":
        assert dataset_type == "image classification"
        content = json.loads(Path(labels_path).read_text())
        assert content.keys() <= {"classes", "labels"}
        made = cls()
        for path, targets in content["labels"].items():
            assert Path(path).is_absolute()
            assert Path(path).is_file()
            for target in targets:
                assert target.keys() <= {"label", "confidence", "attributes"}
                assert isinstance(target["label"], str)
                assert 0 <= target["confidence"] <= 1
            made.labels[path] = targets
        assert label_field.isidentifier()
        return made

    def set_values(self, field_name: str, values: dict[str, int], key_field: str) -> None:
        assert key_field == "filepath"
        assert values.keys() <= self.labels.keys()
        self.fields[field_name] = values


class LightlyDataset(list[Any]):
    """Samples and metadata as LightlyStudio's documentation has them."""

    create: Any

    def add_images_from_path(self, path: str) -> None:
        for number, file in enumerate(sorted(Path(path).resolve().rglob("*.png"))):
            self.append(SimpleNamespace(sample_id=number, file_path_abs=str(file), metadata={}))

    def update_metadata(self, sample_metadata: list[tuple[int, dict[str, Any]]]) -> None:
        for number, values in sample_metadata:
            assert all(type(value) in (int, float, str, bool) for value in values.values())
            self[number].metadata.update(values)


LightlyDataset.create = LightlyDataset


@pytest.fixture
def workplace(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what the page says is there, and stand-ins for packages that we do not need."""
    shutil.copytree(trained, tmp_path / "runs/a")
    train_tiny(tmp_path / "runs/b", "backbone.stem=native", "training.knn_every=0")
    write_images(tmp_path / "photos", 20)
    (tmp_path / "hubconf.py").symlink_to(ROOT / "hubconf.py")
    stand_ins: dict[str, dict[str, Any]] = {
        "fiftyone": {
            "Dataset": FiftyOneDataset,
            "types": SimpleNamespace(FiftyOneImageClassificationDataset="image classification"),
        },
        "lightly_studio": {"ImageDataset": LightlyDataset},
    }
    for name, content in stand_ins.items():
        module = ModuleType(name)
        module.__dict__.update(content)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_page_runs(workplace: Path, command: CommandLine) -> None:
    names: dict[str, Any] = {}
    found: dict[str, dict[str, Any]] = {}
    for language, block in BLOCKS:
        if language == "python":
            exec(block, names)
            found[block.split()[1]] = dict(names)
        for line in block.splitlines() if not language else ():
            if line.startswith("imsvd ") and "OWNER" not in line:
                assert command(shlex.split(line)[1:]) == 0, command.err
    encoder = imsvd.load("runs/a")
    table = pyarrow.parquet.read_table("codes.parquet").to_pydict()
    path, units = str((workplace / "photos").resolve() / table["path"][3]), table["codes"][3]
    fiftyone = found["fiftyone"]["dataset"]
    assert len(fiftyone.labels) == 20
    assert [target["label"] for target in fiftyone.labels[path]] == [
        f"{variable}.{unit}" for variable, unit in enumerate(units)
    ]
    assert [fiftyone.fields[f"variable_{m}"][path] for m in range(len(units))] == units
    (sample,) = [each for each in found["lightly_studio"]["dataset"] if each.file_path_abs == path]
    assert [sample.metadata[f"variable_{m}"] for m in range(len(units))] == units
    assert sample.metadata["lowest_confidence"] == min(table["confidence"][3])
    run = found["numpy"]
    with torch.no_grad():
        expected = encoder.codes(torch.from_numpy(run["pixels"]))
    np.testing.assert_array_equal(run["codes"], expected)
    assert run["features"].shape == (1, encoder.num_features)
    assert found["timm"]["features"].shape == (1, 8)
    assert found["timm"]["classifier"].eval()(torch.zeros(1, 3, 32, 32)).shape == (1, 7)


def test_there_is_something_to_run() -> None:
    assert sum(language == "python" for language, _ in BLOCKS) >= 8
