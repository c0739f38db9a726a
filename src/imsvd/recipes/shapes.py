"""IMSVD on the built-in `shapes`: the demo."""

from imsvd.config import Config, DataSettings, OptimizerSettings, TrainingSettings
from imsvd.methods import IMSVDSettings
from imsvd.recipes.small import small_resnet
from imsvd.views import ViewsSettings, cifar_views


def shapes() -> Config:
    """A small ResNet on 6,000 drawn images whose attributes are known.

    Command: imsvd demo
    Hardware: two CPU cores
    """
    # A crop must keep the object in sight, and colour must not be enough to recognise an image.
    view = cifar_views(32).views[0].model_copy(update={"crop_scale": (0.5, 1.0), "hue": 0.5})
    return Config(
        data=DataSettings(source="shapes"),
        backbone=small_resnet(),
        method=IMSVDSettings(projector=(512, 512), units=16),
        views=ViewsSettings(views=(view, view)),
        optimizer=OptimizerSettings(
            name="adamw", lr=2e-3, scale_lr=False, weight_decay=1e-4, warmup_epochs=1
        ),
        training=TrainingSettings(epochs=12, batch_size=128, knn_every=4, knn_samples=2000),
    )
