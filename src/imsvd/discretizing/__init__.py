"""A discrete code for any encoder: a small head trained on cached features of a frozen backbone.

`cache` computes the features once, `feature_file` keeps them, `head` trains on them, `run` is the entry.
"""

from imsvd.discretizing.run import discretize

__all__ = ["discretize"]
