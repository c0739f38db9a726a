"""Encoders that travel through a folder and through the Hugging Face Hub, whose place a folder takes here."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import ModelCard
from safetensors.torch import save_file

import imsvd
from imsvd.encoder import absolute_spec, results_path
from imsvd.errors import InputError
from imsvd.evaluation.results import append_result
from imsvd.export import export_encoder
from imsvd.model_card import public_name
from tests.export.networks import encoder, images
from tests.pretraining.tiny import CommandLine

FILES = {"README.md", "config.json", "model.safetensors"}


class FakeHub:
    """Repositories as folders; stands for the functions of `huggingface_hub` that use the network."""

    def __init__(self, root: Path) -> None:
        self.root, self.calls = root, []  # type: ignore[var-annotated]

    def __call__(self, token: str | None = None) -> "FakeHub":
        self.calls.append(("login", token))
        return self

    def create_repo(self, repo_id: str, private: bool | None, exist_ok: bool) -> Any:
        assert exist_ok
        self.calls.append(("create", repo_id, private))
        return type("Repo", (), {"repo_id": repo_id})

    def upload_folder(self, *, repo_id: str, folder_path: Path, **options: Any) -> str:
        self.calls.append(("upload", options["revision"], options["commit_message"]))
        shutil.copytree(folder_path, self.root / repo_id)
        return f"https://hub/{repo_id}/commit/1"

    def download(self, repo_id: str, filename: str, **options: Any) -> str:
        self.calls.append(("download", filename, options["revision"]))
        return str(self.root / repo_id / filename)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    made = FakeHub(tmp_path / "hub")
    monkeypatch.setattr("huggingface_hub.hub_mixin.HfApi", made)
    for module in ("huggingface_hub.hub_mixin", "imsvd.hub"):
        monkeypatch.setattr(f"{module}.hf_hub_download", made.download)
    return made


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A run with evaluations, in a folder that nobody else should hear of."""
    folder = tmp_path / "jane-doe" / "run"
    shutil.copytree(trained, folder)
    for score in (40.0, 61.25):
        append_result(
            folder, "knn", {"top1": score}, data="/home/jane-doe/cats", details={"epoch": 2}
        )
    details = {"encoder": "untrained"}
    append_result(folder, "knn", {"top1": 29.5}, data="/home/jane-doe/cats", details=details)
    config = folder / "config.yaml"
    config.write_text(config.read_text().replace("shapes:128", "/home/jane-doe/my photos"))
    return folder


def outputs(made: imsvd.Encoder) -> list[torch.Tensor]:
    pictures = images(size=made.description.size)
    with torch.no_grad():
        return [made(pictures), made.probabilities(pictures), made.codes(pictures)]


def same(first: imsvd.Encoder, second: imsvd.Encoder) -> bool:
    pairs = zip(outputs(first), outputs(second), strict=True)
    return all(torch.equal(one, other) for one, other in pairs)


def test_a_folder_holds_the_whole_encoder(run: Path, tmp_path: Path) -> None:
    made = imsvd.load(run)
    made.save_pretrained(tmp_path / "shared")
    assert {file.name for file in (tmp_path / "shared").iterdir()} == FILES
    again = imsvd.Encoder.from_pretrained(tmp_path / "shared")
    assert same(made, again)
    assert again.epoch == made.epoch == 2
    assert not again.training
    assert again.run is None
    described = json.loads((tmp_path / "shared" / "config.json").read_text())
    assert described["encoder"] == made.description.model_dump(mode="json")
    # Every command opens the folder too, and a run is a folder like any other.
    assert same(made, imsvd.open_encoder(tmp_path / "shared"))
    assert same(made, imsvd.Encoder.from_pretrained(run))


def test_the_hub_gives_back_what_was_pushed(run: Path, hub: FakeHub) -> None:
    made = imsvd.load(run)
    address = made.push_to_hub("jane/cats", private=True, token="hf_x", branch="new")
    assert address == "https://hub/jane/cats/commit/1"
    assert {file.name for file in (hub.root / "jane/cats").iterdir()} == FILES
    again = imsvd.Encoder.from_pretrained("jane/cats", revision="v1")
    assert same(made, again)
    assert same(made, imsvd.open_encoder("hf:jane/cats"))
    assert hub.calls == [
        ("login", "hf_x"),
        ("create", "jane/cats", True),
        ("upload", "new", "Upload an encoder of imsvd"),
        ("download", "config.json", "v1"),
        ("download", "model.safetensors", "v1"),
        ("download", "config.json", None),
        ("download", "model.safetensors", None),
    ]
    card = ModelCard.load(hub.root / "jane/cats/README.md")
    assert 'Encoder.from_pretrained("jane/cats")' in card.text


