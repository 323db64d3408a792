"""Reads protocol buffers, the format of many published files, by field number, without a schema."""


def varints(data: bytes, place: int, count: int) -> tuple[list[int], int]:
    """Returns `count` varints (seven bits per byte) and the offset after them; raises ValueError for an overlong one."""
    numbers = []
    for _ in range(count):
        number = shift = 0
        while data[place] & 0x80:
            number |= (data[place] & 0x7F) << shift
            shift, place = shift + 7, place + 1
        if shift and not data[place]:
            raise ValueError("a number with an empty last byte")
        numbers.append(number | data[place] << shift)
        place += 1
    return numbers, place


def message(data: bytes) -> dict[int, list]:
    """Returns the fields: number → values. Nested messages stay bytes; a float is its four bytes as an integer."""
    found, place = dict[int, list](), 0
    while place < len(data):
        (tag,), place = varints(data, place, 1)
        value: int | bytes
        if tag & 7 == 0:
            (value,), place = varints(data, place, 1)
        elif tag & 7 == 2:
            (length,), place = varints(data, place, 1)
            value, place = data[place : place + length], place + length
        elif tag & 7 == 5:
            value, place = int.from_bytes(data[place : place + 4], "little"), place + 4
        else:
            raise ValueError(f"wire type {tag & 7}")
        if place > len(data):
            raise ValueError("cut off")
        found.setdefault(tag >> 3, []).append(value)
    return found
