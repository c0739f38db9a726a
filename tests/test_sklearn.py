"""`ImageCodes` as scikit-learn expects a transformer to behave, and as an encoder gives codes."""

import pickle
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.exceptions import NotFittedError, SkipTestWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator
from sklearn.utils.validation import check_is_fitted, validate_data

import imsvd
from imsvd.datasets import open_source
from imsvd.errors import InputError
from imsvd.sklearn import OUTPUTS, ImageCodes
from tests.pretraining.test_pretrain import write_images
from tests.shared import LITE0, PHOTOGRAPHS, needs

LEARNING: dict[str, Any] = {
    "bits": 4,
    "units": 2,
    "steps": 4,
    "settings": ("compute.workers=0", "compute.accelerator=cpu"),
}
"""Parameters with which `fit` learns a small code."""


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return sorted(write_images(tmp_path_factory.mktemp("images"), 24).rglob("*.png"))


@pytest.fixture(scope="module")
def pixels(paths: list[Path]) -> torch.Tensor:
    source = open_source(paths[0].parent)
    return torch.stack([source.read(number) for number in range(len(paths))])


@pytest.fixture(scope="module")
def expected(trained: Path, pixels: torch.Tensor) -> dict[str, NDArray[Any]]:
    """What the run's encoder gives for the same images; one-hot codes by their definition."""
    encoder = imsvd.load(trained)
    with torch.no_grad():
        units = encoder.codes(pixels)
        return {
            "features": encoder(pixels).numpy(),
            "probabilities": encoder.probabilities(pixels).numpy(),
            "units": units.numpy(),
            "onehot": torch.nn.functional.one_hot(units, 4).flatten(1).numpy(),
        }


@pytest.mark.parametrize("output", OUTPUTS)
def test_outputs_are_those_of_the_encoder(
    output: str, trained: Path, paths: list[Path], expected: dict[str, NDArray[Any]]
) -> None:
    made = ImageCodes(trained, output=output)
    rows = made.fit_transform(paths)
    np.testing.assert_allclose(rows, expected[output], atol=1e-5)
    names = made.get_feature_names_out()
    assert len(names) == rows.shape[1] == len(set(names))
    assert rows.dtype == (np.int64 if output == "units" else np.float32)


def test_names_say_which_unit_a_column_is(trained: Path, paths: list[Path]) -> None:
    onehot = ImageCodes(trained).fit(paths)
    units = ImageCodes(trained, output="units").fit_transform(paths)
    names = list(onehot.get_feature_names_out())
    chosen = onehot.transform(paths)[5]
    active = {name for name, value in zip(names, chosen, strict=True) if value}
    assert active == {f"variable_{v}_unit_{unit}" for v, unit in enumerate(units[5])}