def test_the_card_says_what_the_run_recorded_and_nothing_private(run: Path) -> None:
    card = imsvd.load(run).generate_model_card(license="mit")
    header = str(card).split("---")[1]
    assert "library_name: imsvd" in header
    assert "license: mit" in header
    rows = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", card.text, flags=re.MULTILINE))
    assert rows["images"] == "my photos"
    assert rows["epochs"] == "2 of 2"
    assert rows["batch size"] == "32"
    assert rows["code"] == "a code of 4 variables, 4 units each"
    assert rows["features"] == "8"
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert rows["loss"] == f"{last['loss']:.4g}"
    assert rows["effective_rank"] == f"{last['health']['effective_rank']:.4g}"
    assert "| knn | cats | top1 | 61.25 |" in card.text
    assert "40.00" not in card.text  # an older result of the same kind
    assert "29.5" not in card.text  # of the encoder before training
    assert "jane-doe" not in str(card)
    assert "accelerator" not in card.text


def test_the_log_is_that_of_the_encoder(run: Path) -> None:
    made = imsvd.load(run)
    made.epoch = 1
    first = json.loads((run / "metrics.jsonl").read_text().splitlines()[0])
    card = made.generate_model_card()
    assert "Training log, epoch 1" in card.text
    assert f"| loss | {first['loss']:.4g} |" in card.text
    assert "| epochs | 1 of 2 |" in card.text


def test_the_example_in_the_card_runs(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    imsvd.load(run).save_pretrained(tmp_path / "shared")
    monkeypatch.chdir(tmp_path)
    card = (tmp_path / "shared" / "README.md").read_text()
    (snippet,) = re.findall(r"```python\n(.*?)```", card, flags=re.DOTALL)
    names: dict[str, Any] = {}
    exec(snippet, names)
    for name, shape in re.findall(r"(\w+) = encoder.*# (\([\d, ]+\))", snippet):
        assert str(tuple(names[name].shape)) == shape
    assert "codes" in names


def test_a_card_without_a_run_claims_nothing(tmp_path: Path) -> None:
    made = imsvd.open_encoder("timm:resnet18:random")
    text = made.generate_model_card().text
    assert "its training is not recorded" in text
    assert "epoch" not in text.lower()
    assert "codes" not in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)[0]
    made.save_pretrained(tmp_path / "shared")
    again = imsvd.Encoder.from_pretrained(tmp_path / "shared")
    with torch.no_grad():
        assert torch.equal(made(images()), again(images()))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("timm:resnet50:/home/me/my files/a.pth", "timm:resnet50:a.pth"),
        ("/data/photos/", "photos"),
        (r"C:\Users\me\photos", "C:photos"),
        ("s3://bucket/photos", "s3:photos"),
        ("shapes:128", "shapes:128"),
    ],
)
def test_names_lose_their_folders(text: str, name: str) -> None:
    assert public_name(text) == name


def test_without_a_network_there_is_one_sentence(
    run: Path, monkeypatch: pytest.MonkeyPatch, command: CommandLine, tmp_path: Path
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ConnectionError("The network is gone. Try later.\nAnd more\nlines")

    monkeypatch.setattr("huggingface_hub.hub_mixin.hf_hub_download", fail)
    monkeypatch.setattr("huggingface_hub.hub_mixin.HfApi", fail)
    with pytest.raises(
        InputError, match=r"^the encoder a/b could not be .* \(The network is gone\); "
    ):
        imsvd.Encoder.from_pretrained("a/b")
    with pytest.raises(
        InputError, match=r"^the encoder could not be uploaded to a/b \(The network"
    ):
        imsvd.load(run).push_to_hub("a/b")
    out = tmp_path / "a.safetensors"
    command.refuses(
        ["export", "hf:a/b", "--format", "safetensors", "--out", str(out)], "The network is gone"
    )


def test_weights_of_something_else_are_refused(hub: FakeHub) -> None:
    folder = hub.root / "a/b"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    save_file({"x": torch.zeros(1)}, folder / "model.safetensors")
    with pytest.raises(InputError, match="no description of their network"):
        imsvd.Encoder.from_pretrained("a/b")


def test_export_writes_the_same_folder(command: CommandLine, run: Path, tmp_path: Path) -> None:
    out = tmp_path / "shared"
    arguments = ["export", str(run), "--format", "huggingface", "--out", str(out)]
    assert command(arguments) == 0, command.err
    assert {file.name for file in out.iterdir()} == FILES
    assert same(imsvd.load(run), imsvd.open_encoder(out))
    assert 'from_pretrained("shared")' in (out / "README.md").read_text()
    command.refuses(arguments, "already exists")


def test_an_encoder_of_the_hub_is_no_run() -> None:
    assert absolute_spec("hf:jane/cats") == "hf:jane/cats"
    assert results_path("hf:jane/cats") == Path("results/hf-jane-cats")


def test_a_folder_of_timm_is_still_one(tmp_path: Path) -> None:
    made = encoder()
    export_encoder(made, "timm", tmp_path / "folder")
    again = imsvd.Encoder.from_pretrained(tmp_path / "folder")
    assert again.description.units == ()
    with torch.no_grad():
        torch.testing.assert_close(again(images()), made(images()))
