"""The complete configuration of a pretraining run, and how a person overrides parts of it."""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import (
    BaseModel,
    Field,
    SerializeAsAny,
    ValidationError,
    field_validator,
    model_validator,
)

from imsvd.errors import InputError
from imsvd.methods import METHODS, IMSVDSettings, MethodSettings
from imsvd.networks import BackboneSettings
from imsvd.settings import Settings
from imsvd.views import ViewsSettings, paper_views

Group = TypeVar("Group", bound=Settings)


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
    """How the weights move: optimiser, warm-up and cosine decay to a floor."""

    name: Literal["lars", "sgd", "adamw"] = "lars"
    lr: float = Field(
        0.6, gt=0, description="peak learning rate for a batch of 256; scaled by batch/256"
    )
    scale_lr: bool = Field(True, description="whether lr is multiplied by batch/256")
    momentum: float = Field(0.9, ge=0, lt=1, description="momentum of LARS and SGD")
    betas: tuple[MomentDecay, MomentDecay] = Field(
        (0.9, 0.999), description="moment decay rates of AdamW"
    )
    weight_decay: float = Field(1e-6, ge=0)
    decay_all: bool = Field(
        False, description="decay biases and norms too (the released CIFAR script does)"
    )
    trust_coefficient: float = Field(0.001, gt=0, description="η of LARS")
    trust_clip: bool = Field(
        False, description="let LARS only lower the learning rate of a layer, never raise it"
    )
    vector_lr_ratio: float = Field(
        1.0, gt=0, description="learning rate of biases and norms, as a share of that of weights"
    )
    warmup_epochs: float = Field(10, ge=0, description="epochs of linear warm-up from 0")
    final_lr_ratio: float = Field(
        0.001, ge=0, le=1, description="floor of the cosine, as a share of the peak"
    )


class TrainingSettings(Settings):
    """How long and on how many images at a time."""

    epochs: int = Field(100, ge=1)
    batch_size: int = Field(2048, ge=2, description="images per step over all processes together")
    accumulate_batches: int = Field(
        1, description="must stay 1: the loss is not a mean over samples"
    )
    knn_every: int = Field(
        10, ge=0, description="epochs between online kNN checks when labels exist; 0 = never"
    )
    knn_samples: int = Field(5000, ge=100, description="most images the online kNN reads per split")

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
    """Where it runs. Nothing here changes what is computed, so a run may resume with other values."""

    accelerator: Literal["auto", "cpu", "gpu", "mps"] = "auto"
    devices: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        "auto", description="processes per node; one on a CPU unless given"
    )
    nodes: int = Field(1, ge=1)
    precision: Literal["auto", "32-true", "16-mixed", "bf16-mixed"] = Field(
        "auto",
        description="auto: bf16 or fp16 mixed on a GPU, fp32 on a CPU; the loss is always fp32",
    )
    workers: Annotated[int, Field(ge=0)] | Literal["auto"] = Field(
        "auto", description="processes that prepare images"
    )
    checkpoint_minutes: float = Field(
        10, gt=0, description="minutes between checkpoints inside an epoch"
    )
    wandb: bool = Field(False, description="also log to Weights & Biases (extra: imsvd[wandb])")


class Config(Settings):
    """Everything that defines a run; `config.yaml` in the run folder is one of these."""

    seed: int = Field(0, ge=0, lt=2**64)
    data: DataSettings = DataSettings()
    backbone: BackboneSettings = BackboneSettings()
    method: SerializeAsAny[MethodSettings] = IMSVDSettings()
    views: ViewsSettings = Field(default_factory=paper_views)
    optimizer: OptimizerSettings = OptimizerSettings()
    training: TrainingSettings = TrainingSettings()
    compute: ComputeSettings = ComputeSettings()

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

    @property
    def peak_lr(self) -> float:
        """The learning rate at the end of warm-up."""
        return self.optimizer.lr * (
            self.training.batch_size / 256 if self.optimizer.scale_lr else 1
        )


def require_every_phase(config: Config) -> None:
    """Refuse to train a method that would end in its warm-up; a single epoch has no room for more."""
    phase, epochs = getattr(config.method, "warmup_epochs", 0), config.training.epochs
    if phase >= epochs > 1:
        raise InputError(
            f"method.warmup_epochs={phase} of {config.method.name} leaves nothing of "
            f"training.epochs={epochs}; lower the first or raise the second."
        )


def parse_config(values: Mapping[str, Any]) -> Config:
    """Validate `values`; every problem becomes one `InputError` sentence."""
    return parse_settings(Config, values)


