"""VICReg at the three scales."""

from imsvd.config import Config, OptimizerSettings
from imsvd.methods.vicreg import VICRegSettings
from imsvd.recipes.scale import Scale


def vicreg(base: Config, scale: Scale) -> Config:
    """VICReg in place of the method of `base`.

    imagenet: the authors' command for 100 epochs (for 1000 they take a batch of 2048 and a learning
    rate of 0.2). cifar10: what gave 92 % linear after 1000 epochs in solo-learn.
    small: chosen by experience, not searched.
    """
    match scale:
        case "imagenet":
            method = VICRegSettings()
            optimizer = OptimizerSettings(name="lars", lr=0.3, weight_decay=1e-6, warmup_epochs=10)
            training = base.training.model_copy(update={"batch_size": 512})
        case "cifar10":
            method = VICRegSettings(projector=(2048, 2048, 2048))
            optimizer = OptimizerSettings(
                name="lars",
                lr=0.3,
                weight_decay=1e-4,
                trust_coefficient=0.02,
                trust_clip=True,
                warmup_epochs=10,
            )
            training = base.training.model_copy(update={"batch_size": 256})
        case "small":
            method = VICRegSettings(projector=(1024, 1024))
            optimizer = base.optimizer.model_copy(update={"lr": 2e-3, "scale_lr": False})
            training = base.training
    return base.model_copy(update={"method": method, "optimizer": optimizer, "training": training})
