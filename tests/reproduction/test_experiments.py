"""That the experiments are the paper's: every number has its place, every run its setting."""

import pytest

from imsvd.config import Config, override
from imsvd.errors import InputError
from imsvd.explanations.parts import PARTS
from imsvd.grid.jobs import Job, unique
from imsvd.methods import METHODS
from imsvd.paper_numbers import paper_tables
from imsvd.pretraining.pretrain import configure
from imsvd.recipes import recipe
from imsvd.reproduction.experiment import RECIPES, Cell, Experiment, PaperTraining, Setup
from imsvd.reproduction.experiments import ABLATIONS, EXPERIMENTS, OUR_NAMES, find_experiments

FULL = Setup("full", "imagenet")
CPU = Setup("cpu", "shapes:640", (0, 1))


def cells(name: str, setup: Setup) -> dict[tuple[str, str], Cell]:
    return {(cell.row, cell.column): cell for cell in EXPERIMENTS[name].cells(setup)}


def config(name: str, row: str, column: str, setup: Setup = FULL) -> Config:
    return cells(name, setup)[row, column].jobs[0].config


def test_every_number_of_the_paper_is_in_one_experiment() -> None:
    places = [
        value.place
        for experiment in EXPERIMENTS.values()
        for value in experiment.values
        if value.place is not None
    ]
    assert len(set(places)) == len(places)
    assert set(places) == {
        (name, row, column)
        for name, table in paper_tables().items()
        for row, columns in table.rows.items()
        for column in columns
    }
    for experiment in EXPERIMENTS.values():
        assert len(cells(experiment.name, FULL)) == len(experiment.values), experiment.name


def test_nine_tables_and_four_figures() -> None:
    figures = [experiment for experiment in EXPERIMENTS.values() if experiment.part]
    assert len(EXPERIMENTS) - len(figures) == 9
    assert [figure.part for figure in figures] == [
        "joint",
        "embeddings",
        "galleries",
        "grad_cam",
    ]
    assert all(figure.part in PARTS for figure in figures)
    assert set(ABLATIONS) < set(EXPERIMENTS)
    assert set(OUR_NAMES.values()) <= set(METHODS)


def projector(config: Config) -> tuple[int, ...]:
    return tuple(config.method.model_dump()["projector"])


def test_the_papers_values_at_full_scale() -> None:
    base = recipe("imagenet")
    for name, row, column in (
        ("methods", "IMSVD", "100"),
        ("batch-size", "IMSVD", "2048"),
        ("projector-depth", "top-1", "2"),
        ("width", "IMSVD", "8192"),
        ("loss-terms", "top-1", "DE+OE+TI"),
        ("units", "top-1", "80"),
    ):
        assert config(name, row, column) == base, name
    assert config("methods", "IMSVD", "1000").training.epochs == 1000
    assert config("batch-size", "SimSiam", "4096").training.batch_size == 4096
    assert projector(config("projector-depth", "hours", "4")) == (8192, 8192, 8192, 8160)
    assert projector(config("width", "IMSVD", "16384")) == (8192, 16320)
    assert projector(config("width", "VICReg", "1024")) == (1024, 1024, 1024)
    assert cells("width", FULL)["IMSVD", "16384"].paper == 69.1
    long = config("methods", "VICReg", "1000")
    assert (long.training.batch_size, long.optimizer.lr) == (2048, 0.2)


@pytest.mark.parametrize(
    ("units", "width"), [("32", 8160), ("64", 8192), ("80", 8160), ("96", 8160), ("128", 8192)]
)
def test_units_divide_the_width_nearest_to_the_papers(units: str, width: int) -> None:
    method = config("units", "top-1", units).method.model_dump()
    assert (method["units"], method["projector"]) == (int(units), (8192, width))


@pytest.mark.parametrize("setup", [FULL, CPU], ids=["full", "cpu"])
def test_the_terms_of_the_loss(setup: Setup) -> None:
    def terms(column: str) -> tuple[object, ...]:
        method = config("loss-terms", "top-1", column, setup).method.model_dump()
        weights = (method[f"{name}_weight"] for name in ("invariance", "diagonal", "off_diagonal"))
        return (*weights, method["invariance"])

    assert terms("DE+OE") == (0, 1, 1, "inner_product")
    assert terms("OE+TI") == (1, 0, 1, "inner_product")
    assert terms("DE+OE+TIC") == (1, 1, 1, "cross_entropy")
    assert terms("DE+OE+TI") == (1, 1, 1, "inner_product")


@pytest.mark.parametrize(("hundred", "phase"), [(4, 4), (10, 11), (25, 26)])
def test_phases_keep_their_share_at_cpu_scale_however_long(hundred: int, phase: int) -> None:
    setup = CPU._replace(epochs=hundred)
    assert config("knn", "LA", "200", setup).method.model_dump()["warmup_epochs"] == phase


