"""Codes of many images in one folder: search, duplicates, and what other questions need."""

from imsvd.index.index import Added, Index, IndexedImage

__all__ = ["Added", "Index", "IndexedImage"]
