"""Formulas as pictures, drawn when the site is built: readers need neither scripts nor fonts."""

import html
import re
from functools import cache
from xml.etree import ElementTree

from ziamath.config import config
from ziamath.zmath import Latex

SIDES = ("width", "height")
SIZE = 20
"""Size of the letters in a drawing; pages scale drawings by the size of their own text."""
FORMULA = re.compile(
    r'<(span|div) class="arithmatex">(?:\\\((.*?)\\\)|\\\[(.*?)\\\])</(?:span|div)>', re.DOTALL
)


def draw_formulas(page: str) -> str:
    """Replace every formula of a page in HTML by its drawing."""
    config.svg2 = False  # glyphs as paths: ids of symbols would repeat on a page
    return FORMULA.sub(lambda found: _draw(found[2] or found[3], inline=bool(found[2])), page)


@cache
def _draw(source: str, inline: bool) -> str:
    latex = html.unescape(source).strip()
    try:
        drawing = Latex(latex, size=SIZE, inline=inline, color="currentColor", margin=1)
    except Exception as error:
        raise ValueError(f"the formula {latex!r} cannot be drawn: {error!r}") from error
    svg = drawing.svgxml()
    style = "; ".join(f"{side}: {float(svg.attrib.pop(side)) / SIZE:.3f}em" for side in SIDES)
    if inline:
        style += f"; vertical-align: {(drawing.getyofst() - 1) / SIZE:.3f}em"
    svg.attrib.update({"role": "img", "aria-label": latex, "style": style})
    kind = "span" if inline else "div"
    return f'<{kind} class="formula">{ElementTree.tostring(svg, encoding="unicode")}</{kind}>'
