from typing import Any

import pytest
import torch

from imsvd.errors import InputError
from imsvd.methods.kmeans import kmeans
from imsvd.methods.la import LA, LASettings
from imsvd.methods.npid import NPID, NPIDSettings
from tests import gloo
from tests.methods import remembering
from tests.methods.networks import NormFree
from tests.methods.remembering import IMAGES, samples, views

SETTINGS = LASettings(
    projector=(5,), num_background=7, clusters=(3, 5), warmup_epochs=2, num_negatives=7
)


def build() -> LA:
    torch.manual_seed(0)
    return LA(SETTINGS, NormFree(), IMAGES).double()


def test_the_defaults_are_the_published_settings() -> None:
    settings = LASettings()
    assert (settings.projector, settings.temperature) == ((128,), 0.07)
    assert (settings.num_background, settings.clusters) == (4096, (30_000,) * 10)


def test_the_warm_up_is_instance_discrimination() -> None:
    torch.manual_seed(0)
    settings = NPIDSettings(projector=(5,), num_negatives=7)
    instance = NPID(settings, NormFree(), IMAGES).double()
    assert remembering.train(build(), [0, 1]) == remembering.train(instance, [0, 1])


def test_clusters_are_those_of_the_bank_at_the_start_of_the_epoch() -> None:
    method = build()
    remembering.train(method, [0, 1])
    assert not method.labels.any()
    method.begin_epoch(2)
    for index, size in enumerate((3, 5)):
        expected = kmeans(method.bank.entries, size, seed=4 + index).assignments
        assert torch.equal(method.labels[index], expected)
    before = method.labels.clone()
    output = method(views(9), samples(9))
    assert set(output.terms) == {"local_aggregation"}
    losses = [
        method.aggregation(
            method.projector(method.backbone(view)), samples(9), method.bank.entries, before
        ).loss
        for view in views(9)
    ]
    torch.testing.assert_close(output.loss, torch.stack(losses).mean())
    method.after_step(0.5)
    assert torch.equal(method.labels, before)


def test_it_resumes_exactly_without_clustering_again(monkeypatch: pytest.MonkeyPatch) -> None:
    method, resumed = build(), build()
    remembering.train(method, [0, 1, 2])
    with torch.no_grad():
        for value in resumed.state_dict().values():
            value.zero_()
    resumed.load_state_dict(method.state_dict())
    for model in (method, resumed):
        monkeypatch.setattr(model, "begin_epoch", lambda epoch: None)
    assert remembering.train(method, [3]) == remembering.train(resumed, [3])
    for name, value in method.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name


def train() -> dict[str, Any]:
    return remembering.trained(build, [0, 1, 2, 3])


def test_two_processes_train_as_one() -> None:
    expected = train()
    for result in gloo.run(2, train):
        remembering.assert_equal_training(result, expected)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"clusters": (3, 24)}, r"method.clusters=\[3, 24\] needs more than the 24 images"),
        ({"num_background": 25}, "method.num_background=25 is more than the 24 images"),
    ],
)
def test_too_few_images_are_refused(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        LA(SETTINGS.model_copy(update=change), NormFree(), IMAGES)
