"""SimCLR at the three scales."""

from imsvd.config import Config, OptimizerSettings
from imsvd.methods.simclr import SimCLRSettings
from imsvd.recipes.scale import Scale


def simclr(base: Config, scale: Scale) -> Config:
    """Adapt a recipe to SimCLR.

    imagenet: the paper's settings (arXiv 2002.05709), LARS on 4,096 images at a time.
    cifar10: those of solo-learn's 1,000-epoch run (90.7 % linear), not repeated here.
    small: chosen for short runs on a CPU: few negatives want a higher temperature.
    """
    match scale:
        case "imagenet":
            method = SimCLRSettings()
            optimizer = OptimizerSettings(
                name="lars", lr=0.3, weight_decay=1e-6, warmup_epochs=10, final_lr_ratio=0
            )
            training = base.training.model_copy(update={"batch_size": 4096})
        case "cifar10":
            method = SimCLRSettings(projector=(2048, 256), temperature=0.2)
            optimizer = OptimizerSettings(
                name="lars",
                lr=0.4,
                weight_decay=1e-4,
                trust_coefficient=0.02,
                trust_clip=True,
                warmup_epochs=10,
                final_lr_ratio=0,
            )
            training = base.training.model_copy(update={"batch_size": 256})
        case "small":
            method = SimCLRSettings(projector=(512, 128), temperature=0.2)
            optimizer, training = base.optimizer, base.training
    return base.model_copy(update={"method": method, "optimizer": optimizer, "training": training})
