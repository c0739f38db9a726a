"""Backbones of timm and torchvision by name.

`timm:NAME` and `torchvision:NAME` have the library's pretrained weights, `…:NAME:random` random ones,
and `…:NAME:FILE` those of a file, all of whose keys must match.
"""

from __future__ import annotations

import difflib
import logging
import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import timm
import torch
import torchvision
from safetensors.torch import load_file
from torch import Tensor, nn

from imsvd.errors import InputError
from imsvd.networks import feature_width, take_off_heads, torchvision_network

RANDOM = "random"
"""Given instead of a file, keeps the initial random weights."""

_RANDOM_SEED = 0
_WRAPPERS = ("state_dict", "model", "model_state_dict", "teacher")
"""Keys under which training programs save a network's weights."""

_logger = logging.getLogger(__name__)


class Backbone(NamedTuple):
    """A network that outputs pooled features, and the images it expects.

    Attributes:
        heads: names of the removed classifier layers.
        size: side of the images.
    """

    network: nn.Module
    num_features: int
    heads: tuple[str, ...]
    size: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]


class BackboneSpec(NamedTuple):
    """Parts of `library:name[:weights]`; weights are "", "random" or a file."""

    library: str
    name: str
    weights: str


def parse_spec(spec: str) -> BackboneSpec | None:
    """Parse the name of a backbone; return None if `spec` is a run folder."""
    library, separator, rest = spec.partition(":")
    if not separator or library not in LIBRARIES:
        return None
    name, _, weights = rest.partition(":")
    if not name:
        raise InputError(f"{spec!r} names no network; add one, such as {library}:resnet50.")
    return BackboneSpec(library, name, weights)


def open_backbone(spec: BackboneSpec) -> Backbone:
    """Build the network that `spec` describes, with its weights, in evaluation mode."""
    build = LIBRARIES[spec.library]
    if spec.weights:
        # A separate generator state makes `random` reproducible.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_RANDOM_SEED)
            backbone = build(spec.name, False)
        if spec.weights != RANDOM:
            load_weights(backbone, Path(spec.weights).expanduser())
    else:
        backbone = _download(spec, build)
    backbone.network.eval()
    return backbone


def _build_timm(name: str, pretrained: bool) -> Backbone:
    if not timm.is_model(name):
        raise InputError(_unknown("timm", name, timm.list_models()))
    architecture, _, tag = name.partition(".")
    tagged = timm.list_models(f"{architecture}.*", pretrained=True)
    if tag and name not in tagged:
        choice = f"choose {', '.join(tagged[:8])}" if tagged else "it has none"
        raise InputError(f"timm:{architecture} has no weights {tag!r}; {choice}.")
    network: nn.Module = timm.create_model(name, pretrained=pretrained, num_classes=0)
    described: dict[str, Any] = timm.data.resolve_model_data_config(network)  # type: ignore[attr-defined,no-untyped-call]
    if described["input_size"][0] != 3:
        raise InputError(
            f"timm:{name} takes images of {described['input_size'][0]} channels; choose a network for 3."
        )
    classifier = network.pretrained_cfg.get("classifier") or ()  # type: ignore[union-attr,operator]
    return Backbone(
        network,
        feature_width(network),
        (classifier,) if isinstance(classifier, str) else tuple(classifier),
        int(described["input_size"][-1]),
        _three(described["mean"]),
        _three(described["std"]),
    )


def _build_torchvision(name: str, pretrained: bool) -> Backbone:
    name, _, tag = name.partition(".")
    known = torchvision.models.list_models(module=torchvision.models)
    if name not in known:
        raise InputError(_unknown("torchvision", name, known))
    choices = torchvision.models.get_model_weights(name)
    if tag and tag not in choices.__members__:
        raise InputError(
            f"torchvision:{name} has no weights {tag!r}; choose {', '.join(choices.__members__)}."
        )
    weights = choices[tag] if tag else choices.DEFAULT
    network = torchvision_network(name, weights if pretrained else None)
    heads = take_off_heads(name, network)
    preset = weights.transforms()
    return Backbone(
        network,
        feature_width(network),
        heads,
        int(preset.crop_size[0]),
        _three(preset.mean),
        _three(preset.std),
    )


LIBRARIES: dict[str, Callable[[str, bool], Backbone]] = {
    "timm": _build_timm,
    "torchvision": _build_torchvision,
}


def _download(spec: BackboneSpec, build: Callable[[str, bool], Backbone]) -> Backbone:
    # Its retries would be printed before the one sentence that says what is wrong.
    hub = logging.getLogger("huggingface_hub")
    level = hub.level
    hub.setLevel(logging.ERROR)
    try:
        return build(spec.name, True)
    except InputError:
        raise
    # The exception of a failed download depends on the library, its version and the proxy.
    except Exception as error:
        reason = " ".join(str(error).split())[:120].rstrip(". ")
        raise InputError(
            f"the pretrained weights of {spec.library}:{spec.name} could not be fetched ({reason}); "
            f"connect to the internet once, or use a file: {spec.library}:{spec.name}:FILE."
        ) from error
    finally:
        hub.setLevel(level)


