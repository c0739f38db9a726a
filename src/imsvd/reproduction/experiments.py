"""The paper's tables and figures as experiments; `EXPERIMENTS` is the complete list.

Here is what each table varies; experiments.yaml describes them in words, and paper_numbers.yaml has
their numbers.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import Any

import yaml

from imsvd.errors import InputError
from imsvd.paper_numbers import paper_tables
from imsvd.reproduction.experiment import (
    FIGURE,
    LONGEST_AT_CPU,
    MEMORY,
    TIME,
    TOP1,
    TOP5,
    Budget,
    Experiment,
    Measure,
    PaperTraining,
    PaperValue,
    Quantity,
    ValueSource,
)

OUR_NAMES = {
    "SimCLR": "simclr",
    "MoCo v2": "moco_v2",
    "BYOL": "byol",
    "SwAV": "swav",
    "SimSiam": "simsiam",
    "DISSL": "dissl",
    "CorInfoMax": "corinfomax",
    "Barlow Twins": "barlow_twins",
    "VICReg": "vicreg",
    "IMSVD": "imsvd",
    "NPID": "npid",
    "LA": "la",
    "PCL": "pcl",
}
"""Our name of each method in the paper."""

QUANTITIES = {"top-1": TOP1, "top-5": TOP5, "hours": TIME, "memory": MEMORY}
"""What rows or columns with these names show; all others show top-1."""
BOTH: tuple[Budget, ...] = ("full", "cpu")
SUPERVISED = "torchvision:resnet50"
TRANSFERRED_AT_CPU = ("IMSVD", "Barlow Twins", "SwAV", "MoCo v2")
TRANSFER_METRICS: dict[ValueSource, dict[str, str]] = {
    "coco": {
        "APbb": "coco_box_ap",
        "APbb50": "coco_box_ap50",
        "APbb75": "coco_box_ap75",
        "APmk": "coco_mask_ap",
        "APmk50": "coco_mask_ap50",
        "APmk75": "coco_mask_ap75",
    },
    "voc07": {"mAP": "voc07_map"},
    "places205": {"top-1": "places205_top1"},
}
TRANSFER_TITLES = {"mAP": "VOC07 mAP", "top-1": "Places205 top-1"}
LOSS_TERMS: dict[str, tuple[str, ...]] = {
    "DE+OE": ("method.invariance_weight=0",),
    "OE+TI": ("method.diagonal_weight=0",),
    "DE+OE+TIC": ("method.invariance=cross_entropy",),
    "DE+OE+TI": (),
}
CPU_UNITS = {"32": 8, "64": 16, "80": 32, "96": 64, "128": 128}
"""Units per variable at the CPU budget; each recipe's own value is in the middle."""


def _pretraining(method: str, epochs: int) -> PaperTraining:
    """A method trained as in Table I."""
    # The recipe has VICReg's settings for 100 epochs; these are its authors' for 1000.
    long_vicreg = method == "VICReg" and epochs > 100
    changes = ("training.batch_size=2048", "optimizer.lr=0.2") if long_vicreg else ()
    return PaperTraining(OUR_NAMES[method], epochs, full=changes)


def longest(method: str) -> PaperTraining:
    """Return the longest training of a method in Table I; 200 epochs for methods not in it."""
    lengths = paper_tables()["linear"].rows.get(method, {"200": 0.0})
    training = _pretraining(method, max(map(int, lengths)))
    return training._replace(cpu_epochs=LONGEST_AT_CPU)


def _batch_size(method: str, column: str) -> PaperTraining:
    batch = int(column) // 8
    # AdamW's learning rate scales with the square root of the batch, the paper's LARS linearly.
    rate = (3e-3 if method == "IMSVD" else 2e-3) * (batch / 128) ** 0.5
    return PaperTraining(
        OUR_NAMES[method],
        full=(f"training.batch_size={column}",),
        cpu=(f"training.batch_size={batch}", f"optimizer.lr={float(f'{rate:.4g}'):g}"),
    )


def _depth(_: str, column: str) -> PaperTraining:
    depth = int(column)
    return PaperTraining(
        "imsvd", full=(_layers(*[8192] * (depth - 1), 8160),), cpu=(_layers(*[1024] * depth),)
    )


def _units(_: str, column: str) -> PaperTraining:
    # 64 and 128 do not divide 8160: use the nearest multiple, the larger of two.
    width = int(8160 / int(column) + 0.5) * int(column)
    full = (_layers(8192, width), f"method.units={column}")
    return PaperTraining("imsvd", full=full, cpu=(f"method.units={CPU_UNITS[column]}",))


def _layers(*widths: int) -> str:
    return f"method.projector=[{', '.join(map(str, widths))}]"


