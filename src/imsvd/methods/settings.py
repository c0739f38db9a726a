"""Settings of methods, the facts about them that other packages read, and their recipe rows."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple, Self

from pydantic import Field
from torch import Tensor

from imsvd.errors import InputError
from imsvd.settings import Settings

Scale = Literal["small", "cifar10", "imagenet"]
"""small: minutes on a CPU; cifar10: ResNet-18 on one GPU; imagenet: ResNet-50 for 100 epochs."""

SMALLEST_BATCH = 16
"""Images per step that the smallest form of a method must be able to train on."""


class Row(NamedTuple):
    """How a method departs from IMSVD's recipe at one scale.

    Attributes:
        provenance: where the numbers come from, in one line.
        method: settings that differ from the method's defaults. Settings counted in epochs are
            those of a run of `imsvd.recipes.SCALE_EPOCHS` epochs.
        optimizer: optimizer settings that differ from IMSVD's at this scale.
        training: training settings that differ from IMSVD's at this scale.
    """

    provenance: str
    method: Mapping[str, Any] = {}
    optimizer: Mapping[str, Any] = {}
    training: Mapping[str, Any] = {}


SMALL_LR: Mapping[str, Any] = {"lr": 2e-3, "scale_lr": False}
"""Optimizer changes that most methods make at the small scale, where IMSVD has AdamW at 3e-3 or 9e-3."""
CONTRASTIVE_LR: Mapping[str, Any] = {"lr": 3e-3, "scale_lr": False}
"""Those of SimCLR and MoCo v2."""
CLIPPED_LARS: Mapping[str, Any] = {
    "name": "lars",
    "trust_coefficient": 0.02,
    "trust_clip": True,
    "decay_all": False,
}
"""LARS as solo-learn configures it for CIFAR-10."""


DISCRETE_LABELS: Mapping[str, str] = {
    "share_above_0.9": ">0.9",
    "share_above_0.99": ">0.99",
    "dead_units": "dead",
}
"""Column titles of the statistics of methods with discrete variables."""


class CodeHead(NamedTuple):
    """The layers an encoder keeps after training to turn features into discrete variables.

    Attributes:
        projector: widths of its layers; empty if the encoder is the backbone alone.
        standardize: whether a BatchNorm without scale and shift ends the projector.
        units: units of each variable; empty if there are none.
    """

    projector: tuple[int, ...] = ()
    standardize: bool = False
    units: tuple[int, ...] = ()


class MethodSettings(Settings):
    """Settings of a method, and the facts about it that other packages read.

    A subclass overrides what differs from the defaults here. Code outside `imsvd.methods` reads
    these facts and never checks which method it has.
    """

    name: str = Field("", description="method to train with; each has settings of its own")

    admits_local_views: ClassVar[bool] = False
    """Whether the method can use more than two views (multi-crop)."""
    labels: ClassVar[Mapping[str, str]] = {}
    """Short column titles, at most five characters, of terms, statistics and bounds."""
    counted_in_epochs: ClassVar[tuple[str, ...]] = ()
    """Settings that are a number of epochs; a shorter training shrinks them in proportion."""
    first_phase: ClassVar[str] = ""
    """The setting among them that must end before training does, if there is one."""
    smallest_sizes: ClassVar[Mapping[str, int]] = {}
    """Sizes and lengths in the smallest form; see `smallest`."""
    recipes: ClassVar[Mapping[str, Row]] = {}
    """The rows of the three scales; empty for IMSVD, whose recipes the others depart from."""
    published_form: ClassVar[tuple[str, ...]] = ()
    """Assignments that give the method's small recipes the form that was published."""

    @property
    def head_widths(self) -> tuple[int, ...]:
        """Widths of the layers between the backbone and the loss."""
        return getattr(self, "projector", ())

    @property
    def code_head(self) -> CodeHead:
        """The head an encoder keeps besides the backbone; none unless the method learns codes."""
        return CodeHead()

    def saved_state(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the weights to save of a trained method's `state`."""
        return dict(state)

    @property
    def views_with_gradient(self) -> float:
        """Share of the large views that pass through the backbone with a gradient."""
        return 1.0

    def fit_to_images(self, images: int, batch_size: int) -> Self:
        """Return the settings with every size that depends on the data no larger than it allows.

        Args:
            images: number of training images.
            batch_size: images per step, already fitted to them.
        """
        del images, batch_size
        return self

    def smallest(self) -> Self:
        """Return the smallest form of the same kind, which trains on `SMALLEST_BATCH` images.

        It has the sizes in `smallest_sizes`. A tuple keeps its length, and thus a head its depth;
        0, which switches something off, stays 0.
        """
        changes: dict[str, Any] = {}
        for name, size in self.smallest_sizes.items():
            value = getattr(self, name)
            changes[name] = [size] * len(value) if isinstance(value, tuple) else value and size
        return self.replace(**changes)

    def phases(self, whole: int, epochs: int) -> dict[str, int]:
        """Scale the settings counted in epochs from a training of `whole` epochs to one of `epochs`."""
        return {
            name: in_proportion(getattr(self, name), whole, epochs)
            for name in self.counted_in_epochs
        }

    def require_epochs(self, epochs: int) -> None:
        """Raise if training would end within the first phase; a single epoch is always allowed."""
        phase = getattr(self, self.first_phase) if self.first_phase else 0
        if phase >= epochs > 1:
            raise InputError(
                f"method.{self.first_phase}={phase} of {self.name} leaves nothing of "
                f"training.epochs={epochs}; lower the first or raise the second."
            )

    def replace(self, **changes: Any) -> Self:
        """Return validated settings with `changes`."""
        return type(self).model_validate(self.model_dump() | changes)


def in_proportion(phase: int, whole: int, epochs: int) -> int:
    """Scale a phase of `phase` epochs out of `whole` to a training of `epochs`.

    A phase keeps at least one epoch and leaves at least one for what follows, except in a training
    of a single epoch, which has no room for both. A phase of 0 stays 0.
    """
    return max(min(1, phase), min(round(phase * epochs / whole), epochs - 1))


def layer_widths(*default: int, description: str = "", min_length: int = 1) -> Any:
    """Declare a setting that lists the widths of a head's layers."""
    usual = "widths of the projector's layers; the last is the embedding"
    return Field(default, min_length=min_length, description=description or usual)
