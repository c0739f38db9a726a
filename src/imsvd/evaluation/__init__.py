"""Evaluation of frozen features: extracted once, judged by plain functions."""

from imsvd.evaluation.best_neighbours import Neighbours
from imsvd.evaluation.features import Features, extract_features
from imsvd.evaluation.knn import (
    KNNSettings,
    knn,
    knn_attributes,
    knn_of_shares,
    knn_predict,
    usable_neighbours,
)
from imsvd.evaluation.labelled import chance
from imsvd.evaluation.linear_probe import LinearProbeSettings, linear_probe
from imsvd.evaluation.neighbours import nearest_neighbours
from imsvd.evaluation.results import append_result, read_results

__all__ = [
    "Features",
    "KNNSettings",
    "LinearProbeSettings",
    "Neighbours",
    "append_result",
    "chance",
    "extract_features",
    "knn",
    "knn_attributes",
    "knn_of_shares",
    "knn_predict",
    "linear_probe",
    "nearest_neighbours",
    "read_results",
    "usable_neighbours",
]
