import io
from typing import Any

from rich.console import Console

from imsvd.methods import IMSVDSettings
from imsvd.pretraining.code import LABELS as CODE_LABELS
from imsvd.pretraining.display import TrainingDisplay

TERMS = ("invariance", "diagonal_entropy", "off_diagonal_entropy")
BOUNDS = {
    name: {**dict.fromkeys(TERMS, -8.764), "total": -26.292}
    for name in ("ideal", "uniform", "collapsed", "batch_limit")
}


def record(epoch: int, **extra: Any) -> dict[str, Any]:
    return {
        "epoch": epoch,
        "loss": -13.1467,
        "terms": dict.fromkeys(TERMS, -8.764),
        "health": {
            "share_above_0.9": 1.0,
            "share_above_0.99": 0.456,
            "dead_units": 8160.0,
            "effective_rank": 2048.4,
        },
        "images_per_second": 12345.6,
        "seconds": 3600.0,
        **extra,
    }


def shown(*records: dict[str, Any], epochs: int = 1000) -> list[str]:
    console = Console(file=io.StringIO(), width=80)
    display = TrainingDisplay(console, epochs, 2048, {**IMSVDSettings.labels, **CODE_LABELS})
    for item in records:
        display.begin_epoch(item["epoch"], 0, 2)
        display.step()
        display.end_epoch(item, BOUNDS)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_the_widest_numbers_fit_into_80_columns() -> None:
    lines = shown(record(999), record(1000, knn={"knn_20": 100.0}))
    assert len(lines) == 1 + len(BOUNDS) + 2
    assert all(len(line) <= 80 for line in lines)


def test_the_columns_of_a_code_fit_into_80_columns() -> None:
    """As `imsvd demo` shows them."""
    code = {"share_decided": 1.0, "share_agreeing": 1.0, "shared_nats": -0.004}
    health = code | {"share_above_0.9": 1.0, "effective_rank": 128.4}
    lines = shown(record(12, health=health, knn={"knn_20": 100.0}), epochs=12)
    assert len(lines) == 1 + len(BOUNDS) + 1
    assert all(len(line) <= 80 for line in lines)
    row = dict(zip(lines[0].split(), lines[-1].split(), strict=True))
    assert (row["code"], row["nats"], row["kNN"]) == ("100%", "0.00", "100")


def test_every_number_is_there_under_its_name() -> None:
    lines = shown(record(1, knn={"knn_20": 61.23}), epochs=5)
    head, values = lines[0].split(), lines[-1].split()
    row = dict(zip(head, values, strict=True))
    assert row["epoch"] == "1/5"
    assert row["loss"] == "-13.15"
    assert row["TI"] == row["DE"] == row["OE"] == "-8.76"
    assert (row[">0.9"], row[">0.99"]) == ("100%", "46%")
    assert (row["dead"], row["rank"], row["kNN"]) == ("8160", "2048", "61.2")
    assert row["img/s"] == "12346"
    assert row["ETA"] == "4:00:00"


def test_bounds_stand_in_the_columns_of_their_terms() -> None:
    lines = shown(record(1))
    assert lines[1].split() == ["ideal", "-26.29", "-8.76", "-8.76", "-8.76"]
    assert lines[4].split()[0] == "limit"


def test_an_epoch_without_knn_leaves_its_column_empty() -> None:
    first, second = shown(record(1), record(2, knn={"knn_20": 50.0}))[-2:]
    place = second.index("50.0")
    assert first[place : place + 4].strip() == ""


def test_a_quiet_console_shows_nothing() -> None:
    console = Console(file=io.StringIO(), quiet=True)
    with TrainingDisplay(console, 1, 2, IMSVDSettings.labels) as display:
        display.begin_epoch(1, 0, 1)
        display.end_epoch(record(1), BOUNDS)
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue() == ""


def test_new_terms_get_a_new_head() -> None:
    first = record(1) | {"terms": {"instance_discrimination": 9.0}}
    second = record(2) | {"terms": {"local_aggregation": 2.5}}
    lines = [line for line in shown(first, second, second | {"epoch": 3}) if "ideal" not in line]
    heads = [number for number, line in enumerate(lines) if line.split()[0] == "epoch"]
    assert len(heads) == 2
    assert "2.50" in lines[-1]
