import numpy as np
import torch
from torch import Tensor

from imsvd.encoder import Encoder, EncoderDescription
from imsvd.explanations.meaning import BINS, explainability, feature_bins, variable_codes
from imsvd.networks import BackboneSettings

OPTIONS = {"channels": [8, 8, 8, 8], "layers": [1, 1, 1, 1]}


def encoder(units: tuple[int, ...]) -> Encoder:
    torch.manual_seed(0)
    return Encoder(
        EncoderDescription(
            method="imsvd" if units else "vicreg",
            backbone=BackboneSettings(name="resnet18", options=OPTIONS),
            projector=(16, sum(units)) if units else (),
            units=units,
            size=16,
            mean=(0.5, 0.5, 0.5),
            std=(0.5, 0.5, 0.5),
        )
    ).eval()


def features(images: int) -> Tensor:
    return torch.randn(images, 8, generator=torch.Generator().manual_seed(1))


def test_bins_hold_as_many_images_each_in_order() -> None:
    found = feature_bins(features(400))
    counts = [np.bincount(column, minlength=BINS).tolist() for column in found.T]
    assert counts == [[50] * BINS] * 8
    order = features(400)[:, 3].argsort().numpy()
    assert (np.diff(found[order, 3].astype(int)) >= 0).all()


def test_equal_values_share_a_bin() -> None:
    assert len(np.unique(feature_bins(torch.zeros(20, 1)))) == 1


def test_a_feature_that_tells_an_attribute_recovers_it_and_luck_does_not() -> None:
    shown = features(600)
    attributes = {
        "side": (shown[:, 2] > shown[:, 2].median()).long(),
        "luck": torch.randint(0, 4, (600,), generator=torch.Generator().manual_seed(2)),
        "constant": torch.zeros(600, dtype=torch.long),
    }
    score = explainability(encoder(()), shown, attributes)
    assert score["attributes_recovered"] == 1
    # side has 1 bit, the feature's bin 3 bits, and they share 1: 2 · 1 / (1 + 3)
    known = 0.5
    luck = 2 * score["mean_best_nmi"] - known
    assert 0 < luck < 0.03


def test_unknown_values_take_no_part() -> None:
    shown = features(600)
    side = (shown[:, 2] > 0).long()
    assert explainability(encoder(()), shown, {"side": side.where(shown[:, 2] > 0, -1)}) == {}


def test_variables_are_asked_where_there_are_some() -> None:
    network, shown = encoder((4, 4, 3)), features(300)
    with torch.no_grad():
        logits = network.projector(shown)
    expected = [part.argmax(1) for part in logits.split([4, 4, 3], dim=1)]
    assert variable_codes(network, shown).tolist() == torch.stack(expected, 1).tolist()
    score = explainability(network, shown, {"unit": expected[1]})
    assert score == {"attributes_recovered": 1.0, "mean_best_nmi": 1.0}


def test_no_attributes_give_no_score() -> None:
    assert explainability(encoder(()), features(20), {}) == {}
