import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from imsvd import distributed
from imsvd.errors import InputError
from imsvd.losses.npid import InstanceForm, NPIDLoss, draw_negatives
from tests import gloo
from tests.oracles import npid as oracle

IMAGES, WIDTH, NEGATIVES = 11, 5, 7


def embeddings(batch: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(batch, WIDTH, generator=generator, dtype=torch.float64)
    return (3 * values).requires_grad_()


def bank(images: int = IMAGES) -> Tensor:
    generator = torch.Generator().manual_seed(99)
    return F.normalize(torch.randn(images, WIDTH, generator=generator, dtype=torch.float64), dim=1)


def drawn(batch: int, seed: int) -> tuple[Tensor, Tensor]:
    """Positions of the samples, and of their negatives."""
    generator = torch.Generator().manual_seed(seed)
    samples = torch.randperm(IMAGES, generator=generator)[:batch]
    return samples, torch.randint(IMAGES, (batch, NEGATIVES), generator=generator)


def assert_same(actual: Tensor, expected: Tensor, embedding: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-11, atol=1e-11)
    (gradient,) = torch.autograd.grad(actual, embedding)
    (wanted,) = torch.autograd.grad(expected, embedding, retain_graph=True)
    torch.testing.assert_close(gradient, wanted, rtol=1e-10, atol=1e-10)


@given(
    batch=st.integers(1, 6),
    temperature=st.sampled_from([0.07, 0.5, 1.0]),
    proximal_weight=st.sampled_from([0.0, 0.7]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=25, deadline=None)
def test_softmax_and_nce_equal_the_literal_equations(
    batch: int, temperature: float, proximal_weight: float, seed: int
) -> None:
    embedding = embeddings(batch, seed)
    samples, negatives = drawn(batch, seed)
    near = proximal_weight * oracle.proximal(embedding, bank(), samples)

    loss = NPIDLoss("softmax", temperature=temperature, proximal_weight=proximal_weight)
    expected = near + oracle.softmax_loss(embedding, bank(), samples, temperature)
    assert_same(loss(embedding, samples, bank()).loss, expected, embedding)

    loss = NPIDLoss("nce", temperature=temperature, proximal_weight=proximal_weight).double()
    z = oracle.normalizer(embedding.detach(), bank(), negatives, temperature)
    expected = near + oracle.nce_loss(embedding, bank(), samples, negatives, temperature, z)
    assert_same(loss(embedding, samples, bank(), negatives).loss, expected, embedding)


def test_the_normalizer_is_that_of_the_first_batch() -> None:
    loss = NPIDLoss("nce").double()
    first, second = embeddings(4, 0), embeddings(4, 1)
    samples, negatives = drawn(4, 0)
    loss(first, samples, bank(), negatives)
    z = oracle.normalizer(first.detach(), bank(), negatives, 0.07)
    assert float(loss.normalizer) == pytest.approx(z, rel=1e-12)
    other_samples, other_negatives = drawn(4, 1)
    expected = oracle.nce_loss(second, bank(), other_samples, other_negatives, 0.07, z)
    output = loss(second, other_samples, bank(), other_negatives)
    torch.testing.assert_close(output.loss, expected)
    assert float(loss.normalizer) == pytest.approx(z, rel=1e-12)


def test_a_bank_that_knows_nothing_gives_the_logarithm_of_its_size() -> None:
    same = torch.ones(1, WIDTH, dtype=torch.float64).expand(IMAGES, -1) / WIDTH**0.5
    samples, negatives = drawn(4, 0)
    softmax = NPIDLoss("softmax")(embeddings(4, 0), samples, same).loss
    assert float(softmax.detach()) == pytest.approx(math.log(IMAGES))
    # Z makes every image equally likely, P = 1/n, so that h = 1 / (1 + m) everywhere.
    vector = same[:4].clone().requires_grad_()
    nce = NPIDLoss("nce").double()(vector, samples, same, negatives).loss
    h = 1 / (1 + NEGATIVES)
    assert float(nce.detach()) == pytest.approx(-math.log(h) - NEGATIVES * math.log(1 - h))


def test_terms_are_detached_and_without_weights() -> None:
    samples, _ = drawn(4, 0)
    output = NPIDLoss("softmax", proximal_weight=0.5)(embeddings(4, 0), samples, bank())
    terms = output.terms
    assert set(terms) == {"instance_discrimination", "proximity"}
    assert not any(term.requires_grad for term in terms.values())
    total = terms["instance_discrimination"] + 0.5 * terms["proximity"]
    torch.testing.assert_close(output.loss.detach(), total)
    assert set(NPIDLoss("softmax")(embeddings(4, 0), samples, bank()).terms) == {
        "instance_discrimination"
    }


@pytest.mark.parametrize("form", ["nce", "softmax"])
def test_half_precision_is_computed_in_single(form: InstanceForm) -> None:
    samples, negatives = drawn(4, 0)
    half = embeddings(4, 0).detach().bfloat16().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = NPIDLoss(form)(half, samples, bank().float(), negatives)
    assert output.loss.dtype == torch.float32
    expected = NPIDLoss(form)(half.float(), samples, bank().float(), negatives).loss
    torch.testing.assert_close(output.loss, expected)


def test_certain_embeddings_stay_finite() -> None:
    samples = torch.arange(4)
    vectors = torch.eye(4, WIDTH).requires_grad_()
    negatives = torch.arange(4).flip(0).unsqueeze(1).expand(4, NEGATIVES)
    for form in ("nce", "softmax"):
        output = NPIDLoss(form, temperature=0.005)(vectors, samples, torch.eye(4, WIDTH), negatives)
        (gradient,) = torch.autograd.grad(output.loss, vectors)
        assert output.loss.isfinite()
        assert gradient.isfinite().all()


def test_bad_use_is_refused_with_a_sentence() -> None:
    with pytest.raises(InputError, match="form = 'l2': choose one of"):
        NPIDLoss("l2")  # type: ignore[arg-type]
    samples, _ = drawn(2, 0)
    with pytest.raises(InputError, match="needs negatives"):
        NPIDLoss("nce")(embeddings(2, 0), samples, bank())


def on_one_rank() -> list[dict[str, Any]]:
    own = distributed.own_slice(6)
    samples, _ = drawn(6, 3)
    negatives = draw_negatives(
        own.stop - own.start, IMAGES, NEGATIVES, torch.Generator().manual_seed(5)
    )
    results = []
    for form in ("nce", "softmax"):
        embedding = embeddings(6, 3)[own].detach().requires_grad_()
        loss = NPIDLoss(form, proximal_weight=0.3).double()
        output = loss(embedding, samples[own], bank(), negatives)
        (gradient,) = torch.autograd.grad(output.loss, embedding)
        results.append({"gradient": gradient, "terms": output.terms, "normalizer": loss.normalizer})
    return results


def test_two_ranks_equal_one_process_on_the_joined_batch() -> None:
    expected = on_one_rank()
    ranks = gloo.run(2, on_one_rank)
    for form in range(2):
        joined = torch.cat([result[form]["gradient"] for result in ranks]) / 2
        torch.testing.assert_close(joined, expected[form]["gradient"], rtol=1e-10, atol=1e-12)
        for result in ranks:
            torch.testing.assert_close(result[form]["normalizer"], expected[form]["normalizer"])
            for name, term in expected[form]["terms"].items():
                torch.testing.assert_close(
                    result[form]["terms"][name].double(), term, rtol=1e-6, atol=1e-6
                )
