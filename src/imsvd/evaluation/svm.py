"""A linear support vector machine per class on frozen features, its cost cross-validated.

The protocol of Goyal et al. (2019) and of the paper: https://arxiv.org/abs/1905.01235. Features
are L2-normalized; squared hinge loss; positives weigh twice; the cost C is the one with the best
average precision in 3-fold cross-validation on the training images.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from imsvd.errors import InputError
from imsvd.settings import Settings

Values = NDArray[np.floating]
Labels = NDArray[np.int8]


class SVMSettings(Settings):
    """Settings of the per-class machines.

    Attributes:
        costs: the values of C to choose from; the first of equals wins.
        folds: parts of the cross-validation, cut in the order of the images, stratified.
        positive_weight: weight of a positive image; a negative one has 1.
        tolerance: liblinear's stopping tolerance.
        max_iterations: passes of liblinear over the images before it gives up.
        jobs: processes; by default one for every processor this one may use.
    """

    costs: Annotated[tuple[Annotated[float, Field(gt=0)], ...], Field(min_length=1)] = (
        0.01,
        0.1,
        1,
        2,
        5,
        10,
        15,
        20,
        50,
        100,
        1000,
    )
    folds: int = Field(default=3, ge=2)
    positive_weight: float = Field(default=2, gt=0)
    tolerance: float = Field(default=1e-4, gt=0)
    max_iterations: int = Field(default=2000, ge=1)
    jobs: int | None = Field(default=None, ge=1)


class ClassScores(NamedTuple):
    """What the machine of one class says of the test images.

    Attributes:
        scores: (m,) signed distances from the separating plane, positive for the class.
        cost: the C that was chosen.
        validation: the mean average precision over the folds at that C, 0 to 1.
        converged: whether liblinear reached its tolerance on all training images.
    """

    scores: NDArray[np.float64]
    cost: float
    validation: float
    converged: bool


def require_scikit_learn() -> None:
    """Say how to install scikit-learn if it is missing."""
    try:
        import sklearn  # noqa: F401, PLC0415 - an extra: only this protocol needs it
    except ImportError:
        raise InputError(
            "support vector machines need scikit-learn; run `pip install 'imsvd[evaluation]'`."
        ) from None


def normalize(features: Values) -> NDArray[np.float32]:
    """Rows of `features` (n, width) with length 1; a zero row stays zero."""
    lengths = np.linalg.norm(features, axis=1, keepdims=True)
    return (features / np.where(lengths > 0, lengths, 1)).astype(np.float32)


def classify(
    train: Values,
    train_targets: Labels,
    test: Values,
    settings: SVMSettings,
    advance: Callable[[], None] = lambda: None,
) -> list[ClassScores]:
    """Fit a machine for every class and score the test images with it.

    Args:
        train: (n, width) features.
        train_targets: (n, classes): 1 positive, -1 negative, 0 left out for that class. Every
            class has at least `settings.folds` positives and as many negatives.
        test: (m, width) features.
        settings: the protocol.
        advance: called after each of the `num_steps` steps.
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
    """How often `classify` calls `advance`."""
    return num_classes * (len(settings.costs) + 1)


def _machine(cost: float, settings: SVMSettings) -> Any:
    from sklearn.svm import LinearSVC  # noqa: PLC0415 - an extra

    return LinearSVC(
        C=cost,
        penalty="l2",
        loss="squared_hinge",
        dual=True,  # as published; the primal solver finds other machines where this one gives up
        class_weight={1: settings.positive_weight, -1: 1.0},
        tol=settings.tolerance,
        max_iter=settings.max_iterations,
        random_state=0,
    )


def _validate(features: Values, targets: Labels, cost: float, settings: SVMSettings) -> float:
    """The mean average precision over the folds."""
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
    """Scores of the test images by a machine fitted on all training images; whether it converged."""
    counted = targets != 0
    with _quiet_single_thread():
        machine = _machine(cost, settings).fit(features[counted], targets[counted])
        scores: NDArray[np.float64] = machine.decision_function(test)
    return scores, int(machine.n_iter_) < settings.max_iterations


@contextmanager
def _quiet_single_thread() -> Iterator[None]:
    """One thread to a process, and no warnings of costs too high to converge: those are counted."""
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
    """The results of all tasks, in order; large arrays reach the processes through shared memory."""
    from joblib import Parallel, cpu_count, delayed  # noqa: PLC0415 - comes with scikit-learn

    parallel = Parallel(n_jobs=settings.jobs or cpu_count(), return_as="generator")
    results = []
    for result in parallel(delayed(function)(*arguments) for function, arguments in tasks):
        results.append(result)
        advance()
    return results
