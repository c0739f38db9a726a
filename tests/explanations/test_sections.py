from pathlib import Path

import numpy as np
from PIL import Image

from imsvd.explanations.sections import (
    LARGEST_FIGURE,
    Html,
    element,
    figure,
    figure_picture,
    join,
    table,
)
from tests.explanations.test_report import Page


def test_text_is_escaped_and_markup_is_not() -> None:
    assert element("p", "a < b", element("b", '"'), title='"<') == (
        '<p title="&quot;&lt;">a &lt; b<b>&quot;</b></p>'
    )
    assert join(["<", Html("<br>")], ", ") == "&lt;, <br>"
    assert element("th", class_=None, aria_label="x") == '<th aria-label="x"></th>'


def test_a_table_heads_its_rows_and_columns() -> None:
    page = Page(table("things", ("name", "much"), [("a", "1"), ("b", "2")]))
    assert [found["scope"] for found in page.all("th")] == ["col", "col", "row", "row"]
    assert page.all("td") == [{"class": "number"}] * 2


def test_large_figures_become_small_ones_and_damaged_ones_nothing(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (1500, 2000, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "noise.png")
    assert (tmp_path / "noise.png").stat().st_size > 10 * LARGEST_FIGURE
    picture = figure_picture((tmp_path / "noise.png").read_bytes())
    assert picture.uri.startswith("data:image/jpeg;")
    assert len(picture.uri) < 2.5 * LARGEST_FIGURE  # noise is the worst there is
    assert (picture.width, picture.height) == (1280, 960)
    Image.new("RGB", (300, 150)).save(tmp_path / "plain.png")
    assert figure_picture((tmp_path / "plain.png").read_bytes()).width == 192
    (tmp_path / "bad.png").write_bytes(b"no picture")
    assert figure(tmp_path / "bad.png", "seen") is None
    assert figure(tmp_path / "none.png", "seen") is None
