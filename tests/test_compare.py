"""`imsvd compare`: what is compared, what is chosen, and that nothing is done twice."""

import csv
import json
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from rich.console import Console

from imsvd.compare import Candidate, Variant, choose_variants, compare_methods, plan, read_variant
from imsvd.config import override
from imsvd.errors import InputError
from imsvd.grid import runner, worker
from imsvd.grid.comparison import EQUAL, Comparison
from imsvd.grid.jobs import Job
from imsvd.methods import METHODS
from imsvd.recipes import RECIPES, recipe
from tests.engine.processes import Running, wait_for_step
from tests.grid import small
from tests.grid.forking import GridServer
from tests.grid.test_runner import Ended
from tests.pretraining.test_pretrain import write_images
from tests.pretraining.tiny import CommandLine

QUIET = Console(quiet=True)
OTHERS = tuple(name for name in METHODS if name != "imsvd")


def plan_shapes(*methods: str, variants: Sequence[str] = (), **choices: object) -> list[Candidate]:
    defaults = {"seeds": (0, 1), "lr_factors": (0.33, 1.0), "settings": ()}
    compared = choose_variants(methods, variants)
    return plan("shapes:128", "cifar10-cpu", variants=compared, **{**defaults, **choices})  # type: ignore[arg-type]


def test_every_method_gets_the_same_but_for_head_and_optimizer() -> None:
    candidates = plan_shapes("imsvd", *OTHERS)
    trained = [job.config for candidate in candidates[1:] for job in candidate.jobs]
    assert len(trained) == 4 * (1 + len(OTHERS))
    for name in EQUAL:
        assert all(getattr(config, name) == getattr(trained[0], name) for config in trained), name
    assert {config.method.name for config in trained} == {"imsvd", *OTHERS}
    assert trained[0].training == RECIPES["cifar10-cpu"]().training


def test_a_methods_own_budget_is_not_its_own_here(monkeypatch: pytest.MonkeyPatch) -> None:
    name = OTHERS[0]
    kind, _ = METHODS[name]
    greedy = kind.recipes["small"]._replace(training={"epochs": 99, "batch_size": 16})
    monkeypatch.setattr(kind, "recipes", {**kind.recipes, "small": greedy})
    assert recipe("cifar10-cpu", name).training.epochs == 99
    (_, candidate) = plan_shapes(name, lr_factors=(1,))
    assert candidate.jobs[0].config.training == RECIPES["cifar10-cpu"]().training


def test_learning_rates_are_multiples_of_the_methods_own() -> None:
    candidates = plan_shapes("imsvd", OTHERS[0], lr_factors=(0.33, 1, 3))
    for method in ("imsvd", OTHERS[0]):
        own = recipe("cifar10-cpu", method).optimizer.lr
        rates = [candidate.lr for candidate in candidates if candidate.method == method]
        assert rates == [pytest.approx(0.33 * own), own, pytest.approx(3 * own)]
    (_, *rest) = plan_shapes("imsvd", settings=["optimizer.lr=0.5"])
    assert [candidate.lr for candidate in rest] == [0.165, 0.5]


def test_a_variant_differs_from_its_method_in_what_it_names() -> None:
    text = "soft=imsvd,method.standardize=true,optimizer.lr=0.5"
    (_, *plain, own, faster) = plan_shapes("imsvd", variants=[text], lr_factors=(1, 2))
    assert [candidate.method for candidate in (*plain, own, faster)] == ["imsvd"] * 2 + ["soft"] * 2
    assert (own.lr, faster.lr) == (0.5, 1.0)
    expected = override(plain[0].jobs[0].config, ["method.standardize=true", "optimizer.lr=0.5"])
    assert own.jobs[0].config == expected
    assert "soft" in own.jobs[0].title
    # What a variant says comes after what is said for all.
    text = "hard=imsvd,method.off_diagonal_weight=3"
    (_, candidate) = plan_shapes(
        variants=[text], lr_factors=(1,), settings=["method.off_diagonal_weight=2"]
    )
    assert candidate.jobs[0].config.method.model_dump()["off_diagonal_weight"] == 3


def test_commas_inside_a_value_belong_to_it() -> None:
    found = read_variant("wide = imsvd, method.projector=[64, 128],optimizer.betas=[0.9,0.95]")
    settings = ("method.projector=[64, 128]", "optimizer.betas=[0.9,0.95]")
    assert found == Variant("wide", "imsvd", settings)


