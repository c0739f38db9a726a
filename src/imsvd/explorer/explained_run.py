"""An explained run: the results of `imsvd explain`, and the images they describe."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from imsvd.datasets import EncodedSource, ImageSource, UnreadableImage, open_source
from imsvd.datasets.decoding import decode_image
from imsvd.encoder import EncoderDescription, read_description, read_weights
from imsvd.errors import InputError
from imsvd.explanations.encodings import FILE_NAME, Encodings, read_encodings
from imsvd.explanations.parts import FOLDER, SUMMARY
from imsvd.explanations.subject import explanation_key, unit_starts
from imsvd.runs import RunFolder


class NotFoundError(LookupError):
    """A run, variable, unit or image that does not exist; the message is shown to the user."""


@dataclass(eq=False)
class ExplainedRun:
    """Everything about a run that can be answered without its encoder."""

    run: RunFolder
    summary: Mapping[str, Any]
    """Content of `summary.json`."""
    description: EncoderDescription
    source: ImageSource
    """The explained images."""
    encodings: Encodings
    """Their codes and features."""

    def __post_init__(self) -> None:
        self.units = self.description.units
        self.starts = unit_starts(self.units)
        self.key = str(self.summary["key"])
        self.folder = self.run.path / FOLDER
        self.command = _command(self.run, self.summary)
        # By variable, (M, n), and contiguous, because every unit page scans one variable.
        self.columns = np.ascontiguousarray(self.encodings.codes.T)
        self._rows = np.full(len(self.source), -1, dtype=np.int64)
        self._rows[self.encodings.images] = np.arange(len(self.encodings.images))
        self._labels = None if self.source.labels is None else self.source.labels.numpy()
        self._reading = threading.Lock()

    @cached_property
    def properties(self) -> Mapping[str, Any] | None:
        """Results of the part `joint`, or None."""
        return self._part("joint", "properties.json")

    @cached_property
    def meaning(self) -> Mapping[str, Any] | None:
        """Results of the part `meaning`, or None."""
        return self._part("meaning", "meaning.json")

    @cached_property
    def coherence(self) -> Mapping[str, Any] | None:
        """Results of the part `coherence`, or None."""
        return self._part("coherence", "coherence.json")

    @cached_property
    def mutual_information(self) -> NDArray[np.float32] | None:
        """Mutual information of the variables between two views, (M, M), or None."""
        return self._array("mutual_information.npy")

    @cached_property
    def joint(self) -> NDArray[np.float32] | None:
        """Joint matrix of the leading variables, or None."""
        return self._array("joint_matrix.npy")

    @property
    def leading(self) -> int:
        """Number of variables that the saved joint matrix covers."""
        width = 0 if self.joint is None else len(self.joint)
        ends = (start + size for start, size in zip(self.starts, self.units, strict=True))
        return sum(end <= width for end in ends)

    def _part(self, part: str, name: str) -> Mapping[str, Any] | None:
        return _read_record(self.folder / name) if part in self.summary["parts"] else None

    def _array(self, name: str) -> NDArray[np.float32] | None:
        if "joint" not in self.summary["parts"]:
            return None
        try:
            array: NDArray[np.float32] = np.load(self.folder / name, allow_pickle=False)
        except FileNotFoundError:  # deleted, or explained by an earlier version
            return None
        except (OSError, ValueError) as error:
            raise InputError(
                f"{self.folder / name} is damaged; delete it and run `imsvd explain` again."
            ) from error
        return array

    def require_variable(self, variable: int) -> None:
        """Raise `NotFoundError` unless the variable exists."""
        if not 0 <= variable < len(self.units):
            raise NotFoundError(
                f"There is no variable {variable}; this run has variables 0 to {len(self.units) - 1}."
            )

    def place(self, variable: int, unit: int) -> int:
        """Return the index of a unit among the units of all variables."""
        self.require_variable(variable)
        if not 0 <= unit < self.units[variable]:
            raise NotFoundError(
                f"Variable {variable} has no unit {unit}; "
                f"its units are 0 to {self.units[variable] - 1}."
            )
        return self.starts[variable] + unit

    def row(self, image: int) -> int:
        """Return the row of an image in the encodings."""
        if not 0 <= image < len(self._rows):
            raise NotFoundError(
                f"There is no image {image}; this run has images 0 to {len(self._rows) - 1}."
            )
        if self._rows[image] < 0:
            raise NotFoundError(f"Image {image} could not be read when the run was explained.")
        return int(self._rows[image])

    def label(self, image: int) -> str | None:
        """Return the class name of an image, or None if it has no label."""
        if self._labels is None or self._labels[image] < 0:
            return None
        return self.class_name(int(self._labels[image]))

    def class_name(self, number: int) -> str:
        """Return the name of a class, or its number if it has no name."""
        return self.source.classes[number] if number < len(self.source.classes) else str(number)

    def read(self, image: int) -> Tensor:
        """Decode an image to uint8 (3, height, width)."""
        try:
            if not isinstance(self.source, EncodedSource):
                with self._reading:
                    return self.source.read(image)
            # Some containers cannot be read from two threads at once; decoding always can.
            with self._reading:
                content = self.source.encoded(image)
            return decode_image(content, self.source.identity(image))
        except UnreadableImage as error:
            raise NotFoundError(f"Image {image} can no longer be read: {error.reason}.") from error


def open_run(path: str | Path) -> ExplainedRun:
    """Open an explained run and its images.

    Raises:
        InputError: if the run has to be explained first or again; the message names the command.
    """
    run = RunFolder(path)
    description = read_description(run)
    summary = _summary(run)
    source = _source(run, summary)
    if explanation_key(description, read_weights(run), source) != summary["key"]:
        raise InputError(
            f"{run.path} was explained with other weights, with other images than {summary['data']} "
            f"has now, or by an earlier version; run `{_command(run, summary)}` again."
        )
    encodings = read_encodings(run.path / FOLDER / FILE_NAME, summary["key"])
    if encodings is None:
        raise InputError(
            f"{run.path / FOLDER / FILE_NAME} is missing or damaged; "
            f"run `{_command(run, summary)}` to restore it."
        )
    return ExplainedRun(run, summary, description, source, encodings)


def _read_record(path: Path) -> dict[str, Any] | None:
    """Return the object in a JSON file, or None if the file is missing or damaged."""
    try:
        record = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) else None


def _summary(run: RunFolder) -> dict[str, Any]:
    found = _read_record(run.path / FOLDER / SUMMARY) or {}
    expected = {"key": str, "data": str, "split": str, "images": int, "parts": dict}
    if not all(isinstance(found.get(name), kind) for name, kind in expected.items()):
        raise InputError(
            f"{run.path} has not been explained yet; run `imsvd explain {run.path} DATA` first."
        )
    return found


def _source(run: RunFolder, summary: Mapping[str, Any]) -> ImageSource:
    split: Literal["train", "test"] = "test" if summary["split"] == "test" else "train"
    try:
        return open_source(summary["data"], split)
    except InputError as error:
        raise InputError(
            f"cannot open the images that {run.path} was explained with "
            f"({str(error).removesuffix('.')}); if they have moved, run "
            f"`imsvd explain {run.path} DATA` with the new folder, which keeps all results."
        ) from error


def _command(run: RunFolder, summary: Mapping[str, Any]) -> str:
    split = " --split test" if summary["split"] == "test" else ""
    return f"imsvd explain {run.path} {summary['data']}{split}"
