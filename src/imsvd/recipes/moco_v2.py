"""MoCo v2 at the three scales."""

from imsvd.config import Config, OptimizerSettings
from imsvd.methods.moco_v2 import MoCoV2Settings
from imsvd.recipes.scale import Scale


def moco_v2(base: Config, scale: Scale) -> Config:
    """Adapt a recipe to MoCo v2.

    imagenet: the paper's settings (arXiv 2003.04297), SGD on 256 images at a time, no warm-up, and
    weight decay of everything.
    cifar10: those of solo-learn's symmetric 1,000-epoch run (92.9 % linear), but a constant momentum of
    0.99, where that rises from 0.99 to 0.999; not repeated here.
    small: chosen for short runs on a CPU: a quicker key network, and a queue of less than an epoch.
    """
    match scale:
        case "imagenet":
            method = MoCoV2Settings()
            optimizer = OptimizerSettings(
                name="sgd",
                lr=0.03,
                weight_decay=1e-4,
                decay_all=True,
                warmup_epochs=0,
                final_lr_ratio=0,
            )
            training = base.training.model_copy(update={"batch_size": 256})
        case "cifar10":
            method = MoCoV2Settings(
                projector=(2048, 256), momentum=0.99, queue_length=32768, symmetric=True
            )
            optimizer = OptimizerSettings(
                name="sgd", lr=0.3, weight_decay=1e-4, warmup_epochs=10, final_lr_ratio=0
            )
            training = base.training.model_copy(update={"batch_size": 256})
        case "small":
            method = MoCoV2Settings(
                projector=(512, 128), momentum=0.99, queue_length=4096, symmetric=True
            )
            optimizer, training = base.optimizer, base.training
    return base.model_copy(update={"method": method, "optimizer": optimizer, "training": training})
