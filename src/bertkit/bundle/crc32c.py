"""CRC-32C in numpy, at hundreds of megabytes a second: TensorFlow's checkpoints carry one for every tensor.

A CRC is linear, so the data is split into lanes that are processed in parallel, four bytes per step, and the lanes'
remainders are combined pairwise: crc(a + b) = advance(crc(a), len(b)) ^ crc(b).
"""

from functools import cache

import numpy as np

POLYNOMIAL = np.uint32(0x82F63B78)  # Castagnoli, bit-reversed
MASK = 0xA282EAD8
FILLING = np.frombuffer(b"\x54\x64\x1f\x64", np.uint8)  # bytes that set a zero register to all ones, a CRC's start


def crc32c(data: bytes | np.ndarray) -> int:
    """Returns the CRC-32C of the bytes."""
    values = np.frombuffer(data, np.uint8)
    lanes = 1 << max(0, min(16, (len(values) // 256).bit_length() - 1))
    steps = -(-(4 + len(values)) // (4 * lanes))
    padded = np.zeros(4 * lanes * steps, np.uint8)  # leading zeros do not change a zero register
    begin = len(padded) - len(values)
    padded[begin - 4 : begin], padded[begin:] = FILLING, values
    low, high = _tables()
    state = np.zeros(lanes, np.uint32)
    for words in np.ascontiguousarray(padded.view("<u4").reshape(lanes, steps).T):
        state ^= words
        state = low[state & 0xFFFF] ^ high[state >> 16]
    advance = _zeros(4 * steps)
    while len(state) > 1:
        state = _apply(advance, state[0::2]) ^ state[1::2]
        advance = _apply(advance, advance)
    return int(state[0]) ^ 0xFFFFFFFF


def masked_crc32c(data: bytes | np.ndarray) -> int:
    """Returns the checksum in the masked form that TensorFlow stores."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + MASK) & 0xFFFFFFFF


def _shift_bits(state: np.ndarray, bits: int) -> np.ndarray:
    for _ in range(bits):
        state = (state >> 1) ^ POLYNOMIAL * (state & 1)
    return state


@cache
def _tables() -> tuple[np.ndarray, np.ndarray]:
    """Lookup tables for the register's state after four zero bytes, by its lower and by its upper half."""
    halves = np.arange(2**16, dtype=np.uint32)
    return _shift_bits(halves, 32), _shift_bits(halves << 16, 32)


def _zeros(count: int) -> np.ndarray:
    """Returns what each single bit of the register becomes after `count` zero bytes: [32]."""
    bits = np.uint32(1) << np.arange(32, dtype=np.uint32)
    result, power = bits, _shift_bits(bits, 8)
    while count:
        if count & 1:
            result = _apply(power, result)
        power, count = _apply(power, power), count >> 1
    return result


def _apply(matrix: np.ndarray, states: np.ndarray) -> np.ndarray:
    """Applies a linear map, given by the images of the single bits, to many registers."""
    result = np.zeros_like(states)
    for bit, image in enumerate(matrix):
        result ^= image * (states >> np.uint32(bit) & np.uint32(1))
    return result
