"""Tables I to IV: methods against each other, in accuracy, on other tasks and in cost."""

from __future__ import annotations

from typing import Literal

from imsvd.paper_numbers import paper_tables
from imsvd.reproduction.experiment import MEMORY, TIME, TOP1, Entry, Experiment, Measure, Place
from imsvd.reproduction.variants import LONGEST_AT_CPU, OUR_NAMES, Variant

VICREG_LONG = ("training.batch_size=2048", "optimizer.lr=0.2")
"""Its authors' settings for 1000 epochs; the recipe has those for 100."""


def _pretrained(method: str, epochs: int) -> Variant:
    """A method as Table I trains it."""
    is_long_vicreg = method == "VICReg" and epochs > 100
    return Variant(OUR_NAMES[method], epochs, full=VICREG_LONG if is_long_vicreg else ())


def longest(method: str) -> Variant:
    """A method after the longest training that Table I has of it; 200 epochs if it has none."""
    lengths = paper_tables()["linear"].rows.get(method, {"200": 0.0})
    variant = _pretrained(method, max(int(epochs) for epochs in lengths))
    return variant._replace(cpu_epochs=LONGEST_AT_CPU)


def methods() -> Experiment:
    """Table I: accuracy by epochs, method by method."""
    rows = paper_tables()["linear"].rows
    return Experiment(
        "methods",
        "Table I",
        "Linear classification after more and more epochs: IMSVD is ahead of Barlow Twins and VICReg.",
        tuple(
            Entry(
                method,
                column,
                TOP1,
                _pretrained(method, int(column)),
                Place("linear", method, column),
                "{epochs} epochs",
                scales=("full", "cpu") if int(column) <= LONGEST_AT_CPU else ("full",),
            )
            for method, columns in rows.items()
            for column in columns
        ),
        compares=("rows",),
        axis="epochs",
        notes={
            "full": (
                "Every method has its recipe's batch and optimizer; VICReg beyond 100 epochs those "
                "that its authors give for 1000.",
            ),
            "cpu": (
                "All methods: the same images, views, backbone and batch. The columns of 800 and "
                "1000 epochs are left out.",
            ),
        },
    )


def nearest_neighbors() -> Experiment:
    """Table II: accuracy of nearest neighbors."""
    return Experiment(
        "knn",
        "Table II",
        "Classification by the nearest neighbors: IMSVD is best with 20, and with 200 as good as BYOL.",
        tuple(
            Entry(
                method,
                column,
                {
                    "full": Measure("knn", f"knn_{column}", f"kNN-{column}, %"),
                    "cpu": Measure("grid", f"knn_{column}", f"kNN-{column}, %"),
                },
                longest(method),
                Place("knn", method, column),
            )
            for method, columns in paper_tables()["knn"].rows.items()
            for column in columns
        ),
        compares=("rows",),
        axis="neighbors",
        notes={
            "full": (
                "The paper does not say how long these were trained: the longest of Table I is "
                "taken, and 200 epochs for methods that it does not have.",
            ),
            "cpu": ("All methods are trained equally long, for what stands for 400 epochs.",),
        },
    )


TRANSFER_COLUMNS = {
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
SUPERVISED = "torchvision:resnet50"
TRANSFERRED_AT_CPU = ("IMSVD", "Barlow Twins", "SwAV", "MoCo v2")


def _transfer_entries(table: Literal["coco", "voc07", "places205"]) -> list[Entry]:
    titles = {"mAP": "VOC07 mAP", "top-1": "Places205 top-1"}
    entries = []
    for method, columns in paper_tables()[table].rows.items():
        for column in columns:
            title = titles.get(column, column)
            measure = Measure(table, TRANSFER_COLUMNS[table][column], title)
            entries.append(
                Entry(
                    method,
                    title,
                    {"full": measure, "cpu": measure},
                    None if method == "Supervised" else longest(method),
                    Place(table, method, column),
                    scales=("full", "cpu") if method in TRANSFERRED_AT_CPU else ("full",),
                    pretrained=SUPERVISED if method == "Supervised" else "",
                )
            )
    return entries


def transfer() -> Experiment:
    """Table III: other tasks with the same encoders."""
    return Experiment(
        "transfer",
        "Table III",
        "Other tasks with the same encoders: IMSVD is level in detection, and ahead in classification.",
        (*_transfer_entries("coco"), *_transfer_entries("voc07"), *_transfer_entries("places205")),
        compares=("rows",),
        axis="task",
        notes={
            "full": (
                f"The paper does not say how long these were trained: the longest of Table I is "
                f"taken. Supervised is {SUPERVISED}, which is not pretrained here.",
            ),
            "cpu": (
                "The built-in scenes stand for VOC 2007 and COCO, and the classes of the training "
                "images for those of Places205, unless these are given. The protocols are the "
                "paper's; the detector is small.",
            ),
        },
    )


def cost() -> Experiment:
    """Table IV: time and memory of training."""
    quantities = {"hours": TIME, "memory": MEMORY, "top-1": TOP1}
    return Experiment(
        "cost",
        "Table IV",
        "Time and memory of training: IMSVD needs less than VICReg and Barlow Twins.",
        tuple(
            Entry(
                method, column, quantities[column], longest(method), Place("cost", method, column)
            )
            for method, columns in paper_tables()["cost"].rows.items()
            for column in columns
        ),
        compares=("rows",),
        axis="measure",
        notes={
            "cpu": (
                "Time and memory are those of the recipes at this scale, whose heads are small: "
                "the backbone is most of them.",
            ),
        },
    )