def _width_values() -> list[PaperValue]:
    """Values of Table VII, whose columns are named by VICReg's width."""
    rows = paper_tables()["width"].rows
    values = []
    for row, quantity in {"VICReg": TOP1, "IMSVD": TOP1, "hours": TIME, "memory": MEMORY}.items():
        for column, vicreg_width in zip(rows[row], rows["VICReg"], strict=True):
            own, small = int(column), int(vicreg_width) // 8
            training = PaperTraining(
                "imsvd", full=(_layers(8192, own),), cpu=(_layers(1024, small),)
            )
            if row == "VICReg":
                full = (_layers(own, own, own), "training.batch_size=2048")
                training = PaperTraining("vicreg", full=full, cpu=(_layers(small, small),))
            place = ("width", row, column)
            values.append(PaperValue(row, vicreg_width, quantity, training, place, f"D {small}"))
    return values


def _transfer_values() -> list[PaperValue]:
    """Values of Table III, whose tasks are three tables of paper_numbers.yaml."""
    values = []
    for protocol, metrics in TRANSFER_METRICS.items():
        for method, columns in paper_tables()[protocol].rows.items():
            for column in columns:
                title = TRANSFER_TITLES.get(column, column)
                measure = Measure(protocol, metrics[column], title)
                supervised = method == "Supervised"
                value = PaperValue(
                    method,
                    title,
                    {"full": measure, "cpu": measure},
                    None if supervised else longest(method),
                    (protocol, method, column),
                    budgets=BOTH if method in TRANSFERRED_AT_CPU else ("full",),
                    published=SUPERVISED if supervised else "",
                )
                values.append(value)
    return values


def _knn(_: str, column: str) -> Quantity:
    name, title = f"knn_{column}", f"kNN-{column}, %"
    return {"full": Measure("knn", name, title), "cpu": Measure("grid", name, title)}


def _values(
    table: str,
    training: Callable[[str, str], PaperTraining],
    cpu_setting: Callable[[str], str] = lambda _: "",
    quantity: Callable[[str, str], Quantity] = lambda row, column: QUANTITIES.get(
        row, QUANTITIES.get(column, TOP1)
    ),
) -> list[PaperValue]:
    """Return one value per number of a table; the functions take its row and column."""
    return [
        PaperValue(
            row,
            column,
            quantity(row, column),
            training(row, column),
            (table, row, column),
            cpu_setting(column),
        )
        for row, columns in paper_tables()[table].rows.items()
        for column in columns
    ]


VALUES: dict[str, list[PaperValue]] = {
    "methods": [
        value._replace(budgets=BOTH if int(value.column) <= LONGEST_AT_CPU else ("full",))
        for value in _values(
            "linear", lambda m, c: _pretraining(m, int(c)), lambda _: "{epochs} epochs"
        )
    ],
    "knn": _values("knn", lambda method, _: longest(method), quantity=_knn),
    "transfer": _transfer_values(),
    "cost": _values("cost", lambda method, _: longest(method)),
    "batch-size": _values("batch-size", _batch_size, lambda c: f"batch {int(c) // 8}"),
    "projector-depth": _values("projector-depth", _depth, lambda c: f"{c} layers"),
    "width": _width_values(),
    "loss-terms": _values(
        "loss-terms", lambda _, c: PaperTraining("imsvd", 100, LOSS_TERMS[c], LOSS_TERMS[c])
    ),
    "units": _values("units", _units, lambda c: f"D_M {CPU_UNITS[c]}"),
}
ABLATIONS = ("batch-size", "projector-depth", "width", "loss-terms", "units")


def _experiment(name: str, words: dict[str, Any]) -> Experiment:
    figure = PaperValue(
        "IMSVD", words.get("part", ""), {"full": FIGURE, "cpu": FIGURE}, longest("IMSVD")
    )
    return Experiment(name=name, values=tuple(VALUES.get(name, [figure])), **words)


EXPERIMENTS: dict[str, Experiment] = {
    name: _experiment(name, words)
    for name, words in yaml.safe_load(
        files("imsvd.reproduction").joinpath("experiments.yaml").read_text(encoding="utf-8")
    ).items()
}


def find_experiments(names: Sequence[str]) -> list[Experiment]:
    """Return the named experiments; "all" returns every one."""
    if "all" in names:
        return list(EXPERIMENTS.values())
    for name in names:
        if name not in EXPERIMENTS:
            close = difflib.get_close_matches(name, EXPERIMENTS, n=1)
            hint = f"did you mean {close[0]!r}? " if close else ""
            raise InputError(
                f"there is no experiment {name!r}; {hint}Experiments: {', '.join(EXPERIMENTS)}, all."
            )
    return [EXPERIMENTS[name] for name in dict.fromkeys(names)]
