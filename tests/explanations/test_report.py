"""The report of any set of parts: whole, self-contained, escaped, and usable by everybody."""

import itertools
import json
import re
import shutil
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from imsvd.datasets import ShapesSource, UnreadableImage
from imsvd.explanations import explain, faithfulness, report_path
from imsvd.explanations.parts import FOLDER, PARTS
from imsvd.explanations.report import FILE_NAME, report_page, write_report
from imsvd.explanations.subject import Subject
from tests.explanations import made_up

HOSTILE = "\"><script>alert('x')</script>&amp;<img src=x onerror=alert(1)>"
VOID = {"img", "meta", "br"}


class Page(HTMLParser):
    """Reads a page; fails on an element that is not closed in its order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.headings: list[int] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if re.fullmatch(r"h[1-6]", tag):
            self.headings.append(int(tag[1]))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def check(page: Page) -> None:
    """What must be so of every report."""
    assert page.headings[0] == 1
    assert page.headings.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(page.headings))
    assert page.all("html") == [{"lang": "en"}]
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    for attributes in page.all("a"):
        target = attributes["href"]
        assert target is not None
        assert target.startswith("#")
        assert target[1:] in ids
    assert page.all("a")[0]["class"] == "skip"
    for attributes in page.all("img"):
        assert (attributes["src"] or "").startswith(("data:image/png;", "data:image/jpeg;"))
        assert (attributes["alt"] or "").strip()
    for tag, attributes in page.elements:
        assert tag not in {"script", "link", "iframe", "object", "embed", "video", "audio"}
        assert not any(name.startswith("on") for name in attributes)
    assert all("scope" in attributes for attributes in page.all("th"))
    assert len(page.all("caption")) == len(page.all("table"))


@pytest.fixture(scope="module")
def subject(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    """A small random encoder, explained in full; copy its folder before changing it."""
    run = Path(shutil.copytree(trained, tmp_path_factory.mktemp("report") / "run"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(faithfulness.CropSample, "sample", 16)
        explain(run, "shapes:64")
    return made_up.subject(run / FOLDER, ShapesSource("train", count=64))


@pytest.fixture(scope="module")
def summary(subject: Subject) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((subject.folder / "summary.json").read_text())
    return read


def only(summary: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {**summary, "parts": {name: summary["parts"][name] for name in names}}


def test_the_command_leaves_a_whole_page(subject: Subject) -> None:
    content = report_path(subject.folder.parent).read_text()
    page = Page(content)
    check(page)
    assert len(content) < 8e6
    bare = re.sub(r"data:image/\w+;base64,[\w+/=]+", "", content)
    assert not re.search(r"url\(|@import|https?:|//\w", bare)
    for heading in (*(part.title for part in PARTS.values()), "Training"):
        assert heading in page.text
    # Nine figures, the training's among them, and the pictures of galleries and examples.
    figures = [found for found in page.all("figure") if found.get("class") == "plot"]
    assert len(figures) == 9
    assert len(page.all("img")) > 60


def test_the_policy_forbids_the_network(subject: Subject) -> None:
    (policy,) = (
        attributes["content"]
        for attributes in Page(report_path(subject.folder.parent).read_text()).all("meta")
        if attributes.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy == "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def test_every_set_of_parts_gives_a_page(subject: Subject, summary: dict[str, Any]) -> None:
    names = tuple(PARTS)
    chosen = [(), *((name,) for name in names), names[:4], names[4:], names[::2], names]
    for some in chosen:
        page = Page(report_page(subject, only(summary, some), PARTS))
        check(page)
        assert [name for name in names if f"how-{name}" in _ids(page)] == list(some)
    assert "No part has been finished" in report_page(subject, only(summary, ()), PARTS)


def _ids(page: Page) -> set[str | None]:
    return {attributes.get("id") for _, attributes in page.elements}


def test_numbers_are_those_of_the_files(subject: Subject, summary: dict[str, Any]) -> None:
    page = Page(report_page(subject, summary, PARTS))
    discreteness = json.loads((subject.folder / "discreteness.json").read_text())
    assert f"{100 * discreteness['share_above_0.9']:.1f} %" in page.text
    assert "91.18 %" in page.text
    for row in summary["parts"]["joint"]["properties"]:
        assert f"{row['measured']:.3g}" in page.text
    low, high = summary["parts"]["faithfulness"]["mean_difference_95"]
    assert f"{low:.3f} to {high:.3f}" in page.text


@pytest.mark.parametrize("part", PARTS)
def test_lost_or_damaged_files_leave_a_section_out(
    part: str, subject: Subject, summary: dict[str, Any], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(subject.folder.parent, tmp_path / "run")) / FOLDER
    for number, name in enumerate((*PARTS[part].files, "meaning.png")):
        if number % 2 and name != PARTS[part].files[-1]:
            (folder / name).unlink()
        else:
            (folder / name).write_bytes(b"\x89PNG damaged")
    check(Page(report_page(subject._replace(folder=folder), summary, PARTS)))


class Hostile(ShapesSource):
    """Names that would be markup if they were not escaped, and a picture that is gone."""

    def __init__(self) -> None:
        super().__init__("train", count=64)
        self.classes = (HOSTILE,) * len(self.classes)

    def read(self, index: int) -> Tensor:
        if index % 2:
            raise UnreadableImage(self.identity(index), "gone")
        return super().read(index)


def _poison(value: Any) -> Any:
    """Put hostile text in the place of every path, name and tree."""
    if isinstance(value, dict):
        return {
            key: HOSTILE
            if key in {"path", "text", "verdict"}
            else [HOSTILE]
            if key in {"paths", "values"}
            else {f"{HOSTILE}{name}": _poison(item) for name, item in value["attributes"].items()}
            if key == "attributes"
            else _poison(item)
            for key, item in value.items()
        }
    return [_poison(item) for item in value] if isinstance(value, list) else value


def test_hostile_names_are_text(subject: Subject, summary: dict[str, Any], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(subject.folder.parent, tmp_path / "run")) / FOLDER
    for path in folder.glob("*.json"):
        path.write_text(json.dumps(_poison(json.loads(path.read_text()))))
    poisoned = _poison(summary) | {"run": f"/runs/{HOSTILE}", "data": HOSTILE, "split": HOSTILE}
    source = Hostile()
    text = report_page(subject._replace(folder=folder, source=source), poisoned, PARTS)
    page = Page(text)
    check(page)
    assert "<script" not in text
    assert "<img src=x" not in text
    assert page.text.count(HOSTILE) > 20
    assert any(HOSTILE in (attributes["alt"] or "") for attributes in page.all("img"))


def test_undecodable_paths_do_not_stop_the_page(
    subject: Subject, summary: dict[str, Any], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(subject.folder.parent, tmp_path / "run")) / FOLDER
    path = write_report(
        subject._replace(folder=folder),
        {**summary, "data": b"caf\xe9".decode("utf8", "surrogateescape")},
        PARTS,
    )
    assert path == folder / FILE_NAME
    check(Page(path.read_text()))
