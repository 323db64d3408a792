import pytest
from support.protobuf_writer import field, varint

from bertkit.text.protobuf import message, varints


@pytest.mark.parametrize("number", [0, 1, 127, 128, 300, 2**32, 2**64 - 1])
def test_numbers_come_back(number):
    assert varints(b"x" + varint(number) + b"y", 1, 1) == ([number], 1 + len(varint(number)))


def test_fields_come_back_by_number():
    nested = field(7, 1) + field(7, 2)
    assert message(field(1, 300) + field(20, nested) + field(2, 1.5)) == {1: [300], 20: [nested], 2: [0x3FC00000]}
    assert message(nested) == {7: [1, 2]}
    assert message(b"") == {}


def test_what_is_cut_off_is_refused():
    whole = field(1, b"some bytes") + field(2, 1.5)
    for size in {*range(len(whole))} - {0, 12}:  # between the fields it cannot be seen
        with pytest.raises((ValueError, IndexError)):
            message(whole[:size])
    with pytest.raises(ValueError, match="wire type 3"):
        message(bytes([1 << 3 | 3]))
