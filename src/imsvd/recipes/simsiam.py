"""SimSiam at the three scales."""

from imsvd.config import Config, OptimizerSettings
from imsvd.methods.simsiam import SimSiamSettings
from imsvd.recipes.scale import Scale


def simsiam(base: Config, scale: Scale) -> Config:
    """Adapt a recipe to SimSiam.

    imagenet: the paper's settings (arXiv 2011.10566), SGD on 512 images at a time, no warm-up, and
    weight decay of everything.
    cifar10: those of solo-learn's 1,000-epoch run (90.5 % linear); not repeated here.
    small: chosen for short runs on a CPU.
    """
    match scale:
        case "imagenet":
            method = SimSiamSettings()
            optimizer = OptimizerSettings(
                name="sgd",
                lr=0.05,
                weight_decay=1e-4,
                decay_all=True,
                warmup_epochs=0,
                final_lr_ratio=0,
            )
            training = base.training.model_copy(update={"batch_size": 512})
        case "cifar10":
            method = SimSiamSettings()
            optimizer = OptimizerSettings(
                name="sgd", lr=0.5, weight_decay=1e-5, warmup_epochs=10, final_lr_ratio=0
            )
            training = base.training.model_copy(update={"batch_size": 256})
        case "small":
            method = SimSiamSettings(projector=(512, 512, 512), predictor=128)
            optimizer = base.optimizer.model_copy(update={"lr": 2e-3, "scale_lr": False})
            training = base.training
    return base.model_copy(update={"method": method, "optimizer": optimizer, "training": training})
