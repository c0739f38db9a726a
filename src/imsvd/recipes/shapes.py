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
    # A crop must keep the object in sight, and color must not be enough to recognize an image.
    view = cifar_views(32).views[0].model_copy(update={"crop_scale": (0.5, 1.0), "hue": 0.2})
    return Config(
        data=DataSettings(source="shapes"),
        # The object is small: its features must not be averaged away against the background.
        backbone=small_resnet(global_pool="max"),
        method=IMSVDSettings(projector=(512, 512), units=8),
        views=ViewsSettings(views=(view, view)),
        optimizer=OptimizerSettings(
            name="adamw", lr=3e-3, scale_lr=False, weight_decay=1e-4, warmup_epochs=1
        ),
        training=TrainingSettings(epochs=10, batch_size=64, knn_every=4, knn_samples=2000),
    )
