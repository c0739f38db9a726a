"""Requests that schemathesis makes up from the description of the explorer's API."""

from __future__ import annotations

import unittest
from typing import Any, NamedTuple

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode


class Found(NamedTuple):
    """What was sent, and the responses that no client could expect, each with its request."""

    operations: int
    requests: int
    problems: list[str]


def fuzz(url: str, examples: int, **headers: str) -> Found:
    """Send about `examples` requests to every operation, as described and against the description.

    Every response must have the described type; errors are sentences, and none is internal.
    """
    described = requests.get(f"{url}/api/openapi.json", headers=headers, timeout=60).json()
    schema: Any = schemathesis.openapi.from_dict(described)
    operations = [found.ok() for found in schema.get_all_operations()]
    count, problems = 0, []

    def send(case: Any) -> None:
        nonlocal count
        count += 1
        answer = case.call(base_url=url, headers=headers, timeout=60)
        if _is_unexpected(case, answer):
            problems.append(
                f"{case.method} {answer.request.url}: {answer.status_code} {answer.text}"
            )

    chosen = settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    for operation in operations:
        for mode in GenerationMode:
            strategy = operation.as_strategy(generation_mode=mode)
            try:
                seed(0)(chosen(given(case=strategy)(send)))()
            except (unittest.SkipTest, Unsatisfiable):
                continue  # nothing can be wrong about a request without parameters
    return Found(len(operations), count, problems)


def _is_unexpected(case: Any, answer: Any) -> bool:
    status = answer.status_code
    kind = answer.headers.get("content-type", ["" if status == 304 else "none"])[0]
    kind = kind.partition(";")[0]
    if status >= 500 and status != 503:
        return True
    if status >= 400:
        sentence = answer.json().get("error", "") if kind == "application/json" else ""
        return not sentence.endswith(".")
    known = case.operation.definition.raw["responses"].get(str(status))
    return known is None or kind not in known.get("content", {"": None})
