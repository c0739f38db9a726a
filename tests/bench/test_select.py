import json
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from imsvd.bench import select as bench
from imsvd.bench.select import RULES, Pool
from imsvd.encoder import load
from imsvd.errors import InputError
from imsvd.evaluation.features import Features, FeatureSplits
from tests.evaluation.labeled import shapes


@pytest.mark.parametrize("rule", list(RULES))
def test_rules_choose_different_images_by_seed(rule: str) -> None:
    random = np.random.default_rng(0)
    features = random.normal(size=(60, 4)).astype(np.float32)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    pool = Pool(random.integers(0, 4, (60, 5)).astype(np.uint16), features, (4,) * 5)
    chosen = RULES[rule][1](pool, 12, 0)
    assert len(set(chosen.tolist())) == 12
    assert chosen.max() < 60


def test_centers_are_far_from_each_other() -> None:
    features = np.eye(3, dtype=np.float32).repeat(20, axis=0)
    pool = Pool(features.argmax(1)[:, None].astype(np.uint16), features, (3,))
    for rule in ("feature-centers", "code-centers"):
        chosen = RULES[rule][1](pool, 3, 0)
        assert sorted(features[chosen].argmax(1)) == [0, 1, 2]


def test_a_rule_that_covers_all_classes_is_above_a_random_draw() -> None:
    random = np.random.default_rng(0)
    labels = torch.arange(10).repeat(40)
    means = random.normal(size=(10, 16))
    features = torch.from_numpy(means[labels] + 0.05 * random.normal(size=(400, 16))).float()
    codes = np.stack([labels % 2, labels // 2 % 2, labels // 4], axis=1).astype(np.uint16)
    found = Features(features, labels, {})
    rows = bench.compare_rules(
        FeatureSplits(found, found), codes, (2, 2, 3), (10,), 3, Console(quiet=True)
    )
    accuracy = {row["rule"]: np.mean(row["top1"]) for row in rows}
    assert accuracy["ours"] == 100
    assert accuracy["random"] < 90
    table = bench._table(rows, 10)
    assert [line[0] for line in table[1:]] == [label for label, _ in RULES.values()]
    deviation = np.std(rows[0]["top1"], ddof=1)
    assert table[2][3] == f"{(100 - accuracy['random']) / deviation:+.1f}"


def test_results_are_written(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    splits, encoder = shapes(), load(trained)

    def encoded(*_: object) -> FeatureSplits:
        found = []
        for source in (splits.train, splits.test):
            images = torch.stack([source.read(index) for index in range(len(source))])
            with torch.no_grad():
                found.append(Features(encoder.features(images), source.labels, {}))
        return FeatureSplits(*found)

    monkeypatch.setattr(bench, "encode_splits", encoded)
    monkeypatch.setattr(bench, "linear_probe", lambda *_: {"linear_probe_top1": 50.0})
    out = tmp_path / "select"
    rows = bench.run(trained, "shapes", (20,), 2, Console(quiet=True), out)
    assert [len(row["top1"]) for row in rows] == [2] * len(RULES)
    assert json.loads(out.with_suffix(".json").read_text())["rows"] == rows
    assert "Linear probe on 20 labels" in out.with_suffix(".md").read_text()


def test_one_seed_has_no_spread(trained: Path) -> None:
    with pytest.raises(InputError, match="at least 2"):
        bench.run(trained, "shapes", seeds=1)
