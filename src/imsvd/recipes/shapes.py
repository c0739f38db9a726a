"""IMSVD on the built-in `shapes`: the demo."""

from imsvd.config import Config, DataSettings, OptimizerSettings, TrainingSettings
from imsvd.methods import IMSVDSettings
from imsvd.networks import BackboneSettings
from imsvd.views import cifar_views


def shapes() -> Config:
    """A small ResNet on drawn images whose attributes are known.

    Command: imsvd demo
    Hardware: two CPU cores
    """
    return Config(
        data=DataSettings(source="shapes"),
        backbone=BackboneSettings(
            name="resnet18",
            stem="stride_2",
            options={
                "layers": [1, 1, 1, 1],
                "channels": [32, 64, 128, 256],
                "stem_type": "deep",
                "stem_width": 16,
            },
        ),
        method=IMSVDSettings(projector=(512, 512), units=16),
        views=cifar_views(32),
        optimizer=OptimizerSettings(name="adamw", lr=3e-3, weight_decay=1e-4, warmup_epochs=1),
        training=TrainingSettings(epochs=10, batch_size=256, knn_every=5),
    )
