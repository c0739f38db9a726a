"""Reference pages written from the code: commands, settings and the Python interface."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import typer
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

import imsvd
from imsvd import cli
from imsvd.cli.app import PANELS
from imsvd.config import Config
from imsvd.methods import METHODS
from imsvd.settings import fields_of

GROUPS = {
    "Functions": ("pretrain", "discretize", "explain", "evaluate", "compare_methods"),
    "Encoders": ("load", "open_encoder", "Encoder"),
}
"""Headings of the page about Python; names that are in none come under "Everything else"."""


def command_page() -> str:
    """Return a page about every command, by the panels of `imsvd --help`."""
    program: Any = typer.main.get_command(cli.app)
    context = program.make_context("imsvd", [], resilient_parsing=True)
    lines = [
        "# Commands",
        "Every command, argument and option. `imsvd COMMAND --help` shows the same in the terminal.",
    ]
    known = {name for names in PANELS.values() for name in names}
    rest = tuple(name for name in program.list_commands(context) if name not in known)
    for panel, names in {**PANELS, "Further commands": rest}.items():
        if names:
            lines.append(f"## {panel}")
        for name in names:
            command = program.get_command(context, name)
            lines += _describe_command(command, f"imsvd {name}", context)
    return "\n\n".join(lines) + "\n"


def _describe_command(command: Any, path: str, parent: Any) -> Iterator[str]:
    yield f"### {path}"
    if command.help:
        yield command.help.replace("\f", "").strip()
    if hasattr(command, "list_commands"):
        context = command.make_context(path, [], parent=parent, resilient_parsing=True)
        for name in command.list_commands(context):
            nested = command.get_command(context, name)
            yield from _describe_command(nested, f"{path} {name}", context)
        return
    shown = [part for part in command.params if not getattr(part, "hidden", False)]
    arguments = [part for part in shown if part.param_type_name == "argument"]
    options = [part for part in shown if part.param_type_name == "option" and part.name != "help"]
    words = [_word(part) for part in arguments] + (["[OPTIONS]"] if options else [])
    yield f"```\n{' '.join([path, *words])}\n```"
    if arguments:
        rows = [(f"`{_word(part)}`", _sentence(part)) for part in arguments]
        yield _table(("argument", "meaning"), rows)
    if options:
        rows = [(_names(part), _sentence(part)) for part in options]
        yield _table(("option", "meaning"), rows)


def _word(part: Any) -> str:
    word = part.metavar or part.name.upper()
    word = f"{word}…" if part.nargs == -1 else word
    return word if part.required else f"[{word}]"


def _names(part: Any) -> str:
    names = ", ".join([*part.opts, *part.secondary_opts])
    return f"`{names}`" if part.is_flag else f"`{names} {part.metavar or part.type.name.upper()}`"


def _sentence(part: Any) -> str:
    text = " ".join((part.help or "").split())
    default = part.default
    if part.required or callable(default) or default in (None, False, (), [], ""):
        return text
    if default is True and part.is_flag:
        return text
    values = ", ".join(map(str, default)) if isinstance(default, list | tuple) else default
    return f"{text} Default: `{values}`."


def settings_page() -> str:
    """Return a page about every key of `--set`, by group, and those of each method."""
    groups: dict[str, list[tuple[str, FieldInfo]]] = {}
    for key, field in fields_of(Config):
        group = key.partition(".")[0] if "." in key else "The run"
        groups.setdefault(group, []).append((key, field))
    groups.pop("method", None)
    lines = [
        "# Settings",
        "Every key of `--set KEY=VALUE` and of a run's `config.yaml`. The table shows the default of the "
        "configuration; recipes and methods change many of them: `imsvd recipes NAME --method METHOD` shows "
        "the values of one. A key that does not exist, or a value that cannot be used, is refused with "
        "one sentence.",
    ]
    for group, fields in groups.items():
        lines += [f"## {group}", _fields(fields)]
    lines.append("## method")
    for name, (kind, _) in METHODS.items():
        lines += [f"### {name}", f"See [the method's page](../methods/{name}.md)."]
        lines.append(_fields(fields_of(kind, "method.")))
    return "\n\n".join(lines) + "\n"


def _fields(fields: Iterable[tuple[str, FieldInfo]]) -> str:
    rows = [(f"`{key}`", _default(field), field.description or "") for key, field in fields]
    return _table(("key", "default", "meaning"), rows)


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return "must be set"
    if value is None or value in ("", (), {}):
        return "none"
    if isinstance(value, tuple | list):
        value = ", ".join(map(str, value))
    if isinstance(value, bool):
        value = str(value).lower()
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def python_page() -> str:
    """Return a page about every public name of `imsvd`."""
    names = [name for name in imsvd.__all__ if not name.startswith("__")]
    grouped = {name for group in GROUPS.values() for name in group}
    rest = tuple(name for name in names if name not in grouped)
    lines = [
        "# Python",
        "What `import imsvd` offers. Names are imported when they are first used, so that `imsvd.IMSVDLoss` "
        "alone stays light.",
    ]
    for group, members in {**GROUPS, "Everything else": rest}.items():
        lines.append(f"## {group}")
        lines += [f"::: imsvd.{name}" for name in members if name in names]
    lines += ["## Modules", "::: imsvd.information", "::: imsvd.code_measures"]
    return "\n\n".join(lines) + "\n"


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [" | ".join(titles), "|".join("---" for _ in titles)]
    lines += [" | ".join(cell.replace("|", r"\|") for cell in row) for row in rows]
    return "\n".join(f"| {line} |" for line in lines)
