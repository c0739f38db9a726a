"""Pretraining: what a step is, what is measured, and the run folder it fills."""

from imsvd.pretraining.run import train

__all__ = ["train"]
