"""SwAV at the three scales."""

from imsvd.config import Config, OptimizerSettings
from imsvd.methods.swav import SwAVSettings
from imsvd.recipes.phases import in_proportion
from imsvd.recipes.scale import Scale


def swav(base: Config, scale: Scale) -> Config:
    """Adapt a recipe to SwAV.

    imagenet: the paper's settings for two large views (arXiv 2006.09882), LARS on 4,096 images at a time.
    cifar10: those of solo-learn's 1,000-epoch run (89.2 % linear), prototypes frozen for two epochs;
    not repeated here.
    small: chosen for short runs on a CPU: few prototypes, frozen for about an epoch, and a queue because
    a batch holds fewer images than there are prototypes.
    """
    match scale:
        case "imagenet":
            method = SwAVSettings()
            optimizer = OptimizerSettings(
                name="lars", lr=0.3, weight_decay=1e-6, warmup_epochs=10, final_lr_ratio=0.001
            )
            training = base.training.model_copy(update={"batch_size": 4096})
        case "cifar10":
            method = SwAVSettings(freeze_steps=390, queue_length=3840, queue_start_epoch=50)
            optimizer = OptimizerSettings(
                name="lars",
                lr=0.6,
                weight_decay=1e-6,
                trust_coefficient=0.02,
                trust_clip=True,
                warmup_epochs=10,
                final_lr_ratio=0,
            )
            training = base.training.model_copy(update={"batch_size": 256})
        case "small":
            method = SwAVSettings(
                projector=(512, 128),
                prototypes=256,
                freeze_steps=78,
                queue_length=1024,
                queue_start_epoch=in_proportion(4, 38, base.training.epochs),
            )
            optimizer = base.optimizer.model_copy(update={"lr": 2e-3, "scale_lr": False})
            training = base.training
    return base.model_copy(update={"method": method, "optimizer": optimizer, "training": training})
