import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from imsvd.config import Config, override
from imsvd.methods import Method, MethodOutput
from imsvd.pretraining.optimizers import build_optimizer, learning_rate, set_learning_rate
from tests.launches import Launches

SCHEDULE = override(
    Config(),
    [
        "optimizer.lr=0.4",
        "optimizer.warmup_epochs=2",
        "optimizer.final_lr_ratio=0.1",
        "training.epochs=10",
        "training.batch_size=512",
    ],
)
PEAK, FLOOR, PER_EPOCH = 0.8, 0.08, 5


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (0, 0.0),
        (5, PEAK / 2),
        (9, PEAK * 0.9),
        (10, PEAK),
        (30, (PEAK + FLOOR) / 2),
        (49, FLOOR + (PEAK - FLOOR) * (1 + math.cos(math.pi * 39 / 40)) / 2),
        (50, FLOOR),
    ],
)
def test_the_schedule_at_its_turning_points(step: int, expected: float) -> None:
    assert learning_rate(SCHEDULE, step, PER_EPOCH) == pytest.approx(expected, rel=1e-12)


def test_without_warm_up_the_peak_comes_first() -> None:
    config = override(SCHEDULE, ["optimizer.warmup_epochs=0"])
    assert learning_rate(config, 0, PER_EPOCH) == PEAK


def test_a_part_of_an_epoch_can_warm_up() -> None:
    config = override(SCHEDULE, ["optimizer.warmup_epochs=0.5"])
    assert learning_rate(config, 2, PER_EPOCH) == pytest.approx(PEAK * 2 / 2.5)
    assert learning_rate(config, 3, PER_EPOCH) < PEAK


class Network(Method):
    """The smallest method with weights, vectors and a part of constant rate."""

    def __init__(self, constant: Sequence[str] = ()) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.backbone = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
        self.predictor = nn.Linear(3, 2, bias=False)
        self.constant = constant

    def forward(self, views: Sequence[Tensor], samples: Tensor) -> MethodOutput:
        features = self.backbone(views[0])
        embedding = self.predictor(features)
        return MethodOutput(embedding.pow(2).sum(), {}, features, embedding)

    def constant_lr_modules(self) -> list[nn.Module]:
        return [self.get_submodule(name) for name in self.constant]


def network() -> Network:
    return Network()


def one_step(
    name: str, *settings: str, momentum: float = 0.9
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """(before, gradient, after) of every parameter for one step at lr 0.5."""
    config = override(
        Config(), [f"optimizer.name={name}", f"optimizer.momentum={momentum}", *settings]
    )
    model = network()
    optimizer = build_optimizer(model, config)
    set_learning_rate(optimizer, 0.5, 1.0)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    data = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))
    model([data], torch.arange(8)).loss.backward()
    gradients = [
        parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None
    ]
    optimizer.step()
    return list(zip(before, gradients, model.parameters(), strict=True))


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_a_step_of_lars_is_the_one_computed_by_hand(decay: float) -> None:
    moves = one_step("lars", f"optimizer.weight_decay={decay}", "optimizer.trust_coefficient=0.02")
    for before, gradient, after in moves:
        if before.ndim > 1:
            norm = before.norm()
            ratio = 0.02 * norm / (gradient.norm() + decay * norm + 1e-8)
            expected = before - 0.5 * ratio * (gradient + decay * before)
        else:
            expected = before - 0.5 * gradient
        torch.testing.assert_close(after.detach(), expected, rtol=1e-5, atol=1e-7)


def test_lars_carries_momentum() -> None:
    model = network()
    optimizer = build_optimizer(model, override(Config(), ["optimizer.name=lars"]))
    set_learning_rate(optimizer, 1.0, 1.0)
    bias = model.get_parameter("backbone.0.bias")
    before = bias.detach().clone()
    for _ in range(2):
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    torch.testing.assert_close(bias.detach(), before - 1 - 1.9)


def test_sgd_decays_weights_and_spares_vectors() -> None:
    for before, gradient, after in one_step("sgd", "optimizer.weight_decay=0.1"):
        decay = 0.1 if before.ndim > 1 else 0.0
        torch.testing.assert_close(after.detach(), before - 0.5 * (gradient + decay * before))


def test_decay_all_decays_vectors_too() -> None:
    moves = one_step("sgd", "optimizer.weight_decay=0.1", "optimizer.decay_all=true")
    for before, gradient, after in moves:
        torch.testing.assert_close(after.detach(), before - 0.5 * (gradient + 0.1 * before))


def test_adamw_decays_weights_and_spares_vectors() -> None:
    moves = one_step("adamw", "optimizer.weight_decay=0.1")
    for before, gradient, after in moves:
        shrink = 1 - 0.5 * 0.1 if before.ndim > 1 else 1.0
        first = gradient / (gradient.abs() + 1e-8)
        torch.testing.assert_close(after.detach(), before * shrink - 0.5 * first)


def test_the_optimizer_starts_at_the_scaled_peak() -> None:
    groups = build_optimizer(network(), SCHEDULE).param_groups
    assert [group["lr"] for group in groups] == [PEAK, PEAK]


def test_frozen_parameters_are_left_out() -> None:
    model = network()
    model.get_submodule("backbone.0").requires_grad_(False)
    groups = build_optimizer(model, Config()).param_groups
    assert sum(len(group["params"]) for group in groups) == 3


def test_vectors_can_have_a_rate_of_their_own() -> None:
    for before, gradient, after in one_step(
        "sgd", "optimizer.vector_lr_ratio=0.1", "optimizer.weight_decay=0"
    ):
        rate = 0.5 if before.ndim > 1 else 0.05
        torch.testing.assert_close(after.detach(), before - rate * gradient)


def test_a_constant_rate_stays_at_the_peak() -> None:
    model = Network(constant=["predictor"])
    optimizer = build_optimizer(model, Config())
    set_learning_rate(optimizer, 0.25, 2.0)
    rates = {
        parameter: group["lr"] for group in optimizer.param_groups for parameter in group["params"]
    }
    assert rates[model.predictor.weight] == 2.0
    assert rates[model.get_parameter("backbone.0.weight")] == 0.25


def test_a_clipped_trust_ratio_never_raises_the_rate() -> None:
    for before, gradient, after in one_step(
        "lars",
        "optimizer.trust_coefficient=100",
        "optimizer.trust_clip=true",
        "optimizer.weight_decay=0",
    ):
        torch.testing.assert_close(after.detach(), before - 0.5 * gradient)


def test_a_step_of_lars_on_a_gpu_treats_all_tensors_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = ["optimizer.name=lars", "optimizer.weight_decay=0.1", "optimizer.trust_clip=true"]
    counts, weights = [], []
    for at_once in (False, True):
        monkeypatch.setattr(  # asks the device, and a CPU declines
            "timm.optim._helpers._default_to_fused_or_foreach",
            lambda *_, at_once=at_once, **__: (False, at_once),
        )
        torch.manual_seed(0)
        model = network()
        model.backbone = nn.Sequential(model.backbone, *(nn.Linear(3, 3) for _ in range(30)))
        optimizer = build_optimizer(model, override(Config(), settings))
        for _ in range(2):  # the second has momentum
            for parameter in model.parameters():
                parameter.grad = parameter.detach().cos()
            counted = Launches()
            with counted:
                optimizer.step()
        counts.append(counted.count)
        weights.append([parameter.detach().clone() for parameter in model.parameters()])
    assert counts[1] < counts[0] / 10
    torch.testing.assert_close(*weights, rtol=0, atol=0)
