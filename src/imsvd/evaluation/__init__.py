"""Evaluation of frozen features: extracted once, judged by plain functions."""

from imsvd.evaluation.best_neighbors import Neighbors
from imsvd.evaluation.features import Features, extract_features
from imsvd.evaluation.knn import (
    KNNSettings,
    knn,
    knn_attributes,
    knn_of_shares,
    knn_predict,
    usable_neighbors,
)
from imsvd.evaluation.labeled import chance
from imsvd.evaluation.linear_probe import LinearProbeSettings, linear_probe
from imsvd.evaluation.neighbors import nearest_neighbors

__all__ = [
    "Features",
    "KNNSettings",
    "LinearProbeSettings",
    "Neighbors",
    "chance",
    "extract_features",
    "knn",
    "knn_attributes",
    "knn_of_shares",
    "knn_predict",
    "linear_probe",
    "nearest_neighbors",
    "usable_neighbors",
]
