import csv
import io

import pytest

from imsvd.grid.outcome import Outcome
from imsvd.grid.table import (
    MEASURES,
    Entry,
    Row,
    cells,
    csv_text,
    entry_values,
    header,
    markdown,
    measures_of,
    row_values,
    show_spread,
    spread,
)
from tests.grid import made_up

BY_NAME = {measure.name: measure for measure in MEASURES}


def row(*outcomes: Outcome | None) -> Row:
    entries = (Entry("imsvd", 0.003, seed, "runs/x", out) for seed, out in enumerate(outcomes))
    return Row("imsvd", 0.003, tuple(entries))


def test_the_deviation_is_the_sample_deviation() -> None:
    # 50, 52, 57: mean 53; squares 9 + 1 + 16 = 26; 26 / 2 = 13
    found = spread([50.0, None, 52.0, 57.0])
    assert found is not None
    assert found.mean == 53
    assert found.deviation is not None
    assert abs(found.deviation - 13**0.5) < 1e-12
    assert found.number == 3


def test_one_value_has_no_deviation_and_none_no_mean() -> None:
    assert spread([50.0]) == (50.0, None, 1)
    assert spread([None]) is None
    assert show_spread(spread([50.0]), BY_NAME["knn_20"]) == "50.0"
    assert show_spread(None, BY_NAME["knn_20"]) == "–"
    assert show_spread(spread([50.0, 52.0]), BY_NAME["knn_20"]) == "51.0 ± 1.4"
    assert show_spread(spread([1e6, 3e6]), BY_NAME["head_parameters"]) == "2,000,000"


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.25, "0.25"), (36.0, "36.0"), (160.4, "160"), (1234.0, "1,234")]
)
def test_seconds_have_no_exponent(seconds: float, shown: str) -> None:
    assert show_spread(spread([seconds]), BY_NAME["seconds_per_epoch"]) == shown


def test_a_row_counts_only_what_is_finished() -> None:
    shown = dict(
        zip(header(MEASURES), cells(row(made_up.scored(40, 1), None), MEASURES), strict=True)
    )
    assert shown["seeds"] == "1 of 2"
    assert shown["kNN-20, %"] == "40.0"
    assert shown["kNN-200, %"] == "–"
    assert shown["peak MiB"] == "100"


def test_markdown_csv_and_json_agree() -> None:
    whole = row(made_up.scored(40, 1), made_up.scored(44, 2), made_up.scored(45, 3))
    lines = [entry_values(entry) for entry in whole.entries]
    from_csv = [float(line["knn_20"]) for line in csv.DictReader(io.StringIO(csv_text(lines)))]
    found = spread(from_csv)
    assert found is not None
    assert row_values(whole)["knn_20"] == {"mean": found.mean, "sd": found.deviation}
    table = [line.strip("| ").split(" | ") for line in markdown([whole]).splitlines()]
    assert [len(line) for line in table] == [len(header(measures_of([whole])))] * 3
    shown = dict(zip(table[0], table[2], strict=True))
    assert shown["kNN-20, %"] == show_spread(found, BY_NAME["knn_20"]) == "43.0 ± 2.6"
    assert shown["hold-out, %"] == "2.0 ± 1.0"


def test_attributes_have_columns_only_where_there_are_some() -> None:
    plain = row(made_up.scored(40, 1))
    score = {"attributes_recovered": 3.0, "mean_best_nmi": 0.25}
    told = row(made_up.outcome(metrics=score))
    assert "attributes recovered" not in header(measures_of([plain]))
    measures = measures_of([plain, told])
    shown = dict(zip(header(measures), cells(told, measures), strict=True))
    assert (shown["attributes recovered"], shown["best NMI"]) == ("3.0", "0.25")
    assert dict(zip(header(measures), cells(plain, measures), strict=True))["best NMI"] == "–"


def test_what_is_not_known_stays_empty_in_csv() -> None:
    entry = Entry("imsvd", 0.003, 0, "runs/x", failure="it broke, badly")
    (line,) = csv.DictReader(io.StringIO(csv_text([entry_values(entry)])))
    assert line["knn_20"] == line["training_seconds"] == ""
    assert line["status"] == "failed"
    assert line["failure"] == "it broke, badly"
