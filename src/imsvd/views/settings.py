"""What a view is: the settings of each augmentation, and the two published pairs of views."""

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
    """How one view is cut from an image: crop, flip, color jitter, gray, blur, solarize."""

    size: int = Field(ge=8, description="Height and width of the view, in pixels.")
    crop_scale: Range = Field(
        default=(0.08, 1.0), description="Smallest and largest share of the image's area cropped."
    )
    crop_ratio: Range = Field(
        default=(3 / 4, 4 / 3), description="Smallest and largest width / height of the crop."
    )
    interpolation: Literal["bilinear", "bicubic"] = Field(
        default="bilinear",
        description="Resampling of the crop, antialiased: IMSVD's release is bilinear, VICReg's "
        "bicubic.",
    )
    flip_probability: Probability = Field(default=0.5, description="Chance of a mirror image.")
    jitter_probability: Probability = Field(default=0.8, description="Chance of color jitter.")
    brightness: Strength = Field(
        default=0.4, description="Brightness factor is drawn from [max(0, 1 - b), 1 + b]."
    )
    contrast: Strength = Field(
        default=0.4, description="Contrast factor is drawn from [max(0, 1 - c), 1 + c]."
    )
    saturation: Strength = Field(
        default=0.2, description="Saturation factor is drawn from [max(0, 1 - s), 1 + s]."
    )
    hue: float = Field(
        default=0.1, ge=0, le=0.5, description="Hue shift is drawn from [-hue, hue] turns."
    )
    gray_probability: Probability = Field(default=0.2, description="Chance of losing all color.")
    blur_probability: Probability = Field(default=0.0, description="Chance of a Gaussian blur.")
    blur_sigma: Range = Field(
        default=(0.1, 2.0), description="Smallest and largest standard deviation, in view pixels."
    )
    solarize_probability: Probability = Field(
        default=0.0, description="Chance that values of 128 and above are inverted."
    )
    mean: tuple[float, float, float] = Field(
        default=IMAGENET_MEAN, description="Subtracted from each channel, on the scale 0 to 1."
    )
    std: tuple[Positive, Positive, Positive] = Field(
        default=IMAGENET_STD, description="Divides each channel after the mean is subtracted."
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
    """All views cut from one image, in order; two of them unless a method wants more."""

    views: tuple[ViewSettings, ...] = Field(description="One entry per view, at least two.")
    evaluation_size: int | None = Field(
        default=None,
        ge=8,
        description="Side of whole images in evaluation; by default that of the first view. Views "
        "smaller than it train faster, and objects then appear equally large in both.",
    )

    local_views: int = Field(
        default=0,
        ge=0,
        le=30,
        description="Small views beside the large ones (multi-crop), for methods that use them.",
    )
    local_size: int = Field(
        default=96, ge=8, description="Side of the local views, in pixels; smaller than the others."
    )
    local_crop_scale: Range = Field(
        default=(0.05, 0.14), description="Share of the image's area that a local view shows."
    )

    @model_validator(mode="after")
    def _at_least_two(self) -> Self:
        if len(self.views) < 2:
            raise ValueError(f"views has {len(self.views)} entries: at least two are compared")
        return self

    @property
    def every(self) -> tuple[ViewSettings, ...]:
        """The views in the order in which a method gets them: local ones last."""
        local = self.views[0].model_copy(
            update={"size": self.local_size, "crop_scale": self.local_crop_scale}
        )
        return self.views + (local,) * self.local_views

    @property
    def whole_image_size(self) -> int:
        """Side at which whole images are evaluated."""
        return self.evaluation_size or self.views[0].size


def paper_views(size: int = 224) -> ViewsSettings:
    """The paper's two asymmetric ImageNet views: always blurred, and sometimes solarized."""
    return ViewsSettings(
        views=(
            ViewSettings(size=size, blur_probability=1.0, solarize_probability=0.0),
            ViewSettings(size=size, blur_probability=0.1, solarize_probability=0.2),
        )
    )


def cifar_views(size: int = 32) -> ViewsSettings:
    """The released CIFAR script's two identical views: larger crops, stronger color, no blur."""
    view = ViewSettings(
        size=size, crop_scale=(0.2, 1.0), saturation=0.4, mean=CIFAR_MEAN, std=CIFAR_STD
    )
    return ViewsSettings(views=(view, view))