def load_weights(backbone: Backbone, path: Path) -> None:
    """Load a state dict from `path`.

    Missing keys, wrong shapes and unknown keys inside the network raise `InputError`. The classifier
    and tensors outside the network are skipped with a warning.
    """
    expected = backbone.network.state_dict()
    state, beside = _inside_prefix(_read_weights(path), expected)
    heads = tuple(f"{name}." for name in backbone.heads)
    head = {key for key in state if key.startswith(heads) and key not in expected}
    _refuse_other_channels(path, state, expected)
    inside = {key: value for key, value in state.items() if key not in head}
    # Files of old versions lack BatchNorm's batch counters, which torch does not count as missing.
    wanted = {
        key: value
        for key, value in expected.items()
        if key in inside or not key.endswith("num_batches_tracked")
    }
    if problems := compare_keys(inside, wanted):
        if beside:  # one of them may be a missing key under another name
            problems += f"; outside the network: {', '.join(beside)}"
        raise InputError(
            f"{path} does not fit the network ({problems}); use weights of this network, or name the "
            "network they belong to."
        )
    backbone.network.load_state_dict(inside, strict=False)
    for what, keys in (("the classifier", sorted(head)), ("tensors outside the network", beside)):
        if keys:
            _warn_once(f"{path}: skipped {what}: {summarize_keys(keys)}")


@cache
def _warn_once(message: str) -> None:
    """Log a warning, unless this process did so before: some commands open an encoder twice."""
    _logger.warning("%s", message)


def compare_keys(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> str:
    """Name every weight that is missing, unexpected or of another shape; empty if all fit."""
    problems = {
        "missing": [key for key in wanted if key not in found],
        "unexpected": [key for key in found if key not in wanted],
        "wrong shape": [
            f"{key} is {_shape(found[key])}, not {_shape(value)}"
            for key, value in wanted.items()
            if key in found and found[key].shape != value.shape
        ],
    }
    return "; ".join(f"{title}: {', '.join(keys)}" for title, keys in problems.items() if keys)


def _refuse_other_channels(
    path: Path, state: Mapping[str, Tensor], expected: Mapping[str, Tensor]
) -> None:
    """Raise if the first convolution expects another number of channels than RGB's three."""
    first = next((key for key, value in expected.items() if value.ndim == 4), None)
    if first is None or first not in state:
        return
    found, wanted = state[first].shape, expected[first].shape
    if len(found) == 4 and found[1] != 3 == wanted[1] and found[2:] == wanted[2:]:
        raise InputError(
            f"{path} is for images of {found[1]} channels ({first} is {_shape(state[first])}), but "
            "images are read as RGB; use weights for 3 channels."
        )


def summarize_keys(keys: Iterable[str], most: int = 6) -> str:
    """List the `keys`; if there are more than `most`, count them per part of the network."""
    keys = list(keys)
    if len(keys) <= most:
        return ", ".join(keys)
    parts = Counter(key.partition(".")[0] for key in keys)
    return ", ".join(f"{part}.* ({count} keys)" for part, count in parts.items())


def _inside_prefix(
    state: Mapping[str, Tensor], expected: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], list[str]]:
    """Find the prefix, such as `module.backbone.`, under which most `expected` keys are.

    Returns the tensors under it, and the names of all others.
    """
    prefixes = Counter(
        prefix for key in state for prefix in _prefixes(key) if key[len(prefix) :] in expected
    )
    prefix, count = prefixes.most_common(1)[0] if prefixes else ("", 0)
    if 2 * count < len(expected):
        prefix = (
            ""  # a block of another network, such as `blocks.0.0.`, has some of the names by chance
        )
    inside = {key.removeprefix(prefix): state[key] for key in state if key.startswith(prefix)}
    return inside, [key for key in state if not key.startswith(prefix)]


def _prefixes(key: str) -> list[str]:
    return ["", *(key[: place + 1] for place, letter in enumerate(key) if letter == ".")]


def _read_weights(path: Path) -> dict[str, Tensor]:
    """Read a state dict without executing code that the file may contain."""
    if path.suffix == ".pkl":  # such as Detectron2's
        raise InputError(
            f"{path} is a pickle, which could run code and is never read; use a .pth or .safetensors file."
        )
    try:
        content: Any = (
            load_file(path)
            if path.suffix == ".safetensors"
            else torch.load(path, map_location="cpu", weights_only=True)
        )
    except FileNotFoundError:
        raise InputError(f"there is no file {path}.") from None
    except IsADirectoryError:
        raise InputError(f"{path} is a folder; use a .pth or .safetensors file.") from None
    except pickle.UnpicklingError as error:
        raise InputError(
            f"{path} is damaged or contains more than tensors, which could run code; save only its "
            "state dict."
        ) from error
    except Exception as error:  # readers raise many kinds for damaged files
        raise InputError(f"{path} is damaged or not a file of weights.") from error
    for wrapper in _WRAPPERS:
        if isinstance(content, dict) and isinstance(content.get(wrapper), dict):
            content = content[wrapper]
    tensors = content if isinstance(content, dict) else {}
    tensors = {key: value for key, value in tensors.items() if isinstance(value, Tensor)}
    if not tensors:
        raise InputError(f"{path} contains no state dict.")
    return tensors


def _unknown(library: str, name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=3)
    hint = f"did you mean {', '.join(close)}?" if close else f"see the models that {library} lists."
    return f"{library}:{name} is not a model of {library}; {hint}"


def _shape(tensor: Tensor) -> str:
    return "×".join(map(str, tensor.shape)) or "one number"


def _three(values: Iterable[float]) -> tuple[float, float, float]:
    red, green, blue = (float(value) for value in values)
    return red, green, blue
