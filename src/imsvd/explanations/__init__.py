"""What the variables and units of a trained encoder respond to, measured and drawn part by part."""

from imsvd.explanations.encodings import TopImages
from imsvd.explanations.joint import JointMatrix, mutual_information
from imsvd.explanations.parts import PARTS, explain, properties_table, report_path
from imsvd.explanations.report import training_note

__all__ = [
    "PARTS",
    "JointMatrix",
    "TopImages",
    "explain",
    "mutual_information",
    "properties_table",
    "report_path",
    "training_note",
]
