"""Routes for drift: two indexes, or the images of them that two queries ask for, compared."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from imsvd.drift_page import SHOWN_UNITS, SHOWN_VARIABLES, verdict
from imsvd.errors import InputError
from imsvd.explorer.answers import answer
from imsvd.explorer.background import Background, Working
from imsvd.explorer.explorer import Explorer
from imsvd.index.query import parse
from imsvd.index.searching import vocabulary
from imsvd.index.statistics import APPEARANCES, IndexDrift
from imsvd.population import UnitShift, VariableShift


def drift_routes(explorer: Explorer, background: Background) -> APIRouter:
    """Routes for drift between two sets of images."""
    router = APIRouter(prefix="/api")

    @router.get("/drift")
    def drift(first: int, second: int, a: str = "", b: str = "", looks: bool = False) -> Response:
        indexes = [explorer.index(number).index for number in (first, second)]
        queries = a.strip(), b.strip()
        # Before anything is started, so that a mistake is told at once and with its position.
        for index, query in zip(indexes, queries, strict=True):
            if query:
                parse(query, vocabulary(index))
        if (first, queries[0]) == (second, queries[1]):
            raise InputError("both sets are the same; choose two different ones.")
        result: IndexDrift | Working = background.result(
            ("drift", first, second, queries, looks),
            lambda progress: indexes[0].drift(
                indexes[1],
                queries=queries,
                appearances=APPEARANCES if looks else 0,
                progress=progress,
            ),
        )
        return answer(result.record() if isinstance(result, Working) else _record(result))

    return router


def _record(drift: IndexDrift) -> dict[str, Any]:
    found = drift.found
    names = drift.indexes[1].names
    return {
        "ready": True,
        "verdict": verdict(drift),
        "drifted": found.drifted,
        "p_value": found.p_value,
        "level": found.level,
        "images": list(found.images),
        "note": drift.note,
        "typical": [list(images) for images in found.typical],
        "moved_count": len(found.moved),
        "moved": [_variable(shift, names) for shift in found.moved[:SHOWN_VARIABLES]],
        "variables": drift.rows(),
    }


def _variable(shift: VariableShift, names: dict[str, str]) -> dict[str, Any]:
    return {
        "name": shift.name,
        "family": shift.family,
        "p_value": shift.p_value,
        "moved": shift.moved,
        "units": [_unit(unit, names) for unit in shift.units[:SHOWN_UNITS]],
    }


def _unit(unit: UnitShift, names: dict[str, str]) -> dict[str, Any]:
    return {
        "name": unit.name,
        "given_name": names.get(unit.name, ""),
        "before": unit.shares[0],
        "after": unit.shares[1],
        "p_value": unit.p_value,
        "gained": unit.gained,
        "examples": list(unit.examples),
    }