@pytest.mark.parametrize("text", ["", "soft", "soft=imsvd", "=imsvd,method.units=8", "soft=,a=1"])
def test_what_is_no_variant_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="is not NAME=METHOD,KEY=VALUE"):
        read_variant(text)


@pytest.mark.parametrize("name", ["a|b", "[bold]", "$x$", "two words", "-a"])
def test_a_name_is_plain(name: str) -> None:
    with pytest.raises(InputError, match="is not a valid name"):
        read_variant(f"{name}=imsvd,method.units=8")


@pytest.mark.parametrize("name", ["vicreg", "untrained", "twice"])
def test_a_name_stands_for_one_thing(name: str) -> None:
    texts = ["twice=imsvd,method.units=8", f"{name}=imsvd,method.units=16"]
    with pytest.raises(InputError, match="a name that is taken"):
        choose_variants(["imsvd"], texts)


def test_all_methods_are_compared_unless_something_is_named() -> None:
    assert [variant.name for variant in choose_variants([], [])] == list(METHODS)
    (only,) = choose_variants([], ["soft=imsvd,method.units=8"])
    assert only.name == "soft"
    assert choose_variants(["byol", "byol"], []) == [Variant("byol", "byol")]


def test_phases_of_methods_keep_their_share_of_a_shorter_training() -> None:
    def phase(method: str, name: str, *settings: str) -> int:
        (_, candidate) = plan_shapes(method, lr_factors=(1,), settings=settings)
        return int(candidate.jobs[0].config.method.model_dump()[name])

    short = ("training.epochs=19", "optimizer.warmup_epochs=1")
    assert phase("la", "warmup_epochs") == 10
    assert phase("la", "warmup_epochs", *short) == 5
    assert phase("pcl", "warmup_epochs", *short) == 4
    assert phase("swav", "queue_start_epoch", *short) == 2
    assert phase("swav", "queue_start_epoch", "training.epochs=3") == 1
    assert phase("la", "warmup_epochs", *short, "method.warmup_epochs=9") == 9


def test_a_method_that_is_not_compared_decides_nothing() -> None:
    compared = choose_variants(["npid", "moco_v2"], [])
    short = ["training.epochs=5"]  # shorter than IMSVD's warm-up
    candidates = plan(
        "shapes:128", "imagenet", variants=compared, seeds=(0,), lr_factors=(1,), settings=short
    )
    assert [candidate.jobs[0].config.training.epochs for candidate in candidates] == [5, 5, 5]


def test_the_untrained_encoder_comes_first_and_once_per_seed() -> None:
    first, *_ = plan_shapes("imsvd", *OTHERS, seeds=(4, 7, 4))
    assert first.method == "untrained"
    assert [job.config.seed for job in first.jobs] == [4, 7]
    alone, *_ = plan_shapes(OTHERS[0], seeds=(4, 7))
    assert first.jobs == alone.jobs


def test_unusable_choices(command: CommandLine, tmp_path: Path) -> None:
    base = ["compare", "shapes:64", "--out", str(tmp_path / "out")]
    command.refuses([*base, "--methods", "imsvd,imsdv"], "no method 'imsdv'", "did you mean")
    command.refuses([*base, "--recipe", "cifar11"], "no recipe 'cifar11'")
    command.refuses([*base, "--seeds", "0"], "--seeds must be")
    command.refuses([*base, "--seeds", "some"], "'some' is not a list")
    command.refuses([*base, "--lr-factors", "1,-1"], "--lr-factors must be")
    command.refuses([*base, "--lr-factors", "a"], "'a' is not a list of numbers")
    command.refuses([*base, "--set", "seed=1"], "--set seed", "use --seeds")
    command.refuses([*base, "--set", "method.name=byol"], "use --methods")
    command.refuses([*base, "--variant", "soft"], "--variant 'soft' is not NAME=METHOD")
    command.refuses([*base, "--variant", "a=imsdv,method.units=8"], "no method 'imsdv'")
    command.refuses([*base, "--variant", "a=imsvd,method.unit=8"], "method.unit", "did you mean")
    command.refuses([*base, "--variant", "a=imsvd,training.epochs=8"], "cannot change training")
    command.refuses([*base, "--epochs", "1"], "warmup_epochs")
    command.refuses([*base, "--parallel", "0"], "parallel=0")
    file = tmp_path / "file"
    file.touch()
    for place in (file, file / "below"):
        command.refuses([*base[:-1], str(place)], f"{place} cannot hold runs", "another --out")
    assert not (tmp_path / "out").exists()


