"""What a grid consists of: jobs, each a complete configuration, told apart by what they compute."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from imsvd.config import Config


@dataclass(frozen=True, eq=False)
class Job:
    """One run of a grid: training and evaluation, or the evaluation of an untrained encoder.

    `label` is for people: what is particular about the run. It decides nothing.
    """

    config: Config
    trained: bool = True
    label: str = ""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    @cached_property
    def key(self) -> str:
        """Hash of everything that decides the result; two jobs with one key are the same job."""
        return _digest(self._content())

    @property
    def name(self) -> str:
        """The job's folder, readable and unique."""
        config = self.config
        words = (
            [config.method.name, f"lr{config.optimizer.lr:g}"] if self.trained else ["untrained"]
        )
        return "-".join([*words, f"seed{config.seed}", self.key[:8]])

    @property
    def title(self) -> str:
        """The job in a person's words."""
        config = self.config
        what = f"{config.method.name}, lr {config.optimizer.lr:g}" if self.trained else "untrained"
        return ", ".join([what, *([self.label] if self.label else []), f"seed {config.seed}"])

    @property
    def epochs(self) -> int:
        """How long the job is; an untrained one counts as one epoch of its own kind."""
        return self.config.training.epochs if self.trained else 1

    @cached_property
    def kind(self) -> str:
        """Hash of what decides the time of an epoch; neither seed, learning rate nor length do."""
        content = self._content()
        del content["seed"]
        if self.trained:
            del content["optimizer"]["lr"], content["training"]["epochs"]
        return _digest(content)

    def _content(self) -> dict[str, Any]:
        content = self.config.model_dump(mode="json", exclude={"compute"})
        if not self.trained:
            content = {name: content[name] for name in ("seed", "data", "backbone", "views")}
        return content


def unique(jobs: Iterable[Job]) -> list[Job]:
    """Return the jobs without repetitions, in the order in which they first appear."""
    return list(dict.fromkeys(jobs))


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]
