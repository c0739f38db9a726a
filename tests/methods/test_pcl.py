from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from imsvd.errors import InputError
from imsvd.losses.pcl import concentrations
from imsvd.methods.kmeans import kmeans
from imsvd.methods.pcl import PCL, Clustering, PCLSettings
from tests import gloo
from tests.methods import remembering
from tests.methods.networks import NormFree
from tests.methods.remembering import IMAGES, samples, views

SETTINGS = PCLSettings(
    projector=(5,),
    momentum=0.9,
    queue_length=16,
    clusters=(3, 6),
    num_negative_prototypes=4,
    warmup_epochs=2,
)


def build(**changes: Any) -> PCL:
    torch.manual_seed(0)
    settings = SETTINGS.model_copy(update=changes)
    return PCL(settings, NormFree(), IMAGES).double()


def key(method: PCL, view: Tensor) -> Tensor:
    embedding: Tensor = method.target(view)
    return F.normalize(embedding, dim=1)


def key_weight(method: PCL) -> Tensor:
    """Weights of the key network's projector."""
    return method.target.get_parameter("1.0.weight")


def test_the_defaults_are_the_published_settings() -> None:
    settings = PCLSettings()
    assert settings.clusters == (25_000, 50_000, 100_000)
    assert (settings.queue_length, settings.num_negative_prototypes) == (16384, 16384)
    assert (settings.temperature, settings.momentum, settings.warmup_epochs) == (0.2, 0.999, 20)


def test_the_warm_up_has_no_prototypes() -> None:
    method = build()
    method.begin_epoch(1)
    assert set(method(views(0), samples(0)).terms) == {"attraction", "repulsion"}
    method.begin_epoch(2)
    output = method(views(0), samples(0))
    assert set(output.terms) == {"attraction", "repulsion", "prototypes"}
    torch.testing.assert_close(output.loss.detach(), torch.stack(list(output.terms.values())).sum())


@pytest.mark.parametrize("symmetric", [False, True])
def test_bank_and_queue_keep_the_keys_of_the_momentum_network(symmetric: bool) -> None:
    method = build(symmetric=symmetric)
    with torch.no_grad():
        key_weight(method).mul_(-1.5)  # unlike the network that is trained
    before = method.bank.entries.clone()
    method(views(0), samples(0))
    first, second = (key(method, view) for view in views(0))
    expected = F.normalize(first + second, dim=1) if symmetric else second
    torch.testing.assert_close(method.bank.entries[samples(0)], expected)
    unseen = [image for image in range(IMAGES) if image not in samples(0).tolist()]
    assert torch.equal(method.bank.entries[unseen], before[unseen])
    torch.testing.assert_close(method.queue.values[:8], second)
    assert torch.equal(method.queue.values[8:], key(method, views(0)[0])) == symmetric


def test_the_key_network_follows_slowly_and_gets_no_gradient() -> None:
    method = build()
    before = key_weight(method).clone()
    with torch.no_grad():
        method.projector.get_parameter("0.weight").add_(1)
    method(views(0), samples(0)).loss.backward()
    method.after_step(0.5)
    torch.testing.assert_close(key_weight(method), before + 0.1)
    assert all(parameter.grad is None for parameter in method.target.parameters())


def test_prototypes_are_those_of_the_bank_at_the_start_of_the_epoch() -> None:
    method = build()
    remembering.train(method, [0, 1])
    method.begin_epoch(2)
    for index, (size, clustering) in enumerate(zip((3, 6), method.clusterings, strict=True)):
        assert isinstance(clustering, Clustering)
        expected = kmeans(method.bank.entries, size, seed=4 + index)
        assert torch.equal(clustering.assignments, expected.assignments)
        torch.testing.assert_close(clustering.centroids, F.normalize(expected.centroids, dim=1))
        phi = concentrations(expected.distances.sqrt(), expected.assignments, size, 0.2)
        torch.testing.assert_close(clustering.concentrations, phi)


def test_negative_prototypes_are_drawn_where_there_are_too_many() -> None:
    small, large = build().clusterings
    assert isinstance(small, Clustering)
    assert isinstance(large, Clustering)
    assert small.prototypes(samples(0), 4, seed=0).negatives.tolist() == [0, 1, 2]
    drawn = [large.prototypes(samples(0), 4, seed).negatives.tolist() for seed in (0, 0, 1, 2, 3)]
    assert drawn[0] == drawn[1]
    assert len({tuple(row) for row in drawn}) > 1
    assert all(len(set(row)) == 4 for row in drawn)


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


def test_too_few_images_are_refused() -> None:
    with pytest.raises(
        InputError, match=r"method.clusters=\[3, 24\] needs more than the 24 images"
    ):
        build(clusters=(3, 24))
