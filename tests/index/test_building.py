"""From images to an index, through the command line and from Python."""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import imsvd
from imsvd.datasets import open_source
from imsvd.datasets.sources import PathSource
from imsvd.errors import InputError
from imsvd.index import Index, building
from imsvd.index.calibration import measure_copies
from imsvd.index.columns import level_of
from imsvd.index.segments import Rows, encode
from imsvd.index.storage import read_manifest
from imsvd.information import max_probabilities
from tests.datasets.malformed import MALFORMED
from tests.pretraining.test_pretrain import write_images
from tests.pretraining.tiny import CommandLine


def interrupt_third(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Interrupt the writing of the third batch; return a list that grows with every batch."""
    calls: list[int] = []

    def interrupted(rows: Rows, units: Sequence[int], metadata: Mapping[str, str]) -> bytes:
        calls.append(len(rows))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return encode(rows, units, metadata)

    monkeypatch.setattr(building, "encode", interrupted)
    return calls


def test_an_index_holds_what_the_encoder_says(trained: Path, tmp_path: Path) -> None:
    data = write_images(tmp_path / "data", 12, classes=3)
    index = Index.build(trained, data, tmp_path / "a.index", features=True)
    source, network = open_source(data), imsvd.load(trained)
    images = torch.stack([source.read(number) for number in range(12)])
    with torch.no_grad():
        q, features = network.probabilities(images), network.features(images)
    assert index.codes().tolist() == network.codes(images).tolist()
    levels = level_of(max_probabilities(q, network.description.units).numpy())
    kept = np.concatenate([segment.levels() for segment in index.segments])
    assert (kept == levels).mean() > 0.95  # batches round differently, which may cross a level
    found = index.features()
    assert found is not None
    np.testing.assert_allclose(found, features.numpy(), atol=2e-3, rtol=2e-3)
    assert index.paths[:] == [str(data / source.identity(number)) for number in range(12)]
    assert index.facets == {"label": ("class0", "class1", "class2")}
    assert source.labels is not None
    assert (index.facet("label") == source.labels.numpy() + 1).all()
    first = index.image(0)
    assert first.is_file
    assert first.size == Path(first.path).stat().st_size
    assert first.state() == ""
    assert (index.read(5) == source.read(5)).all()


def test_splits_attributes_and_images_that_are_no_files(trained: Path, tmp_path: Path) -> None:
    index = Index.build(trained, "shapes:40", tmp_path / "a.index", split="train")
    assert set(index.facets) >= {"label", "shape", "color", "split"}
    assert index.image(3).path == "shapes:40/shapes/train/3"
    assert not index.image(3).is_file
    assert index.find("shapes/train/7") == index.find("shapes:40/shapes/train/7") == 7
    assert (index.read(7) == open_source("shapes:40").read(7)).all()
    data = tmp_path / "data"
    write_images(data / "train", 5)
    write_images(data / "test", 3)
    both = Index.build(trained, data, tmp_path / "b.index")
    assert both.facet("split").tolist() == [1] * 5 + [2] * 3
    assert both.paths[5] == str(data / "test" / "0000.png")
    assert both.find(data / "test" / "0000.png") == 5


def test_building_resumes_where_it_was_interrupted(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(building, "BATCH_SIZE", 4)
    data, out = write_images(tmp_path / "data", 10), tmp_path / "a.index"
    calls = interrupt_third(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        Index.build(trained, data, out)
    assert not out.exists()
    index = Index.build(trained, data, out)
    assert len(calls) == 4  # two parts, the interrupted one, and that one again
    whole = Index.build(trained, data, tmp_path / "whole.index")
    assert (index.codes() == whole.codes()).all()
    assert index.paths[:] == whole.paths[:]


def test_an_image_that_changes_while_it_is_read_is_noticed_later(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_images(tmp_path / "data", 6)
    encoded = PathSource.encoded

    def change_after_reading(source: PathSource, index: int) -> bytes:
        content = encoded(source, index)
        later = source.path(index).stat().st_mtime_ns + 10**9
        os.utime(source.path(index), ns=(later, later))
        return content

    monkeypatch.setattr(PathSource, "encoded", change_after_reading)
    monkeypatch.setattr(building, "measure_copies", lambda *_: {})
    index = Index.build(trained, data, tmp_path / "a.index")
    for number in range(len(index)):
        image = index.image(number)
        assert 0 < image.modified < Path(image.path).stat().st_mtime_ns


def test_other_images_or_settings_start_anew(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(building, "BATCH_SIZE", 4)
    data, out = write_images(tmp_path / "data", 10), tmp_path / "a.index"
    monkeypatch.setattr(building, "_write_index", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        Index.build(trained, data, out)
    monkeypatch.undo()
    shutil.copy(data / "0003.png", data / "0000.png")
    index = Index.build(trained, data, out)
    assert (index.codes()[0] == index.codes()[3]).all()
    assert index.image(0).hash == index.image(3).hash


def test_unreadable_images_are_left_out_and_counted(
    command: CommandLine, trained: Path, tmp_path: Path
) -> None:
    data, out = write_images(tmp_path / "data", 5), tmp_path / "a.index"
    (data / "0001.png").write_bytes(MALFORMED["empty.jpg"][0])
    assert command(["index", str(trained), str(data), "--out", str(out)]) == 0
    assert "Left out 1 unreadable images; the first is 0001.png" in command.out
    assert "Index of 4 images" in command.out
    assert [Path(path).stem for path in Index(out).paths] == ["0000", "0002", "0003", "0004"]
    for path in data.iterdir():
        path.write_bytes(b"")
    command.refuses(
        ["index", str(trained), str(data), "--out", str(tmp_path / "b.index")], "none of the images"
    )
    command.refuses(["index", str(trained), str(data), "--out", str(out)], "exists already")


def test_the_same_command_again_finds_its_index(
    command: CommandLine, trained: Path, tmp_path: Path
) -> None:
    """A kill may come after the index has its name and before the command has ended."""
    data, out = write_images(tmp_path / "data", 5), tmp_path / "a.index"
    again = ["index", str(trained), str(data), "--out", str(out)]
    assert command(again) == 0
    before = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}
    assert command(again) == 0
    assert "holds these images already" in command.out
    assert "Index of 5 images" in command.out
    assert {path.name: path.stat().st_mtime_ns for path in out.iterdir()} == before
    command.refuses([*again, "--features"], "exists already")
    assert command(["remove", str(out), str(data / "0001.png")]) == 0
    command.refuses(again, "exists already", "imsvd add")


def test_an_image_that_vanishes_before_copies_are_measured_is_reported(
    command: CommandLine, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_images(tmp_path / "data", 8)
    near = {}
    for name in ("whole", "without"):
        monkeypatch.undo()
        if name == "without":
            lose_image(monkeypatch, data / "0002.png")
        out = tmp_path / f"{name}.index"
        assert command(["index", str(trained), str(data), "--out", str(out)]) == 0
        reported = (
            "1 unreadable images are not among those whose copies are measured" in command.out
        )
        assert reported == (name == "without")
        near[name] = read_manifest(out).near["copy_cosines"]
    # The other seven are edited as before.
    assert len(set(near["whole"]) - set(near["without"])) == 1


def lose_image(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    """Delete an image when all have been encoded."""

    def measure(*arguments: Any) -> dict[str, Any]:
        path.unlink()
        return measure_copies(*arguments)

    monkeypatch.setattr(building, "measure_copies", measure)


def test_images_are_added_changed_and_removed(
    command: CommandLine, trained: Path, tmp_path: Path
) -> None:
    data, out = write_images(tmp_path / "data", 6), tmp_path / "a.index"
    assert command(["index", str(trained), str(data), "--out", str(out), "--features"]) == 0
    before = Index(out).codes()[0].tolist()
    write_images(tmp_path / "more", 8)
    shutil.copy(tmp_path / "more" / "0007.png", data / "new.png")
    shutil.copy(tmp_path / "more" / "0006.png", data / "0002.png")
    os.utime(data / "0003.png", (1, 1))  # touched, with the same content
    assert command(["add", str(out), str(data), str(data / "new.png")]) == 0
    assert "1 added, 1 replaced, 6 unchanged; 7 images" in " ".join(command.out.split())
    index = Index(out)
    assert index.codes()[0].tolist() == before
    states = [index.image(position).state() for position in range(len(index))]
    assert states == [""] * 7  # the touched one is not taken for a changed one
    changed, new = index.find(data / "0002.png"), index.find(data / "new.png")
    assert changed is not None
    assert new is not None
    with torch.no_grad():
        codes = imsvd.load(trained).codes(torch.stack([index.read(changed), index.read(new)]))
    assert index.codes()[[changed, new]].tolist() == codes.tolist()
    assert command(["add", str(out), str(tmp_path / "more")]) == 0
    assert len(Index(out)) == 15
    (data / "new.png").unlink()
    assert Index(out).image(new).state() == "deleted"
    assert command(["remove", str(out), "--missing"]) == 0
    assert "1 image removed; 14 left" in command.out
    assert command(["remove", str(out), str(data / "0000.png"), str(tmp_path / "more")]) == 0
    assert "9 images removed; 5 left" in command.out
    command.refuses(["remove", str(out), "nothing.png"], "is not in")
    command.refuses(["remove", str(out)], "give the images to remove")
    assert command(["info", str(out), "--verify"]) == 0
    assert "5 in 1 segment" in command.out
    assert "all files are as they were written" in " ".join(command.out.split())


def test_many_images_are_added_at_once_and_resumably(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(building, "BATCH_SIZE", 4)
    monkeypatch.setattr("imsvd.index.index.BATCH_SIZE", 4)
    index = Index.build(trained, write_images(tmp_path / "data", 3), tmp_path / "a.index")
    more = write_images(tmp_path / "more", 10)
    calls = interrupt_third(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        index.add(more)
    assert len(Index(index.path)) == 3
    assert index.add(more) == (10, 0, 0, 0)
    assert len(calls) == 4
    assert index.paths[3:] == [str(path) for path in sorted(more.iterdir())]
    assert not (tmp_path / ".a.index.adding").exists()


def test_images_that_wait_are_encoded_again_after_another_change(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(building, "BATCH_SIZE", 4)
    monkeypatch.setattr("imsvd.index.index.BATCH_SIZE", 4)
    index = Index.build(trained, write_images(tmp_path / "data", 3), tmp_path / "a.index")
    more = write_images(tmp_path / "more", 10)
    interrupt_third(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        index.add(more)
    between = write_images(tmp_path / "between", 2)
    index.add(between)  # takes the number that the waiting images had given to their folder
    assert index.add(more) == (10, 0, 0, 0)
    assert index.paths[3:] == [str(path) for path in sorted(between.iterdir())] + [
        str(path) for path in sorted(more.iterdir())
    ]


def test_another_encoder_may_not_add(trained: Path, tmp_path: Path) -> None:
    run, data = tmp_path / "run", write_images(tmp_path / "data", 3)
    shutil.copytree(trained, run)
    index = Index.build(run, data, tmp_path / "a.index")
    weights = load_file(run / "encoder.safetensors")
    weights["projector.0.weight"][0, 0] += 1
    save_file(weights, run / "encoder.safetensors")
    other = write_images(tmp_path / "other", 1)
    with pytest.raises(InputError, match="made with another encoder"):
        Index(index.path).add(other)
    opened = Index(index.path)
    opened.use_run(trained)
    assert opened.add(other).added == 1
    shutil.rmtree(run)  # as if it had been moved
    with pytest.raises(InputError, match="does not exist; if it was moved"):
        Index(index.path).add(write_images(tmp_path / "third", 1))


def test_encoders_without_codes_are_refused(command: CommandLine, tmp_path: Path) -> None:
    data = write_images(tmp_path / "data", 2)
    command.refuses(
        ["index", "timm:resnet18:random", str(data), "--out", str(tmp_path / "a.index")],
        "has no codes",
    )


def test_names_of_a_run_reach_its_indexes(
    command: CommandLine, trained: Path, tmp_path: Path
) -> None:
    run, data = tmp_path / "run", write_images(tmp_path / "data", 2)
    shutil.copytree(trained, run)
    assert command(["name", str(run), "3.1", "stripes"]) == 0
    index = Index.build(run, data, tmp_path / "a.index")
    assert command(["name", str(run), "0.2", "red"]) == 0
    assert Index(index.path).names == {"3.1": "stripes", "0.2": "red"}
    shutil.rmtree(run)
    assert Index(index.path).names == {"3.1": "stripes"}
    assert command(["name", str(index.path), "3.2", "dots"]) == 0
    assert Index(index.path).names == {"3.1": "stripes", "3.2": "dots"}
    command.refuses(["name", str(trained), "4.0", "x"], "no variable 4")
    command.refuses(["name", str(index.path), "3.2", "--star"], "stars are kept in run folders")
    command.refuses(["name", str(trained), "3.2"], "give a NAME", "--star")
    command.refuses(["name", str(tmp_path), "0.0", "x"], "is not a run folder")
    (tmp_path / "names.json").write_text(json.dumps({"a": 1}))
    with pytest.raises(InputError, match="must map variables and units to names"):
        imsvd.index.names.read_names(tmp_path)


def test_variables_and_units_are_starred_and_named_by_one_command(
    command: CommandLine, trained: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    assert command(["name", str(run), "3.1", "stripes", "--star"]) == 0
    assert "3.1 is now 'stripes' and is starred" in command.out
    assert command(["name", str(run), "3", "--star"]) == 0
    assert imsvd.index.names.read_notes(run) == ({"3.1": "stripes"}, ("3", "3.1"))
    assert command(["name", str(run), "3.1", "", "--no-star"]) == 0
    assert imsvd.index.names.read_notes(run) == ({}, ("3",))


def test_a_list_may_name_files_of_several_folders(trained: Path, tmp_path: Path) -> None:
    write_images(tmp_path / "one", 2)
    write_images(tmp_path / "two", 2)
    index = Index.build(trained, tmp_path / "one", tmp_path / "a.index")
    listed = tmp_path / "lists" / "some.txt"
    listed.parent.mkdir()
    names = ["../one/0001.png", str(tmp_path / "two" / "0000.png"), "../two/0001.png"]
    listed.write_text("\n".join(names) + "\n")
    assert index.add(listed) == (2, 0, 1, 0)
    assert index.paths[:] == [
        str(tmp_path / name)
        for name in ("one/0000.png", "one/0001.png", "two/0000.png", "two/0001.png")
    ]


def test_wide_images_are_encoded_as_by_other_commands(trained: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    Image.effect_mandelbrot((90, 50), (-2, -1, 1, 1), 60).convert("RGB").save(data / "a.png")
    index = Index.build(trained, data, tmp_path / "a.index")
    imsvd.write_codes(trained, data, tmp_path / "codes.parquet")
    from pyarrow import parquet  # noqa: PLC0415

    table = parquet.read_table(tmp_path / "codes.parquet")
    assert index.codes().tolist() == table["codes"].to_pylist()
