"""What is explained: an encoder with discrete variables, and the images it is applied to.

`read_images` makes one pass over the images and decodes each of them once. Collectors take from
every batch what their part of the explanation needs: the plain image, two augmented views, or both.
The pass saves its state as it goes, so that an interrupted command resumes in the middle.
"""

from __future__ import annotations

import time
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from imsvd.datasets import ImageSource, UnreadableImage, small_image_size
from imsvd.datasets.decoding import decode_image
from imsvd.datasets.reading import image_key
from imsvd.datasets.sources import DecodedImages, EncodedSource
from imsvd.encoder import Encoder, EncoderDescription, encoder_key
from imsvd.errors import InputError
from imsvd.evaluation.features import center_crop
from imsvd.files import complete_or_absent
from imsvd.index.known import ContentKey, content_key
from imsvd.information import soft_discretize
from imsvd.views import ViewsSettings, batch_views, image_views, normalize
from imsvd.views.samples import Sample, make_samples, stack_views

BATCH = 128
"""Images per forward pass."""
LARGE_BATCH = 32
"""The same for images whose activations would take gigabytes."""
LARGE = 96
"""Side in pixels from which images are large."""
PHOTOGRAPHS = 16
"""Full-size images held in memory at a time."""
EPOCH = 0
"""The training epoch whose views are reproduced."""
PARTIAL_NAME = "images.partial.npz"
SAVE_INTERVAL = 15.0
"""Seconds between two saves, and so the most work that an interruption loses."""
_SAVE_COST = 0.05
"""Largest share of the time spent on saving; a large state is saved less often."""

Progress = Callable[[int, int], None]
"""Called with (done, total)."""
State = Mapping[str, NDArray[Any]]


class Judge(NamedTuple):
    """Another encoder, under whose features the images of a unit are compared."""

    name: str
    """How the user named it, such as timm:resnet50."""
    encoder: Encoder
    key: str
    """Identifies its architecture and weights."""


class Subject(NamedTuple):
    """Everything that the parts of an explanation share."""

    encoder: Encoder
    source: ImageSource
    views: ViewsSettings
    """The augmentation used in training."""
    seed: int
    folder: Path
    """Where results are written."""
    key: str
    """Identifies encoder and images; results with another key are out of date."""
    judge: Judge | None = None

    @property
    def units(self) -> tuple[int, ...]:
        """Number of units of each variable."""
        return self.encoder.description.units

    @property
    def device(self) -> torch.device:
        """Device of the encoder."""
        return self.encoder.mean.device

    def crop(self, index: int) -> Tensor:
        """Read an image as the encoder sees it, (3, size, size) uint8; raises `UnreadableImage`."""
        return center_crop(self.source.read(index), self.encoder.description.size)


