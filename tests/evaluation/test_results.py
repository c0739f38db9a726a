import csv
import json
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from imsvd.config import override, to_yaml
from imsvd.errors import InputError
from imsvd.evaluation import KNNSettings
from imsvd.evaluation.classification import LINEAR_RECIPES, PLACES205_SETTINGS
from imsvd.evaluation.results import (
    FREE_SETTINGS,
    PAPER_SETTINGS,
    TABLE_FORMATS,
    ResultRow,
    append_result,
    collect,
    results_table,
)
from imsvd.evaluation.voc07 import SVMSettings
from imsvd.files import write_atomically
from imsvd.recipes import recipe
from imsvd.runs import read_results
from tests.pretraining.tiny import CommandLine


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
    assert ("skipped line 2, which is incomplete" in caplog.text) == (cut > 1)
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


LINEAR = LINEAR_RECIPES["imagenet"].model_dump(mode="json", exclude={"compute"})
KNN = KNNSettings().model_dump(mode="json")
IMAGENET = {"test_images": 50_000, "settings": LINEAR}
IMAGENET_KNN = {"test_images": 50_000, "settings": KNN}
VOC = {"test_images": 4952, "settings": SVMSettings().model_dump(mode="json", exclude={"jobs"})}
PLACES = {
    "test_images": 20_500,
    "settings": PLACES205_SETTINGS.model_dump(mode="json", exclude={"compute"}),
}


def make_run(folder: Path, *settings: str, method: str = "imsvd", epochs: int = 100) -> Path:
    """The folder of a run that trained for `epochs` epochs on ImageNet, as far as it tells."""
    wanted = ["data.source=/data/imagenet", "training.epochs=100", *settings]
    config = override(recipe("imagenet", method), wanted)
    write_atomically(folder / "config.yaml", to_yaml(config).encode())
    (folder / "metrics.jsonl").write_text(json.dumps({"epoch": epochs}) + "\n")
    return folder


def add(
    run: Path,
    protocol: str = "linear",
    metrics: dict[str, float] | None = None,
    data: str = "/data/imagenet",
    details: dict[str, Any] = IMAGENET,
) -> None:
    """A result of the encoder as the run has it now."""
    if (run / "metrics.jsonl").exists():
        details = {"epoch": json.loads((run / "metrics.jsonl").read_text())["epoch"], **details}
    append_result(run, protocol, metrics or {"linear_top1": 69.0}, data=data, details=details)


def only(run: Path) -> ResultRow:
    (row,) = collect([run])
    return row


def test_the_papers_number_stands_beside_ours(tmp_path: Path) -> None:
    add(run := make_run(tmp_path / "a"))
    trained = (str(run), "imsvd", "resnet50", "trained", 100)
    expected = ResultRow(*trained, "linear", "/data/imagenet", "linear_top1", 69.0, 69.4)
    assert only(run) == expected


@pytest.mark.parametrize(
    "settings",
    [
        ["training.epochs=150"],
        ["training.batch_size=512"],
        ["backbone.name=resnet18"],
        ["backbone.stem=stride_1"],
        ["method.units=40"],
        ["optimizer.lr=0.3"],
        ["views.views.0.size=192"],
        ["data.source=/data/tiny-imagenet"],
        ["data.source=/data/imagenette"],
        ["data.source=cifar10"],
    ],
)
def test_another_setting_has_no_number(settings: list[str], tmp_path: Path) -> None:
    epochs = 150 if "epochs" in settings[0] else 100
    add(run := make_run(tmp_path / "a", *settings, epochs=epochs))
    assert only(run).paper is None


def test_an_unfinished_run_has_no_number(tmp_path: Path) -> None:
    add(run := make_run(tmp_path / "a", "training.epochs=200", epochs=100))
    assert only(run).epochs == 100
    assert only(run).paper is None


def test_an_evaluation_on_the_way_is_not_one_of_the_finished_run(tmp_path: Path) -> None:
    add(run := make_run(tmp_path / "a", epochs=50), metrics={"linear_top1": 55.0})
    make_run(run)  # training goes on to its end
    assert (only(run).epochs, only(run).value, only(run).paper) == (50, 55.0, None)
    add(run)
    assert [(row.epochs, row.value, row.paper) for row in collect([run])] == [
        (50, 55.0, None),
        (100, 69.0, 69.4),
    ]
    # Nor is one of which nobody knows when it was.
    append_result(run, "linear", {"linear_top1": 69.0}, data="/data/imagenet", details=IMAGENET)
    assert collect([run])[-1][4:10:5] == (None, None)


