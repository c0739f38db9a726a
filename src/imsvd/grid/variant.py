"""A method as a comparison knows it: under its own name, or with other settings under another."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from imsvd.config import method_settings_class
from imsvd.errors import InputError
from imsvd.methods import METHODS

MAY_DIFFER = ("method.", "optimizer.")
"""The settings in which the rows of a comparison may differ."""

NAME = r"[A-Za-z0-9][A-Za-z0-9_.+-]*"
"""What a variant may be called: nothing that a terminal, Markdown or a plot would read as its own."""


class Variant(NamedTuple):
    """A method, and what differs from its recipe.

    Attributes:
        name: what the table calls it.
        method: by our name.
        settings: as for `--set`.
    """

    name: str
    method: str
    settings: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}: {self.method} with {', '.join(self.settings)}"


def choose_variants(methods: Sequence[str], texts: Sequence[str]) -> list[Variant]:
    """Return what is to be compared: methods as they are, then variants; all methods if neither is given.

    Args:
        methods: names of methods.
        texts: variants such as "soft=imsvd,method.standardize=true,method.joint=within".
    """
    names = methods if methods or texts else tuple(METHODS)
    for method in names:
        method_settings_class(method)  # refuses an unknown name
    variants = [read_variant(text) for text in texts]
    taken = {"untrained", *METHODS}
    for variant in variants:
        if variant.name in taken:
            raise InputError(
                f"--variant {variant.name}=… has a name that is taken; choose another."
            )
        taken.add(variant.name)
    return [*(Variant(name, name) for name in dict.fromkeys(names)), *variants]


def read_variant(text: str) -> Variant:
    """Read NAME=METHOD,KEY=VALUE,…; commas inside a value, such as those of a list, belong to it."""
    name, _, rest = text.partition("=")
    method, *settings = (part.strip() for part in re.split(r",(?=\s*[a-z_.]+=)", rest))
    if not name.strip() or not method or not settings:
        raise InputError(
            f"--variant {text!r} is not NAME=METHOD,KEY=VALUE,… such as "
            "soft=imsvd,method.standardize=true,method.off_diagonal_weight=10."
        )
    if not re.fullmatch(NAME, name.strip()):
        raise InputError(
            f"--variant {name.strip()!r} is no name for a row of a table; "
            "use letters, digits, '_', '-', '.' and '+'."
        )
    method_settings_class(method)
    for setting in settings:
        if not setting.startswith(MAY_DIFFER):
            raise InputError(
                f"--variant {name} cannot change {setting.partition('=')[0]}, only method.* and optimizer.*: "
                "all else is the same for all that is compared; --set changes it for all."
            )
    return Variant(name.strip(), method, tuple(settings))
