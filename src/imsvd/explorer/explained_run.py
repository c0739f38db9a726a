"""One explained run, opened once: what `imsvd explain` left, and the images it was about."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
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


class AbsentError(LookupError):
    """What was asked for does not exist; the message is a sentence for the person who asked."""


class ExplainedRun:
    """The index of a run, from which all questions are answered without the encoder.

    Args:
        run: the run folder.
        summary: what `summary.json` holds.
        description: of the encoder.
        source: the explained images.
        encodings: their codes and features.
    """

    def __init__(
        self,
        run: RunFolder,
        summary: Mapping[str, Any],
        description: EncoderDescription,
        source: ImageSource,
        encodings: Encodings,
    ) -> None:
        self.run = run
        self.summary = summary
        self.description = description
        self.source = source
        self.encodings = encodings
        self.starts = unit_starts(description.units)
        self.columns = np.ascontiguousarray(encodings.codes.T)
        """Codes variable by variable, (M, n): a unit's images are found in one."""
        self._rows = np.full(len(source), -1, dtype=np.int64)
        self._rows[encodings.images] = np.arange(len(encodings.images))
        self._labels = None if source.labels is None else source.labels.numpy()
        self._reading = threading.Lock()

    @property
    def units(self) -> tuple[int, ...]:
        """Units of each variable."""
        return self.description.units

    @property
    def key(self) -> str:
        """Names encoder and images."""
        return str(self.summary["key"])

    @property
    def folder(self) -> Path:
        """Where the explanation is."""
        return self.run.path / FOLDER

    @cached_property
    def properties(self) -> Mapping[str, Any] | None:
        """What the part `joint` found, if it has been made."""
        return self._part("joint", "properties.json")

    @cached_property
    def meaning(self) -> Mapping[str, Any] | None:
        """What the part `meaning` found, if it has been made."""
        return self._part("meaning", "meaning.json")

    @cached_property
    def mutual_information(self) -> NDArray[np.float32] | None:
        """Information that variables share between two views, (M, M), if it has been measured."""
        return self._array("mutual_information.npy")

    @cached_property
    def joint(self) -> NDArray[np.float32] | None:
        """The joint matrix of the leading variables, where it has been kept."""
        return self._array("joint_matrix.npy")

    @property
    def leading(self) -> int:
        """How many variables the kept part of the joint matrix covers."""
        width = 0 if self.joint is None else len(self.joint)
        ends = [start + size for start, size in zip(self.starts, self.units, strict=True)]
        return sum(end <= width for end in ends)

    def _part(self, part: str, name: str) -> Mapping[str, Any] | None:
        if part not in self.summary["parts"]:
            return None
        return read_record(self.folder / name)

    def _array(self, name: str) -> NDArray[np.float32] | None:
        if "joint" not in self.summary["parts"]:
            return None
        try:
            array: NDArray[np.float32] = np.load(self.folder / name, allow_pickle=False)
        except FileNotFoundError:  # explained by a version that did not keep it
            return None
        except (OSError, ValueError) as error:
            raise InputError(
                f"{self.folder / name} is damaged; delete it and run `imsvd explain` again."
            ) from error
        return array

    def require_variable(self, variable: int) -> None:
        """Raise `AbsentError` unless there is such a variable."""
        if not 0 <= variable < len(self.units):
            raise AbsentError(
                f"There is no variable {variable}; they are 0 to {len(self.units) - 1}."
            )

    def place(self, variable: int, unit: int) -> int:
        """Where a unit is among all units."""
        self.require_variable(variable)
        if not 0 <= unit < self.units[variable]:
            raise AbsentError(
                f"Variable {variable} has no unit {unit}; they are 0 to {self.units[variable] - 1}."
            )
        return self.starts[variable] + unit

    def row(self, image: int) -> int:
        """The row of an image in the encodings."""
        if not 0 <= image < len(self._rows):
            raise AbsentError(f"There is no image {image}; they are 0 to {len(self._rows) - 1}.")
        if self._rows[image] < 0:
            raise AbsentError(f"Image {image} could not be read when the run was explained.")
        return int(self._rows[image])

    def label(self, image: int) -> str | None:
        """The name of an image's class, where it is known."""
        if self._labels is None or self._labels[image] < 0:
            return None
        return self.class_name(int(self._labels[image]))

    def class_name(self, number: int) -> str:
        """The name of a class."""
        return self.source.classes[number] if number < len(self.source.classes) else str(number)

    def read(self, image: int) -> Tensor:
        """The picture, uint8 (3, height, width)."""
        try:
            if not isinstance(self.source, EncodedSource):
                with self._reading:
                    return self.source.read(image)
            # Not every container can be read by two threads at a time; decoding can.
            with self._reading:
                content = self.source.encoded(image)
            return decode_image(content, self.source.identity(image))
        except UnreadableImage as error:
            raise AbsentError(f"Image {image} cannot be read any more: {error.reason}.") from error


def open_run(path: str | Path) -> ExplainedRun:
    """Open the explanation of a run and its images, or say what has to be done first."""
    run = RunFolder(path)
    description = read_description(run)
    summary = _summary(run)
    source = _source(run, summary)
    if explanation_key(description, read_weights(run), source) != summary["key"]:
        raise InputError(
            f"{run.path} was explained with other weights, with other images than {summary['data']} "
            f"has now, or by an earlier version; run {_command(run, summary)} again."
        )
    encodings = read_encodings(run.path / FOLDER / FILE_NAME, summary["key"])
    if encodings is None:
        raise InputError(
            f"{run.path / FOLDER / FILE_NAME} is missing or damaged; "
            f"run {_command(run, summary)} to make it."
        )
    return ExplainedRun(run, summary, description, source, encodings)


def read_record(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file, or None if there is none to be had."""
    try:
        record = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) else None


def _summary(run: RunFolder) -> dict[str, Any]:
    found = read_record(run.path / FOLDER / SUMMARY)
    expected = {"key": str, "data": str, "split": str, "images": int, "parts": dict}
    if found is None or not all(
        isinstance(found.get(name), kind) for name, kind in expected.items()
    ):
        raise InputError(
            f"{run.path} has not been explained yet; run `imsvd explain {run.path} DATA` first, "
            "with the images it was trained on or others."
        )
    return found


def _source(run: RunFolder, summary: Mapping[str, Any]) -> ImageSource:
    split: Literal["train", "test"] = "test" if summary["split"] == "test" else "train"
    try:
        return open_source(summary["data"], split)
    except InputError as error:
        raise InputError(
            f"the images that {run.path} was explained with cannot be opened "
            f"({str(error).removesuffix('.')}); if they have moved, run "
            f"`imsvd explain {run.path} DATA` with their new place, which keeps what is measured."
        ) from error


def _command(run: RunFolder, summary: Mapping[str, Any]) -> str:
    split = " --split test" if summary["split"] == "test" else ""
    return f"`imsvd explain {run.path} {summary['data']}{split}`"
