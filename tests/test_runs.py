from pathlib import Path

import pytest

from imsvd.checkpoints import save_checkpoint
from imsvd.config import to_yaml
from imsvd.errors import InputError
from imsvd.runs import RunFolder
from tests.pretraining import tiny


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """A run that has saved something."""
    folder = RunFolder(tmp_path / "run")
    folder.begin(tiny.config())
    save_checkpoint(folder.checkpoints, 1, {})
    return folder


def test_a_new_folder_receives_the_configuration(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "a" / "b")
    assert not run.exists()
    run.begin(tiny.config("seed=5"))
    assert run.config() == tiny.config("seed=5")


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("seed=1", "seed=0, not 1"),
        ("optimizer.lr=0.5", "optimizer.lr="),
        ("backbone.options.drop_path_rate=0.1", "backbone.options.drop_path_rate=None, not 0.1"),
        ("method.projector=[32, 16]", r"method.projector=\[16, 16\], not \[32, 16\]"),
    ],
)
def test_other_settings_are_refused_by_name(run: RunFolder, setting: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        run.begin(tiny.config(setting))
    assert run.config() == tiny.config()


def test_where_it_runs_may_change(run: RunFolder) -> None:
    run.begin(tiny.config("compute.workers=3", "compute.checkpoint_minutes=1"))
    assert run.config().compute.workers == 3


def test_a_run_that_never_saved_may_get_other_settings(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.begin(tiny.config("training.batch_size=4096"))
    run.begin(tiny.config("training.batch_size=16"))
    assert run.config().training.batch_size == 16


def test_a_folder_with_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match="holds something that is not a run"):
        RunFolder(tmp_path).begin(tiny.config())
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_file_cannot_be_a_run_folder(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("x")
    for target in (path, path / "below"):
        with pytest.raises(InputError):
            RunFolder(target).begin(tiny.config())
    assert path.read_text() == "x"


def test_another_rank_that_claims_the_folder_at_the_same_moment_is_no_stranger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunFolder(tmp_path)
    (tmp_path / ".config.yaml.17.tmp").write_text("")
    run.config_file.write_text(to_yaml(tiny.config()))
    # The other rank's file appears between the two looks at the folder.
    monkeypatch.setattr(RunFolder, "exists", lambda _: False)
    run.begin(tiny.config())


def test_no_run_gets_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"holds no run \(no config.yaml\)"):
        RunFolder(tmp_path).config()
    assert RunFolder(tmp_path).metrics() == []


def test_a_torn_last_line_of_metrics_is_left_out(run: RunFolder) -> None:
    run.rewrite_metrics([{"epoch": 1}, {"epoch": 2}])
    with run.metrics_file.open("a") as file:
        file.write('{"epo')
    assert run.metrics() == [{"epoch": 1}, {"epoch": 2}]
