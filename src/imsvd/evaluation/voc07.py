"""Pascal VOC 2007 classification with one linear support vector machine per class.

The protocol of Goyal et al. (2019), https://arxiv.org/abs/1905.01235, and of the paper: L2-normalized
features, squared hinge loss, positives with twice the weight. 3-fold cross-validation on trainval
selects the cost C by average precision; the machine fitted on all of trainval is scored on test. An
image that shows a class only in objects marked difficult is ignored for that class.

Average precision follows the devkit, section 3.4.1, with one refinement: images with equal scores
share a rank, so the order of the images cannot change the result.
http://host.robots.ox.ac.uk/pascal/VOC/voc2007/devkit_doc_07-Jun-2007.pdf
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from rich.console import Console
from torch import Tensor

from imsvd.datasets.voc import ABSENT, DIFFICULT, PRESENT, VOCData, VOCSource
from imsvd.encoder import Encoder, encoding_device
from imsvd.errors import InputError
from imsvd.evaluation.features import check_features, check_widths, encode_source
from imsvd.progress import progress_bar
from imsvd.settings import Settings

Values = NDArray[np.floating]
Labels = NDArray[np.int8]
_Costs = Annotated[tuple[Annotated[float, Field(gt=0)], ...], Field(min_length=1)]

_RECALL_STEPS = 10
"""VOC 2007 samples precision at this many steps of recall from 0 to 1."""


class SVMSettings(Settings):
    """Settings of the per-class support vector machines.

    Attributes:
        costs: candidate values of C; the first wins a tie.
        folds: number of cross-validation folds, stratified, in the order of the images.
        positive_weight: weight of a positive image; negatives weigh 1.
        tolerance: liblinear's stopping tolerance.
        max_iterations: most passes of liblinear over the images.
        jobs: number of processes; None uses every available processor.
    """

    costs: _Costs = (0.01, 0.1, 1, 2, 5, 10, 15, 20, 50, 100, 1000)
    folds: int = Field(default=3, ge=2)
    positive_weight: float = Field(default=2, gt=0)
    tolerance: float = Field(default=1e-4, gt=0)
    max_iterations: int = Field(default=2000, ge=1)
    jobs: int | None = Field(default=None, ge=1)


_DEFAULTS = SVMSettings()


class MultiLabelFeatures(NamedTuple):
    """Features (n, width) and targets (n, classes): 1 present, -1 absent, 0 difficult."""

    features: Tensor
    targets: Tensor


class VOC07Outcome(NamedTuple):
    """Metrics in percent, and details for results.jsonl."""

    metrics: dict[str, float]
    details: dict[str, Any]


class ClassScores(NamedTuple):
    """Scores of the test images by one class's machine.

    Attributes:
        scores: (m,) signed distances from the separating plane, positive for the class.
        cost: selected C.
        validation: mean average precision over the folds at that C, 0 to 1.
        converged: whether liblinear reached its tolerance on all training images.
    """

    scores: NDArray[np.float64]
    cost: float
    validation: float
    converged: bool


def run_voc07(
    encoder: Encoder, data: VOCData, console: Console, settings: SVMSettings = _DEFAULTS
) -> VOC07Outcome:
    """Run the whole protocol on an encoder, showing progress on `console`."""
    require_scikit_learn()
    class_names = data.trainval.class_names
    # Checked before the slow encoding; `voc07` checks the readable images again.
    check_classes("trainval", data.trainval.targets, class_names, settings.folds)
    check_classes("test", data.test.targets, class_names, 1)
    train, skipped_train = _encode(encoder, data.trainval, console)
    test, skipped_test = _encode(encoder, data.test, console)
    with progress_bar(console) as bar:
        task = bar.add_task("support vector machines", total=num_steps(len(class_names), settings))
        outcome = voc07(train, test, class_names, settings, lambda: bar.advance(task))
    counts = {
        "train_images": len(train.features),
        "test_images": len(test.features),
        "skipped": skipped_train + skipped_test,
    }
    return VOC07Outcome(outcome.metrics, counts | outcome.details)


def voc07(
    train: MultiLabelFeatures,
    test: MultiLabelFeatures,
    class_names: tuple[str, ...],
    settings: SVMSettings = _DEFAULTS,
    advance: Callable[[], None] = lambda: None,
) -> VOC07Outcome:
    """Return the average precision of every class and the means over classes, in percent.

    "voc07_map" and "voc07/<class>" use VOC 2007's 11 points. `class_names` names the target columns;
    `advance` is called after each of the `num_steps` steps.
    """
    check_features("training", train.features)
    check_features("test", test.features)
    check_widths(train.features, test.features)
    check_classes("trainval", train.targets, class_names, settings.folds)
    check_classes("test", test.targets, class_names, 1)
    targets = test.targets.numpy()
    found = classify(
        train.features.numpy(), train.targets.numpy(), test.features.numpy(), settings, advance
    )
    eleven, every = {}, {}
    for number, (name, result) in enumerate(zip(class_names, found, strict=True)):
        counted = targets[:, number] != DIFFICULT
        scores, positives = result.scores[counted], targets[counted, number] == PRESENT
        eleven[name] = 100 * eleven_point_average_precision(scores, positives)
        every[name] = 100 * all_point_average_precision(scores, positives)
    metrics = {
        "voc07_map": float(np.mean(list(eleven.values()))),
        "voc07_map_all_points": float(np.mean(list(every.values()))),
    }
    metrics |= {f"voc07/{name}": value for name, value in eleven.items()}
    return VOC07Outcome(metrics, _details(class_names, found, targets, settings))


def check_classes(split: str, targets: Tensor, class_names: tuple[str, ...], least: int) -> None:
    """Require `least` positive and negative images of every class in targets (n, classes)."""
    for number, name in enumerate(class_names):
        for label, word in ((PRESENT, "with"), (ABSENT, "without")):
            count = int((targets[:, number] == label).sum())
            if count < least:
                raise InputError(
                    f"{split} has {count} images {word} the class {name!r}, and {least} are needed; "
                    "add some, or remove the class."
                )


def _encode(
    encoder: Encoder, source: VOCSource, console: Console
) -> tuple[MultiLabelFeatures, int]:
    """Return features and targets of the readable images, and the number of unreadable ones."""
    device = encoding_device()
    found = encode_source(encoder, source, source.split, console, device)
    readable = torch.ones(len(source), dtype=torch.bool)
    for bad in found.skipped:
        readable[bad.index] = False
    return MultiLabelFeatures(found.features, source.targets[readable]), len(found.skipped)


def _details(
    class_names: tuple[str, ...],
    found: list[ClassScores],
    test_targets: Labels,
    settings: SVMSettings,
) -> dict[str, Any]:
    counted = (test_targets != DIFFICULT).sum(axis=0)
    shares = (test_targets == PRESENT).sum(axis=0) / counted
    named = dict(zip(class_names, found, strict=True))
    return {
        "chance": 100 * float(shares.mean()),  # the expected precision of random scores
        "costs": {name: result.cost for name, result in named.items()},
        "validation": {name: 100 * result.validation for name, result in named.items()},
        "not_converged": [name for name, result in named.items() if not result.converged],
        "settings": settings.model_dump(mode="json", exclude={"jobs"}),
    }


def classify(
    train: Values,
    train_targets: Labels,
    test: Values,
    settings: SVMSettings,
    advance: Callable[[], None] = lambda: None,
) -> list[ClassScores]:
    """Fit a machine for every class on features (n, width) and score test features (m, width).

    `train_targets` (n, classes) are 1 positive, -1 negative, 0 ignored; every class needs at least
    `settings.folds` positives and as many negatives.
    """
    train, test = normalize(train), normalize(test)
    classes = range(train_targets.shape[1])
    searches = [(number, cost) for number in classes for cost in settings.costs]
    validated = _in_parallel(
        (
            (_validate, (train, train_targets[:, number], cost, settings))
            for number, cost in searches
        ),
        settings,
        advance,
    )
    by_class = np.array(validated).reshape(len(classes), len(settings.costs))
    best = [int(index) for index in by_class.argmax(axis=1)]
    fitted = _in_parallel(
        (
            (_fit, (train, train_targets[:, number], test, settings.costs[best[number]], settings))
            for number in classes
        ),
        settings,
        advance,
    )
    return [
        ClassScores(scores, settings.costs[index], float(values[index]), converged)
        for (scores, converged), index, values in zip(fitted, best, by_class, strict=True)
    ]


def num_steps(num_classes: int, settings: SVMSettings) -> int:
    """Return how often `classify` calls `advance`."""
    return num_classes * (len(settings.costs) + 1)


def normalize(features: Values) -> NDArray[np.float32]:
    """Scale the rows of `features` (n, width) to length 1; zero rows stay zero."""
    lengths = np.linalg.norm(features, axis=1, keepdims=True)
    return (features / np.where(lengths > 0, lengths, 1)).astype(np.float32)


def require_scikit_learn() -> None:
    """Raise `InputError` unless scikit-learn, an optional dependency, is installed."""
    try:
        import sklearn  # noqa: F401, PLC0415 - an extra
    except ImportError:
        raise InputError(
            "support vector machines need scikit-learn; run `pip install 'imsvd[evaluation]'`."
        ) from None


def _machine(cost: float, settings: SVMSettings) -> Any:
    from sklearn.svm import LinearSVC  # noqa: PLC0415 - an extra

    return LinearSVC(
        C=cost,
        penalty="l2",
        loss="squared_hinge",
        dual=True,  # as published; the primal solver's results differ where this one stops early
        class_weight={1: settings.positive_weight, -1: 1.0},
        tol=settings.tolerance,
        max_iter=settings.max_iterations,
        random_state=0,
    )


def _validate(features: Values, targets: Labels, cost: float, settings: SVMSettings) -> float:
    """Return the mean average precision over the folds."""
    from sklearn.model_selection import cross_val_score  # noqa: PLC0415 - an extra

    counted = targets != 0
    with _quiet_single_thread():
        scores = cross_val_score(
            _machine(cost, settings),
            features[counted],
            targets[counted],
            cv=settings.folds,
            scoring="average_precision",
        )
    return float(scores.mean())


def _fit(
    features: Values, targets: Labels, test: Values, cost: float, settings: SVMSettings
) -> tuple[NDArray[np.float64], bool]:
    """Fit on all training images; return the test images' scores and whether liblinear converged."""
    counted = targets != 0
    with _quiet_single_thread():
        machine = _machine(cost, settings).fit(features[counted], targets[counted])
        scores: NDArray[np.float64] = machine.decision_function(test)
    return scores, int(machine.n_iter_) < settings.max_iterations


