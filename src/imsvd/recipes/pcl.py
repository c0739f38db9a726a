"""PCL under IMSVD's recipes."""

from imsvd.config import Config, OptimizerSettings
from imsvd.methods.pcl import PCLSettings
from imsvd.recipes.phases import in_proportion
from imsvd.recipes.scale import Scale


def pcl(base: Config, scale: Scale) -> Config:
    """Prototypical contrastive learning (arXiv 2005.04966).

    imagenet: PCL v2 as released (N 256, SGD 0.03, cosine), for the base's epochs instead of 200.
    cifar10: MoCo's settings for short CIFAR runs (SGD 0.3, symmetric, K 32768) and prototypes in the
    paper's proportion to the number of images, three clusterings by factors of two. small: the same
    idea with AdamW, a shorter queue and a faster key network, because there are few steps.
    """
    match scale:
        case "imagenet":
            method = PCLSettings()
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
            method = PCLSettings(
                projector=(2048, 256),
                momentum=0.99,
                queue_length=32768,
                clusters=(1000, 2000, 4000),
                warmup_epochs=20,
                symmetric=True,
            )
            optimizer = OptimizerSettings(
                name="sgd", lr=0.3, weight_decay=1e-4, warmup_epochs=10, final_lr_ratio=0
            )
            training = base.training.model_copy(update={"batch_size": 256})
        case "small":
            method = PCLSettings(
                projector=(512, 128),
                momentum=0.99,
                queue_length=4096,
                clusters=(250, 500, 1000),
                kmeans_iterations=10,
                warmup_epochs=in_proportion(8, 38, base.training.epochs),
                symmetric=True,
            )
            optimizer = base.optimizer.model_copy(update={"lr": 2e-3, "scale_lr": False})
            training = base.training
    return base.model_copy(update={"method": method, "optimizer": optimizer, "training": training})
