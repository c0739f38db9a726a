"""The files of the page: a table made once, so that no name from outside becomes a path."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent / "static"
INDEX = "index.html"
_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


class PageFile(NamedTuple):
    """One file of the page."""

    path: Path
    kind: str

    def content(self) -> tuple[bytes, str]:
        """Its bytes and a tag that changes with them."""
        content = self.path.read_bytes()
        return content, f'"{hashlib.sha256(content).hexdigest()[:16]}"'


def page_files() -> dict[str, PageFile]:
    """Every file of the page by its name."""
    return {
        path.name: PageFile(path, _KINDS[path.suffix])
        for path in sorted(FOLDER.iterdir())
        if path.suffix in _KINDS and path.is_file()
    }