def test_proportions_at_cpu_scale() -> None:
    base = config("loss-terms", "top-1", "DE+OE+TI", CPU)
    recipe_here = recipe("cifar10-cpu")
    published = override(recipe_here, recipe_here.method.published_form)
    assert (published.method.model_dump()["joint"], published.code) == ("cross", None)
    assert (base.backbone, base.views) == (recipe_here.backbone, recipe_here.views)
    assert (base.method, base.code) == (published.method, None)
    assert base.peak_lr == published.peak_lr == 0.003
    assert base.training.epochs == 4
    assert base.optimizer.warmup_epochs == pytest.approx(0.4)
    for name, row, column in (
        ("batch-size", "IMSVD", "1024"),
        ("projector-depth", "memory", "2"),
        ("width", "hours", "8192"),
        ("units", "top-5", "80"),
        ("methods", "IMSVD", "100"),
    ):
        assert config(name, row, column, CPU) == base, name
    small = config("batch-size", "VICReg", "512", CPU)
    assert small.training.batch_size == 64
    assert small.optimizer.lr == pytest.approx(2e-3 / 2**0.5, rel=1e-3)
    assert projector(config("width", "VICReg", "16384", CPU)) == (2048, 2048)
    assert projector(config("width", "IMSVD", "1024", CPU)) == (1024, 128)
    longer = config("methods", "SwAV", "400", CPU._replace(epochs=10))
    assert longer.training.epochs == 40
    assert longer.optimizer.warmup_epochs == 1
    assert longer.method.model_dump()["queue_start_epoch"] == 4
    assert config("knn", "LA", "200", CPU).method.model_dump()["warmup_epochs"] == 4


def test_what_is_left_out_at_cpu_scale() -> None:
    assert {column for _, column in cells("methods", CPU)} == {"100", "200", "300", "400"}
    assert {row for row, _ in cells("transfer", CPU)} == {
        "IMSVD",
        "Barlow Twins",
        "SwAV",
        "MoCo v2",
    }
    supervised = cells("transfer", FULL)["Supervised", "VOC07 mAP"]
    assert (supervised.runs, supervised.published) == ((), "torchvision:resnet50")


def test_a_run_that_several_experiments_need_is_one_job() -> None:
    ablations = [EXPERIMENTS[name] for name in ABLATIONS]
    jobs = [job for experiment in ablations for job in experiment.jobs(CPU)]
    assert len(jobs) == 68
    # IMSVD's own settings are in all five tables, VICReg's in two; two seeds each.
    assert len(unique(jobs)) == 68 - 2 * (4 + 1)
    assert len(EXPERIMENTS["grad-cam"].jobs(CPU)) == 1
    assert set(EXPERIMENTS["cost"].jobs(CPU)) < set(EXPERIMENTS["knn"].jobs(CPU))


def test_labels_tell_runs_apart_without_making_them_different() -> None:
    titles = [job.title for job in EXPERIMENTS["units"].jobs(CPU)]
    assert len(set(titles)) == 10
    assert "units 32, seed 1" in titles[5]
    job = EXPERIMENTS["units"].jobs(CPU)[0]
    assert Job(job.config) == job


@pytest.mark.parametrize("setup", [FULL, CPU], ids=["full", "cpu"])
def test_a_run_says_how_a_command_line_gets_its_configuration(setup: Setup) -> None:
    experiments: list[Experiment] = [EXPERIMENTS["width"], EXPERIMENTS["knn"]]
    for run in (run for experiment in experiments for run in experiment.runs(setup)):
        configured = configure(
            setup.data, recipe_name=RECIPES[setup.budget], method=run.method, settings=run.settings
        )
        assert configured == run.job.config


def test_overrides_reach_every_run() -> None:
    setup = CPU._replace(settings=("training.batch_size=16", "compute.workers=0"))
    configs = [job.config for job in EXPERIMENTS["batch-size"].jobs(setup)]
    assert {config.training.batch_size for config in configs} == {16}
    assert {config.compute.workers for config in configs} == {0}


def test_one_epoch_is_the_least() -> None:
    run = PaperTraining("imsvd", 20).run(CPU._replace(epochs=1), seed=3)
    assert (run.job.epochs, run.job.config.seed) == (1, 3)


def test_names() -> None:
    assert find_experiments(["width", "knn", "width"]) == [EXPERIMENTS["width"], EXPERIMENTS["knn"]]
    assert find_experiments(["all"]) == list(EXPERIMENTS.values())
    with pytest.raises(InputError, match=r"no experiment 'unit'; did you mean 'units'\?"):
        find_experiments(["unit"])
