import math
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from imsvd.bench.codes.report import (
    LEADS,
    NEIGHBORS,
    UNITS,
    Report,
    dependence_is_measurable,
    leads,
    page,
    show,
    table,
    write_report,
)


def record(method: str, seed: int, value: float, **measures: float) -> dict[str, Any]:
    found = dict.fromkeys((column.measure for column in NEIGHBORS), value) | measures
    bits = 0 if method == "cosine" else 16
    units = {"imsvd": [4] * 8, "itq": [2] * 16, "pq": [256] * 2}.get(method)
    return {
        "method": method,
        "bits": bits,
        "seed": seed,
        "units": units,
        "settings": {"normalize": True},
        "measures": found,
    }


def report(*records: dict[str, Any]) -> Report:
    stability = {("imsvd", 16): [50.0, 70.0], ("itq", 16): [10.0]}
    return Report(list(records), stability, "runs/a", "runs/b", 10_000)


THREE = report(
    record("cosine", 0, 70.0),
    record("imsvd", 0, 60.0, shared_nats=0.1, shared_share=4.0),
    record("imsvd", 1, 62.0, shared_nats=0.1, shared_share=6.0),
    record("itq", 0, 50.0, shared_share=2.0),
    record("itq", 1, 54.0, shared_share=3.0),
    record("pq", 0, 55.0, shared_share=-60.0),
    record("pq", 1, 56.0, shared_share=-60.0),
)


def test_a_lead_is_over_the_best_alternative_in_deviations_of_the_difference() -> None:
    found = leads(THREE, 16)
    assert [lead.measure for lead in found] == list(LEADS)
    assert {lead.rival for lead in found} == {"pq"}
    assert found[0].difference == 61 - 55.5
    assert found[0].deviation == pytest.approx(math.sqrt(2 + 0.5))
    assert found[0].enough
    assert "5.5 points ahead of product quantization" in found[0].sentence()


def test_a_part_of_ours_is_no_alternative_and_is_compared_by_itself() -> None:
    part = report(record("imsvd", 0, 50.0), record("pq", 0, 40.0), record("directed", 0, 45.0))
    found = [(lead.rival, round(lead.difference)) for lead in leads(part, 16)]
    assert found == [("pq", 10)] * len(LEADS) + [("directed", 5)] * len(LEADS)


def test_a_lead_within_two_deviations_is_none() -> None:
    close = report(
        record("imsvd", 0, 60.0),
        record("imsvd", 1, 62.0),
        record("pq", 0, 57.0),
        record("pq", 1, 61.0),
    )
    assert not leads(close, 16)[0].enough
    assert "not more than 2 ahead" in leads(close, 16)[0].sentence()


def test_behind_and_one_seed_are_said() -> None:
    found = leads(report(record("imsvd", 0, 50.0), record("pq", 0, 57.5)), 16)[0]
    assert found.deviation is None
    assert not found.enough
    assert "7.5 points behind product quantization (one seed)" in found.sentence()


def test_without_ours_or_without_alternatives_nobody_leads() -> None:
    assert leads(report(record("imsvd", 0, 50.0)), 16) == []
    assert leads(report(record("pq", 0, 50.0)), 16) == []


def test_cells_have_mean_and_deviation_and_the_best_is_marked() -> None:
    rows = table(THREE, 16, NEIGHBORS)
    assert list(rows) == ["imsvd", "itq", "pq", "cosine"]
    assert rows["imsvd"][0] == ("61.0 ± 1.4", True)
    assert rows["itq"][0] == ("52.0 ± 2.8", False)
    assert rows["cosine"][0] == ("70.0", False)


def test_dependence_that_cannot_be_measured_is_left_out_and_cannot_be_best() -> None:
    rows = table(THREE, 16, UNITS)
    place = [column.measure for column in UNITS].index("shared_share")
    assert rows["pq"][place].text == ""
    assert rows["itq"][place] == ("2.5 ± 0.7", True)
    assert "cosine" not in rows


def test_units_of_every_two_seeds_are_averaged() -> None:
    rows = table(THREE, 16, UNITS)
    place = [column.measure for column in UNITS].index("stability")
    assert rows["imsvd"][place] == ("60.0 ± 14.1", True)
    assert rows["itq"][place] == ("10.0", False)


@pytest.mark.parametrize(
    ("units", "images", "measurable"),
    [([256] * 8, 10_000, False), ([16] * 8, 10_000, True), ([16], 400, False), (None, 40, True)],
)
def test_many_units_need_many_images(
    units: list[int] | None, images: int, measurable: bool
) -> None:
    assert dependence_is_measurable(units, images) is measurable


def test_page_and_terminal_show_the_same(tmp_path: Path) -> None:
    console = Console(record=True, width=250)
    show(THREE, console)
    printed = console.export_text()
    lines = page(THREE, {"command": "imsvd bench codes"})
    assert "| IMSVD | **61.0 ± 1.4** |" in "\n".join(lines)
    assert "61.0 ± 1.4" in printed
    assert "- product quantization, 16 bits: normalize = True" in lines
    assert "- 16 bits: 8 × 4, 8 × 4" in lines
    for lead in leads(THREE, 16):
        assert lead.sentence() in printed
        assert f"- {lead.sentence()}" in lines
    write_report(THREE, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"codes.json", "codes.md", "codes.png"}


def test_without_ours_no_sizes_are_listed() -> None:
    assert not any("Sizes of our code" in line for line in page(report(record("pq", 0, 1.0)), {}))
