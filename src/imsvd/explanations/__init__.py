"""What each variable and unit of a trained encoder sees, measured and drawn."""

from imsvd.explanations.joint import JointMatrix, mutual_information
from imsvd.explanations.parts import PARTS, explain, properties_table, report_path
from imsvd.explanations.top_images import TopImages

__all__ = [
    "PARTS",
    "JointMatrix",
    "TopImages",
    "explain",
    "mutual_information",
    "properties_table",
    "report_path",
]
