"""The numbers that the paper reports, from `paper_numbers.yaml`, and which of ours they compare to."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Literal, NamedTuple

import yaml
from pydantic import Field

from imsvd.settings import Settings


class PaperNumber(NamedTuple):
    """One cell of one table."""

    table: str
    row: str
    column: str
    value: float
    source: str


class PaperTable(Settings):
    """One table, by rows and columns as the paper names them."""

    source: str
    measures: str
    protocol: str | None = Field(None, description="our protocol, if it is the same")
    metrics: dict[str, str] = Field(
        default_factory=dict, description="our metric for each column; * for all"
    )
    epochs: Literal["column"] | dict[str, int] = Field(
        default_factory=dict, description="epochs of pretraining, for the rows where they are known"
    )
    rows: dict[str, dict[str, float]]

    def find(self, method: str, epochs: int, metric: str) -> float | None:
        """Return the number of `method` (by our name) after `epochs` for our `metric`, if reported."""
        row = next((name for name in self.rows if _plain(name) == _plain(method)), None)
        if row is None:
            return None
        if self.epochs == "column":
            matches = self.metrics.get("*") == metric
            return self.rows[row].get(str(epochs)) if matches else None
        if self.epochs.get(row) != epochs:
            return None
        columns = [column for column, ours in self.metrics.items() if ours == metric]
        return self.rows[row].get(columns[0]) if columns else None


class _File(Settings):
    paper: str
    tables: dict[str, PaperTable]


@cache
def paper_tables() -> dict[str, PaperTable]:
    """Return every table by its name."""
    return dict(_read().tables)


def paper_numbers() -> list[PaperNumber]:
    """Return every number with its table, row, column and source."""
    read = _read()
    return [
        PaperNumber(name, row, column, value, f"{read.paper}, {table.source}")
        for name, table in read.tables.items()
        for row, columns in table.rows.items()
        for column, value in columns.items()
    ]


def reported(protocol: str, method: str, epochs: int, metric: str) -> float | None:
    """Return what the paper has for ResNet-50 pretrained on ImageNet, or None.

    Args:
        protocol: of the evaluation, such as "linear".
        method: by our name, such as "barlow_twins".
        epochs: of pretraining.
        metric: by our name, such as "knn_20".
    """
    for table in paper_tables().values():
        if table.protocol == protocol:
            return table.find(method, epochs, metric)
    return None


def _read() -> _File:
    text = files("imsvd").joinpath("paper_numbers.yaml").read_text(encoding="utf-8")
    return _File.model_validate(yaml.safe_load(text))


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())
