"""The language of searches: what it finds is what plain Python finds, and nonsense is refused."""

import contextlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imsvd.errors import InputError
from imsvd.index.columns import LEVELS, members
from imsvd.index.query import (
    DEEPEST,
    Every,
    FacetTerm,
    Node,
    Not,
    QueryError,
    Some,
    UnitTerm,
    Vocabulary,
    evaluate,
    holds,
    parse,
    reasons,
)
from imsvd.index.segments import Segment, encode
from tests.index.made_up import UNITS, rows

WORDS = Vocabulary(
    UNITS,
    {"0.1": "red dots", "2.31": "stripes", "3.0": "stripes"},
    {"label": ("cat", "polar bear")},
)
FINE = Vocabulary(UNITS, {}, {"label": ("cat", "dog")})


@pytest.mark.parametrize(
    ("text", "node"),
    [
        ("2.31", UnitTerm(2, 31, name="stripes")),
        ("0.2>0.9", UnitTerm(0, 2, above=0.9)),
        ("0.2 < 0.55", UnitTerm(0, 2, below=0.55)),
        ("label:cat", FacetTerm("label", 1, "cat")),
        ('label : "polar bear"', FacetTerm("label", 2, "polar bear")),
        ('"label:polar bear"', FacetTerm("label", 2, "polar bear")),
        ('"RED dots"', UnitTerm(0, 1, name="red dots")),
        (
            "stripes>0.5",
            Some(
                (
                    UnitTerm(2, 31, above=0.5, name="stripes"),
                    UnitTerm(3, 0, above=0.5, name="stripes"),
                )
            ),
        ),
        ("!0.2&0.3", Every((Not(UnitTerm(0, 2)), UnitTerm(0, 3)))),
        ("0.2|0.3&1.1", Some((UnitTerm(0, 2), Every((UnitTerm(0, 3), UnitTerm(1, 1)))))),
        ("(0.2|0.3)&1.1", Every((Some((UnitTerm(0, 2), UnitTerm(0, 3))), UnitTerm(1, 1)))),
        ("!!(0.2)", Not(Not(UnitTerm(0, 2)))),
    ],
)
def test_meaning(text: str, node: Node) -> None:
    assert parse(text, WORDS) == node


@pytest.mark.parametrize(
    ("text", "position", "problem"),
    [
        ("0.2 & & 1.1", 6, "expected a unit"),
        ("0.2 1.1", 4, "expected & or |"),
        ("(0.2", 0, "not closed"),
        ("(0.2 0.3)", 5, "expected &, | or )"),
        ("0.2)", 3, "expected & or |"),
        ("0.2 &", 5, "expected a unit"),
        ("0.2 & $", 6, "'$' has no meaning"),
        ('0.2 & "abc', 6, "a quote is not closed"),
        ("9.0", 0, "no variable 9; there are 0 to 5"),
        ("0.2 | 1.3", 6, "variable 1 has no unit 3; it has 0 to 2"),
        ("0.2>0.333", 4, "write 0.3 or 0.35"),
        ("0.2>cat", 4, "expected a probability"),
        ("0.2>2.5", 4, "write 0.995 or 0.999"),
        ("strips", 0, "did you mean 'stripes'?"),
        ("12", 0, "no unit is called '12'"),
        ("label:cats", 0, "try cat"),
        ("colour:red", 0, "there are: label"),
        ("label:", 6, "expected a value"),
    ],
)
def test_mistakes_are_pointed_at(text: str, position: int, problem: str) -> None:
    with pytest.raises(QueryError) as caught:
        parse(text, WORDS)
    assert problem in str(caught.value)
    assert caught.value.position == position
    assert caught.value.pointed().splitlines()[1].index("^") == position


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("(" * 10_000 + "0.1" + ")" * 10_000, "at most 2,000 characters"),
        ("(" * 900 + "0.1" + ")" * 900, "at most 40 nested"),
        ("!" * 1900 + "0.1", "at most 40 nested"),
        ("|".join(["0.1"] * 201), "at most 200 units"),
    ],
)
def test_hostile_queries_are_refused(text: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        parse(text, WORDS)
    inside = "(" * DEEPEST + "0.1" + ")" * DEEPEST
    assert parse(inside, WORDS) == UnitTerm(0, 1, name="red dots")


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet='0123456789.&|!()<>: "abcel', max_size=30))
def test_any_text_is_understood_or_refused(text: str) -> None:
    with contextlib.suppress(QueryError):
        parse(text, WORDS)


LEAVES = st.one_of(
    st.builds(
        UnitTerm,
        st.just(0),
        st.integers(0, 3),
        st.sampled_from([None, 0.5, 0.9]),
        st.sampled_from([None, 0.6, 0.95]),
    ),
    st.builds(UnitTerm, st.just(4), st.integers(0, 299)),
    st.builds(FacetTerm, st.just("label"), st.integers(1, 2), st.just("x")),
    st.builds(FacetTerm, st.just("unheard"), st.just(1), st.just("x")),
)
NODES = st.recursive(
    LEAVES,
    lambda inside: st.one_of(
        st.builds(Not, inside),
        st.builds(Every, st.tuples(inside, inside)),
        st.builds(Some, st.tuples(inside, inside, inside)),
    ),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def segment(tmp_path_factory: pytest.TempPathFactory) -> Segment:
    path = tmp_path_factory.mktemp("segment") / "s.safetensors"
    path.write_bytes(encode(rows(203), UNITS, {}))
    return Segment(path, UNITS, path.stat().st_size)


@settings(max_examples=60, deadline=None)
@given(node=NODES)
def test_planes_find_what_one_image_after_the_other_finds(segment: Segment, node: Node) -> None:
    found = members(evaluate(node, segment), segment.count)
    for number in range(0, 203, 7):
        facts = segment.facts(number)
        assert found[number] == holds(node, facts) == literally(node, segment, number)
        why = reasons(node, facts)
        assert all(
            not reason.startswith("not ") or isinstance(node, Not | Every | Some) for reason in why
        )
        if found[number]:
            assert why


def literally(node: Node, segment: Segment, number: int) -> bool:
    """The definition, from arrays that are not bit planes."""
    match node:
        case UnitTerm():
            level = int(segment.levels()[number, node.variable])
            return bool(
                segment.codes()[number, node.variable] == node.unit
                and (node.above is None or np.float32(node.above) in LEVELS[:level])
                and (node.below is None or np.float32(node.below) not in LEVELS[:level])
            )
        case FacetTerm():
            return bool(segment.facet(node.facet)[number] == node.value)
        case Not():
            return not literally(node.part, segment, number)
        case Every():
            return all(literally(part, segment, number) for part in node.parts)
        case Some():
            return any(literally(part, segment, number) for part in node.parts)


def test_reasons_name_what_is_there_and_what_is_not(tmp_path: Path) -> None:
    path = tmp_path / "s.safetensors"
    path.write_bytes(encode(rows(10), UNITS, {}))
    segment = Segment(path, UNITS, path.stat().st_size)
    facts = segment.facts(0)
    has, lacks = facts.codes[0], (facts.codes[0] + 1) % 4
    node = parse(f"0.{has} & !(0.{lacks} | 2.40)".replace("2.40", "2.30"), FINE)
    assert reasons(node, facts) == [f"0.{has}", f"not 0.{lacks}", "not 2.30"]
    assert reasons(parse(f"0.{lacks} | 0.{has}", FINE), facts) == [f"0.{has}"]
