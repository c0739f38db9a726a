"""How a configuration is read, written and, with `--set`, overridden in part."""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from imsvd.config import Config
from imsvd.errors import InputError
from imsvd.methods import METHODS
from imsvd.settings import Settings

Group = TypeVar("Group", bound=Settings)


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
    keys = [key for key, _ in _fields(type(settings), "")]
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
    return sorted(describe_settings())


def describe_settings() -> dict[str, str]:
    """Return what every key that `--set` accepts is for; of methods' settings also whose they are."""
    described = {key: _sentence(field) for key, field in _fields(Config, "")}
    meanings: dict[str, dict[str, list[str]]] = {}
    for name, (kind, _) in METHODS.items():
        for key, field in _fields(kind, "method."):
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


def _fields(model: type[BaseModel], prefix: str) -> Iterable[tuple[str, FieldInfo]]:
    for name, field in model.model_fields.items():
        nested = [
            kind
            for kind in _types(field.annotation)
            if isinstance(kind, type) and issubclass(kind, BaseModel)
        ]
        if not nested:
            yield f"{prefix}{name}", field
        elif get_origin(field.annotation) is tuple:
            yield from _fields(nested[0], f"{prefix}{name}.0.")
        for kind in nested if get_origin(field.annotation) is not tuple else []:
            yield from _fields(kind, f"{prefix}{name}.")


def _types(annotation: Any) -> tuple[Any, ...]:
    if get_origin(annotation) in (Union, types.UnionType, tuple):
        return get_args(annotation)
    return (annotation,)
