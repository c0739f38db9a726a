import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from imsvd.information import soft_discretize
from imsvd.losses.byol import BYOLLoss
from imsvd.methods.code import CodeSettings
from imsvd.methods.memory import cosine_momentum
from imsvd.methods.sem import SEM, SEMSettings, Simplices
from imsvd.methods.settings import CodeHead
from imsvd.networks import projector
from imsvd.recipes import recipe
from tests import gloo
from tests.losses.parity import gradients, relative_error
from tests.methods import remembering
from tests.methods.networks import SAMPLES, NormFree, views
from tests.oracles import byol, sem

SETTINGS = SEMSettings(
    variables=3,
    units=4,
    temperature=0.7,
    target_temperature=0.3,
    projector=(10, 5),
    predictor=7,
    momentum=0.9,
)


def build() -> SEM:
    torch.manual_seed(0)
    return SEM(SETTINGS, NormFree()).double()


def disturb(module: nn.Module) -> None:
    """Move weights and statistics, as steps would."""
    with torch.no_grad():
        for value in module.state_dict().values():
            if value.is_floating_point():
                value.add_(0.3 * torch.rand_like(value))


def test_simplices_and_their_gradients_equal_the_literal_equation() -> None:
    logits = (3 * torch.randn(5, 12, dtype=torch.float64)).requires_grad_()
    toward = torch.randn(5, 12, dtype=torch.float64)
    actual, expected = Simplices(4, 0.7)(logits), sem.simplices(logits, 4, 0.7)
    assert relative_error(actual, expected) <= 1e-10
    wanted = gradients((toward * expected).sum(), [logits])
    assert relative_error(gradients((toward * actual).sum(), [logits]), wanted) <= 1e-10


def test_the_loss_is_that_of_byol_behind_simplices() -> None:
    method = build()
    disturb(method.target)  # or it would equal the online network
    images = views(3)
    backbone, embedder, _, head = method.target
    logits = [method.embedder(method.backbone(view)) for view in images]
    p = [method.predictor(method.projector(sem.simplices(each, 4, 0.7))) for each in logits]
    z = [head(sem.simplices(embedder(backbone(view)), 4, 0.3)) for view in images[:2]]
    parts = [byol.loss(p[view], z[large]) for view, large in [(0, 1), (1, 0), (2, 0), (2, 1)]]
    expected = 2 * torch.stack(parts).mean()
    output = method(images, SAMPLES)
    assert relative_error(output.loss, expected) <= 1e-10
    weights = list(method.embedder.parameters())[:1]
    wanted = gradients(expected, weights)
    assert relative_error(gradients(output.loss, weights), wanted) <= 1e-10
    torch.testing.assert_close(output.embedding, logits[0].detach() / 0.7)
    assert output.terms.keys() == BYOLLoss()(p[0], z[1]).terms.keys()


def test_the_target_gets_no_gradient_and_follows_by_the_cosine() -> None:
    method = build()
    method(views(), SAMPLES).loss.backward()
    assert all(parameter.grad is None for parameter in method.target.parameters())
    before = [parameter.clone() for parameter in method.target.parameters()]
    online = (method.backbone, method.embedder, method.projector)
    for part in online:
        disturb(part)
    method.after_step(0.25)
    momentum = cosine_momentum(0.9, 0.25)
    current = [parameter for part in online for parameter in part.parameters()]
    for old, new, other in zip(before, method.target.parameters(), current, strict=True):
        wanted = momentum * old + (1 - momentum) * other.detach()
        torch.testing.assert_close(new.detach(), wanted)


def test_an_encoder_keeps_the_embedder_with_its_temperature() -> None:
    method = build()
    disturb(method)
    method.eval()
    kept = SETTINGS.code_head
    head = projector((6, *kept.projector), last="norm_without_affine").double().eval()
    state: dict[str, Tensor] = SETTINGS.saved_state(copy.deepcopy(method.state_dict()))
    prefix = "projector."
    head.load_state_dict(
        {name.removeprefix(prefix): state[name] for name in state if name.startswith(prefix)}
    )
    features = torch.randn(9, 6, dtype=torch.float64)
    expected = method.simplices(method.embedder(features))
    torch.testing.assert_close(soft_discretize(head(features), kept.units), expected)
    assert kept.units == (4, 4, 4)


def test_simplices_of_the_published_number_leave_the_code_to_a_head_beside_them() -> None:
    assert SEMSettings().code_head == CodeHead()
    assert recipe("imagenet", "sem").code is not None
    small = recipe("cifar10-cpu", "sem")
    assert small.code == CodeSettings()  # as every small recipe has; IMSVD's too
    assert small.method.code_head.units == (8,) * 128


def test_statistics_are_those_of_the_simplices() -> None:
    method = build()
    logits = torch.zeros(2, 12)
    logits[:, [0, 4]] = 50.0  # two of three simplices are decided, and use one unit each
    found = method.summarize(method.statistics(logits))
    shares = {"share_above_0.9": 2 / 3, "share_above_0.99": 2 / 3}
    assert found == pytest.approx({**shares, "dead_units": 6})


def without_norms() -> SEM:
    """What several processes must train as one does; BatchNorm would see each one's part alone."""
    method = build()
    for module in list(method.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.BatchNorm1d):
                setattr(module, name, nn.Identity())
    return method


def train_without_norms() -> dict[str, Any]:
    return remembering.trained(without_norms, [0, 1])


def test_two_processes_train_as_one() -> None:
    expected = train_without_norms()
    for result in gloo.run(2, train_without_norms):
        remembering.assert_equal_training(result, expected)
