"""How a recipe changes when training continues from a pretrained encoder instead of random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from imsvd.config import Config, InitSettings, parse_config
from imsvd.encoder import UNTRAINED, Encoder, absolute_spec, open_encoder, weights_key
from imsvd.errors import InputError

GENTLE: dict[str, dict[str, Any]] = {
    "optimizer": {
        "name": "adamw",
        "lr": 1e-3,
        "scale_lr": False,
        "weight_decay": 1e-4,
        "decay_all": False,
        "vector_lr_ratio": 1.0,
        "warmup_epochs": 1,
        "final_lr_ratio": 0.0,
    },
    "training": {"epochs": 10, "knn_every": 5},
}
"""Few epochs at a low rate, which adapt a pretrained network before they make it forget.

AdamW, because its steps do not depend on how large the gradients of a new head are.
"""
CROP_SCALE = (0.2, 1.0)
"""Milder crops than the 0.08 of training from scratch: the network knows parts of objects already."""


def open_pretrained(spec: str | Path) -> Encoder:
    """Open the encoder from which training continues."""
    if str(spec).startswith(UNTRAINED):
        raise InputError(f"{spec} has not learned anything; give a trained encoder to --init.")
    return open_encoder(spec)


def continue_from(
    config: Config, encoder: Encoder, spec: str | Path, size: int | None, *, gentle: bool
) -> Config:
    """Return `config` with the backbone, normalization and image size of `encoder`.

    Args:
        config: a recipe.
        encoder: opened from `spec`.
        spec: its name, as the user gave it.
        size: side of the views in pixels; the encoder's own if left out.
        gentle: whether optimizer, length and crops become those of `GENTLE`.
    """
    described = encoder.description
    values = config.model_dump(mode="json")
    views: dict[str, Any] = {
        "size": described.size if size is None else size,
        "mean": described.mean,
        "std": described.std,
    }
    if gentle:
        views["crop_scale"] = CROP_SCALE
        for group, changes in GENTLE.items():
            values[group] |= changes
        values["method"] |= config.method.phases(
            config.training.epochs, GENTLE["training"]["epochs"]
        )
    values["views"]["views"] = [view | views for view in values["views"]["views"]]
    values["views"]["evaluation_size"] = None
    values["backbone"] = described.backbone.model_dump(mode="json")
    values["init"] = InitSettings(
        encoder=absolute_spec(spec), weights=weights_key(encoder)
    ).model_dump()
    return parse_config(values)


def refuse_other_backbone(config: Config, encoder: Encoder) -> None:
    """Raise if settings name another network than the encoder's; its options may differ."""
    wanted, given = config.backbone, encoder.description.backbone
    for key in ("library", "name", "stem"):
        if getattr(wanted, key) != getattr(given, key):
            raise InputError(
                f"backbone.{key}={getattr(wanted, key)!r} contradicts --init, whose backbone has "
                f"{getattr(given, key)!r}; leave it out."
            )
