"""Statistics of many codes: rare images, missing combinations, images to label, drift between two sets."""

from imsvd.population.coverage import Coverage, PairUse, UnitUse, measure_coverage
from imsvd.population.homogeneity import Homogeneity, compare_codes
from imsvd.population.outliers import Outlier, Outliers, find_outliers
from imsvd.population.selection import Selection, select_images

__all__ = [
    "Coverage",
    "Homogeneity",
    "Outlier",
    "Outliers",
    "PairUse",
    "Selection",
    "UnitUse",
    "compare_codes",
    "find_outliers",
    "measure_coverage",
    "select_images",
]
