"""The run folder, which connects training, evaluation and explanation.

config.yaml            resolved configuration; can be run again
metrics.jsonl          one line per epoch
tensorboard/           the same for TensorBoard
checkpoints/           for resuming exactly
encoder.safetensors    the trained weights, to share
encoder.json           how to rebuild the encoder around them
bad_images.jsonl       unreadable images, with reasons
capacity.json          sizes of the code that `imsvd discretize` tried
training.png           metrics.jsonl drawn, by `imsvd pretrain`
results.jsonl          results of evaluations
evaluations/ coco/     classifiers and detectors trained by evaluations
explanations/          results of `imsvd explain`
divergence/            the step at which the loss stopped being finite, for `imsvd replay`
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from imsvd.config import Config, from_yaml, to_yaml
from imsvd.errors import InputError
from imsvd.files import write_atomically

RESULTS = "results.jsonl"
"""File of a run's evaluations, one per line."""

_logger = logging.getLogger(__name__)


class RunFolder:
    """Names the files of a run."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @property
    def config_file(self) -> Path:
        """The resolved configuration."""
        return self.path / "config.yaml"

    @property
    def metrics_file(self) -> Path:
        """One JSON line per epoch."""
        return self.path / "metrics.jsonl"

    @property
    def tensorboard(self) -> Path:
        """TensorBoard's events."""
        return self.path / "tensorboard"

    @property
    def checkpoints(self) -> Path:
        """Checkpoints for resuming."""
        return self.path / "checkpoints"

    @property
    def encoder_weights(self) -> Path:
        """The shared weights."""
        return self.path / "encoder.safetensors"

    @property
    def encoder_description(self) -> Path:
        """How to rebuild the encoder."""
        return self.path / "encoder.json"

    @property
    def capacity(self) -> Path:
        """The sizes of the code that were tried."""
        return self.path / "capacity.json"

    @property
    def bad_images(self) -> Path:
        """The quarantine's list."""
        return self.path / "bad_images.jsonl"

    def exists(self) -> bool:
        """Whether the folder already holds a run."""
        return self.config_file.exists()

    @property
    def has_saved(self) -> bool:
        """Whether training has saved a checkpoint or an encoder yet."""
        return self.encoder_weights.exists() or any(self.checkpoints.glob("step-*"))

    def config(self) -> Config:
        """Read the run's configuration."""
        if not self.exists():
            raise InputError(
                f"{self.path} holds no run (no config.yaml); give the folder that `imsvd pretrain --out` wrote."
            )
        return from_yaml(self.config_file.read_text(), str(self.config_file))

    def begin(self, config: Config) -> None:
        """Claim the folder for `config`, or check that the run in it has the same configuration.

        A run that has not saved anything yet may change its settings.
        """
        if self.exists():
            if self.has_saved:
                _refuse_difference(self.path, self.config(), config)
        elif self.path.exists() and (not self.path.is_dir() or _holds_something(self.path)):
            raise InputError(
                f"{self.path} exists and holds something that is not a run; give a new folder to --out."
            )
        write_atomically(self.config_file, to_yaml(config).encode())

    def metrics(self) -> list[dict[str, Any]]:
        """Read the epochs so far; a last line cut short by a kill is skipped."""
        if not self.metrics_file.exists():
            return []
        records = []
        for line in self.metrics_file.read_text().splitlines():
            try:
                records.append(json.loads(line))
            except json.JSONDecodeError:
                break
        return records

    def trials(self) -> list[dict[str, Any]]:
        """Read the sizes of the code that were tried; none if the size was given."""
        try:
            trials: list[dict[str, Any]] = json.loads(self.capacity.read_text())["trials"]
        except (OSError, ValueError, KeyError, TypeError):
            return []
        return trials

    def rewrite_metrics(self, records: list[dict[str, Any]]) -> None:
        """Replace the metrics; a resumed run drops epochs that it trains again."""
        write_atomically(
            self.metrics_file, "".join(json.dumps(record) + "\n" for record in records).encode()
        )


def read_results(run: Path) -> list[dict[str, Any]]:
    """Return all evaluations recorded in `run`, oldest first.

    Lines left incomplete by an interrupted write are skipped, with a warning in the log.
    """
    path = run / RESULTS
    if not path.exists():
        return []
    records = []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if isinstance(record, dict):
            records.append(record)
        elif line.strip():
            _logger.warning("%s: skipped line %d, which is incomplete", path, number)
    return records


def _holds_something(folder: Path) -> bool:
    # Another rank of the same run may be writing the configuration right now.
    return any("config.yaml" not in entry.name for entry in folder.iterdir())


def _refuse_difference(path: Path, existing: Config, wanted: Config) -> None:
    """Raise unless both configurations are equal except for `compute`."""
    old, new = decisive_settings(existing), decisive_settings(wanted)
    for key in sorted(old.keys() | new.keys()):
        if old.get(key) != new.get(key):
            raise InputError(
                f"{path} holds a run with {key}={old.get(key)!r}, not {new.get(key)!r}; "
                "repeat its settings to resume it, or give another --out for a new run."
            )


def decisive_settings(config: Config) -> dict[str, Any]:
    """Return the settings that define a run, all but `compute`, by their dotted keys."""
    flat: dict[str, Any] = {}

    def visit(prefix: str, value: Any) -> None:
        if isinstance(value, dict) and value:
            for key, item in value.items():
                visit(f"{prefix}.{key}" if prefix else key, item)
        else:
            flat[prefix] = value

    visit("", config.model_dump(mode="json", exclude={"compute"}))
    return flat
