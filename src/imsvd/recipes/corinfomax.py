"""CorInfoMax at the three scales."""

from imsvd.config import Config, OptimizerSettings
from imsvd.methods.corinfomax import CorInfoMaxSettings
from imsvd.recipes.scale import Scale


def corinfomax(base: Config, scale: Scale) -> Config:
    """CorInfoMax in place of the method of `base`.

    imagenet and cifar10: the authors' commands; their learning rates are not scaled with the batch,
    and their weight decay reaches biases and norms. small: the weight of the CIFAR command with a
    narrower head and the optimizer of `base`; chosen by experience, not searched.
    """
    match scale:
        case "imagenet":
            method = CorInfoMaxSettings()
            optimizer = _sgd(lr=0.2)
            training = base.training.model_copy(update={"batch_size": 1536})
        case "cifar10":
            method = CorInfoMaxSettings(
                projector=(2048, 2048, 64), invariance_weight=250.0, forgetting=0.01
            )
            optimizer = _sgd(lr=0.5)
            training = base.training.model_copy(update={"batch_size": 512})
        case "small":
            method = CorInfoMaxSettings(
                projector=(1024, 64), invariance_weight=250.0, forgetting=0.1
            )
            optimizer = base.optimizer.model_copy(update={"lr": 2e-3, "scale_lr": False})
            training = base.training
    return base.model_copy(update={"method": method, "optimizer": optimizer, "training": training})


def _sgd(lr: float) -> OptimizerSettings:
    return OptimizerSettings(
        name="sgd",
        lr=lr,
        scale_lr=False,
        weight_decay=1e-4,
        decay_all=True,
        warmup_epochs=10,
        final_lr_ratio=1e-6 / lr,
    )