def test_a_trial_does_not_take_the_place_of_the_real_result(tmp_path: Path) -> None:
    add(run := make_run(tmp_path / "a"))
    trial = {**IMAGENET, "settings": {**LINEAR, "epochs": 1}}
    add(run, metrics={"linear_top1": 12.0}, details=trial)
    real, tried = collect([run])
    assert (real.value, real.paper, real.settings) == (69.0, 69.4, "epochs=100")
    assert (tried.value, tried.paper, tried.settings) == (12.0, None, "epochs=1")
    # Each k of kNN has a number of its own, whichever were asked for together.
    add(run, "knn", {"knn_20": 66.0, "knn_200": 64.0}, details=IMAGENET_KNN)
    fewer = {**IMAGENET_KNN, "settings": {**KNN, "neighbors": [5, 20]}}
    add(run, "knn", {"knn_5": 60.0, "knn_20": 66.1}, details=fewer)
    found = {row.metric: row.value for row in collect([run]) if row.protocol == "knn"}
    assert found == {"knn_20": 66.1, "knn_200": 64.0, "knn_5": 60.0}


@pytest.mark.parametrize(
    ("protocol", "metric", "data", "details", "paper"),
    [
        ("knn", "knn_20", "/data/imagenet", IMAGENET_KNN, 67.0),
        ("knn", "knn_200", "/data/imagenet", IMAGENET_KNN, 64.9),
        ("knn", "knn_20", "/data/imagenet", {**IMAGENET_KNN, "test_images": 5000}, None),
        ("knn", "knn_20", "/data/imagenet", {"test_images": 50_000}, None),
        ("knn", "knn_20", "/data/other", IMAGENET_KNN, None),
        ("linear-probe", "linear_probe_top1", "/data/imagenet", IMAGENET, None),
        ("voc07", "voc07_map", "/data/voc", VOC, 86.5),
        ("places205", "places205_top1", "/data/places", PLACES, 54.8),
        ("voc07", "voc07_map", "scenes", {"test_images": 250}, None),
    ],
)
def test_only_the_same_measurement_has_a_number(
    protocol: str,
    metric: str,
    data: str,
    details: dict[str, Any],
    paper: float | None,
    tmp_path: Path,
) -> None:
    run = make_run(tmp_path / "a", "training.epochs=1000", epochs=1000)
    add(run, protocol, {metric: 50.0}, data, details)
    assert only(run).paper == paper


OTHER_SETTINGS = {
    "linear": {
        "frozen": False,
        "epochs": 50,
        "batch_size": 128,
        "head_lr": 0.1,
        "backbone_lr": 0.01,
        "momentum": 0.8,
        "weight_decay": 0.0,
        "milestones": [60, 80],
        "decay": 0.2,
        "crop_scale": [0.08, 1.0],
    },
    "places205": {
        "epochs": 28,
        "batch_size": 128,
        "head_lr": 0.02,
        "backbone_lr": 0.01,
        "momentum": 0.8,
        "weight_decay": 0.0,
        "milestones": [],
        "decay": 0.2,
        "crop_scale": [0.08, 1.0],
    },
    "knn": {"temperature": 0.1, "distance": "euclidean"},
    "voc07": {
        "costs": [1.0],
        "folds": 5,
        "positive_weight": 1.0,
        "tolerance": 0.01,
        "max_iterations": 100,
    },
}
MEASURED: dict[str, tuple[str, dict[str, Any], float]] = {
    "linear": ("linear_top1", IMAGENET, 73.6),
    "places205": ("places205_top1", PLACES, 54.8),
    "knn": ("knn_20", IMAGENET_KNN, 67.0),
    "voc07": ("voc07_map", VOC, 86.5),
}


@pytest.mark.parametrize(
    ("protocol", "key", "value"),
    [(name, key, value) for name, keys in OTHER_SETTINGS.items() for key, value in keys.items()],
)
def test_any_other_setting_of_the_protocol_has_no_number(
    protocol: str, key: str, value: object, tmp_path: Path
) -> None:
    metric, details, paper = MEASURED[protocol]
    run = make_run(tmp_path / "a", "training.epochs=1000", epochs=1000)
    add(run, protocol, {metric: 50.0}, details=details)
    assert only(run).paper == paper
    changed = {**details, "settings": {**details["settings"], key: value}}
    if key == "frozen":
        changed["settings"]["backbone_lr"] = 0.01
    add(run, protocol, {metric: 50.0}, details=changed)
    published, other = collect([run])
    assert (published.paper, other.paper) == (paper, None)
    assert f"{key}=" in other.settings


