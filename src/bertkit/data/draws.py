"""Randomness as a pure function: the same seed and counters always give the same numbers, in any order, on any machine.

There is no generator state to save: example 1,000,000 is drawn without drawing the 999,999 before it.
"""

import numpy as np

EPOCH = 2**40  # a cursor is epoch · EPOCH + the index of its next item
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def mix(x: np.ndarray) -> np.ndarray:
    """Scrambles 64-bit numbers, one to one (the finalizer of splitmix64)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def draw(seed: int, *counters: np.ndarray | int) -> np.ndarray:
    """Returns 64 random bits for each combination of counters, which are broadcast against each other."""
    state = mix(np.array([seed], np.uint64) + _GOLDEN)
    for counter in counters:
        state = mix((state + _GOLDEN) ^ mix(np.atleast_1d(counter).astype(np.uint64) + _GOLDEN))
    return state


def uniform(bits: np.ndarray) -> np.ndarray:
    """Converts random bits to floats in [0, 1)."""
    return (bits >> np.uint64(11)) * 2.0**-53


def below(bits: np.ndarray, limit: np.ndarray | int) -> np.ndarray:
    """Converts random bits to integers in [0, limit)."""
    return (uniform(bits) * limit).astype(np.int64)


def fair_coins(bits: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Returns the number of heads in `count` tosses: 64 per word of each row of bits [n, words]; half of any beyond."""
    tosses = 64 * bits.shape[1]
    left = (count[:, None] - 64 * np.arange(bits.shape[1])).clip(0, 64).astype(np.uint64)
    kept = np.where(left == 64, bits, bits & ((np.uint64(1) << (left & np.uint64(63))) - np.uint64(1)))
    return np.bitwise_count(kept).sum(1, dtype=np.int64) + (count - tosses).clip(0) // 2


def permute(index: np.ndarray, size: int, seed: int, epoch: int) -> np.ndarray:
    """Returns where each index goes in a random permutation of range(size): a Feistel network over the next power of 4."""
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    low, shift = np.uint64((1 << half) - 1), np.uint64(half)
    keys = draw(seed, 0x9E12, epoch, np.arange(6))

    def once(x: np.ndarray) -> np.ndarray:
        left, right = x >> shift, x & low
        for key in keys:
            left, right = right, left ^ (mix(right ^ key) & low)
        return left << shift | right

    x = once(np.asarray(index).astype(np.uint64))
    while (outside := x >= size).any():  # cycle walking: repeat until inside, still one to one
        x[outside] = once(x[outside])
    return x.astype(np.int64)
