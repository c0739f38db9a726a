"""NPID under IMSVD's recipes."""

from imsvd.config import Config, OptimizerSettings
from imsvd.methods.npid import NPIDSettings
from imsvd.recipes.scale import Scale


def npid(base: Config, scale: Scale) -> Config:
    """Instance discrimination (arXiv 1805.01978).

    imagenet: the authors' released command (N 256, SGD 0.03), with this package's cosine in place of
    their steps. cifar10: the settings of their CIFAR script (exact softmax, τ 0.1), N 256 and a
    warm-up as for the other methods. small: the same with AdamW; 10,000 images are few enough for
    the exact softmax.
    """
    match scale:
        case "imagenet":
            method = NPIDSettings()
            optimizer = OptimizerSettings(
                name="sgd", lr=0.03, weight_decay=1e-4, decay_all=True, warmup_epochs=0
            )
            training = base.training.model_copy(update={"batch_size": 256})
        case "cifar10":
            method = NPIDSettings(form="softmax", temperature=0.1)
            optimizer = OptimizerSettings(
                name="sgd", lr=0.06, weight_decay=5e-4, decay_all=True, warmup_epochs=10
            )
            training = base.training.model_copy(update={"batch_size": 256})
        case "small":
            method = NPIDSettings(form="softmax", temperature=0.1)
            optimizer = base.optimizer.model_copy(update={"lr": 2e-3, "scale_lr": False})
            training = base.training
    return base.model_copy(update={"method": method, "optimizer": optimizer, "training": training})
