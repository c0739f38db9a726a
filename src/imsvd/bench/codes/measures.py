"""What a fitted code is worth on test images."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from imsvd.bench.codes.inputs import Inputs, Split
from imsvd.bench.codes.quantizers import Code, one_hot
from imsvd.bench.codes.retrieval import Database, Queries, retrieval_measures
from imsvd.code_measures import monosemanticity, unit_purity
from imsvd.discretizing.held_out import shared_nats
from imsvd.explanations.joint import (
    JointMatrix,
    deviations,
    mutual_information,
    theorem_properties,
)
from imsvd.information import max_probabilities, surprise, variable_sums

CHUNK = 2048
"""Images whose one-hot codes exist at a time."""
DECIDED = 0.9

Measures = dict[str, Any]


def measure(code: Code, inputs: Inputs, seed: int) -> tuple[Measures, NDArray[Any]]:
    """Measure a code; return the numbers and the codes of plain test images."""
    train, test = inputs.train, inputs.test
    database = make_database(code, train.plain, train.labels)
    codes = code.codes(test.plain)
    found: Measures = {}
    vectors = {"symmetric": code.code_query(codes), "asymmetric": code.query(test.plain)}
    for name, queries in vectors.items():
        numbers = retrieval_measures(database, Queries(queries, test.labels, inputs.nearest), seed)
        found |= {f"{name}_{key}": value for key, value in numbers.items()}
    found |= _views(code, test) | _dependence(codes, code.units) | _properties(code, test)
    found |= _units(codes, code.units, test.labels, inputs.judged)
    return found, codes.numpy()


def make_database(code: Code, features: Tensor, labels: Tensor) -> Database:
    """Return the codes of images as a database."""
    codes = code.codes(features)
    different, places = torch.unique(codes.to(torch.int32), dim=0, return_inverse=True)
    return Database(code.vectors(different.to(codes.dtype)), places, labels)


def _views(code: Code, test: Split) -> Measures:
    """Return the share of variables or active units that two views share, and the share decided."""
    first, second = (code.codes(test.view(number)) for number in (0, 1))
    same = (first == second).double().mean()
    if code.units is None:
        same = (first & second).sum() / first.sum()
    found = {"agreeing": 100 * float(same)}
    q = code.probabilities(test.plain)
    if q is not None:
        assert code.units is not None
        decided = (max_probabilities(q, code.units) > DECIDED).double().mean()
        found["decided"] = 100 * float(decided)
    return found


def as_variables(codes: Tensor, units: tuple[int, ...] | None) -> tuple[Tensor, tuple[int, ...]]:
    """Return integer codes and their units; a set of active units becomes variables of two units."""
    return (codes.long(), (2,) * codes.shape[1]) if units is None else (codes, units)


def _dependence(codes: Tensor, units: tuple[int, ...] | None) -> Measures:
    """Return the mean mutual information of two variables, and its share of a variable's entropy."""
    codes, units = as_variables(codes, units)
    joint = torch.zeros(sum(units), sum(units), dtype=torch.float64)
    for part in torch.split(codes, CHUNK):
        hard = one_hot(part, units)
        joint += (hard.T @ hard).double()
    shared = shared_nats(joint, units)
    entropy = float(variable_sums(surprise(joint.diagonal() / len(codes)), units).mean())
    return {"shared_nats": shared, "shared_share": 100 * shared / max(entropy, 1e-12)}


def _properties(code: Code, test: Split) -> Measures:
    """Judge the five properties of the theorem on two views; hard codes count as certain."""
    units = as_variables(code.codes(test.plain[:1]), code.units)[1]
    joint = JointMatrix(units)
    for start in range(0, len(test), CHUNK):
        chunk = test.features[start : start + CHUNK, :2].astype(np.float32)
        joint.add(*(_certainties(code, torch.from_numpy(chunk[:, number])) for number in (0, 1)))
    found = theorem_properties(joint, mutual_information(joint), deviations(joint))
    verdicts = {row.name: row.verdict for row in found}
    return {"properties": sum(v == "holds" for v in verdicts.values()), "verdicts": verdicts}


def _certainties(code: Code, features: Tensor) -> Tensor:
    """Return the probability of every unit, 0 or 1 for hard codes."""
    q = code.probabilities(features)
    return one_hot(*as_variables(code.codes(features), code.units)) if q is None else q


def _units(
    codes: Tensor, units: tuple[int, ...] | None, labels: Tensor, judged: Tensor
) -> Measures:
    """Return purity and similarity of the images of a unit, and those of random sets."""
    purity = unit_purity(codes.numpy(), labels.numpy(), units)
    similarity = monosemanticity(codes.numpy(), judged, units)
    return {
        "purity": 100 * purity.mean,
        "purity_by_chance": 100 * purity.mean_by_chance,
        "similarity": similarity.mean,
        "similarity_by_chance": similarity.mean_by_chance,
    }
