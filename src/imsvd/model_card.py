"""The model card of an encoder: what it is, how it was trained and what was measured, from its run folder.

A card contains nothing that the run did not record. Of paths it has only the last part, because folders of
one machine say nothing to others and may be private.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import yaml

from imsvd.config import Config
from imsvd.runs import RunFolder, read_results

LIBRARY, PIPELINE = "imsvd", "image-feature-extraction"
TAGS = ("imsvd", "self-supervised-learning", "discrete-codes", "feature-extraction")
PAPER = "https://arxiv.org/abs/2501.03469"
CITATION = """@article{niu2025imsvd,
  title={Information-Maximized Soft Variable Discretization for Self-Supervised Image Representation Learning},
  author={Niu, Chuang and Xia, Wenjun and Shan, Hongming and Wang, Ge},
  journal={arXiv preprint arXiv:2501.03469},
  year={2025}
}"""
_FOLDERS = re.compile(r"(?:[^:]*[\\/])+")


class Described(Protocol):
    """What a card needs to know of an encoder."""

    description: Any
    num_features: int
    epoch: int | None
    run: Path | None


def card_text(encoder: Described, place: str) -> str:
    """Return the card in Markdown, without its header; `place` is where the encoder is loaded from."""
    described = encoder.description
    sections = [
        f"# {described.backbone.name} with {_code(described.units) or 'features'}",
        f"An image encoder for `imsvd`, the toolkit of [IMSVD]({PAPER}).",
        _usage(encoder, place),
        "## Encoder\n\n" + _table(("", ""), _facts(encoder)),
    ]
    sections += _training(encoder, RunFolder(encoder.run)) if encoder.run else [_UNKNOWN]
    sections.append(f"## Citation\n\n```bibtex\n{CITATION}\n```")
    return "\n\n".join(sections) + "\n"


_UNKNOWN = (
    "## Training\n\nThis encoder was not saved from a run folder, so its training is not recorded."
)


def public_name(text: str) -> str:
    """Return a path or encoder without its folders: `timm:NAME:/home/me/a.pth` as `timm:NAME:a.pth`."""
    return _FOLDERS.sub("", text.rstrip("/\\"))


def _code(units: Sequence[int]) -> str:
    if not units:
        return ""
    sizes = sorted(set(units))
    each = str(sizes[0]) if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
    return f"a code of {len(units)} variables, {each} units each"


def _usage(encoder: Described, place: str) -> str:
    side, units = encoder.description.size, encoder.description.units
    lines = [
        "import torch",
        "from imsvd import Encoder",
        "",
        f'encoder = Encoder.from_pretrained("{place}")',
        f"images = torch.rand(2, 3, {side}, {side})  # values in [0, 1]; the encoder normalizes them",
        "with torch.no_grad():",
        f"    features = encoder(images)  # (2, {encoder.num_features})",
    ]
    if units:
        lines.append(f"    codes = encoder.codes(images)  # (2, {len(units)}), a unit per variable")
    return "## Use\n\n```python\n" + "\n".join(lines) + "\n```"


def _facts(encoder: Described) -> list[tuple[str, str]]:
    described = encoder.description
    return [
        ("method", described.method),
        ("backbone", f"{described.backbone.name} ({described.backbone.library})"),
        ("features", f"{encoder.num_features:,}"),
        ("code", _code(described.units) or "none"),
        ("image side", f"{described.size} pixels"),
        ("mean, standard deviation", f"{list(described.mean)}, {list(described.std)}"),
    ]


def _training(encoder: Described, run: RunFolder) -> list[str]:
    config = run.config()
    sections = ["## Training\n\n" + _table(("", ""), _recipe(config, encoder.epoch))]
    if metrics := _last_metrics(run, encoder.epoch):
        sections.append(
            f"### Training log, epoch {metrics['epoch']}\n\n" + _table(("", ""), _log(metrics))
        )
    if rows := list(_evaluations(run)):
        sections.append(
            "## Evaluation\n\n" + _table(("protocol", "images", "metric", "value"), rows)
        )
    settings = _without_folders(config.model_dump(mode="json", exclude={"compute"}))
    text = yaml.safe_dump(settings, sort_keys=False, default_flow_style=None, width=120).rstrip()
    sections.append(f"## Configuration\n\n```yaml\n{text}\n```")
    return sections


def _recipe(config: Config, epoch: int | None) -> list[tuple[str, str]]:
    done = config.training.epochs if epoch is None else epoch
    rows = [
        ("images", public_name(config.data.source)),
        ("epochs", f"{done} of {config.training.epochs}"),
        ("batch size", f"{config.training.batch_size:,}"),
        ("optimizer", f"{config.optimizer.name}, learning rate {config.peak_lr:g}"),
        ("seed", str(config.seed)),
    ]
    if config.frozen is not None:
        rows.insert(0, ("frozen encoder", public_name(config.frozen.encoder)))
    if config.init is not None:
        rows.insert(0, ("initial weights", public_name(config.init.encoder)))
    return rows


def _last_metrics(run: RunFolder, epoch: int | None) -> dict[str, Any] | None:
    """Return what was logged with the encoder's weights."""
    records = run.metrics()
    same = [record for record in records if record.get("epoch") == epoch]
    return (same or records)[-1] if records else None


def _log(metrics: Mapping[str, Any]) -> list[tuple[str, str]]:
    groups = (metrics.get(name, {}) for name in ("terms", "health", "knn"))
    values = {"loss": metrics["loss"]} | {key: group[key] for group in groups for key in group}
    return [(name, f"{value:.4g}") for name, value in values.items()]


def _evaluations(run: RunFolder) -> Iterable[tuple[str, str, str, str]]:
    """Yield the metrics of the trained encoder, the latest of each protocol and data."""
    latest: dict[tuple[str, str, str], float] = {}
    for record in read_results(run.path):
        if record.get("details", {}).get("encoder") == "untrained":
            continue
        for name, value in record["metrics"].items():
            latest[record["protocol"], public_name(record["data"]), name] = value
    for (protocol, data, name), value in latest.items():
        yield protocol, data, name, f"{value:.2f}"


def _without_folders(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_folders(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_folders(item) for item in value]
    return public_name(value) if isinstance(value, str) else value


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines
    )
