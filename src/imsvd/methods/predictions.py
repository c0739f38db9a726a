"""Which view predicts which, for methods whose two sides differ."""


def prediction_pairs(count: int) -> list[tuple[int, int]]:
    """Pairs (predicting view, target view): every view predicts the large views other than itself.

    The two large views are the first two of `count`; local views have no targets of their own.
    """
    return [(view, target) for target in (0, 1) for view in range(count) if view != target]
