"""What MkDocs does beyond its settings: pages from elsewhere in the repository, references, formulas."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from website.formulas import draw_formulas
from website.notebooks import notebook_page
from website.reference import command_page, python_page, settings_page

ROOT = Path(__file__).parents[1]
REFERENCE = {
    "reference/commands.md": command_page,
    "reference/settings.md": settings_page,
    "reference/python.md": python_page,
}
LINK = re.compile(r"(\]\()([^)#\s]+)(#[^)\s]*)?\)")
PROVENANCE = re.compile(r"^- command: (.+)\n((?:- [a-z ]+: .+\n)*)", re.MULTILINE)
REMOTE = re.compile(
    r'<(?:script|img|iframe|link rel="(?:stylesheet|preload|icon)")[^>]*="(?:https?:)?//[^>]*'
)


@cache
def places() -> dict[str, str]:
    """Return where files of the repository are on the site, except those in docs/ as they are."""
    benchmarks = [
        path.relative_to(ROOT).as_posix()
        for kind in ("md", "png", "csv", "json")
        for path in sorted(ROOT.glob(f"benchmarks/*.{kind}"))
    ]
    top = [path.name for path in sorted(ROOT.glob("*.md")) if path.name != "README.md"]
    moved = {path: path.replace("/index.", "/searching.") for path in benchmarks}  # no home page
    return moved | {name: f"project/{name.lower()}" for name in top}


@cache
def notebooks() -> dict[str, str]:
    """Return the pages of notebooks: path in the repository, on the site."""
    found = sorted(ROOT.glob("docs/**/*.ipynb"))
    paths = [path.relative_to(ROOT).as_posix() for path in found]
    return {path: f"{path.removeprefix('docs/').removesuffix('.ipynb')}.md" for path in paths}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """List all pages from outside docs/, so that a new one need not be named in mkdocs.yml."""
    for section in config.nav or ():
        for title, pages in section.items():
            folder = f"{title.lower()}/"
            found = [place for place in places().values() if place.startswith(folder)]
            listed = set(_pages(pages))
            new = [place for place in found if place.endswith(".md") and place not in listed]
            if new:
                section[title] = [*pages, *new]
    return config


def _pages(part: Any) -> Iterator[str]:
    """Yield the pages of a part of the navigation, however deep."""
    if isinstance(part, str):
        yield part
    for inner in (
        part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    ):
        yield from _pages(inner)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from outside docs/, the notebooks and the reference."""
    for source, place in places().items():
        files.append(File.generated(config, place, abs_src_path=str(ROOT / source)))
    for source, place in notebooks().items():
        files.append(File.generated(config, place, content=notebook_page(ROOT / source)))
    for place, write in REFERENCE.items():
        files.append(File.generated(config, place, content=write()))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Turn links that lead through the repository into links that lead through the site."""
    here = page.file.src_uri
    if here in REFERENCE or here in notebooks().values():
        return markdown
    origins = {place: source for source, place in places().items()}
    origin = PurePosixPath(origins.get(here, f"docs/{here}")).parent
    known = {**places(), **notebooks(), "README.md": "index.md"}

    def mend(found: re.Match[str]) -> str:
        address = found[2]
        if "://" in address or address.startswith("mailto:"):
            return found[0]
        target = normpath(f"{origin}/{address}")
        place = known.get(target) or target.removeprefix("docs/")
        return f"{found[1]}{relpath(place, PurePosixPath(here).parent)}{found[3] or ''})"

    return PROVENANCE.sub(_folded, LINK.sub(mend, markdown))


def _folded(found: re.Match[str]) -> str:
    """Return the command of a measurement, and machine and date to unfold: results come first."""
    details = "".join(f"    {line}\n" for line in found[2].splitlines())
    return f'\n```sh\n{found[1]}\n```\n\n??? info "Machine, versions and date"\n\n{details}'


def on_page_content(html: str, **_: Any) -> str:
    """Draw the formulas, and keep deviations beside their means."""
    return draw_formulas(html.replace(" ± ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}"))


def on_post_page(output: str, *, page: Page, **_: Any) -> str:
    """Refuse pages that load something from the internet, and name the dialog of the search."""
    if found := REMOTE.search(output):
        raise PluginError(f"{page.file.src_uri} loads {found[0]}> from the internet")
    # The theme's dialog has no name that a screen reader could say.
    return output.replace('role="dialog"', 'role="dialog" aria-label="Search"')
