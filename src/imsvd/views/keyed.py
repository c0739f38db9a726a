"""Random numbers that are looked up, not streamed.

A sample's draws depend on (seed, epoch, sample index, view, draw number) and on nothing else, so
neither batch composition, worker, rank nor a resumed run can change them. The generator is
Philox-4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011), which is a
pure function of a 128-bit counter and a 64-bit key:

    key     = seed (64 bits)
    counter = sample index (64 bits), epoch (32 bits), view (16 bits), block of four draws (16 bits)
"""

from typing import Any

import numpy as np
import numpy.typing as npt

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_LOW_WORD = np.uint64(0xFFFFFFFF)
_WORD_BITS = np.uint64(32)
_DRAWS_PER_BLOCK = 4

Words = npt.NDArray[np.uint64]


def philox(counter: tuple[Words, Words, Words, Words], key: tuple[int, int]) -> Words:
    """Philox-4x32-10 of each counter; 32-bit words are carried in 64-bit lanes.

    Args:
        counter: four broadcastable arrays, each word below 2**32.
        key: two words below 2**32.

    Returns:
        (*broadcast shape, 4) words below 2**32.
    """
    first, second, third, fourth = np.broadcast_arrays(*counter)
    for step in range(_ROUNDS):
        low_key, high_key = (
            np.uint64((word + step * increment) & 0xFFFFFFFF)
            for word, increment in zip(key, _KEY_STEPS, strict=True)
        )
        product_0 = first * _MULTIPLIERS[0]
        product_1 = third * _MULTIPLIERS[1]
        first = (product_1 >> _WORD_BITS) ^ second ^ low_key
        third = (product_0 >> _WORD_BITS) ^ fourth ^ high_key
        second = product_1 & _LOW_WORD
        fourth = product_0 & _LOW_WORD
    return np.stack((first, second, third, fourth), axis=-1)


def _check_key(seed: int, epoch: int, indices: npt.NDArray[np.integer[Any]], view: int) -> None:
    for name, value, bits in (("seed", seed, 64), ("epoch", epoch, 32), ("view", view, 16)):
        if not 0 <= value < 2**bits:
            raise ValueError(f"{name} {value} is outside 0 to 2**{bits} - 1")
    if indices.ndim != 1 or (indices.size and indices.min() < 0):
        raise ValueError("sample indices must be one row of non-negative integers")


def keyed_uniforms(
    seed: int,
    epoch: int,
    indices: npt.NDArray[np.integer[Any]],
    view: int,
    draws: int,
    *,
    start: int = 0,
) -> npt.NDArray[np.float64]:
    """Uniform numbers in [0, 1), multiples of 2**-32, for each sample index.

    Args:
        seed: of the run, 0 to 2**64 - 1.
        epoch: 0 to 2**32 - 1.
        indices: (samples,) non-negative positions in the dataset.
        view: 0 to 2**16 - 1.
        draws: how many numbers each sample gets.
        start: the draw number of the first; draw d is the same whatever the range asked for.

    Returns:
        (samples, draws).
    """
    indices = np.asarray(indices)
    last_draw = start + draws - 1
    _check_key(seed, epoch, indices, view)
    if start < 0 or draws < 0 or last_draw >= _DRAWS_PER_BLOCK * 2**16:
        raise ValueError(f"draws {start} to {last_draw} are outside 0 to 2**18 - 1")
    first, last = start // _DRAWS_PER_BLOCK, last_draw // _DRAWS_PER_BLOCK
    block = np.arange(first, last + 1, dtype=np.uint64) | np.uint64(view << 16)
    sample = indices.astype(np.uint64)[:, None]
    epochs = np.full(1, epoch, dtype=np.uint64)
    counter = (sample & _LOW_WORD, sample >> _WORD_BITS, epochs, block)
    words = philox(counter, (seed & 0xFFFFFFFF, seed >> 32)).reshape(len(indices), 4 * len(block))
    skipped = start % _DRAWS_PER_BLOCK
    return words[:, skipped : skipped + draws].astype(np.float64) * 2.0**-32