def test_every_setting_is_either_compared_or_free() -> None:
    for protocol, paper in PAPER_SETTINGS.items():
        compared = set(OTHER_SETTINGS[protocol]) | (
            {"frozen"} if protocol == "places205" else set()
        )
        assert compared | FREE_SETTINGS >= set(type(paper).model_fields)
        assert not compared & FREE_SETTINGS


@pytest.mark.parametrize(("key", "value"), [("seed", 3), ("bad_image_limit", 0.5)])
def test_what_cannot_make_it_another_protocol_may_differ(
    key: str, value: object, tmp_path: Path
) -> None:
    run = make_run(tmp_path / "a")
    add(run, details={**IMAGENET, "settings": {**LINEAR, key: value}})
    assert only(run).paper == 69.4


def test_no_epochs_is_a_number(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a")
    add(run, metrics={"linear_top1": 7.0}, details={**IMAGENET, "encoder": "untrained"})
    (line,) = list(csv.DictReader(results_table([run], "csv").splitlines()))
    (cells,) = (row.split("|") for row in results_table([run], "markdown").splitlines()[2:])
    assert line["epochs"] == "0"
    assert "0" in [cell.strip() for cell in cells]


def test_the_untrained_encoder_is_a_row_of_its_own_without_a_number(tmp_path: Path) -> None:
    add(run := make_run(tmp_path / "a"))
    add(run, metrics={"linear_top1": 7.0}, details={**IMAGENET, "encoder": "untrained"})
    trained, untrained = collect([run])
    assert (trained.encoder, trained.epochs, trained.value, trained.paper) == (
        "trained",
        100,
        69.0,
        69.4,
    )
    assert (untrained.encoder, untrained.epochs, untrained.value, untrained.paper) == (
        "untrained",
        0,
        7.0,
        None,
    )


def test_other_methods_have_their_own(tmp_path: Path) -> None:
    add(run := make_run(tmp_path / "a", method="vicreg"))
    assert only(run).paper == 68.7


def test_the_latest_of_each_protocol_and_dataset_counts(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a")
    add(run, "knn", {"knn_20": 1.0}, "a")
    add(run, "knn", {"knn_20": 2.0}, "b")
    add(run, "knn", {"knn_20": 3.0}, "a")
    assert [(row.data, row.value) for row in collect([run])] == [("a", 3.0), ("b", 2.0)]


def test_a_folder_of_a_backbones_results_needs_no_configuration(tmp_path: Path) -> None:
    add(tmp_path)
    assert only(tmp_path)[1:5] == ("", "", "", None)
    assert only(tmp_path).paper is None


def test_formats_hold_the_same_table(tmp_path: Path) -> None:
    first, second = make_run(tmp_path / "a"), make_run(tmp_path / "b|c", "seed=1")
    add(first, metrics={"linear_top1": 69.123456})
    add(second, "knn", {"knn_20": 50.0}, "x, y")
    runs = [first, second]
    (one, two) = json.loads(results_table(runs, "json"))
    assert (one["value"], one["paper"], two["paper"]) == (69.123456, 69.4, None)
    rows = list(csv.DictReader(results_table(runs, "csv").splitlines()))
    assert [row["data"] for row in rows] == ["/data/imagenet", "x, y"]
    assert rows[0]["value"] == "69.123456"
    lines = results_table(runs, "markdown").splitlines()
    assert len(lines) == 4
    assert lines[2].endswith("| linear_top1 | 69.12 | 69.40 |  |")
    assert "b\\|c" in lines[3]
    text = results_table(runs, "text").splitlines()
    assert text[1].split()[-2:] == ["69.12", "69.40"]
    assert text[0].index("metric") == text[1].index("linear_top1") == text[2].index("knn_20")


def test_the_command(command: CommandLine, tmp_path: Path) -> None:
    add(run := make_run(tmp_path / "a"))
    for form in TABLE_FORMATS:
        assert command(["results", str(run), "--format", form]) == 0
        assert "69.4" in command.out
    command.refuses(["results", str(run), "--format", "xml"], "choose text, markdown, csv, json")
    command.refuses(["results", str(tmp_path / "none")], "there is no run folder")
    command.refuses(["results", str(tmp_path)], "there are no results")


def test_nothing_to_show_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="imsvd evaluate knn"):
        collect([make_run(tmp_path / "a")])
