"""The language of searches: units, names and labels, joined by & (and), | (or), ! (not) and parentheses.

12.3                    variable 12 takes unit 3
12.3>0.9  12.3<0.6      … with a probability above 0.9, or not above 0.6
stripes  "red dots"     any unit of that name
label:cat               a label or an attribute; quotes around a value with spaces
12.3 & !(4.7 | 5.1)     not binds strongest, then and, then or
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from imsvd.errors import InputError
from imsvd.index.columns import LEVELS, Bytes, at_least, equal_to
from imsvd.index.segments import Facts, Segment

MOST_CHARACTERS = 2000
MOST_TERMS = 200
DEEPEST = 40

_TOKEN = re.compile(
    r"""\s*(?:
    (?P<unit>\d+\.\d+) |
    (?P<sign>[&|!()<>:]) |
    (?P<quoted>"[^"]*") |
    (?P<word>[^\W\d][\w-]*|\d[\w-]*)
    )""",
    re.VERBOSE,
)


class QueryError(InputError):
    """A query that cannot be understood.

    Attributes:
        query: its text.
        position: the character at which it stops making sense, from 0 on.
    """

    def __init__(self, query: str, position: int, problem: str) -> None:
        end = "" if problem.endswith("?") else "."
        place = f"character {position + 1}"
        super().__init__(f"the query cannot be understood at {place}: {problem}{end}")
        self.query, self.position = query, position

    def pointed(self) -> str:
        """Return the query with a caret below the mistake; long queries are cut around it."""
        start = max(0, self.position - 60)
        line = self.query[start : start + 100].replace("\n", " ").replace("\t", " ")
        return f"{line}\n{' ' * (self.position - start)}^"


@dataclass(frozen=True)
class UnitTerm:
    """A variable takes a unit, perhaps with a probability above or not above a level."""

    variable: int
    unit: int
    above: float | None = None
    below: float | None = None
    name: str = ""

    def __str__(self) -> str:
        limit = f">{self.above:g}" if self.above is not None else ""
        limit += f"<{self.below:g}" if self.below is not None else ""
        return f"{self.variable}.{self.unit}{limit}" + (f" {self.name}" if self.name else "")


@dataclass(frozen=True)
class FacetTerm:
    """A label or attribute has a value."""

    facet: str
    value: int
    name: str

    def __str__(self) -> str:
        return f"{self.facet}:{self.name}"


@dataclass(frozen=True)
class Not:
    """Images that are not in a set."""

    part: Node


@dataclass(frozen=True)
class Every:
    """Images in all of several sets."""

    parts: tuple[Node, ...]


@dataclass(frozen=True)
class Some:
    """Images in any of several sets."""

    parts: tuple[Node, ...]


Term = UnitTerm | FacetTerm
Node = UnitTerm | FacetTerm | Not | Every | Some


class Vocabulary(NamedTuple):
    """What a query may speak of.

    Attributes:
        units: number of units of every variable.
        names: names of units such as "12.3".
        facets: names of the values of every facet, from value 1 on.
    """

    units: Sequence[int]
    names: Mapping[str, str]
    facets: Mapping[str, Sequence[str]]


def parse(text: str, vocabulary: Vocabulary) -> Node:
    """Return what a query asks for.

    Raises:
        QueryError: if it makes no sense, or is too long or too deeply nested.
    """
    if len(text) > MOST_CHARACTERS:
        raise QueryError(
            text, MOST_CHARACTERS, f"a query has at most {MOST_CHARACTERS:,} characters"
        )
    parser = _Parser(text, vocabulary)
    node = parser.some(0)
    if parser.kind:
        raise parser.error("expected & or | or the end here")
    return node


class _Parser:
    """Reads a query from left to right; `kind` and `value` are the token that comes next."""

    def __init__(self, text: str, vocabulary: Vocabulary) -> None:
        self.text, self.vocabulary = text, vocabulary
        self.end = self.start = self.terms = 0
        self.kind = self.value = ""
        self.advance()

    def error(self, problem: str, position: int | None = None) -> QueryError:
        return QueryError(self.text, self.start if position is None else position, problem)

    def advance(self) -> None:
        self.start = self.end + len(self.text[self.end :]) - len(self.text[self.end :].lstrip())
        if self.start == len(self.text):
            self.kind = self.value = ""
            return
        match = _TOKEN.match(self.text, self.end)
        if match is None:
            odd = self.text[self.start]
            raise self.error("a quote is not closed" if odd == '"' else f"{odd!r} has no meaning")
        self.kind = str(match.lastgroup)
        self.value, self.end = match[self.kind], match.end()

    def takes(self, sign: str) -> bool:
        if self.kind != "sign" or self.value != sign:
            return False
        self.advance()
        return True

    def some(self, depth: int) -> Node:
        parts = [self.every(depth)]
        while self.takes("|"):
            parts.append(self.every(depth))
        return parts[0] if len(parts) == 1 else Some(tuple(parts))

    def every(self, depth: int) -> Node:
        parts = [self.factor(depth)]
        while self.takes("&"):
            parts.append(self.factor(depth))
        return parts[0] if len(parts) == 1 else Every(tuple(parts))

    def factor(self, depth: int) -> Node:
        if depth > DEEPEST:
            raise self.error(f"a query has at most {DEEPEST} nested parentheses and negations")
        if self.takes("!"):
            return Not(self.factor(depth + 1))
        opening = self.start
        if self.takes("("):
            inside = self.some(depth + 1)
            if not self.takes(")"):
                missing = "this parenthesis is not closed"
                raise (
                    self.error(missing, opening)
                    if not self.kind
                    else self.error("expected &, | or )")
                )
            return inside
        return self.term()

    def term(self) -> Node:
        self.terms += 1
        if self.terms > MOST_TERMS:
            raise self.error(f"a query has at most {MOST_TERMS} units, names and labels")
        kind, value, start = self.kind, self.value, self.start
        if kind not in ("unit", "quoted", "word"):
            raise self.error("expected a unit such as 12.3, a name or a label here")
        self.advance()
        if kind == "unit":
            return self.limited(self.unit(value, start))
        word = value.strip('"') if kind == "quoted" else value
        if self.takes(":"):
            return self.facet(word, start)
        if kind == "quoted" and ":" in word:
            facet, _, named = word.partition(":")
            return self.facet_value(facet, named, start)
        return self.named(word, start)

    def unit(self, text: str, start: int, name: str = "") -> UnitTerm:
        variable, unit = (int(part) for part in text.split("."))
        units = self.vocabulary.units
        if variable >= len(units):
            problem = f"there is no variable {variable}; there are 0 to {len(units) - 1}"
            raise self.error(problem, start)
        if unit >= units[variable]:
            problem = f"variable {variable} has no unit {unit}; it has 0 to {units[variable] - 1}"
            raise self.error(problem, start)
        return UnitTerm(variable, unit, name=name or self.vocabulary.names.get(text, ""))

    def limited(self, *terms: UnitTerm) -> Node:
        limits: dict[str, float | None] = {"above": None, "below": None}
        if self.kind == "sign" and self.value in "<>":
            side = "above" if self.value == ">" else "below"
            self.advance()
            limits[side] = self.level()
        limited = tuple(UnitTerm(t.variable, t.unit, **limits, name=t.name) for t in terms)
        return limited[0] if len(limited) == 1 else Some(limited)

    def level(self) -> float:
        text, start = self.value, self.start
        if self.kind not in ("unit", "word") or re.fullmatch(r"\d+(\.\d+)?", text) is None:
            raise self.error("expected a probability such as 0.9 here")
        self.advance()
        near = LEVELS[np.argsort(np.abs(LEVELS - float(text)))[:2]]
        if abs(float(near[0]) - float(text)) > 1e-6:
            choices = " or ".join(f"{level:.3g}" for level in sorted(near.tolist()))
            raise self.error(f"probabilities are kept in steps; write {choices}", start)
        return float(text)

    def named(self, word: str, start: int) -> Node:
        names = self.vocabulary.names
        units = [unit for unit, name in names.items() if name.casefold() == word.casefold()]
        if not units:
            near = difflib.get_close_matches(word, {*names.values(), *self.vocabulary.facets}, 1)
            hint = f"did you mean {near[0]!r}?" if near else "give one with `imsvd name`"
            raise self.error(f"no unit is called {word!r}; {hint}", start)
        return self.limited(*(self.unit(unit, start, names[unit]) for unit in units))

    def facet(self, facet: str, start: int) -> Node:
        if self.kind not in ("quoted", "word", "unit"):
            raise self.error(f"expected a value of {facet!r} here")
        value = self.value.strip('"')
        self.advance()
        return self.facet_value(facet, value, start)

    def facet_value(self, facet: str, value: str, start: int) -> Node:
        facets = self.vocabulary.facets
        if facet not in facets:
            known = ", ".join(facets) or "none"
            raise self.error(f"there is no label or attribute {facet!r}; there are: {known}", start)
        if value not in facets[facet]:
            near = difflib.get_close_matches(value, facets[facet], 3, 0.0)
            problem = f"{facet!r} has no value {value!r}; try {', '.join(near) or 'another'}"
            raise self.error(problem, start)
        return FacetTerm(facet, list(facets[facet]).index(value) + 1, value)


def evaluate(node: Node, segment: Segment) -> Bytes:
    """Return the images of a segment that a query asks for; bits after the last are arbitrary."""
    match node:
        case UnitTerm():
            found = equal_to(segment.unit_planes(node.variable), node.unit)
            for level, inverted in ((node.above, False), (node.below, True)):
                if level is not None:
                    more = at_least(segment.level_planes(node.variable), _levels_up_to(level))
                    found &= ~more if inverted else more
            return found
        case FacetTerm():
            planes = segment.facet_planes(node.facet)
            if planes is None:
                return np.zeros(-(-segment.count // 8), dtype=np.uint8)
            return equal_to(planes, node.value)
        case Not():
            return np.invert(evaluate(node.part, segment))
        case Every() | Some():
            operation = np.bitwise_and if isinstance(node, Every) else np.bitwise_or
            found = evaluate(node.parts[0], segment)
            for part in node.parts[1:]:
                operation(found, evaluate(part, segment), out=found)
            return found


def _levels_up_to(level: float) -> int:
    """Return the smallest kept confidence that is above a level."""
    return int(np.argmin(np.abs(LEVELS - level))) + 1


def positive_terms(node: Node) -> list[UnitTerm]:
    """Return the units that a query asks for, without those that it excludes."""
    match node:
        case UnitTerm():
            return [node]
        case Every() | Some():
            return [term for part in node.parts for term in positive_terms(part)]
    return []


def holds(node: Node, facts: Facts) -> bool:
    """Return whether an image is what a query asks for."""
    match node:
        case UnitTerm():
            level = facts.levels[node.variable]
            return (
                facts.codes[node.variable] == node.unit
                and (node.above is None or level >= _levels_up_to(node.above))
                and (node.below is None or level < _levels_up_to(node.below))
            )
        case FacetTerm():
            return facts.facets.get(node.facet, 0) == node.value
        case Not():
            return not holds(node.part, facts)
        case Every():
            return all(holds(part, facts) for part in node.parts)
        case Some():
            return any(holds(part, facts) for part in node.parts)


def reasons(node: Node, facts: Facts, wanted: bool = True) -> list[str]:
    """Return the terms because of which an image is what a query asks for, "not …" for excluded ones."""
    match node:
        case UnitTerm() | FacetTerm():
            if holds(node, facts) != wanted:
                return []
            return [str(node) if wanted else f"not {node}"]
        case Not():
            return reasons(node.part, facts, not wanted)
        case Every() | Some():
            return [text for part in node.parts for text in reasons(part, facts, wanted)]
