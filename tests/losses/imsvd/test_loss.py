from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from imsvd import distributed
from imsvd.errors import InputError
from imsvd.losses.base import LossOutput
from imsvd.losses.imsvd import IMSVDLoss, Invariance, Joint, Normalization, kernel
from tests import gloo
from tests.launches import Launches
from tests.losses.parity import assert_ranks_equal_one_process, embeddings
from tests.oracles import imsvd as oracle

KEYS = ("invariance", "diagonal_entropy", "off_diagonal_entropy")


def logits(batch: int, width: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    values = 2 * torch.randn(batch, width, generator=generator, dtype=torch.float64)
    return values.to(dtype).requires_grad_()


def gradients(loss: Tensor, *inputs: Tensor) -> Tensor:
    return torch.stack(torch.autograd.grad(loss, inputs))


def relative_error(actual: Tensor, expected: Tensor) -> float:
    difference = (actual.detach().double() - expected.detach().double()).abs().max()
    return float(difference / expected.detach().abs().max().clamp_min(1e-3))


def loss_from(weights: tuple[float, float, float], sizes: list[int], **options: Any) -> IMSVDLoss:
    names = ("invariance_weight", "diagonal_weight", "off_diagonal_weight")
    options.update(zip(names, weights, strict=True))
    return IMSVDLoss(sizes, **options)


@given(
    batch=st.integers(1, 6),
    sizes=st.one_of(
        st.lists(st.integers(2, 5), min_size=1, max_size=5),
        st.builds(lambda units, count: [units] * count, st.integers(2, 5), st.integers(1, 5)),
    ),
    tile_rows=st.integers(1, 30),
    weights=st.tuples(*[st.sampled_from([0.0, 0.3, 1.0, 2.0])] * 3).filter(any),
    invariance=st.sampled_from(["inner_product", "cross_entropy"]),
    normalization=st.sampled_from(["averaged", "paper"]),
    joint=st.sampled_from(["cross", "within"]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=80, deadline=None)
def test_loss_and_gradients_equal_the_literal_equations(
    batch: int,
    sizes: list[int],
    tile_rows: int,
    weights: tuple[float, float, float],
    invariance: str,
    normalization: str,
    joint: str,
    seed: int,
) -> None:
    first, second = logits(batch, sum(sizes), seed), logits(batch, sum(sizes), seed + 1)
    choices: dict[str, Any] = {
        "invariance": invariance,
        "normalization": normalization,
        "joint": joint,
    }
    expected = oracle.loss(first, second, sizes, weights=weights, **choices)
    loss = loss_from(weights, sizes, tile_rows=tile_rows, **choices)
    output = loss(first, second)
    assert relative_error(output.loss, expected) <= 1e-12
    actual = gradients(output.loss, first, second)
    assert relative_error(actual, gradients(expected, first, second)) <= 1e-12
    with torch.no_grad():
        assert relative_error(loss(first, second).loss, expected) <= 1e-12


def test_single_precision_is_close() -> None:
    first, second = logits(16, 120, 0), logits(16, 120, 1)
    expected = oracle.loss(first, second, [12] * 10)
    singles = [value.detach().float().requires_grad_() for value in (first, second)]
    actual = IMSVDLoss(12, tile_rows=50)(*singles).loss
    assert relative_error(actual, expected) <= 1e-5
    expected_gradients = gradients(expected, first, second)
    assert relative_error(gradients(actual, *singles), expected_gradients) <= 1e-5


def test_gradcheck() -> None:
    loss = IMSVDLoss([2, 3, 4], tile_rows=4)
    inputs = (logits(3, 9, 0), logits(3, 9, 1))
    assert torch.autograd.gradcheck(lambda a, b: loss(a, b).loss, inputs)


@pytest.mark.parametrize("normalization", ["averaged", "paper"])
def test_terms_equal_the_literal_equations_and_add_up(normalization: Normalization) -> None:
    first, second = logits(5, 12, 0), logits(5, 12, 1)
    expected = oracle.terms(first, second, [3] * 4, normalization)
    output = IMSVDLoss(3, normalization=normalization)(first, second)
    assert tuple(output.terms) == KEYS
    for name, value in output.terms.items():
        torch.testing.assert_close(value, getattr(expected, name).detach())
        assert not value.requires_grad
    torch.testing.assert_close(output.loss.detach(), torch.stack([*output.terms.values()]).sum())


def test_small_logits_are_rewarded_by_the_square_and_punished_by_the_fourth_power() -> None:
    """So that weights scale what soft codes are, and do not choose them (benchmarks/short-runs.md)."""
    views = torch.stack([logits(40, 24, seed).detach() for seed in (1, 2)])
    views = views - views.mean(1, keepdim=True)
    loss = IMSVDLoss(6)
    uniform = loss(*torch.zeros_like(views)).terms

    def departure(scale: float) -> Tensor:
        found = loss(*(scale * views)).terms
        return torch.stack([found[key] - uniform[key] for key in KEYS])

    growth = departure(2e-3) / departure(1e-3)
    torch.testing.assert_close(growth, growth.new_tensor([4.0, 4.0, 16.0]), rtol=0.02, atol=0)


PAIRS = ((0, 1), (0, 2), (1, 2), (0, 3), (1, 3))


def mean_of_pairs(loss: IMSVDLoss, views: list[Tensor]) -> LossOutput:
    found = [loss(views[a], views[b]) for a, b in PAIRS]
    terms = {key: torch.stack([output.terms[key] for output in found]).mean() for key in KEYS}
    return LossOutput(torch.stack([output.loss for output in found]).mean(), terms)


@pytest.mark.parametrize("invariance", ["inner_product", "cross_entropy"])
@pytest.mark.parametrize("joint", ["cross", "within"])
def test_the_loss_of_several_views_is_the_mean_over_their_pairs(
    joint: Joint, invariance: Invariance
) -> None:
    loss = loss_from((0.5, 2.0, 3.0), [3, 2, 4], joint=joint, invariance=invariance, tile_rows=2)
    views = [logits(7, 9, seed) for seed in range(4)]
    expected, found = mean_of_pairs(loss, views), loss.of_views(views, PAIRS)
    assert relative_error(found.loss, expected.loss) <= 1e-12
    assert relative_error(gradients(found.loss, *views), gradients(expected.loss, *views)) <= 1e-12
    for key in KEYS:
        assert relative_error(found.terms[key], expected.terms[key]) <= 1e-12


def test_joint_entropies_of_a_view_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    once = kernel.off_diagonal

    def counted(*arguments: Any) -> Any:
        calls.append(arguments)
        return once(*arguments)

    monkeypatch.setattr(kernel, "off_diagonal", counted)
    views = [logits(7, 9, seed) for seed in range(4)]
    IMSVDLoss(3, joint="within").of_views(views, PAIRS)
    assert len(calls) == len(views)


def four_views(*views: Tensor, joint: Joint) -> LossOutput:
    return IMSVDLoss([2, 5, 3], joint=joint, tile_rows=3).of_views(views, PAIRS)


@pytest.mark.parametrize("joint", ["cross", "within"])
def test_ranks_share_the_loss_of_several_views(joint: Joint) -> None:
    build = partial(partial, four_views, joint=joint)
    assert_ranks_equal_one_process(build, [embeddings(6, 10, seed=1, views=4)])


def test_views_that_disagree_look_independent_to_the_cross_joint_entropy_alone() -> None:
    redundant = torch.randn(500, 4, generator=torch.Generator().manual_seed(0)).repeat(1, 6) * 4
    unrelated = redundant.roll(1, 0)

    def off_diagonal(second: Tensor, joint: Joint) -> float:
        return float(IMSVDLoss(4, joint=joint)(redundant, second).terms["off_diagonal_entropy"])

    agreeing = off_diagonal(redundant, "cross")
    assert off_diagonal(redundant, "within") == pytest.approx(agreeing)
    assert off_diagonal(unrelated, "within") == pytest.approx(agreeing)
    assert off_diagonal(unrelated, "cross") < agreeing - 0.5


def test_weight_zero_switches_off_and_skips_the_joint_matrix(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def forbidden(*_: Any) -> None:
        raise AssertionError("the joint matrix was computed")

    monkeypatch.setattr("imsvd.losses.imsvd.kernel.off_diagonal", forbidden)
    first, second = logits(4, 8, 0), logits(4, 8, 1)
    output = IMSVDLoss(4, off_diagonal_weight=0)(first, second)
    assert tuple(output.terms) == KEYS[:2]
    expected = oracle.loss(first, second, [4, 4], weights=(1, 1, 0))
    torch.testing.assert_close(output.loss, expected)


@pytest.mark.parametrize("invariance", ["inner_product", "cross_entropy"])
@pytest.mark.parametrize("agree", [True, False])
def test_finite_at_exact_collapse_and_at_hard_disagreement(
    invariance: Invariance, agree: bool
) -> None:
    first = torch.zeros(4, 6)
    first[:, [0, 3]] = 1e4
    second = (first if agree else first.roll(1, 1)).clone()
    inputs = first.requires_grad_(), second.requires_grad_()
    output = IMSVDLoss(3, invariance=invariance)(*inputs)
    assert output.loss.isfinite()
    assert gradients(output.loss, *inputs).isfinite().all()
    if agree:
        assert abs(float(output.loss.detach())) < 1e-5


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("autocast", [True, False])
def test_half_precision_embeddings_give_the_single_precision_value(
    dtype: torch.dtype, autocast: bool
) -> None:
    first, second = (logits(8, 24, seed, dtype) for seed in (0, 1))
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        output = IMSVDLoss(8)(first, second)
    assert output.loss.dtype == torch.float32
    expected = oracle.loss(first.float(), second.float(), [8] * 3)
    assert relative_error(output.loss, expected) <= 1e-3
    for gradient, value in zip(
        torch.autograd.grad(output.loss, (first, second)), (first, second), strict=True
    ):
        assert gradient.dtype == value.dtype
        assert gradient.isfinite().all()


def test_second_derivatives_are_refused_with_a_sentence() -> None:
    first, second = logits(3, 4, 0), logits(3, 4, 1)
    with pytest.raises(RuntimeError, match="cannot be differentiated again: call backward without"):
        torch.autograd.grad(IMSVDLoss(2)(first, second).loss, first, create_graph=True)


def test_a_kept_graph_gives_the_same_gradient_twice() -> None:
    first, second = logits(3, 4, 0), logits(3, 4, 1)
    loss = IMSVDLoss(2)(first, second).loss
    (once,) = torch.autograd.grad(2 * loss, first, retain_graph=True)
    (again,) = torch.autograd.grad(2 * loss, first)
    assert torch.equal(once, again)


def test_inputs_are_not_changed() -> None:
    first, second = logits(3, 4, 0), logits(3, 4, 1)
    IMSVDLoss(2)(first, second).loss.backward()
    assert torch.equal(first, logits(3, 4, 0))
    assert torch.equal(second, logits(3, 4, 1))


def test_one_view_may_stand_still() -> None:
    first, second = logits(3, 6, 0), logits(3, 6, 1)
    (expected,) = torch.autograd.grad(oracle.loss(first, second, [3, 3]), first)
    (actual,) = torch.autograd.grad(IMSVDLoss(3)(first, second.detach()).loss, first)
    torch.testing.assert_close(actual, expected)


def test_bad_settings_and_shapes_are_refused_with_a_sentence() -> None:
    bad: list[dict[str, Any]] = [
        {"invariance": "l2"},
        {"normalization": "sum"},
        {"joint": "own"},
        {"tile_rows": 0},
    ]
    for options in bad:
        with pytest.raises(InputError, match="choose"):
            IMSVDLoss(4, **options)
    with pytest.raises(InputError, match=r"got \(4, 8\) and \(5, 8\)"):
        IMSVDLoss(4)(torch.zeros(4, 8), torch.zeros(5, 8))
    with pytest.raises(InputError, match="not divisible"):
        IMSVDLoss(4)(torch.zeros(4, 9), torch.zeros(4, 9))


# Local batch, units, rows per tile (None: the default), joint probabilities.
RANK_CASES: list[tuple[int, list[int], int | None, Joint]] = [
    (1, [2, 3], 1, "cross"),
    (2, [3] * 4, None, "cross"),
    (3, [2, 5, 3, 4], 3, "cross"),
    (3, [2, 5, 3, 4], 3, "within"),
    (4, [4] * 5, 7, "cross"),
    (4, [4] * 5, None, "within"),
    (2, [2], None, "cross"),
]


def rank_logits(case: int, rank: int) -> tuple[Tensor, Tensor]:
    batch, sizes, *_ = RANK_CASES[case]
    seed = 100 * case + 2 * rank
    return logits(batch, sum(sizes), seed), logits(batch, sum(sizes), seed + 1)


def losses_on_one_rank() -> list[dict[str, Any]]:
    results = []
    for case, (_, sizes, tile_rows, joint) in enumerate(RANK_CASES):
        first, second = rank_logits(case, distributed.rank())
        loss = IMSVDLoss(sizes, joint=joint, tile_rows=tile_rows)
        output = loss(first, second)
        with torch.no_grad():
            value = loss(first, second).loss
        results.append(
            {
                "loss": output.loss.detach(),
                "value": value,
                "terms": output.terms,
                "gradients": gradients(output.loss, first, second),
            }
        )
    return results


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_ranks_with_different_data_equal_one_process_on_the_joined_batch(world_size: int) -> None:
    ranks = gloo.run(world_size, losses_on_one_rank)
    for case, (batch, sizes, _, joint) in enumerate(RANK_CASES):
        views = zip(*(rank_logits(case, rank) for rank in range(world_size)), strict=True)
        first, second = (torch.cat(view).detach().requires_grad_() for view in views)
        expected = oracle.loss(first, second, sizes, joint=joint)
        expected_gradients = gradients(expected, first, second)
        expected_terms = IMSVDLoss(sizes, joint=joint)(first, second).terms
        for rank, results in enumerate(ranks):
            result = results[case]
            own = expected_gradients[:, rank * batch : (rank + 1) * batch]
            assert relative_error(result["loss"], expected) <= 1e-12
            assert relative_error(result["value"], expected) <= 1e-12
            # DDP divides by the number of ranks: each hands it that many times its share.
            assert relative_error(result["gradients"], world_size * own) <= 1e-12
            for name, term in result["terms"].items():
                assert relative_error(term, expected_terms[name]) <= 1e-12


def trained_weights(rank: int, world_size: int) -> list[Tensor]:
    """Five steps of a network without norm layers on this rank's part of eight samples."""
    torch.manual_seed(0)
    network: nn.Module = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 12))
    data = torch.randn(5, 2, 8, 5)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.5, momentum=0.9)
    model = DistributedDataParallel(network) if world_size > 1 else network
    loss = IMSVDLoss(4, tile_rows=5)
    own = slice(8 * rank // world_size, 8 * (rank + 1) // world_size)
    for first, second in data:
        optimizer.zero_grad()
        loss(model(first[own]), model(second[own])).loss.backward()
        optimizer.step()
    return [parameter.detach() for parameter in network.parameters()]


def train_on_one_rank() -> list[Tensor]:
    return trained_weights(distributed.rank(), distributed.world_size())


@pytest.mark.parametrize("world_size", [2, 4])
def test_five_steps_under_ddp_equal_one_process(world_size: int) -> None:
    expected = trained_weights(0, 1)
    for weights in gloo.run(world_size, train_on_one_rank):
        for actual, single in zip(weights, expected, strict=True):
            torch.testing.assert_close(actual, single, atol=1e-6, rtol=0)


def launches(sizes: list[int]) -> int:
    views = [logits(8, sum(sizes), seed, torch.float32) for seed in (0, 1)]
    counted = Launches()
    with counted:
        loss_from((1, 1, 1), sizes)(*views).loss.backward()
    return counted.count


def test_variables_of_two_sizes_cost_few_more_operations_than_those_of_one() -> None:
    assert launches([3] * 40 + [5] * 40) < 1.5 * launches([4] * 80)
