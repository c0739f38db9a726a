"""The paper's numbers, from `paper_numbers.yaml`, and which of our metrics they compare to."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Literal

import yaml
from pydantic import Field

from imsvd.settings import Settings


class PaperTable(Settings):
    """One table, with rows and columns named as in the paper."""

    source: str
    measures: str
    protocol: str | None = Field(None, description="our protocol, if it is the paper's")
    metrics: dict[str, str] = Field(
        default_factory=dict, description="our metric of each column; * for all columns"
    )
    epochs: Literal["column"] | dict[str, int] = Field(
        default_factory=dict,
        description="epochs of pretraining, by column or by row, where they are known",
    )
    rows: dict[str, dict[str, float]]

    def find(self, method: str, epochs: int, metric: str) -> float | None:
        """Return the number for our names of method and metric after `epochs`; None if not reported."""
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
    text = files("imsvd").joinpath("paper_numbers.yaml").read_text(encoding="utf-8")
    return _File.model_validate(yaml.safe_load(text)).tables


def reported(protocol: str, method: str, epochs: int, metric: str) -> float | None:
    """Return the paper's number for ResNet-50 pretrained on ImageNet; None if it has none.

    Args:
        protocol: name of the protocol, such as "linear".
        method: our name, such as "barlow_twins".
        epochs: epochs of pretraining.
        metric: our name, such as "knn_20".
    """
    for table in paper_tables().values():
        if table.protocol == protocol:
            return table.find(method, epochs, metric)
    return None


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())
