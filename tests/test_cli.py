"""The command line as a person meets it: its options, and one sentence for every bad input."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from imsvd import cli
from imsvd.cli.app import PANELS
from imsvd.explanations import PARTS
from imsvd.methods import METHODS
from imsvd.recipes import RECIPES
from tests.datasets.malformed import MALFORMED
from tests.engine.processes import ENVIRONMENT, saved_step
from tests.pretraining import tiny
from tests.pretraining.test_pretrain import write_images
from tests.pretraining.tiny import CommandLine

OPTIONS = {
    "": ["--version", "--install-completion", "--show-completion"],
    "demo": ["--out", "--set"],
    "pretrain": ["data", "--out", "--recipe", "--method", "--init", "--size", "--set"],
    "discretize": [
        "encoder",
        "data",
        "--out",
        "--bits",
        "--units",
        "--views",
        "--steps",
        "--size",
        "--cache",
        "--set",
    ],
    "compare": [
        "data",
        "--out",
        "--recipe",
        "--methods",
        "--variant",
        "--seeds",
        "--lr-factors",
        "--epochs",
        "--knn-every",
        "--parallel",
        "--set",
    ],
    "reproduce run": [
        "names",
        "--data",
        "--out",
        "--seeds",
        "--epochs",
        "--parallel",
        "--voc",
        "--coco",
        "--places",
        "--set",
    ],
    "reproduce plan": [
        "names",
        "--data",
        "--out",
        "--seeds",
        "--epochs",
        "--nodes",
        "--gpus",
        "--launcher",
        "--jobs",
        "--dry-run",
        "--voc",
        "--coco",
        "--places",
        "--set",
    ],
    "reproduce collect": [
        "names",
        "--data",
        "--out",
        "--seeds",
        "--epochs",
        "--voc",
        "--coco",
        "--places",
        "--write-docs",
        "--set",
    ],
    "scenes": ["folder", "--format", "--images", "--size", "--seed"],
    "recipes": ["name", "--method", "--keys", "--table"],
    "info": ["run", "--verify"],
    "index": ["run", "data", "--out", "--split", "--features"],
    "add": ["index", "data", "--run"],
    "remove": ["index", "paths", "--missing"],
    "name": ["place", "unit", "text", "--star"],
    "outliers": ["index", "--count", "--json", "--paths"],
    "coverage": ["index", "--level", "--count", "--json", "--picture"],
    "select": ["index", "--count", "--labeled", "--seed", "--json", "--paths"],
    "drift": [
        *("first", "second", "--run", "--level", "--permutations", "--appearances", "--page"),
        "--json",
    ],
    "duplicates": [
        "index",
        "other",
        "--between",
        "--within",
        "--cosine",
        "--confirm",
        "--json",
        "--sheet",
        "--paths",
        "--run",
    ],
    "search": [
        "index",
        "query",
        "--like",
        "--unlike",
        "--count",
        "--json",
        "--sheet",
        "--paths",
        "--run",
    ],
    "export": ["run", "--out", "--format", "--output-kind"],
    "codes": ["run", "data", "--out", "--split", "--embedding", "--index"],
    "explain": ["run", "data", "--split", "--only", "--judge"],
    "results": ["runs", "--format"],
    "replay": ["run"],
    "explore": ["places", "--host", "--port", "--allow-network", "--token", "--no-browser"],
    "evaluate knn": ["run", "data", "--k", "--temperature", "--distance", "--set"],
    "evaluate linear-probe": ["run", "data"],
    "evaluate linear": ["run", "data", "--recipe", "--epochs", "--set"],
    "evaluate finetune": ["run", "data", "--epochs", "--set"],
    "evaluate semi": ["run", "data", "--fraction", "--list", "--epochs", "--set"],
    "evaluate places205": ["run", "data", "--epochs", "--set"],
    "evaluate voc07": ["run", "data", "--jobs"],
    "evaluate coco": ["run", "data", "--scale", "--iterations", "--set"],
    "bench loss": ["--sizes", "--ranks", "--repeats", "--output"],
    "bench heads": ["--batch", "--widths", "--repeats", "--output"],
    "bench head": [
        "--images",
        "--width",
        "--views",
        "--in-memory",
        "--folder",
        "--repeats",
        "--output",
    ],
    "bench views": ["images", "--small", "--seconds", "--repeats", "--output"],
    "bench step": ["--networks", "--seconds", "--beside", "--repeats", "--output"],
    "bench knn": ["--queries", "--bank", "--width", "--neighbors", "--repeats", "--output"],
    "bench index": ["index", "--images", "--variables", "--repeats", "--output"],
    "bench capacity": [
        "encoder",
        "data",
        "--out",
        "--size",
        "--cache",
        "--views",
        "--steps",
        "--set",
    ],
    "bench codes": [
        *("encoder", "data", "--out", "--bits", "--seeds", "--methods", "--size", "--cache"),
        *("--judge", "--units", "--views", "--steps", "--set"),
    ],
    "bench drift": ["run", "data", "--images", "--sizes", "--nulls", "--trials", "--output"],
    "bench select": ["run", "data", "--counts", "--seeds", "--output"],
    "bench campaign": ["--out", "--tries", "--only", "--commands", "--seed"],
    "bench duplicates": ["run", "data", "--copies", "--seed", "--output"],
    "bench queries": ["index", "--seed", "--output"],
}


def options_of(command: Any, prefix: str = "") -> dict[str, list[str]]:
    names = [parameter.opts[0] for parameter in command.params if parameter.opts[0] != "--help"]
    found = {prefix.strip(): names} if names else {}
    for name, child in getattr(command, "commands", {}).items():
        found |= options_of(child, f"{prefix} {name}")
    return found


def test_the_options_change_only_deliberately() -> None:
    assert options_of(typer.main.get_command(cli.app)) == OPTIONS


def commands_in(command: Any) -> Iterator[Any]:
    yield command
    for child in getattr(command, "commands", {}).values():
        yield from commands_in(child)


def test_every_value_has_a_name_and_every_command_and_option_a_help_text() -> None:
    for found in commands_in(typer.main.get_command(cli.app)):
        assert found.help, found.name
        for option in found.params:
            assert option.help or option.name == "help", (found.name, option.name)
            assert getattr(option, "is_flag", False) or option.metavar.isupper(), (
                found.name,
                option.name,
            )


def test_the_help_shows_every_command_in_its_panel(command: CommandLine) -> None:
    commands = typer.main.get_command(cli.app).commands  # type: ignore[attr-defined]
    ordered = [name for names in PANELS.values() for name in names]
    assert sorted(ordered) == sorted(commands)
    assert command(["--help"]) == 0
    lines = command.out.splitlines()
    titles = [line.strip("╭╮─ ") for line in lines if line.startswith("╭")]
    assert titles == ["Options", *PANELS]
    shown = [line.split()[1] for line in lines if line.startswith("│ ") and line[2] != " "]
    assert shown == [*OPTIONS[""], "--help", *ordered]


def test_the_parts_of_an_explanation_are_named_in_its_help(command: CommandLine) -> None:
    assert command(["explain", "--help"]) == 0
    said = "".join(command.out.replace("│", "").split())
    assert f"Partstomake:{','.join(PARTS)}." in said


def test_the_command_line_starts_without_torch() -> None:
    script = "import sys, imsvd.cli; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], env=ENVIRONMENT, check=True)


def test_recipes_are_listed_with_their_commands(command: CommandLine) -> None:
    assert command(["recipes"]) == 0
    for name in RECIPES:
        assert f"\n{name}\n" in f"\n{command.out}"
    assert command.out.count("Command: ") == len(RECIPES)


def test_rows_of_other_methods_are_listed_with_changes_and_provenance(command: CommandLine) -> None:
    assert command(["recipes", "--table"]) == 0
    rows = [line.split("\t") for line in command.out.splitlines()]
    assert len(rows) == 3 * (len(METHODS) - 1)
    assert all(provenance for _, _, provenance in rows)
    changes = {row: text for row, text, _ in rows}
    assert changes["vicreg imagenet"] == "optimizer.lr=0.3 training.batch_size=512"


def test_a_recipe_is_shown_as_yaml_and_keys_with_their_meaning(command: CommandLine) -> None:
    assert command(["recipes", "shapes"]) == 0
    assert "batch_size: " in command.out
    assert command(["recipes", "imagenet", "--method", "vicreg"]) == 0
    assert "covariance_weight: 1" in command.out
    command.refuses(["recipes", "imagenet", "--method", "vicregg"], "did you mean 'vicreg'")
    command.refuses(["recipes", "--method", "vicreg"], "needs a recipe")
    assert command(["recipes", "--keys"]) == 0
    keys = dict(line.split("\t") for line in command.out.splitlines())
    assert keys["optimizer.lr"] == "peak learning rate for a batch of 256; scaled by batch/256"


def test_the_version_is_shown(command: CommandLine) -> None:
    assert command(["--version"]) == 0
    assert command.out.startswith("imsvd 0.")


def test_info_tells_where_a_run_stands(command: CommandLine, trained: Path) -> None:
    assert command(["info", str(trained)]) == 0
    words = command.out.split()
    assert words[words.index("epochs") + 1 :][:3] == ["2", "of", "2"]
    assert "imsvd on resnet18" in command.out
    command.refuses(["info", str(trained.parent)], "holds no run")


def test_a_run_ends_with_everything_in_its_folder(command: CommandLine, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert command(tiny.arguments("shapes:64", out)) == 0
    assert {path.name for path in out.iterdir()} == {
        "checkpoints",
        "config.yaml",
        "encoder.json",
        "encoder.safetensors",
        "metrics.jsonl",
        "tensorboard",
        "training.png",
    }
    assert "Encoder: " in command.out
    lines = [line for line in command.out.splitlines() if str(out) not in line]
    assert all(len(line) <= 80 for line in lines)


@pytest.mark.parametrize(
    ("settings", "phrases"),
    [
        (["training.batchsize=4"], ["no setting", "did you mean training.batch_size?"]),
        (["method.projector=[16, 18]"], ["Width 18 is not divisible by units 4", "16 or 20"]),
        (["training.batch_size=65"], ["batch_size=65", "dataset of 64 images"]),
        (["training.accumulate_batches=2"], ["gradient accumulation is refused", "not the mean"]),
        (["backbone.name=resnet81"], ["'resnet81' is not a timm model"]),
        (["backbone.options.layerz=1"], ["do not fit 'resnet18'"]),
        (["compute.accelerator=gpu"], ["compute.accelerator=gpu"]),
        (["seed"], ["has no '='"]),
    ],
)
def test_bad_settings(
    settings: list[str], phrases: list[str], command: CommandLine, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    command.refuses(tiny.arguments("shapes:64", out, *settings), *phrases)
    assert not (out / "checkpoints").exists()
    # The mistake corrected, the same folder serves.
    assert command(tiny.arguments("shapes:64", out)) == 0


def test_unknown_recipe_and_method(command: CommandLine, tmp_path: Path) -> None:
    base = ["pretrain", "shapes:64", "--out", str(tmp_path / "run")]
    command.refuses([*base, "--recipe", "cifar11"], "no recipe 'cifar11'", "cifar10")
    command.refuses([*base, "--method", "imsdv"], "no method 'imsdv'", "imsvd")
    assert not (tmp_path / "run").exists()


def test_missing_and_empty_folders(command: CommandLine, tmp_path: Path) -> None:
    out, empty = tmp_path / "run", tmp_path / "empty"
    empty.mkdir()
    for arguments in (["--recipe", "shapes"], []):
        tail = [*arguments, "--out", str(out)]
        command.refuses(["pretrain", str(tmp_path / "none"), *tail], "there is no folder")
        command.refuses(["pretrain", str(empty), *tail], "holds no images")
        command.refuses(["pretrain", "shapez", *tail], "did you mean shapes?")
    assert not out.exists()


BAD = ("text.jpg", "half.jpg", "empty.jpg", "bomb.png")


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_folder_of_nothing_but_bad_images(
    name: str, workers: int, command: CommandLine, tmp_path: Path
) -> None:
    content, reason = MALFORMED[name]
    data = tmp_path / "data"
    data.mkdir()
    for number in range(40):
        (data / f"{number}-{name}").write_bytes(content)
    command.refuses(
        tiny.arguments(data, tmp_path / "run", f"compute.workers={workers}"),
        "none of the 40 images can be read",
        reason,
    )


def folder_with_bad_images(folder: Path, good: int, bad: int, side: int) -> Path:
    write_images(folder, good, side)
    for number in range(bad):
        name = BAD[number % len(BAD)]
        (folder / f"0000-{number}-{name}").write_bytes(MALFORMED[name][0])
    return folder


PATHS = pytest.mark.parametrize(
    ("side", "workers"), [(32, 0), (100, 0), (100, 2)], ids=["memory", "streamed", "workers"]
)


@PATHS
def test_a_few_bad_images_are_replaced_counted_and_listed(
    side: int, workers: int, command: CommandLine, tmp_path: Path
) -> None:
    data = folder_with_bad_images(tmp_path / "data", good=396, bad=4, side=side)
    out = tmp_path / "run"
    settings = (f"compute.workers={workers}", "training.batch_size=200", "views.views.0.size=16")
    assert command(tiny.arguments(data, out, *settings, "views.views.1.size=16")) == 0
    listed = (out / "bad_images.jsonl").read_text()
    assert len(listed.splitlines()) == 4
    assert all(name in listed for name in BAD)
    assert "4 unreadable images were replaced" in " ".join(command.out.split())
    assert len((out / "metrics.jsonl").read_text().splitlines()) == 2


@PATHS
def test_too_many_bad_images_stop_the_run(
    side: int, workers: int, command: CommandLine, tmp_path: Path
) -> None:
    data = folder_with_bad_images(tmp_path / "data", good=147, bad=3, side=side)
    settings = (f"compute.workers={workers}", "views.views.0.size=16", "views.views.1.size=16")
    arguments = tiny.arguments(data, tmp_path / "run", *settings, "training.batch_size=150")
    command.refuses(arguments, "of 150 images", "more than the 1.0% allowed", "bad_images.jsonl")
    listed = (tmp_path / "run" / "bad_images.jsonl").read_text()
    assert 2 <= len(listed.splitlines()) <= 3
    assert command([*arguments, "--set", "data.bad_image_limit=0.1"]) == 0


def test_another_configuration_is_refused_by_key_and_values(
    command: CommandLine, trained: Path
) -> None:
    before = {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()}
    command.refuses(
        tiny.arguments("shapes:128", trained, "training.epochs=7"), "training.epochs=2, not 7"
    )
    assert {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()} == before


def test_a_folder_that_holds_no_run_is_refused(command: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    command.refuses(tiny.arguments("shapes:64", tmp_path), "not a run", "--out")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def interrupted(trained: Path, folder: Path) -> Path:
    """A copy of the finished run from which the last checkpoint is missing."""
    run = Path(shutil.copytree(trained, folder / "run"))
    last = saved_step(run)
    for path in (run / "checkpoints").glob(f"step-{last:09d}.*"):
        path.unlink()
    return run


def flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_a_damaged_checkpoint_is_named_and_the_one_before_used(
    command: CommandLine, trained: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    newest = max((run / "checkpoints").glob("*.safetensors"))
    expected = (run / "encoder.safetensors").read_bytes()
    (run / "encoder.safetensors").unlink()
    flip_a_byte(newest)
    assert command(tiny.arguments("shapes:128", run)) == 0
    said = "".join(command.out.split())
    assert f"{newest.name}isdamaged" in said
    assert "Usingthecheckpointbeforeit" in said
    assert (run / "encoder.safetensors").read_bytes() == expected


def test_nothing_but_damaged_checkpoints_is_one_sentence(
    command: CommandLine, trained: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    for path in (run / "checkpoints").glob("*.safetensors"):
        flip_a_byte(path)
    command.refuses(tiny.arguments("shapes:128", run), "is damaged", "No good checkpoint is left")
    assert len(list((run / "checkpoints").iterdir())) == 4


def test_a_full_disk_while_saving_loses_nothing(
    command: CommandLine, trained: Path, tmp_path: Path
) -> None:
    run = interrupted(trained, tmp_path)
    step = saved_step(run)
    # The kernel itself says that /dev/full is full.
    name = f".step-{2 * step:09d}.safetensors.{os.getpid()}.tmp"
    trap = run / "checkpoints" / name
    command_line = tiny.arguments("shapes:128", run)
    with pytest.MonkeyPatch.context() as patch:
        # Leftovers are cleared before training begins; the disk fills up after that.
        patch.setattr(
            "imsvd.engine.loop.Training._remove_leftovers", lambda _: trap.symlink_to("/dev/full")
        )
        command.refuses(command_line, "the disk is full", "run the same command to resume")
    assert saved_step(run) == step
    assert command(command_line) == 0
    expected = (trained / "encoder.safetensors").read_bytes()
    assert (run / "encoder.safetensors").read_bytes() == expected


def test_a_full_disk_while_logging_is_one_sentence(
    command: CommandLine, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = interrupted(trained, tmp_path)

    def replace_by_full_device(self: object, records: object) -> None:
        (run / "metrics.jsonl").unlink()
        (run / "metrics.jsonl").symlink_to("/dev/full")

    monkeypatch.setattr("imsvd.runs.RunFolder.rewrite_metrics", replace_by_full_device)
    command.refuses(tiny.arguments("shapes:128", run), "the disk is full")


def test_changed_data_are_noticed_when_resuming(command: CommandLine, tmp_path: Path) -> None:
    data = write_images(tmp_path / "data", 64)
    out = tmp_path / "run"
    assert command(tiny.arguments(data, out)) == 0
    (data / "0003.png").rename(data / "renamed.png")
    command.refuses(tiny.arguments(data, out), "are not those", "was trained on")


def test_a_loss_that_explodes_is_not_saved(command: CommandLine, tmp_path: Path) -> None:
    settings = ("optimizer.name=sgd", "optimizer.lr=1e30", "optimizer.scale_lr=false")
    out = tmp_path / "run"
    command.refuses(
        tiny.arguments("shapes:128", out, *settings), "no longer finite", "lower optimizer.lr"
    )
    assert saved_step(out) <= 4


@pytest.mark.parametrize("verb", ["knn", "linear-probe"])
def test_evaluating_what_is_no_run(verb: str, command: CommandLine, tmp_path: Path) -> None:
    command.refuses(["evaluate", verb, str(tmp_path), "shapes"], "is not a run folder")


def test_bad_input_from_a_shell_is_one_line_and_code_2(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "imsvd", "pretrain", "/none", "--out", str(tmp_path / "run")],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        check=False,
    )
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr == "imsvd: there is no folder /none.\n"


@pytest.mark.parametrize(
    ("error", "phrases"),
    [
        ("DataLoader worker (pid 7) is killed by signal: Killed. ", ("lower compute.workers",)),
        (
            "[/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:5",
            (
                "another process of this run has ended",
                "10.0.0.2",
                "resume from the last checkpoint",
            ),
        ),
    ],
)
def test_a_process_that_died_is_one_sentence(
    error: str, phrases: tuple[str, ...], command: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError(error)

    monkeypatch.setattr("imsvd.recipes.recipe", fail)
    command.refuses(["recipes", "shapes"], *phrases)
