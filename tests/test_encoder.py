import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import imsvd
from imsvd.checkpoints import load_newest_checkpoint
from imsvd.encoder import Encoder, load
from imsvd.errors import InputError
from imsvd.information import soft_discretize
from imsvd.methods import build_method
from imsvd.networks import build_backbone
from imsvd.pretraining.run import Pretraining
from imsvd.views import Batch
from tests.pretraining import tiny
from tests.trained import train_tiny


@pytest.fixture(scope="module")
def encoder(trained: Path) -> Encoder:
    return load(trained)


def pictures(count: int = 5) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8, generator=generator)


def test_shapes(encoder: Encoder) -> None:
    images = pictures()
    assert encoder.features(images).shape == (5, encoder.num_features) == (5, 8)
    assert encoder.probabilities(images).shape == (5, 16)
    assert encoder.codes(images).shape == (5, 4)


def test_probabilities_sum_to_one_per_variable_and_codes_are_their_peaks(encoder: Encoder) -> None:
    probabilities = encoder.probabilities(pictures()).view(5, 4, 4)
    torch.testing.assert_close(probabilities.sum(-1), torch.ones(5, 4))
    assert torch.equal(encoder.codes(pictures()), probabilities.argmax(-1))


def test_an_image_is_encoded_the_same_in_any_company(encoder: Encoder, trained: Path) -> None:
    images = pictures()
    together = encoder.features(images)
    torch.testing.assert_close(encoder.features(images[2:3]), together[2:3])
    assert torch.equal(load(trained).features(images), together)
    assert not encoder.training


def test_bytes_and_floats_are_the_same_picture(encoder: Encoder) -> None:
    images = pictures()
    torch.testing.assert_close(encoder(images), encoder(images.float() / 255))


def test_images_follow_the_encoder_to_its_device(trained: Path) -> None:
    # The meta device stands for a GPU: it, too, refuses to compute with tensors of the CPU.
    encoder = load(trained).to("meta")
    assert encoder.features(pictures()).device.type == "meta"
    assert encoder.probabilities(pictures()).device.type == "meta"
    assert encoder.codes(pictures().float() / 255).device.type == "meta"


@pytest.mark.parametrize("settings", [(), ("method.standardize=true",)])
def test_it_is_the_network_that_was_trained(
    trained: Path, tmp_path: Path, settings: tuple[str, ...]
) -> None:
    run = train_tiny(tmp_path / "run", *settings) if settings else trained
    encoder = load(run)
    config = tiny.config(*settings)
    method = build_method(config.method, build_backbone(config.backbone), num_samples=64)
    state, _ = load_newest_checkpoint(run / "checkpoints")
    assert state is not None
    method.load_state_dict(state["weights"])
    method.eval()
    view = config.views.views[0]
    mean, std = torch.tensor(view.mean).view(3, 1, 1), torch.tensor(view.std).view(3, 1, 1)
    normalized = (pictures().float() / 255 - mean) / std
    output = method([normalized, normalized], torch.arange(len(normalized)))
    torch.testing.assert_close(encoder.features(pictures()), output.features[0])
    torch.testing.assert_close(
        encoder.probabilities(pictures()), soft_discretize(output.embedding, 4)
    )


def test_the_description_holds_all_that_rebuilding_needs(trained: Path) -> None:
    description = json.loads((trained / "encoder.json").read_text())
    assert description["method"] == "imsvd"
    assert description["units"] == [4, 4, 4, 4]
    assert description["backbone"]["name"] == "resnet18"


def damage_weights(run: Path) -> None:
    path = run / "encoder.safetensors"
    path.write_bytes(path.read_bytes()[:-10])


def describe_another_network(run: Path) -> None:
    rewrite(run, "projector", [32, 16])


def come_from_the_future(run: Path) -> None:
    rewrite(run, "format", 99)


def misspell(run: Path) -> None:
    rewrite(run, "prjector", [16])


def rewrite(run: Path, key: str, value: object) -> None:
    path = run / "encoder.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))


@pytest.mark.parametrize(
    ("harm", "phrase"),
    [
        (damage_weights, r"encoder.safetensors is damaged"),
        (lambda run: (run / "encoder.safetensors").unlink(), "encoder.safetensors is missing"),
        (lambda run: (run / "encoder.json").unlink(), "has not finished its first epoch"),
        (lambda run: (run / "encoder.json").write_text("{"), r"encoder.json: Invalid JSON"),
        (describe_another_network, "does not fit"),
        (come_from_the_future, "99 was written by a newer imsvd"),
        (misspell, "encoder.json: .*prjector"),
        (shutil.rmtree, "is not a run folder"),
    ],
)
def test_damage_gets_one_sentence(
    harm: Callable[[Path], object], phrase: str, trained: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    harm(run)
    with pytest.raises(InputError, match=phrase) as caught:
        imsvd.load(run)
    assert "\n" not in str(caught.value)


def test_an_encoder_without_variables_says_so(encoder: Encoder) -> None:
    bare = Encoder(encoder.description.model_copy(update={"units": (), "projector": ()}))
    assert bare.features(pictures()).shape == (5, 8)
    with pytest.raises(InputError, match="no discrete variables"):
        bare.codes(pictures())


def test_the_encoder_of_an_interrupted_run_knows_its_epoch(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load(trained).epoch == 2
    take_step = Pretraining.train_step

    def break_down(self: Pretraining, batch: Batch) -> None:
        if self.epoch == 1:
            raise RuntimeError("the power is gone")
        take_step(self, batch)

    monkeypatch.setattr(Pretraining, "train_step", break_down)
    with pytest.raises(RuntimeError, match="power"):
        train_tiny(tmp_path / "run")
    assert load(tmp_path / "run").epoch == 1
