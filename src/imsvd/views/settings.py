"""Settings of views: the augmentations of each, and the two published pairs of views."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from imsvd.settings import Settings

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
CIFAR_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR_STD = (0.2470, 0.2435, 0.2616)

Probability = Annotated[float, Field(ge=0, le=1)]
Strength = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Range = tuple[Positive, Positive]


class ViewSettings(Settings):
    """One view of an image: crop, flip, color jitter, gray, blur, solarize."""

    size: int = Field(ge=8, description="Height and width of the view, in pixels.")
    crop_scale: Range = Field(
        default=(0.08, 1.0),
        description="Smallest and largest crop, as a fraction of the image's area.",
    )
    crop_ratio: Range = Field(
        default=(3 / 4, 4 / 3),
        description="Smallest and largest aspect ratio (width / height) of the crop.",
    )
    interpolation: Literal["bilinear", "bicubic"] = Field(
        default="bilinear",
        description="Antialiased resampling of the crop; the code of IMSVD uses bilinear, that of "
        "VICReg bicubic.",
    )
    flip_probability: Probability = Field(
        default=0.5, description="Probability of a horizontal flip."
    )
    jitter_probability: Probability = Field(default=0.8, description="Probability of color jitter.")
    brightness: Strength = Field(
        default=0.4, description="The brightness factor is drawn from [max(0, 1 - b), 1 + b]."
    )
    contrast: Strength = Field(
        default=0.4, description="The contrast factor is drawn from [max(0, 1 - c), 1 + c]."
    )
    saturation: Strength = Field(
        default=0.2, description="The saturation factor is drawn from [max(0, 1 - s), 1 + s]."
    )
    hue: float = Field(
        default=0.1, ge=0, le=0.5, description="The hue shift is drawn from [-hue, hue] turns."
    )
    gray_probability: Probability = Field(default=0.2, description="Probability of grayscale.")
    blur_probability: Probability = Field(default=0.0, description="Probability of Gaussian blur.")
    blur_sigma: Range = Field(
        default=(0.1, 2.0), description="Smallest and largest standard deviation, in view pixels."
    )
    solarize_probability: Probability = Field(
        default=0.0,
        description="Probability of solarization: values of 128 and above are inverted.",
    )
    mean: tuple[float, float, float] = Field(
        default=IMAGENET_MEAN, description="Subtracted from each channel, on a scale of 0 to 1."
    )
    std: tuple[Positive, Positive, Positive] = Field(
        default=IMAGENET_STD, description="Divides each channel after subtraction of the mean."
    )

    @model_validator(mode="after")
    def _ranges_are_sensible(self) -> Self:
        for name in ("crop_scale", "crop_ratio", "blur_sigma"):
            low, high = getattr(self, name)
            if low > high:
                raise ValueError(f"{name} is ({low}, {high}): the smaller value must come first")
        if self.crop_scale[1] > 1:
            raise ValueError(
                f"crop_scale ends at {self.crop_scale[1]}: a crop cannot exceed the image (1.0)"
            )
        return self


class ViewsSettings(Settings):
    """All views of an image, in order."""

    views: tuple[ViewSettings, ...] = Field(description="One entry per view, at least two.")
    evaluation_size: int | None = Field(
        default=None,
        ge=8,
        description="Side of images in evaluation, in pixels; by default that of the first view. "
        "Smaller views train faster and match the apparent size of objects in evaluation.",
    )
    local_views: int = Field(
        default=0,
        ge=0,
        le=30,
        description="Number of additional small views (multi-crop), for methods that use them.",
    )
    local_size: int = Field(default=96, ge=8, description="Side of the local views, in pixels.")
    local_crop_scale: Range = Field(
        default=(0.05, 0.14),
        description="Smallest and largest crop of a local view, as a fraction of the area.",
    )

    @model_validator(mode="after")
    def _at_least_two(self) -> Self:
        if len(self.views) < 2:
            raise ValueError(f"views has {len(self.views)} entries: at least two are needed")
        return self

    @property
    def every(self) -> tuple[ViewSettings, ...]:
        """Return all views in the order in which a method receives them, local ones last."""
        local = self.views[0].model_copy(
            update={"size": self.local_size, "crop_scale": self.local_crop_scale}
        )
        return self.views + (local,) * self.local_views

    @property
    def whole_image_size(self) -> int:
        """Return the side of images in evaluation."""
        return self.evaluation_size or self.views[0].size


def blur_kernel_size(size: int) -> int:
    """Return an odd tenth of the side, at least 3; at 224 pixels, the 23 introduced by BYOL."""
    return max(3, 2 * (size // 20) + 1)


def paper_views(size: int = 224) -> ViewsSettings:
    """Return the two asymmetric ImageNet views of the paper."""
    return ViewsSettings(
        views=(
            ViewSettings(size=size, blur_probability=1.0, solarize_probability=0.0),
            ViewSettings(size=size, blur_probability=0.1, solarize_probability=0.2),
        )
    )


def cifar_views(size: int = 32) -> ViewsSettings:
    """Return the two identical views of the released CIFAR script."""
    view = ViewSettings(
        size=size, crop_scale=(0.2, 1.0), saturation=0.4, mean=CIFAR_MEAN, std=CIFAR_STD
    )
    return ViewsSettings(views=(view, view))
