"""The network of the recipes that a CPU can carry."""

from imsvd.networks import BackboneSettings


def small_resnet(last_channels: int = 128, global_pool: str = "avg") -> BackboneSettings:
    """A ResNet with one block per stage, from 16 channels on, at the full resolution of small images."""
    return BackboneSettings(
        name="resnet18",
        stem="stride_1",
        options={
            "layers": [1, 1, 1, 1],
            "channels": [16, 32, 64, last_channels],
            # With `stem` other than native only the width of timm's deep stem is used: 2 × stem_width.
            "stem_type": "deep",
            "stem_width": 8,
            "global_pool": global_pool,
        },
    )
