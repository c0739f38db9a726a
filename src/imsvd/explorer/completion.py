"""Completion of queries: units, names and labels, written as the language of searches has them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator

from imsvd.index.query import Vocabulary

MOST = 12
_WORD = re.compile(r"[^\W\d][\w-]*|\d[\w-]*")

Terms = Iterator[tuple[str, str]]
"""Terms of queries, each with a note about it."""


def complete(start: str, known: Vocabulary) -> list[dict[str, str]]:
    """Return terms that begin with a text, then terms that contain it."""
    begun = start.strip().casefold()
    label, colon, value = begun.partition(":")
    if colon:
        terms = _values(label.strip('"'), value.lstrip('"'), known)
    else:
        word = begun.lstrip('"')
        terms = itertools.chain(_units(word, known), _names(word, known), _labels(word, known))
    writable = ((text, note) for text, note in terms if text)
    notes: dict[str, str] = {}
    for text, note in writable:
        notes.setdefault(text, note)
        if len(notes) == MOST:
            break
    return [{"text": text, "note": note} for text, note in notes.items()]


def _values(label: str, start: str, known: Vocabulary) -> Terms:
    for facet, values in known.facets.items():
        if facet.casefold() == label:
            yield from ((facet_term(facet, value), "") for value in _best_first(values, start))


def _units(start: str, known: Vocabulary) -> Terms:
    if not start[:1].isdigit():
        return
    for variable, size in enumerate(known.units):
        if f"{variable}.".startswith(start) or start.startswith(f"{variable}."):
            units = (f"{variable}.{unit}" for unit in range(size))
            yield from (
                (unit, known.names.get(unit, "")) for unit in units if unit.startswith(start)
            )


def _names(start: str, known: Vocabulary) -> Terms:
    for name in _best_first(list(dict.fromkeys(known.names.values())), start):
        yield quoted(name), ", ".join(unit for unit in known.names if known.names[unit] == name)


def _labels(start: str, known: Vocabulary) -> Terms:
    for facet in _best_first(list(known.facets), start):
        yield f"{quoted(facet)}:" if quoted(facet) else "", f"{len(known.facets[facet])} values"
    if start:
        for facet, values in known.facets.items():
            yield from ((facet_term(facet, value), "") for value in _best_first(values, start))


def _best_first(texts: Iterable[str], start: str) -> Iterator[str]:
    """Yield the texts that begin with `start`, then the others that contain it."""
    listed = list(texts)
    yield from (text for text in listed if text.casefold().startswith(start))
    yield from (text for text in listed if start in text.casefold()[1:])


def quoted(text: str) -> str:
    """Return a name as queries have it; "" if they cannot."""
    if '"' in text:
        return ""
    return text if _WORD.fullmatch(text) else f'"{text}"'


def facet_term(facet: str, value: str) -> str:
    """Return the term for a value of a label or attribute; "" if queries cannot have it."""
    name, text = quoted(facet), quoted(value)
    return f"{name}:{text}" if name and text else ""
