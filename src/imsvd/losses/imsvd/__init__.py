"""The IMSVD loss: `loss` has the module and its settings, `kernel` the computation, `bounds` reference values."""

from imsvd.losses.imsvd.loss import IMSVDLoss, Invariance, Joint, Normalization

__all__ = ["IMSVDLoss", "Invariance", "Joint", "Normalization"]