def test_data_without_labels_or_test_images(command: CommandLine, tmp_path: Path) -> None:
    tail = ["--out", str(tmp_path / "out")]
    write_images(tmp_path / "a" / "train", 4)
    write_images(tmp_path / "a" / "test", 4)
    command.refuses(["compare", str(tmp_path / "a"), *tail], "no labels in its train split")
    write_images(tmp_path / "b", 4, classes=2)
    command.refuses(["compare", str(tmp_path / "b"), *tail], "no test images", "train/ and test/")
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small.write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the jobs that were run, which happens in this process."""
    names: list[str] = []

    def run_here(job: Job, folder: Path, parallel: int, lock: int, place: int) -> Ended:
        names.append(job.name.rpartition("-")[0])
        try:
            worker.run_job(folder, trained=job.trained, parallel=parallel, console=QUIET)
        except InputError as error:
            (folder / "failure.txt").write_text(str(error))
            return Ended(2)
        return Ended(0)

    monkeypatch.setattr(runner, "start_child", run_here)
    return names


def compare(data: Path, out: Path, seeds: int, *settings: str) -> Comparison:
    return compare_methods(
        data,
        out,
        methods=["imsvd"],
        recipe="shapes",
        seeds=seeds,
        lr_factors=(1,),
        settings=[*small.SETTINGS, *settings],
        console=QUIET,
    )


def runs_of(out: Path) -> list[dict[str, str]]:
    with (out / "comparison.csv").open() as file:
        return list(csv.DictReader(file))


def test_more_seeds_train_only_what_is_missing(
    trained: list[str], data: Path, tmp_path: Path
) -> None:
    compare(data, tmp_path, 1)
    assert trained == ["untrained-seed0", "imsvd-lr0.003-seed0"]
    (before,) = [line for line in runs_of(tmp_path) if line["method"] == "imsvd"]
    comparison = compare(data, tmp_path, 2)
    assert trained[2:] == ["untrained-seed1", "imsvd-lr0.003-seed1"]
    # Only stability depends on the other seeds.
    _, _, after, second = runs_of(tmp_path)
    assert (before.pop("stability"), after.pop("stability")) == ("", second["stability"])
    assert float(second["stability"]) >= 0
    assert before == after
    assert [row.method for row in comparison.rows] == ["untrained", "imsvd"]
    assert all(len(row.outcomes) == 2 for row in comparison.rows)
    content = json.loads((tmp_path / "comparison.json").read_text())
    assert content["table"][1]["knn_20"]["sd"] is not None
    assert (tmp_path / "accuracy.png").stat().st_size > 10_000
    (tmp_path / "comparison.md").unlink()
    compare(data, tmp_path, 2)
    assert len(trained) == 4
    assert (tmp_path / "comparison.md").exists()


def test_a_variant_is_a_row_and_the_page_says_what_it_is(
    trained: list[str], data: Path, tmp_path: Path
) -> None:
    compare(data, tmp_path, 1)
    comparison = compare_methods(
        data,
        tmp_path,
        methods=["imsvd"],
        variants=["heavy=imsvd,method.off_diagonal_weight=3"],
        recipe="shapes",
        seeds=1,
        lr_factors=(1,),
        settings=small.SETTINGS,
        console=QUIET,
    )
    assert trained == ["untrained-seed0", "imsvd-lr0.003-seed0", "imsvd-lr0.003-seed0"]
    assert [row.method for row in comparison.rows] == ["untrained", "imsvd", "heavy"]
    page = (tmp_path / "comparison.md").read_text()
    assert "| heavy | 0.003 | 1 |" in page
    assert "heavy: imsvd with method.off_diagonal_weight=3." in page
    content = json.loads((tmp_path / "comparison.json").read_text())
    assert content["variants"] == {"heavy": ["imsvd", "method.off_diagonal_weight=3"]}


def test_two_methods_in_one_table_and_momentum_copies_are_no_heads(
    trained: list[str], data: Path, tmp_path: Path
) -> None:
    comparison = compare_methods(
        data,
        tmp_path,
        methods=["imsvd", "byol"],
        recipe="shapes",
        seeds=[3],
        lr_factors=(1,),
        epochs=2,
        settings=[part for part in small.SETTINGS if not part.startswith("method.")],
        console=QUIET,
    )
    assert len(trained) == 3
    untrained, imsvd, byol = (row.outcomes[0] for row in comparison.rows)
    assert untrained.head_parameters == 0
    # Hidden layers have a bias and a norm (3 × width), last ones neither. IMSVD: 8 → 512 → 512;
    # BYOL: 8 → 1024 → 128, and its predictor 128 → 512 → 128.
    assert imsvd.head_parameters == 8 * 512 + 3 * 512 + 512 * 512
    projector = 8 * 1024 + 3 * 1024 + 1024 * 128
    assert byol.head_parameters == projector + 128 * 512 + 3 * 512 + 512 * 128
    assert untrained.backbone_parameters == imsvd.backbone_parameters == byol.backbone_parameters


def words(data: Path, out: Path, lr_factors: str, *settings: str) -> list[str]:
    """The command line of a comparison with one seed."""
    sets = [part for setting in (*small.SETTINGS, *settings) for part in ("--set", setting)]
    what = ["compare", str(data), "--recipe", "shapes", "--methods", "imsvd", "--seeds", "1"]
    return [*what, "--lr-factors", lr_factors, "--out", str(out), *sets]


def test_a_run_that_diverges_is_a_line_in_the_table(
    trained: list[str], command: CommandLine, data: Path, tmp_path: Path
) -> None:
    assert command(words(data, tmp_path, "1e32,1", "optimizer.name=sgd")) == 1
    assert trained == ["untrained-seed0", "imsvd-lr3e+29-seed0", "imsvd-lr0.003-seed0"]
    assert "the encoder diverged" in command.out
    assert f"Plot: {tmp_path / 'accuracy.png'}" in command.out
    page = (tmp_path / "comparison.md").read_text()
    assert "| imsvd | 0.003 | 1 |" in page
    assert "Failed: imsvd, lr 3e+29, seed 0: the training features contain NaN" in page
    with (tmp_path / "comparison.csv").open() as file:
        assert [line["status"] for line in csv.DictReader(file)] == [
            "finished",
            "failed",
            "finished",
        ]


def test_no_plot_is_named_where_there_is_nothing_to_draw(
    trained: list[str], command: CommandLine, data: Path, tmp_path: Path
) -> None:
    assert command(words(data, tmp_path, "1", "training.knn_every=0")) == 0
    assert len(trained) == 2
    assert f"Table: {tmp_path / 'comparison.md'}" in command.out
    assert "Plot: " not in command.out


@pytest.fixture(scope="module")
def server() -> Iterator[GridServer]:
    server = GridServer()
    yield server
    server.close()


def wait_for_run(running: Running, out: Path, name: str, step: int) -> Path:
    """The folder of a run, when it has saved `step`."""
    while running.alive():
        found = list((out / "runs").glob(f"{name}-*"))
        if found:
            wait_for_step(running, found[0], step)
            return found[0]
        time.sleep(0.01)
    raise AssertionError(f"{name} was never begun")


def test_a_grid_that_is_killed_and_interrupted_goes_on(
    server: GridServer, data: Path, tmp_path: Path
) -> None:
    out, said = tmp_path / "out", tmp_path / "said"
    settings = [*small.SETTINGS, "training.epochs=12", "training.knn_every=0"]
    command = ["compare", str(data), "--recipe", "shapes", "--methods", "imsvd", "--seeds", "2"]
    command += ["--lr-factors", "1", "--out", str(out)]
    command += [part for setting in settings for part in ("--set", setting)]

    running = server(command, said)
    first = wait_for_run(running, out, "imsvd-lr0.003-seed0", 4)
    running.send(signal.SIGKILL)
    assert running.wait() == -signal.SIGKILL
    assert len((out / "comparison.csv").read_text().splitlines()) == 5
    untrained = next((out / "runs").glob("untrained-seed0-*")) / "outcome.json"
    written = untrained.stat().st_mtime_ns

    running = server(command, said)
    second = wait_for_run(running, out, "imsvd-lr0.003-seed1", 4)
    # The run that was at work when the grid was killed noticed, saved, and was then finished.
    assert "Stopped and saved at step" in (first / "output.txt").read_text()
    assert (first / "outcome.json").exists()
    running.send(signal.SIGINT)
    assert running.wait() == 130
    assert "Stopped and saved at step" in (second / "output.txt").read_text()
    assert "run the same command to resume" in said.read_text()
    assert "3 of 4 runs are finished" in (out / "comparison.md").read_text()

    assert server(command, said).wait() == 0
    assert "Traceback" not in said.read_text()
    with (out / "comparison.csv").open() as file:
        assert {line["status"] for line in csv.DictReader(file)} == {"finished"}
    assert untrained.stat().st_mtime_ns == written
    for run in (first, second):
        epochs = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        assert [record["epoch"] for record in epochs] == list(range(1, 13))
