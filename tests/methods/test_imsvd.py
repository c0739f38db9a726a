from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from imsvd import distributed
from imsvd.information import soft_discretize
from imsvd.losses.imsvd import IMSVDLoss, Joint
from imsvd.methods import IMSVD, IMSVDSettings
from imsvd.methods.base import view_pairs
from tests import gloo
from tests.methods.networks import NormFree

SETTINGS = IMSVDSettings(projector=(12,), units=4)
BATCH = 8


def build(**changes: object) -> IMSVD:
    torch.manual_seed(0)
    return IMSVD(SETTINGS.model_copy(update=changes), NormFree()).double()


def views() -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(BATCH, 3, 2, 2, generator=generator).double() for _ in range(2)]


def loss_and_gradients(own: slice, parallel: bool) -> dict[str, Any]:
    method = build()
    model: nn.Module = DistributedDataParallel(method) if parallel else method
    output = model([view[own] for view in views()], torch.arange(BATCH)[own])
    output.loss.backward()
    return {
        "loss": output.loss.detach(),
        "terms": output.terms,
        "gradients": [parameter.grad for parameter in method.parameters()],
    }


def on_one_rank() -> dict[str, Any]:
    return loss_and_gradients(distributed.own_slice(BATCH), parallel=True)


def test_two_processes_equal_one_on_the_joined_batch() -> None:
    expected = loss_and_gradients(slice(None), parallel=False)
    results = gloo.run(2, on_one_rank)
    for result in results:
        torch.testing.assert_close(result, expected, rtol=1e-10, atol=1e-14)
    # The halves alone would give something else, or the test could not fail.
    half = loss_and_gradients(slice(0, BATCH // 2), parallel=False)
    assert abs(half["loss"] - expected["loss"]) > 1e-3


@pytest.mark.parametrize("joint", ["cross", "within"])
def test_the_loss_is_that_of_the_projected_views(joint: Joint) -> None:
    method = build(joint=joint)
    pair = views()
    output = method(pair, torch.arange(BATCH))
    features = [method.backbone(view) for view in pair]
    embeddings = [method.projector(feature) for feature in features]
    torch.testing.assert_close(output.loss, IMSVDLoss(4, joint=joint)(*embeddings).loss)
    assert torch.equal(output.features[0], features[0])
    assert torch.equal(output.embedding, embeddings[0])
    assert not any(view.requires_grad for view in output.features)
    assert not output.embedding.requires_grad


@pytest.mark.parametrize(
    ("weight", "term"),
    [
        ("invariance_weight", "invariance"),
        ("diagonal_weight", "diagonal_entropy"),
        ("off_diagonal_weight", "off_diagonal_entropy"),
    ],
)
def test_every_weight_reaches_its_term(weight: str, term: str) -> None:
    plain = build()(views(), torch.arange(BATCH))
    output = build(**{weight: 3.0})(views(), torch.arange(BATCH))
    torch.testing.assert_close(output.loss.detach(), plain.loss.detach() + 2 * plain.terms[term])


def test_standardized_logits_have_no_scale_of_their_own() -> None:
    plain = build()
    standardized = build(standardize=True)
    for method, changes in ((plain, True), (standardized, False)):
        before = method(views(), torch.arange(BATCH))
        with torch.no_grad():
            next(method.projector.parameters()).mul_(7)
        after = method(views(), torch.arange(BATCH))
        assert (abs(after.loss - before.loss) > 1e-2) == changes
    torch.testing.assert_close(after.embedding.mean(0), torch.zeros(12).double())
    variance = after.embedding.var(0, correction=0)
    torch.testing.assert_close(variance, torch.ones(12).double(), rtol=1e-3, atol=0)


def test_statistics_see_certain_and_dead_units() -> None:
    method = IMSVD(SETTINGS, NormFree())
    logits = torch.zeros(BATCH, 12)
    logits[:, 0] = 50  # the first variable is certain, and three of its units are never used
    health = method.summarize(method.statistics(logits))
    assert health["share_above_0.9"] == pytest.approx(1 / 3)
    assert health["share_above_0.99"] == pytest.approx(1 / 3)
    assert health["dead_units"] == 3


def test_marginals_are_the_batch_mean_of_the_probabilities() -> None:
    method = IMSVD(SETTINGS, NormFree())
    logits = torch.randn(BATCH, 12)
    marginals = method.statistics(logits)["marginals"]
    torch.testing.assert_close(marginals, soft_discretize(logits, 4).mean(0))


def test_bounds_name_every_term() -> None:
    bounds = build().bounds(BATCH)
    assert set(bounds) == {"ideal", "uniform", "collapsed", "batch_limit"}
    names = {"invariance", "diagonal_entropy", "off_diagonal_entropy", "total"}
    assert all(set(row) == names for row in bounds.values())
    assert bounds["ideal"]["total"] < bounds["batch_limit"]["total"] < bounds["collapsed"]["total"]


def test_local_views_are_compared_with_both_large_ones() -> None:
    method = build()
    crops = views() + [view.flip(0) for view in views()]
    output = method(crops, torch.arange(BATCH))
    pairs = [(0, 1), (0, 2), (1, 2), (0, 3), (1, 3)]
    embeddings = [method.projector(method.backbone(view)) for view in crops]
    losses = [method.loss(embeddings[a], embeddings[b]).loss for a, b in pairs]
    torch.testing.assert_close(output.loss, sum(losses) / 5)


@pytest.mark.parametrize("share", [0.5, 0.75])
def test_a_linear_head_of_the_features_has_its_share_of_the_loss(share: float) -> None:
    method = build(linear_share=share, final_temperature=0.1)
    method.after_step(0.45)
    crops = views() + [view.flip(0) for view in views()]
    output = method(crops, torch.arange(BATCH))
    features = [method.backbone(view) for view in crops]
    found = []
    for head in (method.projector, method.linear):
        logits = [head(feature) / method.temperature for feature in features]
        found.append(method.loss.of_views(logits, view_pairs(len(crops))))
    own, linear = found
    torch.testing.assert_close(output.loss, (1 - share) * own.loss + share * linear.loss)
    for name, term in output.terms.items():
        torch.testing.assert_close(term, (1 - share) * own.terms[name] + share * linear.terms[name])
    assert [type(layer) for layer in method.linear] == [nn.Linear]
    assert not any("linear" in name for name in build().state_dict())


def test_the_smallest_form_keeps_the_units_of_two_variables() -> None:
    equal = IMSVDSettings(projector=(64, 64, 160), units=80).smallest()
    assert (equal.projector, equal.units) == ((8, 8, 160), 80)
    unequal = IMSVDSettings(projector=(16, 14), units=(2, 4, 8)).smallest()
    assert (unequal.projector, unequal.units) == ((8, 6), (2, 4))
    assert IMSVDSettings(projector=(4,), units=4).smallest().projector == (4,)


def test_logits_are_divided_by_a_temperature_that_falls() -> None:
    method, plain = build(final_temperature=0.1), build()
    for progress, temperature in ((0.0, 1.0), (0.45, 0.1**0.5), (0.9, 0.1), (1.0, 0.1)):
        method.after_step(progress)
        assert float(method.temperature) == pytest.approx(temperature)
        cold, warm = method.project(views())[1], plain.project(views())[1]
        for divided, logits in zip(cold, warm, strict=True):
            torch.testing.assert_close(divided, logits / method.temperature)
    assert "temperature" in method.state_dict()  # so that a checkpoint keeps it
    assert "temperature" not in plain.state_dict()


def test_the_saved_code_is_sharp_and_has_the_same_units() -> None:
    settings = SETTINGS.model_copy(update={"code_temperature": 0.01})
    method = build()
    state = method.state_dict()
    saved = settings.saved_state(state)
    (name,) = (name for name in state if name.startswith("projector.") and "weight" in name)
    torch.testing.assert_close(saved[name], state[name] * 100)
    assert all(torch.equal(saved[other], state[other]) for other in state if other != name)
    assert SETTINGS.saved_state(state) == state
    with pytest.raises(ValueError, match="without standardize"):
        IMSVDSettings(projector=(12,), units=4, standardize=True, code_temperature=0.01)
