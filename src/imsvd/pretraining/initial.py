"""Where training begins: initial weights drawn from the seed, or those of a pretrained encoder."""

from __future__ import annotations

from torch import Tensor, nn

from imsvd.checkpoints import seed_random_state
from imsvd.config import Config, InitSettings
from imsvd.encoder import open_encoder, weights_key
from imsvd.errors import InputError
from imsvd.networks import build_backbone, fix_statistics, freeze_stages


def initial_backbone(config: Config) -> nn.Module:
    """Seed every random generator and build the backbone as it is before the first step."""
    # The encoder is read first: building it draws random numbers.
    weights = None if config.init is None else _read(config.init)
    seed_random_state(config.seed)
    backbone = build_backbone(config.backbone)
    if config.init is not None and weights is not None:
        _load(backbone, weights, config.init.encoder)
        freeze_stages(backbone, config.init.frozen_stages)
        if config.init.fixed_statistics:
            fix_statistics(backbone)
    return backbone


def _read(init: InitSettings) -> dict[str, Tensor]:
    encoder = open_encoder(init.encoder)
    if weights_key(encoder) != init.weights:
        raise InputError(
            f"the weights of {init.encoder} are not those that this run began with; restore them, or "
            "give another --out for a new run."
        )
    return dict(encoder.backbone.state_dict())


def _load(backbone: nn.Module, weights: dict[str, Tensor], origin: str) -> None:
    """Load `weights`; raise with every key that is missing, unexpected or of another shape."""
    expected = backbone.state_dict()
    problems = {
        "missing": [name for name in expected if name not in weights],
        "unexpected": [name for name in weights if name not in expected],
        "of another shape": [
            name
            for name, value in weights.items()
            if name in expected and value.shape != expected[name].shape
        ],
    }
    if any(problems.values()):
        listed = "; ".join(f"{what}: {', '.join(keys)}" for what, keys in problems.items() if keys)
        raise InputError(
            f"the weights of {origin} do not fit the backbone ({listed}); leave out the backbone.* "
            "settings that change it."
        )
    backbone.load_state_dict(weights)
