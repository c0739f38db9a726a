"""The head: its draws depend on seed, pass and image alone, and a stopped training ends the same."""

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from imsvd.config import Config, override
from imsvd.discretizing.capacity import CodeSize
from imsvd.discretizing.directions import lasting_directions
from imsvd.discretizing.feature_file import Half
from imsvd.discretizing.head import HeadTraining, admit_neighbors, choose_pairs, split_rows
from imsvd.discretizing.run import configure, set_length
from imsvd.encoder import load
from imsvd.engine.fabric import Fabric
from imsvd.errors import InputError, Interrupted
from imsvd.methods.code import CODE_TEMPERATURE
from imsvd.runs import RunFolder

QUIET = Console(quiet=True)
IMAGES = 200


def made_up_features(width: int) -> Half:
    generator = np.random.default_rng(0)
    image = generator.normal(size=(IMAGES, 1, width))
    return (image + 0.3 * generator.normal(size=(IMAGES, 5, width))).astype(np.float16)


def config(run: Path, *settings: str, steps: int = 24) -> Config:
    start = configure(load(run), encoder=run, data="shapes:200", views=4, head=CodeSize(4, 4))
    settings = ("method.projector=[16, 16]", "training.batch_size=32", *settings)
    return set_length(override(start, settings), IMAGES, steps, settings)


def training(encoder: Path, folder: Path, kind: Any = HeadTraining, **changes: Any) -> Any:
    opened = load(encoder)
    run = RunFolder(folder)
    settings = config(encoder, *changes.pop("settings", ()))
    run.begin(settings)
    fabric = Fabric(accelerator="cpu", devices=1)
    found = changes.pop("features", made_up_features(opened.num_features))
    images, neighbors = changes.pop("images", "made up"), changes.pop("neighbors", None)
    rows, _ = split_rows(IMAGES, 0.1, seed=0)
    reader = lasting_directions(found, rows, 4, seed=0)
    return kind(settings, run, fabric, opened, images, found, reader, neighbors)


class Stopping(HeadTraining):
    """Receives a stop signal in its seventh step, inside an epoch."""

    def after_step(self) -> None:
        super().after_step()
        if self.step == 7:
            os.kill(os.getpid(), signal.SIGTERM)


def test_images_are_held_out_by_seed() -> None:
    rows, held_out = split_rows(100, 0.1, seed=0)
    assert len(held_out) == 10
    assert sorted([*rows, *held_out]) == list(range(100))
    assert list(split_rows(100, 0.1, seed=1)[1]) != list(held_out)
    assert len(split_rows(100, 0.0, seed=0)[1]) == 0
    assert len(split_rows(4, 0.1, seed=0)[1]) == 1


def test_two_different_views_are_drawn_evenly() -> None:
    rows = np.arange(6000)
    images, chosen = choose_pairs(0, 0, rows, 4)
    assert (images == rows[:, None]).all()
    assert (chosen[:, 0] != chosen[:, 1]).all()
    pairs = np.bincount(4 * chosen[:, 0] + chosen[:, 1], minlength=16).reshape(4, 4)
    assert np.allclose(pairs[~np.eye(4, dtype=bool)], 500, atol=100)
    assert (choose_pairs(0, 0, rows[100:200], 4).views == chosen[100:200]).all()
    assert (choose_pairs(0, 1, rows, 4).views != chosen).any()


def test_neighbors_take_their_share_of_the_second_views() -> None:
    rows = np.arange(6000)
    pairs = choose_pairs(0, 0, rows, 4)
    nearest = np.stack([rows + 10_000, rows + 20_000], 1)
    found = admit_neighbors(pairs, nearest, 0.5, seed=0, epoch=0)
    assert (found.images[:, 0] == rows).all()
    assert (found.views == pairs.views).all()
    offsets = found.images[:, 1] - rows
    for offset, count in ((0, 3000), (10_000, 1500), (20_000, 1500)):
        assert abs(int((offsets == offset).sum()) - count) < 150
    part = choose_pairs(0, 0, rows[100:200], 4)
    again = admit_neighbors(part, nearest[100:200], 0.5, seed=0, epoch=0)
    assert (again.images == found.images[100:200]).all()
    assert (admit_neighbors(pairs, nearest, 0.0, seed=0, epoch=0).images == pairs.images).all()


