import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bertkit.bundle.crc32c import crc32c


def slow_crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ 0x82F63B78 * (crc & 1)
    return crc ^ 0xFFFFFFFF


def test_known_values():
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(b"") == 0
    assert crc32c(bytes(32)) == 0x8A9136AA


@given(st.binary(max_size=3000))
def test_it_is_the_bit_by_bit_remainder(data):
    assert crc32c(data) == slow_crc32c(data)


def test_many_lanes_agree_with_few():
    data = np.random.default_rng(0).integers(0, 256, 40_003, dtype=np.uint8)
    assert crc32c(data) == slow_crc32c(data.tobytes())
