"""IMSVD on a folder of photographs of any size, at a scale that a CPU can carry."""

from imsvd.config import Config, DataSettings, OptimizerSettings, TrainingSettings
from imsvd.methods import IMSVDSettings
from imsvd.networks import BackboneSettings
from imsvd.views import paper_views


def folder_cpu() -> Config:
    """A small ResNet on 96-pixel crops of your own photographs.

    Command: imsvd pretrain FOLDER --recipe folder-cpu --out runs/mine
    Hardware: any CPU
    """
    return Config(
        data=DataSettings(source="."),
        backbone=BackboneSettings(
            name="resnet18",
            options={
                "layers": [1, 1, 1, 1],
                "channels": [32, 64, 128, 256],
                "stem_type": "deep",
                "stem_width": 16,
            },
        ),
        method=IMSVDSettings(projector=(1024, 1024), units=32),
        views=paper_views(96),
        optimizer=OptimizerSettings(name="adamw", lr=2e-3, weight_decay=1e-4, warmup_epochs=2),
        training=TrainingSettings(epochs=30, batch_size=128, knn_every=5),
    )
