"""Statistics of many codes: rare images, missing combinations, images to label, drift between two sets."""

from imsvd.population.coverage import Coverage, PairUse, UnitUse, measure_coverage
from imsvd.population.drift import Drift, ImageSet, UnitShift, VariableShift, measure_drift
from imsvd.population.homogeneity import Homogeneity, compare_codes
from imsvd.population.outliers import Outlier, Outliers, find_outliers
from imsvd.population.selection import Selection, select_images

__all__ = [
    "Coverage",
    "Drift",
    "Homogeneity",
    "ImageSet",
    "Outlier",
    "Outliers",
    "PairUse",
    "Selection",
    "UnitShift",
    "UnitUse",
    "VariableShift",
    "compare_codes",
    "find_outliers",
    "measure_coverage",
    "measure_drift",
    "select_images",
]
