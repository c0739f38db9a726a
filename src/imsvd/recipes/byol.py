"""BYOL at the three scales."""

from imsvd.config import Config, OptimizerSettings
from imsvd.methods.byol import BYOLSettings
from imsvd.recipes.scale import Scale


def byol(base: Config, scale: Scale) -> Config:
    """Adapt a recipe to BYOL.

    imagenet: the paper's settings for 100 epochs (arXiv 2006.07733), LARS on 4,096 images at a time.
    cifar10: those of solo-learn's 1,000-epoch run (92.6 % linear), not repeated here.
    small: chosen for short runs on a CPU.
    """
    match scale:
        case "imagenet":
            method = BYOLSettings()
            optimizer = OptimizerSettings(
                name="lars", lr=0.45, weight_decay=1e-6, warmup_epochs=10, final_lr_ratio=0
            )
            training = base.training.model_copy(update={"batch_size": 4096})
        case "cifar10":
            method = BYOLSettings()
            optimizer = OptimizerSettings(
                name="lars",
                lr=1.0,
                weight_decay=1e-5,
                trust_coefficient=0.02,
                trust_clip=True,
                warmup_epochs=10,
                final_lr_ratio=0,
            )
            training = base.training.model_copy(update={"batch_size": 256})
        case "small":
            method = BYOLSettings(projector=(1024, 128), predictor=512)
            optimizer = base.optimizer.model_copy(update={"lr": 2e-3, "scale_lr": False})
            training = base.training
    return base.model_copy(update={"method": method, "optimizer": optimizer, "training": training})
