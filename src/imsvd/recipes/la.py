"""LA under IMSVD's recipes."""

from imsvd.config import Config, OptimizerSettings
from imsvd.methods.la import LASettings
from imsvd.recipes.phases import in_proportion
from imsvd.recipes.scale import Scale


def la(base: Config, scale: Scale) -> Config:
    """Local aggregation (arXiv 1903.12355).

    imagenet: the authors' released settings (N 128, SGD 0.03, ten clusterings into 30,000), with this
    package's cosine in place of their steps. cifar10 and small: nothing is published; NPID's settings,
    and clusters and background reduced with the number of images (some 40 images per cluster).
    """
    match scale:
        case "imagenet":
            method = LASettings()
            optimizer = OptimizerSettings(
                name="sgd",
                lr=0.03,
                scale_lr=False,
                weight_decay=1e-4,
                decay_all=True,
                warmup_epochs=0,
            )
            training = base.training.model_copy(update={"batch_size": 128})
        case "cifar10":
            method = LASettings(
                temperature=0.1,
                clusters=(1200,) * 5,
                num_background=1024,
                warmup_epochs=20,
                warmup_form="softmax",
            )
            optimizer = OptimizerSettings(
                name="sgd", lr=0.06, weight_decay=5e-4, decay_all=True, warmup_epochs=10
            )
            training = base.training.model_copy(update={"batch_size": 256})
        case "small":
            method = LASettings(
                temperature=0.1,
                clusters=(250,) * 4,
                num_background=512,
                kmeans_iterations=10,
                warmup_epochs=in_proportion(10, 38, base.training.epochs),
                warmup_form="softmax",
            )
            optimizer = base.optimizer.model_copy(update={"lr": 2e-3, "scale_lr": False})
            training = base.training
    return base.model_copy(update={"method": method, "optimizer": optimizer, "training": training})
