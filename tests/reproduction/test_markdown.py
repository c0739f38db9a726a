from typing import Any

from imsvd.reproduction.markdown import table


def cell(column: str, measure: str, *, setting: str = "", row: str = "IMSVD") -> dict[str, Any]:
    found = {"row": row, "column": column, "measure": measure, "setting": setting}
    return found | {"paper": 8.5, "mean": 39.4, "sd": None}


def lines(*cells: dict[str, Any]) -> list[str]:
    return table({"axis": "of what", "cells": cells})


def test_columns_of_different_units_say_what_is_measured_here() -> None:
    head, _, here, paper, ours = lines(cell("hours", "seconds"), cell("memory", "MiB"))
    assert head == "|  | of what | hours | memory |"
    assert here == "|  | here | seconds | MiB |"
    assert paper == "| IMSVD | paper | 8.5 | 8.5 |"
    assert ours == "|  | here | 39.4 | 39.4 |"


def test_what_all_columns_measure_is_said_in_the_row() -> None:
    _, _, _, ours = lines(cell("100", "top-1, %"), cell("200", "top-1, %"))
    assert ours == "|  | here: top-1, % | 39.4 | 39.4 |"
    _, _, *rows = lines(cell("1", "top-1"), cell("1", "seconds", row="time"))
    assert rows[1::2] == ["|  | here: top-1 | 39.4 |", "|  | here: seconds | 39.4 |"]


def test_other_settings_are_told_and_names_not_repeated() -> None:
    assert lines(cell("100", "top-1", setting="4 epochs"))[2] == "|  | here | 4 epochs |"
    assert len(lines(cell("AP", "AP"), cell("AP50", "AP50"))) == 4
