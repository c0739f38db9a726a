from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imsvd.views.keyed import keyed_uniforms, philox


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (
            (0xFFFFFFFF,) * 4,
            (0xFFFFFFFF,) * 2,
            (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
        ),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_answers_its_authors_published(
    counter: tuple[int, int, int, int], key: tuple[int, int], expected: tuple[int, ...]
) -> None:
    first, second, third, fourth = (np.array([word], dtype=np.uint64) for word in counter)
    assert philox((first, second, third, fourth), key)[0].tolist() == list(expected)


def test_known_answers_never_change() -> None:
    zero = keyed_uniforms(0, 0, np.array([0]), 0, 4)
    published = (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
    assert zero[0].tolist() == [word / 2**32 for word in published]
    far = keyed_uniforms(2**64 - 1, 999, np.array([2**40 + 7]), 3, 2, start=5)
    assert (far * 2**32).astype(np.uint64)[0].tolist() == [2358378087, 3627572085]


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.integers(0, 2**40), min_size=1, max_size=30),
    st.integers(0, 2**64 - 1),
    st.integers(0, 10_000),
    st.integers(0, 9),
    st.integers(0, 23),
    st.integers(0, 23),
    st.randoms(use_true_random=False),
)
def test_neither_batch_mates_nor_the_range_asked_for_matter(
    rows: list[int], seed: int, epoch: int, view: int, start: int, draws: int, random: Any
) -> None:
    together = keyed_uniforms(seed, epoch, np.array(rows), view, 50)
    shuffled = random.sample(range(len(rows)), len(rows))
    again = keyed_uniforms(seed, epoch, np.array(rows)[shuffled], view, draws, start=start)
    assert np.array_equal(again, together[shuffled, start : start + draws])
    alone = keyed_uniforms(seed, epoch, np.array(rows[:1]), view, 50)
    assert np.array_equal(alone, together[:1])


@pytest.mark.parametrize("dtype", [np.int16, np.int32, np.uint32, np.int64, np.uint64])
def test_the_dtype_of_indices_does_not_matter(dtype: type[np.integer[Any]]) -> None:
    plain = keyed_uniforms(1, 2, np.arange(100), 0, 8)
    assert np.array_equal(keyed_uniforms(1, 2, np.arange(100, dtype=dtype), 0, 8), plain)


def test_every_part_of_the_key_counts() -> None:
    index = np.array([5])
    results = [
        keyed_uniforms(1, 1, index, 1, 4),
        keyed_uniforms(2, 1, index, 1, 4),
        keyed_uniforms(1 + 2**32, 1, index, 1, 4),
        keyed_uniforms(1, 2, index, 1, 4),
        keyed_uniforms(1, 1, index + 1, 1, 4),
        keyed_uniforms(1, 1, index + 2**32, 1, 4),
        keyed_uniforms(1, 1, index, 2, 4),
        keyed_uniforms(1, 1, index, 1, 4, start=4),
    ]
    assert len({result.tobytes() for result in results}) == len(results)


def test_draws_are_uniform() -> None:
    values = keyed_uniforms(0, 0, np.arange(50_000), 0, 8)
    assert values.min() >= 0
    assert values.max() < 1
    counts = np.histogram(values, bins=100, range=(0, 1))[0]
    expected = values.size / 100
    # 99 degrees of freedom: a fair generator exceeds 161 once in ten thousand times.
    assert ((counts - expected) ** 2 / expected).sum() < 161


def test_neighboring_keys_are_uncorrelated() -> None:
    n = 40_000
    indices = np.arange(n)
    base = keyed_uniforms(3, 7, indices, 0, 5)
    columns = {
        "draw": (base[:, 0], base[:, 1]),
        "block": (base[:, 0], base[:, 4]),
        "sample": (base[:-1, 0], base[1:, 0]),
        "epoch": (base[:, 0], keyed_uniforms(3, 8, indices, 0, 1)[:, 0]),
        "view": (base[:, 0], keyed_uniforms(3, 7, indices, 1, 1)[:, 0]),
        "seed": (base[:, 0], keyed_uniforms(4, 7, indices, 0, 1)[:, 0]),
    }
    for name, (one, other) in columns.items():
        assert abs(np.corrcoef(one, other)[0, 1]) < 4 / np.sqrt(n), name
        cells = np.histogram2d(one, other, bins=8, range=((0, 1), (0, 1)))[0]
        expected = len(one) / 64
        # 63 degrees of freedom: exceeded once in ten thousand times.
        assert ((cells - expected) ** 2 / expected).sum() < 114, name


def test_no_draws_and_no_samples() -> None:
    assert keyed_uniforms(0, 0, np.arange(3), 0, 0).shape == (3, 0)
    assert keyed_uniforms(0, 0, np.arange(0), 0, 4).shape == (0, 4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1, 0, np.arange(2), 0, 1), "seed -1 is outside"),
        ((2**64, 0, np.arange(2), 0, 1), "seed 18446744073709551616 is outside"),
        ((0, 2**32, np.arange(2), 0, 1), "epoch 4294967296 is outside"),
        ((0, 0, np.arange(2), 65536, 1), "view 65536 is outside"),
        ((0, 0, np.array([-3]), 0, 1), "non-negative"),
        ((0, 0, np.zeros((2, 2), dtype=int), 0, 1), "one row"),
        ((0, 0, np.arange(2), 0, 2**18 + 1), "draws 0 to 262144 are outside"),
    ],
)
def test_keys_out_of_range_are_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        keyed_uniforms(*arguments)
