"""The page of `imsvd drift`: verdict, what moved, and the images that show it, in one HTML file.

Like reports, the page needs no script and no network, and all names are escaped.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure
from PIL import Image

from imsvd.datasets import UnreadableImage
from imsvd.explanations.report import page_head
from imsvd.explanations.sections import (
    Html,
    element,
    figure_picture,
    image,
    join,
    link,
    paragraph,
    percent,
    table,
    thumbnail_picture,
)
from imsvd.explanations.sections import named as isolated
from imsvd.figures import PALETTE, STYLE
from imsvd.files import write_atomically
from imsvd.index.statistics import IndexDrift, named
from imsvd.population import UnitShift, VariableShift
from imsvd.population.drift import unit_shifts

SHOWN_VARIABLES = 12
SHOWN_UNITS = 2
"""Units of each variable that are shown with images: those that changed most."""
_SIDE = 96

METHODS = (
    (
        "Verdict",
        "Images change places between the sets at random, and the share of arrangements that differ at "
        "least as much as the real ones is the p-value. Nine tenths of the level belong to the codes (mean "
        "chi-square statistic of all variables), one tenth to the appearance (largest statistic of the "
        "properties).",
    ),
    (
        "Variables and units",
        "Each has a p-value that accounts for all others (Westfall and Young's step-down maximum over the "
        "same arrangements): if nothing moved, the chance that anything is named is below the level. "
        "Moved is the share of images that would have to change their unit: half the sum of the "
        "differences of shares.",
    ),
    (
        "Example images",
        "Images with the unit, from the set that has more of it; those come first whose whole code is "
        "most typical of that set and not of the other (sum of the logarithms of the ratios of shares).",
    ),
    (
        "Appearance",
        "Brightness, contrast, colorfulness, warmth (red less blue), tint (green less magenta), sharpness, "
        "pixels and shape of a sample of images, divided at the quartiles of both sets together. Codes are "
        "trained to ignore most of this.",
    ),
)


def write_drift_page(drift: IndexDrift, path: Path) -> Path:
    """Write the page of a comparison and return its path."""
    write_atomically(path, drift_page(drift).encode("utf-8", "replace"))
    return path


def drift_page(drift: IndexDrift) -> Html:
    """Return the whole page."""
    first, second = (index.path.name for index in drift.indexes)
    title = f"Drift from {first} to {second}"
    sections = {"typical": ("Images typical of one set only", _typical(drift))}
    if drift.found.moved:
        sections["moved"] = ("What moved", _moved(drift))
    sections["all"] = ("All variables", [_all_variables(drift)])
    entries = [join((element("dt", name), element("dd", text))) for name, text in METHODS]
    sections["how"] = ("How this is measured", [element("dl", *entries, class_="methods")])
    contents = [element("li", link(key, heading)) for key, (heading, _) in sections.items()]
    header = element(
        "header",
        element("h1", title),
        element("p", verdict(drift), class_="lead"),
        _tiles(drift),
        element("nav", element("ul", *contents), aria_label="Contents"),
    )
    main = element(
        "main",
        *(
            element("section", element("h2", heading), *content, id=key)
            for key, (heading, content) in sections.items()
        ),
    )
    footer = element("footer", paragraph(f"Made by imsvd {version('imsvd')}."))
    body = element("body", header, main, footer)
    return join(
        (Html("<!doctype html>\n"), element("html", page_head(title), body, lang="en"), "\n")
    )


def verdict(drift: IndexDrift) -> str:
    """Return the verdict in one or two sentences."""
    found = drift.found
    p_value = f"p = {found.p_value:.3g}, level {found.level:g}"
    if not found.drifted:
        return f"No drift was found ({p_value})."
    names = [_variable_name(shift) for shift in found.moved]
    if not names:
        return f"The sets differ ({p_value}), but no single variable stands out."
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"The sets differ ({p_value}). Moved: {', '.join(names[:5])}{more}."


def _variable_name(shift: VariableShift) -> str:
    return f"variable {shift.name}" if shift.family == "codes" else shift.name


def _tiles(drift: IndexDrift) -> Html:
    found = drift.found
    tiles = [
        (f"{found.p_value:.3g}", f"overall p-value; a drift at {found.level:g} or below"),
        (f"{len(found.moved)} of {len(found.variables)}", "variables and properties moved"),
        *(
            (f"{count:,}", join(("images in ", isolated(str(index.path)))))
            for count, index in zip(found.images, drift.indexes, strict=True)
        ),
    ]
    shown = [element("li", element("strong", a), element("span", b)) for a, b in tiles]
    content = [element("ul", *shown, class_="tiles")]
    if drift.note:
        content.append(paragraph(f"The appearance of images was not compared: {drift.note}."))
    return join(content)


def _strip(drift: IndexDrift, positions: Sequence[int], second: bool) -> Html:
    """Return small images; those that can no longer be read are left out."""
    index, items = drift.indexes[second], []
    for position in positions:
        try:
            small = Image.fromarray(index.read(position).permute(1, 2, 0).numpy())
        except UnreadableImage:
            continue
        small.thumbnail((_SIDE, _SIDE))
        items.append(element("li", image(thumbnail_picture(small), index.paths[position])))
    return element("ul", *items, class_="strip") if items else paragraph("No image can be read.")


def _typical(drift: IndexDrift) -> list[Html]:
    content = []
    for second, positions in enumerate(drift.found.typical):
        index = drift.indexes[second]
        content += [
            element("h3", "Only in ", isolated(index.path.name)),
            _strip(drift, positions, bool(second)),
        ]
    if not drift.found.drifted:
        content.insert(0, paragraph("No drift was found, so these differences may be chance."))
    return content


def _moved(drift: IndexDrift) -> list[Html]:
    moved = drift.found.moved
    content: list[Html] = [_figure(drift)]
    if len(moved) > SHOWN_VARIABLES:
        content.append(
            paragraph(f"The first {SHOWN_VARIABLES} of {len(moved)} variables are shown.")
        )
    names = drift.indexes[1].names
    for shift in moved[:SHOWN_VARIABLES]:
        rows = [
            (
                named(unit.name, names),
                percent(unit.shares[0]),
                percent(unit.shares[1]),
                f"{unit.p_value:.3g}",
            )
            for unit in shift.units
        ]
        heading = _variable_name(shift).capitalize()
        caption = f"{heading}: {percent(shift.moved)} of images moved, p = {shift.p_value:.3g}"
        content += [element("h3", heading), table(caption, ("unit", "before", "after", "p"), rows)]
        for unit in shift.units[:SHOWN_UNITS]:
            change = "gained" if unit.gained else "lost"
            note = f"{named(unit.name, names)} {change}: {_change(unit)}"
            content += [
                element("p", note, class_="note"),
                _strip(drift, unit.examples, unit.gained),
            ]
    return content


def _change(unit: UnitShift) -> str:
    return f"{percent(unit.shares[0])} to {percent(unit.shares[1])}"


@mpl.rc_context(STYLE)
def _figure(drift: IndexDrift) -> Html:
    units = [unit for _, unit in unit_shifts(drift.found)][:20]
    units = units or [shift.units[0] for shift in drift.found.moved[:20]]
    figure = Figure(figsize=(6, 0.7 + 0.26 * len(units)), layout="constrained")
    axis = figure.subplots()
    for place, unit in enumerate(units):
        axis.plot([100 * share for share in unit.shares], [place] * 2, color="#bbbbbb", zorder=1)
    for side, label in enumerate(("before", "after")):
        shares = [100 * unit.shares[side] for unit in units]
        axis.scatter(shares, range(len(units)), color=PALETTE[side], label=label, zorder=2)
    axis.set_yticks(range(len(units)), [unit.name for unit in units])
    axis.invert_yaxis()
    axis.set(xlabel="share of images, %")
    axis.legend(frameon=False)
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=150)
    alt = "Shares of the units that moved, before and after: " + ", ".join(
        f"{unit.name} {_change(unit)}" for unit in units[:5]
    )
    return element("figure", image(figure_picture(content.getvalue()), alt), class_="plot")


def _all_variables(drift: IndexDrift) -> Html:
    rows = [
        (
            str(row["variable"]),
            row["unit"],
            percent(row["before"]),
            percent(row["after"]),
            percent(row["moved"]),
            f"{row['p_value']:.3g}",
        )
        for row in drift.rows()
    ]
    head = ("variable", "most changed unit", "before", "after", "moved", "p")
    return table("All variables and properties, smallest p-value first", head, rows, texts=2)
