"""DISSL at the three scales."""

from imsvd.config import Config, OptimizerSettings
from imsvd.methods.dissl import DISSLSettings
from imsvd.recipes.scale import Scale


def dissl(base: Config, scale: Scale) -> Config:
    """DISSL in place of the method of `base`.

    imagenet: the authors' heads, weights and batch; the optimizer is that of `base`, because theirs
    is not known here. cifar10: the optimizer and heads of the authors' minimal example on STL-10
    with ResNet-18 (there Adam), and fewer classes for fewer images. small: chosen by experience,
    not searched.
    """
    match scale:
        case "imagenet":
            method = DISSLSettings()
            optimizer = base.optimizer
            training = base.training.model_copy(update={"batch_size": 2560})
        case "cifar10":
            method = DISSLSettings(classes=4096)
            optimizer = OptimizerSettings(
                name="adamw", lr=2e-3, scale_lr=False, weight_decay=1e-6, warmup_epochs=10
            )
            training = base.training.model_copy(update={"batch_size": 256})
        case "small":
            method = DISSLSettings(teacher=(512, 256), classes=512)
            optimizer = base.optimizer.model_copy(update={"lr": 2e-3, "scale_lr": False})
            training = base.training
    return base.model_copy(update={"method": method, "optimizer": optimizer, "training": training})
