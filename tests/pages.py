"""Pages of the documentation: their blocks of code, their commands and their headings."""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)


class Block(NamedTuple):
    """Code between fences; `sh` and `python` are meant to be run as they are."""

    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def pages() -> list[Path]:
    """Return every page that people read."""
    found = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")]
    return sorted(found)


def blocks(page: Path) -> list[Block]:
    """Return the blocks of code of a page, in order."""
    text = page.read_text()
    found = FENCE.finditer(text)
    return [Block(page, text.count("\n", 0, one.start()) + 1, one[1], one[2]) for one in found]


def command_lines(text: str) -> list[str]:
    """Return the lines of a block of commands; a line that ends in a backslash continues."""
    whole = re.sub(r"\\\n\s*", "", text)
    return [line for line in whole.splitlines() if line.strip() and not line.startswith("#")]


def commands(page: Path) -> list[str]:
    """Return all lines of blocks that may hold commands; others, such as outputs, are among them."""
    plain = [block for block in blocks(page) if block.language in ("", "sh")]
    return [line for block in plain for line in command_lines(block.text)]


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings of a page, as GitHub and MkDocs both make them."""
    text = FENCE.sub("", page.read_text())
    titles = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {
        re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", re.sub(r"[`*]", "", title)).strip().lower())
        for title in titles
    }