def test_images_come_in_many_forms(
    trained: Path, paths: list[Path], pixels: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = ImageCodes(trained).fit(paths)
    rows = made.transform(paths)
    monkeypatch.chdir(paths[0].parent)
    for same in (
        [str(path) for path in paths],
        np.array([path.name for path in paths]),
        pandas.Series([str(path) for path in paths]),
        pandas.DataFrame({"image": [str(path) for path in paths]}),
        pixels.permute(0, 2, 3, 1).numpy(),
    ):
        np.testing.assert_array_equal(made.transform(same), rows)


def test_fit_learns_a_code_where_there_is_none(
    trained: Path, paths: list[Path], tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    made = ImageCodes(trained, output="units", cache=cache, **LEARNING)
    state = torch.get_rng_state()
    rows = made.fit(paths).transform(paths)
    assert torch.equal(torch.get_rng_state(), state)
    assert rows.shape == (24, 4)
    assert set(np.unique(rows)) <= {0, 1}
    assert made.encoder_.description.units == (2, 2, 2, 2)
    assert list(cache.glob("*.npy"))
    # The backbone stays what it was, and the same images and seed give the same code.
    original = imsvd.load(trained).backbone.state_dict()
    learned = made.encoder_.backbone.state_dict()
    assert all(torch.equal(original[name], learned[name]) for name in original)
    np.testing.assert_array_equal(clone(made).fit(paths).transform(paths), rows)
    other = clone(made).set_params(random_state=np.random.RandomState(5)).fit(paths)
    assert not torch.equal(
        other.encoder_.projector.state_dict()["0.weight"],
        made.encoder_.projector.state_dict()["0.weight"],
    )


def test_an_encoder_in_memory_is_left_alone(trained: Path, paths: list[Path]) -> None:
    encoder = imsvd.load(trained)
    made = ImageCodes(encoder, size=40, **LEARNING).fit(paths)
    assert made.encoder_.description.units == (2, 2, 2, 2)
    assert made.encoder_.description.size == 40
    features = ImageCodes(encoder, output="features", size=40).fit(paths)
    assert features.encoder_.description.size == 40
    assert encoder.description == imsvd.load(trained).description


def test_features_need_no_code(paths: list[Path]) -> None:
    rows = ImageCodes("timm:resnet10t:random", output="features", size=32).fit_transform(paths[:3])
    assert rows.shape == (3, 512)


def test_a_pipeline_survives_clone_pickle_and_pandas(trained: Path, paths: list[Path]) -> None:
    labels = [number % 2 for number in range(24)]
    pipeline = make_pipeline(ImageCodes(trained), LogisticRegression()).fit(paths, labels)
    assert pipeline.predict(paths).shape == (24,)
    assert clone(pipeline).get_params()["imagecodes__encoder"] == trained
    again = pickle.loads(pickle.dumps(pipeline))
    np.testing.assert_array_equal(again.predict_proba(paths), pipeline.predict_proba(paths))
    frame = ImageCodes(trained).set_output(transform="pandas").fit_transform(paths)
    assert list(frame.columns[:2]) == ["variable_0_unit_0", "variable_0_unit_1"]


def test_bad_input_is_one_sentence(trained: Path, paths: list[Path], tmp_path: Path) -> None:
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"no image")
    made = ImageCodes(trained).fit(paths)
    for images, phrase in (
        ([*paths, bad], r"1 image of 25 cannot be read, such as .*bad.png"),
        ([*paths, tmp_path / "gone.png"], "gone.png"),
        (str(paths[0]), "give a list of paths"),
        ([], "there are no images"),
        ([[1.0, 2.0]], "give a list of paths"),
        ([1, 2], "give a list of paths"),
        (np.zeros((2, 8, 8, 3)), "give uint8"),
        (np.zeros((2, 3, 8, 8), np.uint8), "give uint8"),
    ):
        with pytest.raises(InputError, match=phrase):
            made.transform(images)
    with pytest.raises(InputError, match="choose onehot, units"):
        ImageCodes(trained, output="bits").fit(paths)
    with pytest.raises(NotFittedError):
        ImageCodes(trained).transform(paths)


def test_without_scikit_learn_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "imsvd.sklearn")
    monkeypatch.setitem(sys.modules, "sklearn.base", None)
    with pytest.raises(InputError, match=r"imsvd\[sklearn\]"):
        _ = imsvd.ImageCodes


class RowCodes(ImageCodes):
    """Takes rows of numbers, from which it draws images: what scikit-learn's own checks can feed."""

    def fit(self, X: Any, y: Any = None) -> "RowCodes":  # noqa: N803
        super().fit(drawn(validate_data(self, X)))
        return self

    def transform(self, X: Any) -> Any:  # noqa: N803
        check_is_fitted(self)
        return super().transform(drawn(validate_data(self, X, reset=False)))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.one_d_array, tags.input_tags.two_d_array = False, True
        return tags


def drawn(rows: Any) -> NDArray[np.uint8]:
    """Return an image of 8 × 8 pixels per row."""
    levels = np.stack([np.resize(row, 64 * 3) for row in rows * 40 + 128])
    return levels.clip(0, 255).astype(np.uint8).reshape(-1, 8, 8, 3)


def test_scikit_learn_finds_nothing_wrong(trained: Path) -> None:
    found = check_estimator(RowCodes(trained, output="probabilities"), on_skip=None)
    passed = [result["check_name"] for result in found if result["status"] == "passed"]
    assert len(passed) >= 30
    assert {"check_fit_idempotent", "check_methods_subset_invariance"} <= {*passed}


def test_scikit_learn_knows_that_it_cannot_draw_paths(trained: Path) -> None:
    with pytest.warns(SkipTestWarning, match="Can't test estimator ImageCodes"):
        check_estimator(ImageCodes(trained))


@pytest.mark.slow
@needs(LITE0, PHOTOGRAPHS)
def test_codes_of_200_photographs_tell_animals_from_things(tmp_path: Path) -> None:
    with zipfile.ZipFile(PHOTOGRAPHS) as archive:
        archive.extractall(tmp_path)
    photographs = sorted(tmp_path.rglob("*.JPEG"))
    assert len(photographs) == 200
    # WordNet numbers animals first: the last of ImageNet's is the puffer, n02655020.
    animal = np.array([path.name.partition("_")[0] <= "n02655020" for path in photographs])
    # Photographs of 200 different classes: the features themselves reach 0.75 here.
    coder = ImageCodes(f"timm:tf_efficientnet_lite0:{LITE0}", bits=64, units=2)
    pipeline = make_pipeline(coder, LogisticRegression())
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    predicted = cross_val_predict(pipeline, np.array(photographs), animal, cv=folds)
    accuracy, chance = np.mean(predicted == animal), max(np.mean(animal), 1 - np.mean(animal))
    print(f"accuracy {accuracy:.3f}, chance {chance:.3f}")  # noqa: T201 - for the record, with -s
    assert accuracy > chance + 0.05
