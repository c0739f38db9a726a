"""The base of every group of settings, and how such groups are read from text and overridden in part."""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo

from imsvd.errors import InputError


class Settings(BaseModel):
    """A frozen group of settings in which each default lives exactly once."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


Group = TypeVar("Group", bound=Settings)


def parse_settings(
    kind: type[Group], values: Mapping[str, Any], keys: Sequence[str] | None = None
) -> Group:
    """Validate `values` as settings of `kind`; every problem becomes one `InputError` sentence.

    Args:
        kind: the class of the settings.
        values: nested plain values.
        keys: the keys to suggest for one that does not exist; by default those of `kind`.
    """
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise InputError(describe_validation_error(error, keys or keys_of(kind))) from error


def override_group(
    settings: Group, assignments: Iterable[str], *, owner: str, example: str
) -> Group:
    """Return settings other than a run's, such as a protocol's, with assignments applied to them.

    Args:
        settings: the settings to override.
        assignments: `key=value` or `group.key=value`; values are read as YAML.
        owner: whose settings they are, for the error about an unknown key.
        example: an assignment, for the error about one without a value.
    """
    values = settings.model_dump(mode="json")
    keys = keys_of(type(settings))
    for assignment in assignments:
        key, value = read_assignment(assignment, example)
        if key not in keys:
            hint = _nearest(key, keys) or f"choose among {', '.join(keys)}."
            raise InputError(f"{owner} has no setting {key!r}; {hint}")
        assign(values, key, value, keys)
    return parse_settings(type(settings), values)


def read_assignment(assignment: str, example: str) -> tuple[str, Any]:
    """Return the key and the value of `key=value`; the value is YAML."""
    key, separator, text = assignment.partition("=")
    if not separator:
        raise InputError(
            f"--set {assignment!r} has no '='; write it as key=value, such as {example}."
        )
    try:
        return key.strip(), yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InputError(f"--set {assignment!r} has a value that is not valid YAML.") from error


def assign(values: dict[str, Any], key: str, value: Any, keys: Sequence[str]) -> None:
    """Set the dotted `key` in nested `values`; `keys` are suggested where there is no such place."""
    *parents, last = key.split(".")
    node: Any = values
    for part in parents:
        node = _child(node, part)
    if isinstance(node, list) and last.isdigit() and int(last) < len(node):
        node[int(last)] = value
    elif isinstance(node, dict):
        node[last] = value
    else:
        raise InputError(unknown_key(key, keys))


def _child(node: Any, name: str) -> Any:
    if isinstance(node, list) and name.isdigit() and int(name) < len(node):
        return node[int(name)]
    return node.get(name) if isinstance(node, dict) else None


def describe_validation_error(error: ValidationError, keys: Sequence[str]) -> str:
    """Return the first problem of `error` as one sentence naming key, value and remedy."""
    problem = error.errors()[0]
    key = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        return unknown_key(key, keys)
    if problem["type"] == "literal_error":
        return f"{key}={problem['input']!r} is not possible; choose {problem['ctx']['expected']}."
    message = problem["msg"].removeprefix("Value error, ").removesuffix(".")
    if problem["type"] == "value_error" or not key:
        return f"{key}: {message}." if key else f"{message}."
    return f"{key}={problem['input']!r} cannot be used: {message[0].lower()}{message[1:]}."


def unknown_key(key: str, keys: Sequence[str]) -> str:
    """Return the sentence about a key that does not exist, naming the nearest that does."""
    hint = _nearest(key, keys) or "`imsvd recipes --keys` lists the keys."
    return f"there is no setting {key!r}; {hint}"


def _nearest(key: str, keys: Iterable[str]) -> str:
    close = difflib.get_close_matches(key, keys, n=1, cutoff=0.4)
    return f"did you mean {close[0]}?" if close else ""


def keys_of(kind: type[BaseModel]) -> list[str]:
    """Return the dotted keys of settings of `kind`."""
    return [key for key, _ in fields_of(kind)]


def fields_of(kind: type[BaseModel], prefix: str = "") -> Iterable[tuple[str, FieldInfo]]:
    """Yield the dotted key and the field of every setting of `kind`, nested groups included."""
    for name, field in kind.model_fields.items():
        is_tuple = get_origin(field.annotation) is tuple
        nested = [
            part
            for part in _types(field.annotation)
            if isinstance(part, type) and issubclass(part, BaseModel)
        ]
        if not nested:
            yield f"{prefix}{name}", field
        for part in nested[:1] if is_tuple else nested:
            yield from fields_of(part, f"{prefix}{name}.0." if is_tuple else f"{prefix}{name}.")


def _types(annotation: Any) -> tuple[Any, ...]:
    if get_origin(annotation) in (Union, types.UnionType, tuple):
        return get_args(annotation)
    return (annotation,)
