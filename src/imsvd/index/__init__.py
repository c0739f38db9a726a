"""Codes of many images in one folder: search, duplicates, and what other questions need."""

from imsvd.index.contents import IndexedImage
from imsvd.index.duplicates import Copy, Duplicates
from imsvd.index.index import Added, Index
from imsvd.index.query import QueryError
from imsvd.index.searching import Match, Matches

__all__ = [
    "Added",
    "Copy",
    "Duplicates",
    "Index",
    "IndexedImage",
    "Match",
    "Matches",
    "QueryError",
]
