"""Which code is best if every view shows each of several independent factors, or spoils it by chance?

docs/theory/meaning.md proves that the best variables are functions of one factor each. Here small cases are
enumerated, and a network finds both an easy and a hard factor.
"""

import itertools
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from imsvd.losses.imsvd import IMSVDLoss, Joint

Code = tuple[int, ...]
"""The unit of every combination of two factors."""


def views_of_two_factors(values: int, copies: int) -> tuple[Tensor, Tensor]:
    """Return all combinations that two views show, each as often as it is likely.

    A factor has the same value in both views `copies` times as often as any pair of different ones, which
    is what independent spoiling does.
    """
    one = [
        pair
        for pair in itertools.product(range(values), repeat=2)
        for _ in range(copies if pair[0] == pair[1] else 1)
    ]
    rows = torch.tensor([(*first, *second) for first, second in itertools.product(one, one)])
    return rows[:, 0] * values + rows[:, 2], rows[:, 1] * values + rows[:, 3]


def even_codes(values: int) -> Iterator[Code]:
    """Yield every variable that uses `values` units evenly."""
    for code in itertools.product(range(values), repeat=values**2):
        if all(code.count(unit) == values for unit in range(values)):
            yield code


def is_a_function_of_one_factor(code: Code, values: int) -> bool:
    table = torch.tensor(code).view(values, values)
    return bool((table == table[:1]).all() or (table == table[:, :1]).all())


@pytest.mark.parametrize("values", [2, 3])
def test_no_variable_agrees_more_than_one_that_reads_a_single_factor(values: int) -> None:
    first, second = views_of_two_factors(values, copies=2 * values)
    codes = list(even_codes(values))
    units = torch.tensor(codes)
    agreement = (units[:, first] == units[:, second]).double().mean(1)
    one_factor = torch.tensor([is_a_function_of_one_factor(code, values) for code in codes])
    # s² is the probability that neither view has spoiled the factor.
    survives = (2 * values - 1) / (3 * values - 1)
    bound = 1 / values + survives * (1 - 1 / values)
    assert torch.allclose(agreement[one_factor], torch.tensor(bound, dtype=torch.float64))
    assert agreement[~one_factor].max() < bound - 0.02
    assert one_factor.sum() == 2 * len(list(itertools.permutations(range(values))))


@pytest.mark.parametrize("joint", ["within", "cross"])
def test_the_loss_is_least_where_each_variable_is_one_factor(joint: Joint) -> None:
    first, second = views_of_two_factors(2, copies=3)
    codes, losses = list(even_codes(2)), {}
    loss = IMSVDLoss(2, joint=joint)
    for pair in itertools.product(codes, codes):
        units = torch.tensor(pair)
        logits = [
            (20 * F.one_hot(units[:, view], 2).double()).transpose(0, 1).flatten(1)
            for view in (first, second)
        ]
        losses[pair] = float(loss(*logits).loss)
    least = min(losses.values())
    best = {pair for pair, value in losses.items() if value < least + 1e-6}
    of_first, of_second = {(0, 0, 1, 1), (1, 1, 0, 0)}, {(0, 1, 0, 1), (1, 0, 1, 0)}
    both_ways = [*itertools.product(of_first, of_second), *itertools.product(of_second, of_first)]
    assert best == set(both_ways)


def test_copies_cost_more_where_joint_entropies_are_taken_within_views() -> None:
    """Disagreement between the views hides from the cross form that two variables are one."""
    first, second = views_of_two_factors(2, copies=3)
    costs = {}
    for joint in ("within", "cross"):
        found = []
        for other in ((0, 1, 0, 1), (0, 0, 1, 1)):
            units = torch.tensor([(0, 0, 1, 1), other])
            views = [
                F.one_hot(units[:, view], 2).double().transpose(0, 1) for view in (first, second)
            ]
            logits = [(20 * view).flatten(1) for view in views]
            found.append(float(IMSVDLoss(2, joint=joint)(*logits).terms["off_diagonal_entropy"]))
        costs[joint] = found[1] - found[0]
    assert costs["within"] == pytest.approx(torch.tensor(2.0).log().item(), abs=1e-3)
    assert costs["cross"] < 0.25 * costs["within"]


SPOILED = 1 / 3


def draw_views(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return two factors of four values and two views of them.

    The easy factor is a one-hot vector. Each bit of the hard one is the product of two random signs, which no
    linear map can see. Either is replaced by a random value in a third of the views.
    """
    easy, hard = (torch.randint(4, (count,), generator=generator) for _ in range(2))

    def view() -> Tensor:
        def spoil(factor: Tensor) -> Tensor:
            spoiled = torch.rand(count, generator=generator) < SPOILED
            return torch.where(spoiled, torch.randint(4, (count,), generator=generator), factor)

        shown = 2 * F.one_hot(spoil(easy), 4) + 0.3 * torch.randn(count, 4, generator=generator)
        seen = spoil(hard)
        bits = 2.0 * torch.stack([seen % 2, seen // 2], 1) - 1
        signs = 2.0 * torch.randint(2, (count, 2), generator=generator) - 1
        hidden = torch.cat([signs, signs * bits], 1)
        return torch.cat([shown, hidden + 0.2 * torch.randn(count, 4, generator=generator)], 1)

    return easy, hard, view(), view()


def train_code(seed: int, joint: Joint) -> nn.Module:
    """Train two variables of four units on views of the two factors."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    layers: list[nn.Module] = []
    for inputs in (8, 128):
        layers += [nn.Linear(inputs, 128), nn.BatchNorm1d(128), nn.ReLU()]
    network = nn.Sequential(*layers, nn.Linear(128, 8))
    loss = IMSVDLoss(4, joint=joint)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    for _ in range(600):
        *_, first, second = draw_views(512, generator)
        optimizer.zero_grad()
        loss(network(first), network(second)).loss.backward()
        optimizer.step()
    return network.eval()


def best_guesses(seed: int, network: nn.Module) -> Tensor:
    """Return how often each variable (rows) tells the easy and the hard factor that its view shows."""
    generator = torch.Generator().manual_seed(seed + 1000)
    easy, hard, view, _ = draw_views(4000, generator)
    with torch.no_grad():
        units = network(view).view(-1, 2, 4).argmax(-1)
    guessed = torch.zeros(2, 2)
    for variable, factor in itertools.product(range(2), range(2)):
        counts = torch.zeros(4, 4)
        places = units[:, variable], (easy, hard)[factor]
        counts.index_put_(places, torch.ones(4000), accumulate=True)
        guessed[variable, factor] = counts.amax(1).sum() / 4000
    return guessed


def finds_both(seed: int, joint: Joint) -> bool:
    """Whether one variable is the easy factor and the other one the hard factor, as far as views show them."""
    guessed = best_guesses(seed, train_code(seed, joint))
    shown = 1 - 0.75 * SPOILED
    for order in ([0, 1], [1, 0]):
        own, other = guessed[[0, 1], order], guessed[[1, 0], order]
        if own.min() > shown - 0.05 and other.max() < 0.35:
            return True
    return False


@pytest.mark.parametrize("seed", [0, 1])
def test_an_easy_and_a_hard_factor_become_one_variable_each(seed: int) -> None:
    assert finds_both(seed, "within")


@pytest.mark.slow
def test_both_factors_are_found_with_ten_of_ten_seeds_within_views_only() -> None:
    found = {
        joint: sum(finds_both(seed, joint) for seed in range(10)) for joint in ("within", "cross")
    }
    assert found["within"] == 10
    assert found["cross"] == 0
