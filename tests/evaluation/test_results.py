import json
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path

import pytest

from imsvd.errors import InputError
from imsvd.evaluation.results import append_result, read_results


def test_records_come_back_in_order(tmp_path: Path) -> None:
    first = append_result(
        tmp_path, "knn", {"knn_20": 51.2}, data="photos/été", details={"settings": {"k": 20}}
    )
    second = append_result(tmp_path, "linear-probe", {"top1": 60.0}, data="x", details={})
    assert read_results(tmp_path) == [first, second]
    assert len((tmp_path / "results.jsonl").read_text().splitlines()) == 2
    assert first["metrics"] == {"knn_20": 51.2}
    assert first["details"] == {"settings": {"k": 20}}
    assert (first["protocol"], first["data"]) == ("knn", "photos/été")
    assert first["version"] == version("imsvd")
    assert abs(datetime.now(UTC) - datetime.fromisoformat(first["time"])) < timedelta(minutes=1)


def test_a_run_without_results_has_none(tmp_path: Path) -> None:
    assert read_results(tmp_path) == []


@pytest.mark.parametrize("cut", [1, 2, 30])
def test_a_torn_last_line_is_passed_over_and_the_next_record_survives(
    tmp_path: Path, cut: int, caplog: pytest.LogCaptureFixture
) -> None:
    whole = append_result(tmp_path, "knn", {"knn_20": 1.0}, data="a", details={})
    append_result(tmp_path, "knn", {"knn_20": 2.0}, data="é", details={})
    path = tmp_path / "results.jsonl"
    torn = path.read_bytes()[:-cut]
    path.write_bytes(torn)
    before = read_results(tmp_path)
    # Without its line break only, the record is complete.
    assert len(before) == (2 if cut == 1 else 1)
    assert before[0] == whole
    assert ("line 2 is incomplete" in caplog.text) == (cut > 1)
    later = append_result(tmp_path, "knn", {"knn_20": 3.0}, data="c", details={})
    assert read_results(tmp_path) == [*before, later]
    assert path.read_bytes().startswith(torn)


def test_a_line_torn_inside_a_letter_is_passed_over(tmp_path: Path) -> None:
    line = json.dumps({"data": "é"}, ensure_ascii=False).encode()
    (tmp_path / "results.jsonl").write_bytes(b'{"data": 1}\n' + line[: line.index(b"\xa9")])
    assert read_results(tmp_path) == [{"data": 1}]


def test_numbers_that_json_does_not_know_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        append_result(tmp_path, "knn", {"knn_20": float("nan")}, data="a", details={})
    assert read_results(tmp_path) == []


def test_a_missing_run_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"gone.results\.jsonl: No such file"):
        append_result(tmp_path / "gone", "knn", {}, data="a", details={})


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_said_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "results.jsonl").symlink_to("/dev/full")
    with pytest.raises(InputError, match="No space left"):
        append_result(tmp_path, "knn", {}, data="a", details={})