@contextmanager
def _quiet_single_thread() -> Iterator[None]:
    """Use one thread, and silence convergence warnings: `ClassScores.converged` reports them."""
    from sklearn.exceptions import ConvergenceWarning  # noqa: PLC0415 - an extra
    from threadpoolctl import threadpool_limits  # noqa: PLC0415 - comes with scikit-learn

    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield


def _in_parallel(
    tasks: Iterator[tuple[Callable[..., Any], tuple[Any, ...]]],
    settings: SVMSettings,
    advance: Callable[[], None],
) -> list[Any]:
    """Return the results of all tasks, in order; processes share large arrays in memory."""
    from joblib import Parallel, cpu_count, delayed  # noqa: PLC0415 - comes with scikit-learn

    parallel = Parallel(n_jobs=settings.jobs or cpu_count(), return_as="generator")
    results = []
    for result in parallel(delayed(function)(*arguments) for function, arguments in tasks):
        results.append(result)
        advance()
    return results


class _Curve(NamedTuple):
    """Positives and images at or above every distinct score, best first, (thresholds,) each."""

    hits: NDArray[np.int64]
    images: NDArray[np.int64]


def eleven_point_average_precision(scores: Values, positives: NDArray[np.bool_]) -> float:
    """Average the best precision at recall r or more over r = 0, 0.1, …, 1 (VOC 2007).

    `scores` (n,) are higher for likely positives; at least one of `positives` (n,) is true.
    """
    curve = _curve(scores, positives)
    envelope = _best_from_here(curve)
    total = 0.0
    for level in range(_RECALL_STEPS + 1):
        # In integers: rounding must not put a recall of 3/10 below 0.3.
        reached = _RECALL_STEPS * curve.hits >= level * curve.hits[-1]
        total += envelope[int(np.argmax(reached))]
    return total / (_RECALL_STEPS + 1)


def all_point_average_precision(scores: Values, positives: NDArray[np.bool_]) -> float:
    """Integrate the best precision at every recall or more (VOC since 2010); arguments as above."""
    curve = _curve(scores, positives)
    gained = np.diff(curve.hits, prepend=0) / curve.hits[-1]
    return float(gained @ _best_from_here(curve))


def _curve(scores: Values, positives: NDArray[np.bool_]) -> _Curve:
    if scores.shape != positives.shape or scores.ndim != 1:
        raise ValueError(f"{scores.shape} scores for {positives.shape} labels")
    if not positives.any():
        raise ValueError("average precision is undefined for a class without positive images")
    if not np.isfinite(scores).all():
        raise ValueError("scores must be finite")
    order = np.argsort(-scores)
    last_of_rank = np.append(np.diff(scores[order]) != 0, True)
    hits = np.cumsum(positives[order])[last_of_rank]
    return _Curve(hits, np.flatnonzero(last_of_rank) + 1)


def _best_from_here(curve: _Curve) -> NDArray[np.float64]:
    """Return the best precision at each threshold or any lower one, (thresholds,)."""
    precision = curve.hits / curve.images
    return np.asarray(np.maximum.accumulate(precision[::-1])[::-1])
