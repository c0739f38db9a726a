"""The complete configuration of a pretraining run, its YAML form, and `--set` on the command line."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, SerializeAsAny, field_validator, model_validator
from pydantic.fields import FieldInfo

from imsvd.errors import InputError
from imsvd.methods import METHODS, IMSVDSettings, MethodSettings
from imsvd.methods.code import CodeSettings
from imsvd.networks import BackboneSettings
from imsvd.settings import Settings, assign, fields_of, parse_settings, read_assignment
from imsvd.views import ViewsSettings, paper_views


class DataSettings(Settings):
    """Where the images come from."""

    source: str = Field(
        "shapes", description="a folder of images, or shapes, cifar10, cifar100, stl10"
    )
    bad_image_limit: float = Field(
        0.01, ge=0, le=1, description="share of unreadable images that stops the run"
    )


MomentDecay = Annotated[float, Field(ge=0, lt=1)]


class OptimizerSettings(Settings):
    """Optimizer, warm-up and cosine decay to a floor."""

    name: Literal["lars", "sgd", "adamw"] = Field("lars", description="lars, sgd or adamw")
    lr: float = Field(
        0.6, gt=0, description="peak learning rate for a batch of 256; scaled by batch/256"
    )
    scale_lr: bool = Field(True, description="whether lr is multiplied by batch/256")
    momentum: float = Field(0.9, ge=0, lt=1, description="momentum of LARS and SGD")
    betas: tuple[MomentDecay, MomentDecay] = Field(
        (0.9, 0.999), description="moment decay rates of AdamW"
    )
    weight_decay: float = Field(1e-6, ge=0, description="decay of the weights; see decay_all")
    decay_all: bool = Field(
        False, description="decay biases and norms too (the released CIFAR script does)"
    )
    trust_coefficient: float = Field(0.001, gt=0, description="η of LARS")
    trust_clip: bool = Field(
        False, description="let LARS lower the learning rate of a layer but never raise it"
    )
    vector_lr_ratio: float = Field(
        1.0, gt=0, description="learning rate of biases and norms, as a share of that of weights"
    )
    warmup_epochs: float = Field(10, ge=0, description="epochs of linear warm-up from 0")
    final_lr_ratio: float = Field(
        0.001, ge=0, le=1, description="floor of the cosine, as a share of the peak"
    )


class TrainingSettings(Settings):
    """Length of training, batch size and online checks."""

    epochs: int = Field(
        100, ge=1, description="passes over the images; the learning rate decays over all epochs"
    )
    batch_size: int = Field(2048, ge=2, description="images per step over all processes together")
    accumulate_batches: int = Field(1, description="must be 1: the loss is not a mean over samples")
    knn_every: int = Field(
        10, ge=0, description="epochs between online kNN checks when labels exist; 0 = never"
    )
    knn_samples: int = Field(
        5000, ge=100, description="largest number of images per split for the online kNN check"
    )

    @field_validator("accumulate_batches")
    @classmethod
    def _refuse_accumulation(cls, value: int) -> int:
        if value != 1:
            raise ValueError(
                "gradient accumulation is refused: the joint entropy of a batch is not the mean of its "
                "parts' entropies, so accumulated gradients belong to another loss; "
                "use a smaller training.batch_size or more devices"
            )
        return value


class ComputeSettings(Settings):
    """Where the run takes place. A run may resume with other values; only rounding differs."""

    accelerator: Literal["auto", "cpu", "gpu", "mps"] = Field(
        "auto", description="auto, cpu, gpu or mps (Apple); auto uses a GPU if there is one"
    )
    devices: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        "auto", description="processes per node; one on a CPU unless given"
    )
    nodes: int = Field(
        1, ge=1, description="number of machines; a launcher must start the processes on each"
    )
    precision: Literal["auto", "32-true", "16-mixed", "bf16-mixed"] = Field(
        "auto",
        description="auto: bf16 or fp16 mixed on a GPU, fp32 on a CPU; the loss is always fp32",
    )
    compile: bool = Field(
        False, description="compile the backbone with torch.compile; the first steps take minutes"
    )
    cudnn_benchmark: bool = Field(
        False, description="let cuDNN time its algorithms and keep the fastest, for each shape"
    )
    tf32: bool = Field(
        False,
        description="multiply float32 matrices in TF32 on a GPU: faster, with 10 bits of precision",
    )
    gradient_views: bool = Field(
        False, description="several processes: gradients live in the buffers that are sent"
    )
    workers: Annotated[int, Field(ge=0)] | Literal["auto"] = Field(
        "auto", description="worker processes that prepare images"
    )
    checkpoint_minutes: float = Field(
        10, gt=0, description="minutes between checkpoints inside an epoch"
    )
    timeout_minutes: float = Field(
        30, gt=0, description="minutes after which a process gives up on others that do not answer"
    )
    wandb: bool = Field(False, description="also log to Weights & Biases (extra: imsvd[wandb])")


class FrozenSettings(Settings):
    """The encoder that `imsvd discretize` gives a code, and how its features are used."""

    encoder: str = Field(description="the frozen encoder, as the command named it")
    weights: str = Field(description="hash of its weights")
    views: int = Field(
        4, ge=2, le=64, description="augmented views per image whose features are kept"
    )
    held_out: float = Field(
        0.1, ge=0, le=0.5, description="share of images that only measure the code"
    )
    passes: int = Field(1, ge=1, description="passes over the images in one epoch of the head")
    directions: int = Field(
        256,
        ge=0,
        description="directions of the features that the head reads, those in which images differ most "
        "compared with views of one image; 0 reads the features as they are",
    )
    neighbors: int = Field(
        5,
        ge=0,
        description="nearest images in these directions that may take the place of a second view",
    )
    neighbor_share: float = Field(
        0.75, ge=0, le=1, description="share of the second views that are a neighbor's"
    )


class InitSettings(Settings):
    """The pretrained encoder from which `imsvd pretrain --init` continues."""

    encoder: str = Field(description="the pretrained encoder, as the command named it")
    weights: str = Field(description="hash of its weights")
    frozen_stages: int = Field(
        0,
        ge=0,
        description="leading stages of the backbone, the stem first, whose weights and BatchNorm "
        "statistics stay as they are",
    )
    fixed_statistics: bool = Field(
        True,
        description="whether every BatchNorm of the backbone keeps its statistics; those of augmented "
        "views are not those of whole images",
    )
    backbone_lr: float = Field(
        0.1, gt=0, description="learning rate of the backbone, as a share of that of new layers"
    )


class Config(Settings):
    """Everything that defines a run; `config.yaml` in the run folder is one of these."""

    seed: int = Field(
        0,
        ge=0,
        lt=2**64,
        description="random seed of initial weights, views and image order",
    )
    data: DataSettings = DataSettings()
    backbone: BackboneSettings = BackboneSettings()
    method: SerializeAsAny[MethodSettings] = IMSVDSettings()
    views: ViewsSettings = Field(default_factory=paper_views)
    optimizer: OptimizerSettings = OptimizerSettings()
    training: TrainingSettings = TrainingSettings()
    compute: ComputeSettings = ComputeSettings()
    frozen: FrozenSettings | None = Field(
        None, description="set by `imsvd discretize`, which trains a head and not the backbone"
    )
    code: CodeSettings | None = Field(
        None, description="a compact code trained beside the method, on its features; null = none"
    )
    init: InitSettings | None = Field(
        None, description="set by `imsvd pretrain --init`, which continues from pretrained weights"
    )

    @field_validator("method", mode="before")
    @classmethod
    def _choose_method(cls, value: Any) -> Any:
        """Read the settings of the method that is named, IMSVD's unless another is."""
        if not isinstance(value, Mapping):
            return value
        return method_settings_class(str(value.get("name", "imsvd"))).model_validate(value)

    @model_validator(mode="after")
    def _check_warmup(self) -> Config:
        if self.optimizer.warmup_epochs >= self.training.epochs:
            raise ValueError(
                f"optimizer.warmup_epochs={self.optimizer.warmup_epochs:g} leaves nothing of "
                f"training.epochs={self.training.epochs}; lower the first or raise the second"
            )
        return self

    @model_validator(mode="after")
    def _check_number_of_views(self) -> Config:
        if len(self.views.views) != 2:
            count = len(self.views.views)
            raise ValueError(
                f"{self.method.name} compares two views, and views.views lists {count}; "
                "smaller views beside them are set with views.local_views"
            )
        if self.views.local_views and not self.method.admits_local_views:
            raise ValueError(
                f"views.local_views={self.views.local_views} is not for {self.method.name}, "
                "which compares exactly two views; set it to 0"
            )
        return self

    @model_validator(mode="after")
    def _check_local_size(self) -> Config:
        size, local = self.views.views[0].size, self.views.local_size
        if self.views.local_views and local >= size:
            raise ValueError(
                f"views.local_size={local} is not smaller than the views of {size} pixels; "
                f"set it to {max(8, round(size * 3 / 7))}, for example (as 96 is to 224)"
            )
        return self

    @property
    def peak_lr(self) -> float:
        """The learning rate at the end of warm-up."""
        return self.optimizer.lr * (
            self.training.batch_size / 256 if self.optimizer.scale_lr else 1
        )


