"""Tables V to IX: one setting of IMSVD changed at a time."""

from __future__ import annotations

from imsvd.paper_numbers import paper_tables
from imsvd.reproduction.experiment import MEMORY, TIME, TOP1, TOP5, Entry, Experiment, Place
from imsvd.reproduction.variants import OUR_NAMES, Variant


def batch_size() -> Experiment:
    """Table V: images per step."""
    entries = []
    for method, columns in paper_tables()["batch-size"].rows.items():
        for column in columns:
            batch = int(column) // 8
            # AdamW's rate goes with the root of the batch; that of the paper's LARS with the batch.
            base = 3e-3 if method == "IMSVD" else 2e-3
            rate = float(f"{base * (batch / 128) ** 0.5:.4g}")
            variant = Variant(
                OUR_NAMES[method],
                full=(f"training.batch_size={column}",),
                cpu=(f"training.batch_size={batch}", f"optimizer.lr={rate:g}"),
            )
            place = Place("batch-size", method, column)
            entries.append(Entry(method, column, TOP1, variant, place, f"batch {batch}"))
    return Experiment(
        "batch-size",
        "Table V",
        "Batches of 512 to 4096 images: IMSVD is ahead of VICReg and SimSiam with every one.",
        tuple(entries),
        compares=("rows", "columns"),
        axis="batch size",
        notes={
            "full": ("The learning rate of every recipe is multiplied by batch / 256.",),
            "cpu": (
                "Batches are an eighth of the paper's, which leaves about as many images for a cell "
                "of the joint matrix (D_M is 32, not 80). Learning rates go with the root of the batch.",
            ),
        },
    )


def projector_depth() -> Experiment:
    """Table VI: layers of the projector."""
    quantities = {"top-1": TOP1, "top-5": TOP5, "hours": TIME, "memory": MEMORY}
    return Experiment(
        "projector-depth",
        "Table VI",
        "A projector of two layers is best for IMSVD, and cheapest.",
        tuple(
            Entry(
                row,
                column,
                quantities[row],
                Variant(
                    "imsvd",
                    full=(_layers(*[8192] * (int(column) - 1), 8160),),
                    cpu=(_layers(*[1024] * int(column)),),
                ),
                Place("projector-depth", row, column),
                f"{column} layers",
            )
            for row, columns in paper_tables()["projector-depth"].rows.items()
            for column in columns
        ),
        compares=("columns",),
        axis="layers",
    )


def width() -> Experiment:
    """Table VII: width of the embedding."""
    rows = paper_tables()["width"].rows
    entries = []
    for row, quantity in {"VICReg": TOP1, "IMSVD": TOP1, "hours": TIME, "memory": MEMORY}.items():
        for column, vicreg_width in zip(rows[row], rows["VICReg"], strict=True):
            cpu_width = int(vicreg_width) // 8
            if row == "VICReg":
                variant = Variant(
                    "vicreg",
                    full=(_layers(*[int(column)] * 3), "training.batch_size=2048"),
                    cpu=(_layers(cpu_width, cpu_width),),
                )
            else:
                variant = Variant(
                    "imsvd",
                    full=(_layers(8192, int(column)),),
                    cpu=(_layers(1024, cpu_width),),
                )
            place = Place("width", row, column)
            entries.append(Entry(row, vicreg_width, quantity, variant, place, f"D {cpu_width}"))
    return Experiment(
        "width",
        "Table VII",
        "Wider embeddings: IMSVD is ahead of VICReg at every width, and needs less of it.",
        tuple(entries),
        compares=("rows", "columns"),
        axis="width D",
        notes={
            "full": (
                "Columns are named by VICReg's width; IMSVD's is 960, 2000, 4080, 8160 and 16320. "
                "The paper does not give the hidden layers: IMSVD's keeps 8192, VICReg's are as "
                "wide as its embedding. VICReg has batches of 2048, as in Table V.",
            ),
            "cpu": (
                "Widths are an eighth of VICReg's, the same for both methods; D_M stays 32. Time "
                "and memory are IMSVD's.",
            ),
        },
    )


def loss_terms() -> Experiment:
    """Table VIII: terms of the loss."""
    changes = {
        "DE+OE": ("method.invariance_weight=0",),
        "OE+TI": ("method.diagonal_weight=0",),
        "DE+OE+TIC": ("method.invariance=cross_entropy",),
        "DE+OE+TI": (),
    }
    quantities = {"top-1": TOP1, "top-5": TOP5}
    return Experiment(
        "loss-terms",
        "Table VIII",
        "Every term of the loss is needed, and the inner product (TI) is better than TIC.",
        tuple(
            Entry(
                row,
                column,
                quantities[row],
                Variant("imsvd", full=changes[column], cpu=changes[column]),
                Place("loss-terms", row, column),
            )
            for row, columns in paper_tables()["loss-terms"].rows.items()
            for column in columns
        ),
        compares=("columns",),
        axis="terms",
    )


UNITS_AT_CPU = {"32": 8, "64": 16, "80": 32, "96": 64, "128": 128}
"""Units of a variable at CPU scale for the paper's; each recipe's own stands in the middle."""


def units() -> Experiment:
    """Table IX: units of a variable."""
    quantities = {"top-1": TOP1, "top-5": TOP5}
    entries = []
    for row, columns in paper_tables()["units"].rows.items():
        for column in columns:
            # 8160 is no multiple of 64 or 128: the nearest width that is one, the larger of two.
            width = int(8160 / int(column) + 0.5) * int(column)
            full = (_layers(8192, width), f"method.units={column}")
            variant = Variant("imsvd", full=full, cpu=(f"method.units={UNITS_AT_CPU[column]}",))
            place = Place("units", row, column)
            setting = f"D_M {UNITS_AT_CPU[column]}"
            entries.append(Entry(row, column, quantities[row], variant, place, setting))
    return Experiment(
        "units",
        "Table IX",
        "Units of a variable: 80 are best, and 64 to 96 hardly worse.",
        tuple(entries),
        compares=("columns",),
        axis="units D_M",
        notes={
            "full": (
                "The embedding is 8160 wide, and 8192 with 64 or 128 units, which must divide it.",
            ),
            "cpu": (
                "The embedding stays 1024 wide; units go from 8 to 128 around the recipe's 32.",
            ),
        },
    )


def _layers(*widths: int) -> str:
    return f"method.projector=[{', '.join(str(width) for width in widths)}]"
