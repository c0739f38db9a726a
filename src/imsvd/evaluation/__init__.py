"""Evaluation of encoders: features, the protocols that score them, and their results.

`protocols` is the entry: a table of protocols and `evaluate`, which runs one of them.
"""

from imsvd.evaluation.features import (
    Features,
    FeatureSplits,
    chance,
    encode_splits,
    extract_features,
)
from imsvd.evaluation.knn import (
    KNNSettings,
    knn,
    knn_attributes,
    knn_of_shares,
    knn_predict,
    usable_neighbors,
)
from imsvd.evaluation.linear_probe import LinearProbeSettings, linear_probe
from imsvd.evaluation.neighbors import Neighbors, nearest_neighbors

__all__ = [
    "FeatureSplits",
    "Features",
    "KNNSettings",
    "LinearProbeSettings",
    "Neighbors",
    "chance",
    "encode_splits",
    "extract_features",
    "knn",
    "knn_attributes",
    "knn_of_shares",
    "knn_predict",
    "linear_probe",
    "nearest_neighbors",
    "usable_neighbors",
]