def test_a_head_reads_the_neighbors_features(trained: Path, tmp_path: Path) -> None:
    features = made_up_features(load(trained).num_features)
    features[...] = np.arange(IMAGES)[:, None, None]
    rows, _ = split_rows(IMAGES, 0.1, seed=0)
    nearest = np.roll(rows, -1)[:, None]
    head = training(
        trained,
        tmp_path,
        features=features,
        neighbors=nearest,
        settings=("frozen.neighbor_share=1.0",),
    )
    following = dict(zip(rows.tolist(), nearest[:, 0].tolist(), strict=True))
    for batch in head.batches(range(4)):
        first, second = (view[:, 0].long().tolist() for view in batch.views)
        assert second == [following[image] for image in first]


def test_held_out_images_are_never_trained_on(trained: Path, tmp_path: Path) -> None:
    features = made_up_features(load(trained).num_features)
    _, held_out = split_rows(IMAGES, 0.1, seed=0)
    features[held_out] = np.nan
    head = training(trained, tmp_path, features=features)
    for batch in head.batches(range(head.last_step)):
        assert all(torch.isfinite(view).all() for view in batch.views)


def test_a_stopped_training_ends_with_the_same_weights(trained: Path, tmp_path: Path) -> None:
    whole = training(trained, tmp_path / "whole")
    assert whole.fit(QUIET)
    with pytest.raises(Interrupted):
        training(trained, tmp_path / "parts", Stopping).fit(QUIET)
    assert not (tmp_path / "parts" / "encoder.safetensors").exists()
    resumed = training(trained, tmp_path / "parts")
    resumed.fit(QUIET)
    first, second = (
        (tmp_path / name / "encoder.safetensors").read_bytes() for name in ("whole", "parts")
    )
    assert first == second
    healths = [
        [record["health"] for record in RunFolder(tmp_path / name).metrics()]
        for name in ("whole", "parts")
    ]
    assert healths[0] == healths[1]
    assert {"share_decided", "share_agreeing", "shared_nats"} <= healths[0][-1].keys()
    assert not training(trained, tmp_path / "whole").fit(QUIET)


def test_changed_images_are_refused(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        training(trained, tmp_path, Stopping).fit(QUIET)
    with pytest.raises(InputError, match="the images are not those"):
        training(trained, tmp_path, images="others").fit(QUIET)


def test_the_saved_backbone_is_the_frozen_one(trained: Path, tmp_path: Path) -> None:
    training(trained, tmp_path).fit(QUIET)
    before, after = load(trained).backbone.state_dict(), load(tmp_path).backbone.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())


@pytest.mark.parametrize("projector", ["[8,8]", "[8]"])
def test_the_saved_head_reads_features_as_the_encoder_gives_them(
    projector: str, trained: Path, tmp_path: Path
) -> None:
    head = training(trained, tmp_path, settings=(f"method.projector={projector}",))
    head.fit(QUIET)
    features = torch.from_numpy(head.features[:, -1]).float()
    method = head.method.eval()
    with torch.no_grad():
        expected = method.projector(method.backbone(features)) / CODE_TEMPERATURE
        found = load(tmp_path).projector(features)
    assert method.backbone.num_features < features.shape[1]
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-2)


def test_few_steps_are_completed_and_many_passes_share_an_epoch(trained: Path) -> None:
    # 180 images in batches of 32 give five steps per pass.
    assert config(trained, steps=24).training.epochs == 5
    long = config(trained, steps=400)
    assert long.frozen is not None
    assert (long.training.epochs, long.frozen.passes) == (20, 4)
    assert config(trained, "training.epochs=3").training.epochs == 3
