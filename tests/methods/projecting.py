"""What holds for every method whose loss compares the projected views of a batch."""

from typing import Any

import pytest
import torch

from tests.methods.networks import SAMPLES, views


def assert_loss_of_the_projected_views(method: Any, loss: Any, count: int = 2) -> None:
    """The method's loss is `loss` of its projections; what it hands out carries no gradient."""
    images = views(count)
    output = method(images, SAMPLES)
    features = [method.backbone(image) for image in images]
    embeddings = [method.projector(feature) for feature in features]
    torch.testing.assert_close(output.loss, loss(*embeddings).loss)
    assert torch.equal(output.features[0], features[0])
    assert torch.equal(output.embedding, embeddings[0])
    assert not any(view.requires_grad for view in output.features)
    assert not output.embedding.requires_grad


def assert_a_local_view_meets_both_large_ones(method: Any) -> None:
    """With a third, local view, loss and terms are the means over the pairs."""
    first, second, local = views(3)
    pairs = [(first, second), (first, local), (second, local)]
    parts = [method(list(pair), SAMPLES) for pair in pairs]
    output = method([first, second, local], SAMPLES)
    torch.testing.assert_close(output.loss, torch.stack([part.loss for part in parts]).mean())
    for name, term in output.terms.items():
        torch.testing.assert_close(term, torch.stack([part.terms[name] for part in parts]).mean())


def assert_a_constant_gives_the_bounds_of_collapse(method: Any, width: int) -> None:
    """The bounds that plots draw for collapse are what a constant embedding gives."""
    constant = torch.ones(8, width, dtype=torch.float64)
    output = method.loss(constant, constant)
    collapsed = method.bounds(8)["collapsed"]
    assert float(output.loss) == pytest.approx(collapsed.pop("total"))
    assert {name: float(term) for name, term in output.terms.items()} == pytest.approx(collapsed)