def evenly_spaced(total: int, wanted: int) -> list[int]:
    """Return at most `wanted` of the numbers below `total`, evenly spaced from 0."""
    count = min(total, wanted)
    return [number * total // count for number in range(count)]


def view_probabilities(encoder: Encoder, views: Tensor) -> Tensor:
    """Return q (Eq. 1) of normalized views, (batch, width)."""
    return soft_discretize(encoder.projector(encoder.backbone(views)), encoder.description.units)


def unit_starts(units: tuple[int, ...]) -> list[int]:
    """Return the position of each variable's first unit among all units."""
    starts = [0]
    for size in units[:-1]:
        starts.append(starts[-1] + size)
    return starts


def explanation_key(
    description: EncoderDescription, weights: Mapping[str, Tensor], source: ImageSource
) -> str:
    """Cache key identifying the encoder and the images an explanation belongs to."""
    return f"{encoder_key(description, weights)}-{image_key(source)}"


def is_of_encoder(key: str, description: EncoderDescription, weights: Mapping[str, Tensor]) -> bool:
    """Return whether `key` belongs to an explanation of this encoder."""
    return key.partition("-")[0] == encoder_key(description, weights)


class ReadBatch(NamedTuple):
    """Readable images, in the order of the source."""

    indices: list[int]
    crops: Tensor
    """(batch, 3, size, size) uint8, as the encoder sees whole images."""
    views: tuple[Tensor, ...]
    """Two augmented views, normalized; empty if no collector uses them."""
    view_q: tuple[Tensor, ...]
    """The probabilities of the views, (batch, width) each."""
    keys: Sequence[ContentKey]
    """What identifies their content."""
    judge_crops: Mapping[int, Tensor] = {}
    """(3, size, size) uint8 as the judge sees whole images, by position, of those it is to see."""


class Collector(ABC):
    """Gathers from the pass over the images what one or several parts need.

    Everything gathered is in `sums` and `rows`, so that an interrupted pass can be resumed.
    """

    name: str
    sample: int | None = None
    """Number of evenly spaced images needed; None for all."""
    uses_views = False
    uses_judge = False
    writes_file = False
    """Whether `finish` writes the result to a file, from which `stored` reads it."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.sums: dict[str, Tensor] = {}
        """Tensors of fixed size, updated in place."""
        self.rows: dict[str, list[NDArray[Any]]] = {}
        """Arrays that grow; each list starts with an empty array."""

    @classmethod
    def stored(cls, subject: Subject) -> Any:  # noqa: ARG003 - most results are not stored
        """Return the result of an earlier pass if it is kept in a file, else None."""
        return None

    def wanted(self) -> Sequence[int]:
        """Return the images needed, in ascending order."""
        total = len(self.subject.source)
        return range(total) if self.sample is None else evenly_spaced(total, self.sample)

    def wanted_rows(self, batch: ReadBatch) -> list[int]:
        """Return the rows of a batch that are needed."""
        wanted = set(self.wanted())
        return [row for row, index in enumerate(batch.indices) if index in wanted]

    @abstractmethod
    def take(self, batch: ReadBatch) -> None:
        """Take what is needed from a batch, which may hold more images than are wanted."""

    def finish(self) -> Any:
        """Return the result after the last batch."""
        return self

    def joined(self, name: str) -> NDArray[Any]:
        """Return all rows gathered under a name."""
        self.rows[name] = [np.concatenate(self.rows[name])]
        return self.rows[name][0]

    def state(self) -> dict[str, NDArray[Any]]:
        """Return everything gathered so far."""
        sums = {name: value.cpu().numpy() for name, value in self.sums.items()}
        return sums | {name: self.joined(name) for name in self.rows}

    def restore(self, state: State) -> None:
        """Continue from an earlier state."""
        for name, value in self.sums.items():
            value.copy_(torch.from_numpy(state[name]))
        for name in self.rows:
            self.rows[name] = [state[name]]


class PartialPass:
    """A file with the state of an unfinished pass.

    The state is saved while the pass runs, not when it is interrupted: an interruption may come in
    the middle of an addition, and a kill leaves no time at all.

    Args:
        path: the file, ending in .npz.
        key: identifies encoder and images; a state with another key is ignored.
    """

    def __init__(self, path: Path, key: str) -> None:
        self._path = path
        self._key = key
        self._interval = SAVE_INTERVAL
        self._saved_at = time.monotonic()

    def read(self) -> dict[str, NDArray[Any]] | None:
        """Return the saved state, or None if it is missing, damaged or has another key."""
        try:
            with np.load(self._path, allow_pickle=False) as file:
                state = {name: file[name] for name in file.files}
        except (OSError, ValueError, EOFError, zipfile.BadZipFile):
            return None
        return state if str(state.pop("key", "")) == self._key else None

    def save_when_due(self, state: Callable[[], State]) -> None:
        """Save if the last save is long enough ago; call this only between two batches."""
        started = time.monotonic()
        if started - self._saved_at >= self._interval:
            self.save(state())
            self._interval = max(SAVE_INTERVAL, (self._saved_at - started) / _SAVE_COST)

    def save(self, state: State) -> None:
        """Save now."""
        arrays: dict[str, Any] = {**state, "key": np.array(self._key)}
        with complete_or_absent(self._path) as temporary, temporary.open("wb") as file:
            # Straight into the file: the joint matrix of 8,160 units takes half a GiB.
            np.savez(file, **arrays)
        self._saved_at = time.monotonic()

    def remove(self) -> None:
        """Delete the file."""
        self._path.unlink(missing_ok=True)


Results = dict[type[Collector], Any]
"""What each kind of collector found."""


@torch.no_grad()
def read_images(
    subject: Subject, kinds: Sequence[type[Collector]], progress: Progress | None = None
) -> Results:
    """Decode every wanted image once and return the result of each kind of collector.

    An interrupted pass is resumed if it covered all of these kinds. Results without a file of their
    own stay in the partial file, so that an interruption after the pass loses nothing either.
    """
    results = {kind: found for kind in kinds if (found := kind.stored(subject)) is not None}
    collectors = [kind(subject) for kind in kinds if kind not in results]
    if not collectors:
        return results
    saved = PartialPass(subject.folder / PARTIAL_NAME, subject.key)
    first, readable = _restore(saved.read(), collectors)
    order = sorted({index for each in collectors for index in each.wanted()})
    done = sum(index < first for index in order)
    views, side = _view_settings(subject, collectors)
    encoder_size = subject.encoder.description.size
    judged = {index for each in collectors if each.uses_judge for index in each.wanted()}
    while True:
        place = {"next": np.array(first), "readable": np.array(readable)}
        saved.save_when_due(partial(_state, collectors, place))
        if progress is not None:
            progress(done, len(order))
        if done == len(order):
            break
        chosen = order[done : done + (BATCH if encoder_size <= LARGE else LARGE_BATCH)]
        batch = _batch(subject, chosen, views, side, judged)
        if batch is not None:
            for each in collectors:
                each.take(batch)
            readable += len(batch.indices)
        done, first = done + len(chosen), chosen[-1] + 1
    if not readable:
        raise InputError(f"none of the {len(order):,} images can be read; give others.")
    results |= {type(each): each.finish() for each in collectors}
    saved.save(_state([each for each in collectors if not each.writes_file], place))
    return results


def _view_settings(
    subject: Subject, collectors: Sequence[Collector]
) -> tuple[ViewsSettings | None, int | None]:
    """Return the views to make, if any collector uses them, and the side of small images."""
    if not any(each.uses_views for each in collectors):
        return None, None
    # Local views take no part in the joint distribution.
    views = subject.views.model_copy(update={"local_views": 0})
    return views, small_image_size(subject.source)


def _state(collectors: Sequence[Collector], place: State) -> State:
    return dict(place) | {
        f"{each.name}.{field}": value
        for each in collectors
        for field, value in each.state().items()
    }


def _restore(
    state: dict[str, NDArray[Any]] | None, collectors: Sequence[Collector]
) -> tuple[int, int]:
    """Restore the collectors; return the next image to read and the readable ones so far."""
    saved = {} if state is None else state
    names = {name.partition(".")[0] for name in saved}
    needed = {f"{each.name}.{field}" for each in collectors for field in (*each.sums, *each.rows)}
    # An earlier version may have saved fewer fields.
    if any(each.name not in names for each in collectors) or needed - saved.keys():
        return 0, 0
    for each in collectors:
        prefix = f"{each.name}."
        each.restore({k.removeprefix(prefix): v for k, v in saved.items() if k.startswith(prefix)})
    return int(saved["next"]), int(saved["readable"])


def _batch(
    subject: Subject,
    chosen: Sequence[int],
    views: ViewsSettings | None,
    side: int | None,
    judged: AbstractSet[int],
) -> ReadBatch | None:
    """Read images and make what collectors need of them, a few full-size images at a time."""
    indices: list[int] = []
    crops: list[Tensor] = []
    samples: list[Sample] = []
    judge_crops: dict[int, Tensor] = {}
    images: dict[int, Tensor] = {}
    keys: list[ContentKey] = []
    step = PHOTOGRAPHS if side is None else BATCH
    for start in range(0, len(chosen), step):
        images, own = _read(subject.source, chosen[start : start + step])
        keys += own
        indices += images
        crops += [center_crop(each, subject.encoder.description.size) for each in images.values()]
        judge_crops |= _judge_crops(subject, images, judged)
        if images and views is not None and side is None:
            samples += make_samples(DecodedImages(images), views, subject.seed, EPOCH, list(images))
    if not indices:
        return None
    if views is None:
        return ReadBatch(indices, torch.stack(crops), (), (), keys, judge_crops)
    if side is None:
        stacked = zip(stack_views(samples), views.views, strict=True)
        made = [normalize(levels, view) for levels, view in stacked]
    else:
        made = _small_views(images, views, subject.seed, side)
    pair = tuple(view.to(subject.device) for view in made)
    q = tuple(view_probabilities(subject.encoder, view) for view in pair)
    return ReadBatch(indices, torch.stack(crops), pair, q, keys, judge_crops)


def _judge_crops(
    subject: Subject, images: Mapping[int, Tensor], judged: AbstractSet[int]
) -> dict[int, Tensor]:
    if subject.judge is None:
        return {}
    size = subject.judge.encoder.description.size
    return {index: center_crop(image, size) for index, image in images.items() if index in judged}


def _read(source: ImageSource, chosen: Sequence[int]) -> tuple[dict[int, Tensor], list[ContentKey]]:
    """Decode and hash images; those that cannot be read are left out, never replaced."""
    images: dict[int, Tensor] = {}
    keys = []
    if not isinstance(source, EncodedSource):  # drawing images together is faster
        try:
            images = dict(zip(chosen, source.read_many(chosen), strict=True))
        except UnreadableImage:
            pass
        else:
            return images, [content_key(source, each.numpy().tobytes()) for each in images.values()]
    for index in chosen:
        try:
            if isinstance(source, EncodedSource):
                content = source.encoded(index)
                images[index] = decode_image(content, source.identity(index))
            else:
                images[index] = source.read(index)
                content = images[index].numpy().tobytes()
        except UnreadableImage:
            continue
        keys.append(content_key(source, content))
    return images, keys


def _small_views(
    images: Mapping[int, Tensor], views: ViewsSettings, seed: int, side: int
) -> list[Tensor]:
    """Make both views of small images in one go; an image of another size is treated alone."""
    regular = {index: image for index, image in images.items() if image.shape == (3, side, side)}
    made = []
    if regular:
        stacked, numbers = torch.stack(list(regular.values())), np.array(list(regular))
        made.append(batch_views(stacked, views, seed=seed, epoch=EPOCH, indices=numbers))
    others = [index for index in images if index not in regular]
    for index in others:
        single = image_views(images[index], views, seed=seed, epoch=EPOCH, index=index)
        made.append([view[None] for view in single])
    joined = [torch.cat(parts) for parts in zip(*made, strict=True)]
    if not others:
        return joined
    order = [*regular, *others]
    back = torch.tensor([order.index(index) for index in images])
    return [view[back] for view in joined]
