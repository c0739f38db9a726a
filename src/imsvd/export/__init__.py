"""Encoders written in the forms that other tools read. `FORMATS` is the whole table."""

from imsvd.export.export import FORMATS, export_encoder

__all__ = ["FORMATS", "export_encoder"]
