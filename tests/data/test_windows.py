"""Windows over long texts: everything is seen, nothing is too long, and parts stay in their places."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertkit.data.windows import NOTHING, Input, cut_windows, text_windows
from bertkit.errors import InputError
from bertkit.text.tokenizer import SPECIALS, Encoding, Pieces, Tokenizer

TOKENIZER = Tokenizer.from_vocabulary([*SPECIALS, *(f"w{i}" for i in range(500))], cased=False)


def numbered(count, first=10):
    """Pieces whose ids tell them apart."""
    ids = np.arange(first, first + count, dtype=np.int32)
    return Pieces(ids, np.stack([ids, ids + 1], 1).astype(np.int32), np.ones(count, bool))


def parts(encoding):
    """The ids of A and of B, after a look at the frame."""
    ids, segments = encoding.ids.tolist(), encoding.segments.tolist()
    assert ids[0] == TOKENIZER.cls and ids[-1] == TOKENIZER.sep
    ends = [index for index, one in enumerate(ids) if one == TOKENIZER.sep]
    assert segments == [0] * (ends[0] + 1) + [1] * (len(ids) - ends[0] - 1)
    assert len(ends) == 1 + segments[-1]
    return ids[1 : ends[0]], ids[ends[0] + 1 : -1] if len(ends) > 1 else None


@settings(deadline=None)
@given(st.integers(0, 300), st.integers(1, 40), st.data())
def test_windows_cover_everything_and_overlap_as_asked(count, room, data):
    stride = data.draw(st.integers(1, room))
    windows = list(cut_windows(count, room, stride))
    assert [window.start for window in windows] == [stride * index for index in range(len(windows))]
    assert set().union(*(range(count)[window] for window in windows)) == set(range(count))
    assert all(window.stop - window.start == room for window in windows[:-1])
    assert windows[-1].stop == count and windows[-1].stop - windows[-1].start <= room
    assert all(window.stop < count for window in windows[:-1])  # none after the end is reached
    for one, other in pairwise(windows):
        assert one.stop - other.start == room - stride


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(0, 40))
def test_what_fits_is_one_window(room, count):
    whole = [slice(0, min(count, room))]
    assert list(cut_windows(min(count, room), room, max(1, room // 2))) == whole


@pytest.mark.parametrize(("room", "stride"), [(0, 1), (-3, 1), (4, 0), (4, -1), (4, 5), (0, 0)])
def test_windows_that_cannot_be_are_refused(room, stride):
    with pytest.raises(InputError, match="expected room for one"):
        list(cut_windows(10, room, stride))


@settings(deadline=None)
@given(st.integers(0, 80), st.integers(3, 30), st.integers(1, 40))
def test_a_text_is_seen_whole(count, length, stride):
    windows = text_windows(TOKENIZER, numbered(count), None, length, stride)
    read = [parts(window)[0] for window in windows]
    assert all(len(window) <= length and parts(window)[1] is None for window in windows)
    assert set().union(*read) == set(range(10, 10 + count))
    assert all(ids == sorted(ids) for ids in read)
    assert (len(windows) == 1) == (count + 2 <= length)


@settings(deadline=None)
@given(st.integers(0, 60), st.integers(0, 60), st.integers(4, 30), st.integers(1, 40))
def test_of_a_pair_the_longer_part_is_seen_whole_beside_the_shorter(first, second, length, stride):
    a, b = numbered(first), numbered(second, first=200)
    windows = text_windows(TOKENIZER, a, b, length, stride)
    read = [parts(window) for window in windows]
    assert all(len(window) <= length for window in windows)
    if first + second + 3 <= length:
        assert read == [(a.ids.tolist(), b.ids.tolist())]
        return
    longer, shorter = (1, 0) if first <= second else (0, 1)
    assert set().union(*(pair[longer] for pair in read)) == set((a, b)[longer].ids.tolist())
    shown = {tuple(pair[shorter]) for pair in read}
    assert len(shown) == 1
    (shown,) = shown
    whole = (a, b)[shorter].ids.tolist()
    assert list(shown) == whole[: (length - 3) // 2]


@settings(deadline=None)
@given(st.integers(0, 60), st.integers(-1, 60), st.integers(3, 30))
def test_without_a_stride_the_longer_part_is_cut_off_first(first, second, length):
    a, b = numbered(first), None if second < 0 else numbered(second, first=200)
    (only,) = text_windows(TOKENIZER, a, b, length, 0)
    kept_a, kept_b = first, max(0, second)
    while kept_a + kept_b > length - (2 if b is None else 3):
        kept_a, kept_b = (kept_a - 1, kept_b) if kept_a > kept_b else (kept_a, kept_b - 1)
    read_a, read_b = parts(only)
    assert read_a == a.ids[: len(read_a)].tolist()
    if b is None:
        assert len(read_a) == kept_a
    else:
        assert read_b == b.ids[: len(read_b)].tolist()
        assert len(read_a) + len(read_b) == kept_a + kept_b
        assert abs(len(read_a) - kept_a) <= 1  # which of two equally long parts gives the odd piece is free


@pytest.mark.parametrize("length", [-1, 0, 1, 2, 3])
def test_no_room_for_a_pair_is_refused(length):
    with pytest.raises(InputError):
        text_windows(TOKENIZER, numbered(9), numbered(9, first=200), length, 4)


def test_offsets_go_along(tokenizer):
    text = "the dog went home and the cat went after the dog"
    (pieces,) = tokenizer.pieces([text])
    for window in text_windows(tokenizer, pieces, None, 7, 3):
        assert isinstance(window, Encoding)
        shown = [tokenizer.vocabulary[one].removeprefix("##") for one in window.ids[1:-1]]
        assert [text[begin:end] for begin, end in window.offsets[1:-1]] == shown


def test_an_input_is_judged_by_its_first_token():
    one = Input.of(TOKENIZER.join(numbered(3)), [2])
    assert one.places.tolist() == [0] and one.targets.tolist() == [2] and len(one) == 5
    assert NOTHING < 0
