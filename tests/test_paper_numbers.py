from imsvd.methods import METHODS
from imsvd.paper_numbers import paper_tables, reported


def test_known_cells() -> None:
    for table, row, column, value, source in (
        ("linear", "IMSVD", "1000", 73.6, "Table I"),
        ("linear", "VICReg", "300", 71.2, "Table I"),
        ("knn", "NPID", "200", 46.5, "Table II"),
        ("coco", "IMSVD", "APmk75", 36.6, "Table III"),
        ("cost", "BYOL", "memory", 14.6, "Table IV"),
        ("batch-size", "IMSVD", "512", 68.3, "Table V"),
        ("projector-depth", "top-1", "4", 67.9, "Table VI"),
        ("width", "IMSVD", "960", 64.1, "Table VII"),
        ("loss-terms", "top-1", "DE+OE+TIC", 68.3, "Table VIII"),
        ("units", "top-5", "32", 88.5, "Table IX"),
    ):
        found = paper_tables()[table]
        assert (found.rows[row][column], found.source) == (value, source)


def test_the_tables_agree_where_they_report_the_same_training() -> None:
    rows = {name: table.rows for name, table in paper_tables().items()}
    best = rows["linear"]["IMSVD"]["100"]
    assert best == rows["batch-size"]["IMSVD"]["2048"] == rows["projector-depth"]["top-1"]["2"]
    assert best == rows["width"]["IMSVD"]["8160"] == rows["units"]["top-1"]["80"]
    assert best == rows["loss-terms"]["top-1"]["DE+OE+TI"]
    for method, cells in rows["cost"].items():
        assert cells["top-1"] in rows["linear"][method].values()


def test_a_number_is_found_by_our_names() -> None:
    assert reported("linear", "imsvd", 100, "linear_top1") == 69.4
    assert reported("linear", "barlow_twins", 1000, "linear_top1") == 73.2
    assert reported("linear", "simclr", 1000, "linear_top1") is None
    assert reported("linear", "imsvd", 100, "linear_top5") is None
    assert reported("linear", "imsvd", 150, "linear_top1") is None
    assert reported("linear-probe", "imsvd", 100, "linear_probe_top1") is None
    assert reported("knn", "imsvd", 1000, "knn_200") == 64.9
    assert reported("knn", "imsvd", 100, "knn_200") is None
    assert reported("knn", "byol", 1000, "knn_200") is None  # its epochs are not known


def test_methods_of_ours_that_the_paper_has_are_found() -> None:
    rows = paper_tables()["linear"].rows
    plain = {name.lower().replace(" ", "") for name in rows}
    known = {name.replace("_", "") for name in METHODS}
    assert {"imsvd", "simclr", "byol", "vicreg", "barlowtwins"} <= plain & known
