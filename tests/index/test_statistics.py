import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from imsvd.drift_page import drift_page, verdict
from imsvd.errors import InputError
from imsvd.files import write_atomically
from imsvd.index import Index
from tests.index.made_up import made_up_index, rows
from tests.population.made_up import dependent, independent
from tests.pretraining.test_pretrain import write_images
from tests.pretraining.tiny import CommandLine

UNITS = (4,) * 6


def index_of(folder: Path, codes: np.ndarray, **settings: Any) -> Index:
    half = len(codes) // 2
    parts = rows(half, codes=codes[:half]), rows(len(codes) - half, first=half, codes=codes[half:])
    return made_up_index(folder, *parts, units=UNITS, **settings)


def printed(command: CommandLine, *arguments: str) -> str:
    assert command(arguments) == 0, command.err
    return command.out


def test_outliers_have_paths_and_named_reasons(tmp_path: Path) -> None:
    codes = dependent(600, 6, 4)
    codes[:, 1:3] = codes[:, :1]
    codes[450] = [0, 1, 2, 3, 0, 1]
    names = {f"{variable}.{unit}": f"n{unit}" for variable in range(6) for unit in range(4)}
    found = index_of(tmp_path / "a", codes, names=names).outliers(2)
    assert found.items[0].path == "/photos/00450.jpg"
    assert found.items[0].position == 450
    assert " % of images with " in found.items[0].reasons[0]
    assert found.items[0].reasons[0].split(":")[0].split()[1].startswith("n")


def test_coverage_names_the_empty_pair(tmp_path: Path) -> None:
    codes = independent(2000, UNITS)
    codes[(codes[:, 0] == 1) & (codes[:, 5] == 2), 5] = 0
    gaps = index_of(tmp_path / "a", codes, names={"0.1": "sky"}).coverage()
    pairs = [row for row in gaps.rows() if "&" in row["units"]]
    assert {row["units"] for row in pairs[:2]} == {"0.1 sky & 5.2", "0.1 sky & 5.0"}
    assert min(row["ratio"] for row in pairs) == 0
    assert list(gaps.to_pandas()) == list(gaps.rows()[0])
    even = index_of(tmp_path / "b", independent(200, UNITS)).coverage(level=1e-9)
    assert (len(even.rows()), list(even.to_pandas())) == (0, list(gaps.to_pandas()))


def test_plans_leave_out_labeled_images(tmp_path: Path) -> None:
    index = index_of(tmp_path / "a", independent(200, UNITS))
    plan = index.select(5)
    more = index.select(5, labeled=[item.path for item in plan.items])
    assert not {item.path for item in plan.items} & {item.path for item in more.items}
    assert more.items[0].represented > plan.items[-1].represented
    with pytest.raises(InputError, match="elsewhere is not in"):
        index.select(5, labeled=["elsewhere"])


def test_indexes_of_deleted_images_are_compared_by_codes(tmp_path: Path) -> None:
    moved = independent(300, UNITS, 1)
    moved[:120, 3] = 2
    before = index_of(tmp_path / "a", independent(300, UNITS))
    after = index_of(tmp_path / "b", moved)
    found = before.drift(after)
    assert found.found.drifted
    assert found.note == f"only 0 of 300 images of {tmp_path / 'a'} can be read"
    assert found.rows()[0]["unit"] == "3.2"
    assert "Moved: variable 3." in verdict(found)
    page = drift_page(found)
    assert "No image can be read." in page
    assert "3.2 gained" in page


def test_indexes_of_different_encoders_do_not_compare(tmp_path: Path) -> None:
    first = index_of(tmp_path / "a", independent(20, UNITS))
    second = index_of(tmp_path / "b", independent(20, UNITS))
    second.manifest = second.manifest.model_copy(update={"encoder": "another"})
    with pytest.raises(InputError, match="different encoders"):
        first.drift(second)


def test_results_become_data_frames(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    index = index_of(tmp_path / "a", independent(100, UNITS))
    assert list(index.outliers(3).to_pandas()["position"]) == [
        item.position for item in index.outliers(3).items
    ]
    assert len(index.select(4).to_pandas()) == 4
    assert len(index.drift(index, appearances=0).to_pandas()) == 6


def test_commands_print_tables_json_and_lists(tmp_path: Path, command: CommandLine) -> None:
    index_of(tmp_path / "a", dependent(300, 6, 4))
    folder, listed = str(tmp_path / "a"), tmp_path / "list.txt"
    output = printed(command, "outliers", folder, "--count", "3", "--paths", str(listed))
    assert "sd above mean" in output
    assert len(listed.read_text().splitlines()) == 3
    chosen = json.loads(printed(command, "select", folder, "--count", "4", "--json"))
    assert len({item["path"] for item in chosen}) == 4
    write_atomically(listed, (chosen[0]["path"] + "\n").encode())
    output = printed(command, "select", folder, "--count", "4", "--labeled", str(listed))
    assert chosen[0]["path"] not in output
    picture = tmp_path / "gaps.png"
    output = printed(command, "coverage", folder, "--picture", str(picture))
    assert "Pairs of units, missing" in output
    assert picture.read_bytes()[:4] == b"\x89PNG"
    report = json.loads(printed(command, "drift", folder, folder, "--appearances", "0", "--json"))
    assert report["drift"] is False
    assert report["p_value"] == 1


def test_images_are_encoded_compared_and_shown_on_a_page(
    trained: Path, tmp_path: Path, command: CommandLine
) -> None:
    first, second = write_images(tmp_path / "first", 12), write_images(tmp_path / "second", 12)
    page = tmp_path / "page.html"
    arguments = [str(first), str(second), "--run", str(trained), "--page", str(page)]
    output = printed(command, "drift", *arguments)
    assert "drift" in output.lower()
    text = page.read_text()
    assert text.count("data:image/jpeg") >= 12
    assert "sharpness" in text
    assert "<script" not in text
    assert "http" not in text.replace("http-equiv", "")
    command.refuses(["drift", str(first), str(second)], "--run RUN")
