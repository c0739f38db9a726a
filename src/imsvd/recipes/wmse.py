"""W-MSE at the three scales."""

from imsvd.config import Config, OptimizerSettings
from imsvd.methods.wmse import WMSESettings
from imsvd.recipes.scale import Scale


def wmse(base: Config, scale: Scale) -> Config:
    """W-MSE in place of the method of `base`.

    imagenet: the authors give no settings for ResNet-50 on ImageNet; these are theirs for Tiny
    ImageNet, with the batch of `base`. cifar10: their command. Both were found with Adam; AdamW
    with so small a decay differs little. small: their CIFAR settings at half the size, which also
    fit a batch of 64; chosen by experience, not searched.
    """
    match scale:
        case "imagenet":
            method = WMSESettings()
            optimizer = _adam(lr=2e-3)
            training = base.training
        case "cifar10":
            method = WMSESettings(projector=(1024, 64), whitening_size=128, iterations=1)
            optimizer = _adam(lr=3e-3)
            training = base.training.model_copy(update={"batch_size": 256})
        case "small":
            method = WMSESettings(projector=(1024, 32), whitening_size=64, iterations=1)
            optimizer = base.optimizer.model_copy(update={"lr": 2e-3, "scale_lr": False})
            training = base.training
    return base.model_copy(update={"method": method, "optimizer": optimizer, "training": training})


def _adam(lr: float) -> OptimizerSettings:
    return OptimizerSettings(
        name="adamw", lr=lr, scale_lr=False, weight_decay=1e-6, warmup_epochs=10
    )