def parse_settings(kind: type[Group], values: Mapping[str, Any]) -> Group:
    """Validate `values` as settings of any `kind`; every problem becomes one `InputError` sentence."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise InputError(describe_validation_error(error)) from error


def override(config: Config, assignments: Iterable[str]) -> Config:
    """Return `config` with `a.b=value` assignments applied; values are read as YAML."""
    values = config.model_dump(mode="json")
    for assignment in assignments:
        key, value = _read_assignment(assignment, "optimizer.lr=0.3")
        if key == "method.name" and value != config.method.name:
            raise InputError(
                f"method.name={value!r} alone would leave {config.method.name}'s settings in place; "
                f"choose the method with --method {value}."
            )
        _assign(values, key, value)
    return parse_config(values)


def override_group(
    settings: Group, assignments: Iterable[str], *, owner: str, example: str
) -> Group:
    """Return other settings than a run's, such as a protocol's, with assignments applied to them.

    Args:
        settings: what is overridden.
        assignments: `key=value` or `group.key=value`; values are read as YAML.
        owner: who has these settings, for the sentence about a key that does not exist.
        example: an assignment, for the sentence about one without a value.
    """
    values = settings.model_dump(mode="json")
    keys = list(_keys(type(settings), ""))
    for assignment in assignments:
        key, value = _read_assignment(assignment, example)
        if key not in keys:
            hint = _nearest(key, keys) or f"choose among {', '.join(keys)}."
            raise InputError(f"{owner} has no setting {key!r}; {hint}")
        _assign(values, key, value)
    return parse_settings(type(settings), values)


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
    return parse_config(values)


def setting_keys() -> list[str]:
    """Return every key that `--set` accepts, dotted; those of all methods."""
    methods = (key for kind, _ in METHODS.values() for key in _keys(kind, "method."))
    return sorted({*_keys(Config, ""), *methods})


def describe_validation_error(error: ValidationError) -> str:
    """Return the first problem of `error` as one sentence naming key, value and remedy."""
    problem = error.errors()[0]
    key = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        return unknown_key(key)
    if problem["type"] == "literal_error":
        return f"{key}={problem['input']!r} is not possible; choose {problem['ctx']['expected']}."
    message = problem["msg"].removeprefix("Value error, ").removesuffix(".")
    if problem["type"] == "value_error" or not key:
        return f"{key}: {message}." if key else f"{message}."
    return f"{key}={problem['input']!r} cannot be used: {message[0].lower()}{message[1:]}."


def unknown_key(key: str) -> str:
    """Return the sentence for a key that does not exist, naming the nearest that does."""
    hint = _nearest(key, setting_keys()) or "`imsvd recipes --keys` lists the keys."
    return f"there is no setting {key!r}; {hint}"


def method_settings(name: str) -> MethodSettings:
    """Return the default settings of the method called `name`."""
    return method_settings_class(name)()


def method_settings_class(name: str) -> type[MethodSettings]:
    """Return the type of the settings of the method called `name`."""
    if name not in METHODS:
        close = difflib.get_close_matches(name, METHODS, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise InputError(f"there is no method {name!r}; {hint}Methods: {', '.join(METHODS)}.")
    return METHODS[name][0]


def _read_assignment(assignment: str, example: str) -> tuple[str, Any]:
    """Return the key and the value of `key=value`."""
    key, separator, text = assignment.partition("=")
    if not separator:
        raise InputError(
            f"--set {assignment!r} has no '='; write it as key=value, such as {example}."
        )
    try:
        return key.strip(), yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InputError(f"--set {assignment!r} has a value that is not valid YAML.") from error


def _nearest(key: str, known: Iterable[str]) -> str:
    """Return a question after the known key most like `key`, or nothing."""
    close = difflib.get_close_matches(key, known, n=1, cutoff=0.4)
    return f"did you mean {close[0]}?" if close else ""


def _assign(values: dict[str, Any], key: str, value: Any) -> None:
    *parents, last = key.split(".")
    node: Any = values
    for part in parents:
        node = _child(node, part)
        if node is None:
            raise InputError(unknown_key(key))
    if isinstance(node, list) and last.isdigit() and int(last) < len(node):
        node[int(last)] = value
    elif isinstance(node, dict):
        node[last] = value
    else:
        raise InputError(unknown_key(key))


def _child(node: Any, name: str) -> Any:
    if isinstance(node, list) and name.isdigit() and int(name) < len(node):
        return node[int(name)]
    return node.get(name) if isinstance(node, dict) else None


def _keys(model: type[BaseModel], prefix: str) -> Iterable[str]:
    for name, field in model.model_fields.items():
        nested = [
            kind
            for kind in _types(field.annotation)
            if isinstance(kind, type) and issubclass(kind, BaseModel)
        ]
        if not nested:
            yield f"{prefix}{name}"
        elif get_origin(field.annotation) is tuple:
            yield from _keys(nested[0], f"{prefix}{name}.0.")
        for kind in nested if get_origin(field.annotation) is not tuple else []:
            yield from _keys(kind, f"{prefix}{name}.")


def _types(annotation: Any) -> tuple[Any, ...]:
    if get_origin(annotation) in (Union, types.UnionType, tuple):
        return get_args(annotation)
    return (annotation,)