def method_settings_class(name: str) -> type[MethodSettings]:
    """Return the type of the settings of the method called `name`."""
    if name not in METHODS:
        close = difflib.get_close_matches(name, METHODS, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise InputError(f"there is no method {name!r}; {hint}Methods: {', '.join(METHODS)}.")
    return METHODS[name][0]


def parse_config(values: Mapping[str, Any]) -> Config:
    """Validate `values`; every problem becomes one `InputError` sentence."""
    return parse_settings(Config, values, setting_keys())


def override(config: Config, assignments: Iterable[str]) -> Config:
    """Return `config` with `a.b=value` assignments applied; values are read as YAML."""
    values = config.model_dump(mode="json")
    for assignment in assignments:
        key, value = read_assignment(assignment, "optimizer.lr=0.3")
        if key == "method.name" and value != config.method.name:
            raise InputError(
                f"method.name={value!r} alone would keep the settings of {config.method.name}; "
                f"choose the method with --method {value}."
            )
        if key.startswith("frozen.") and config.frozen is None:
            raise InputError(f"{key} is a setting of `imsvd discretize`; leave it out.")
        if key.startswith("init.") and config.init is None:
            raise InputError(f"{key} is a setting of `imsvd pretrain --init`; leave it out.")
        refuse_setting_of_another_method(key, config.method)
        if key.startswith("code.") and values["code"] is None:
            values["code"] = {}  # one of its settings switches it on
        assign(values, key, value, setting_keys())
    return parse_config(values)


def refuse_setting_of_another_method(key: str, method: MethodSettings) -> None:
    """Raise if `key` is a setting of other methods only."""
    name = key.removeprefix("method.")
    if name == key or name in type(method).model_fields:
        return
    owners = [other for other, (kind, _) in METHODS.items() if name in kind.model_fields]
    if owners:
        raise InputError(
            f"{key} is no setting of {method.name}, only of {', '.join(owners)}; leave it out."
        )


def to_yaml(config: Config) -> str:
    """Return `config` as the YAML text of a run's `config.yaml`."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def from_yaml(text: str, origin: str) -> Config:
    """Read a configuration; `origin` names the file in errors."""
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InputError(f"{origin} is not valid YAML: {error}") from error
    if not isinstance(values, dict):
        raise InputError(f"{origin} holds no settings; expected the config.yaml of a run.")
    try:
        return parse_config(values)
    except InputError as error:
        raise InputError(
            f"{origin}: {error} If an earlier version of imsvd wrote it, train the run again."
        ) from error


@functools.cache
def setting_keys() -> list[str]:
    """Return every dotted key that `--set` accepts, those of all methods included."""
    return sorted(describe_settings())


def describe_settings() -> dict[str, str]:
    """Return the description of every key that `--set` accepts; a method's keys name their method."""
    described = {key: _sentence(field) for key, field in fields_of(Config)}
    meanings: dict[str, dict[str, list[str]]] = {}
    for name, (kind, _) in METHODS.items():
        for key, field in fields_of(kind, "method."):
            meanings.setdefault(key, {}).setdefault(_sentence(field), []).append(name)
    for key, owners in meanings.items():
        described.setdefault(
            key, "; ".join(f"{text} ({', '.join(names)})" for text, names in owners.items())
        )
    return described


def _sentence(field: FieldInfo) -> str:
    """Return a setting's description in the form of all others."""
    text = (field.description or "").removesuffix(".")
    return text[:1].lower() + text[1:] if text[1:2].islower() else text
