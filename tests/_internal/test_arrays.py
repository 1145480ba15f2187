"""Arrays as bytes: they come back as they were, and nothing else is taken for them."""

import hashlib
import json

import numpy as np
import pytest

from randquant._internal.files import pack_arrays, unpack_arrays

ARRAYS = {
    "w": np.arange(6.0).reshape(2, 3),
    "n": np.array(3),
    "empty": np.zeros((0, 2), dtype=">f4"),
    "flags": np.array([True, False]),
    "half": np.array([0.5], np.float16),
}


def with_head(content, change):
    """The same bytes with another head, and a right checksum."""
    size = int.from_bytes(content[32:40], "little")
    head = json.loads(content[40 : 40 + size])
    change(head)
    text = json.dumps(head).encode()
    body = len(text).to_bytes(8, "little") + text + content[40 + size :]
    return hashlib.sha256(body).digest() + body


def test_arrays_come_back_as_they_were():
    record, arrays = unpack_arrays(pack_arrays({"round": 1}, ARRAYS))
    assert record == {"round": 1}
    assert list(arrays) == list(ARRAYS)
    for name, array in ARRAYS.items():
        assert (arrays[name].dtype, arrays[name].shape) == (array.dtype, array.shape)
        assert np.array_equal(arrays[name], array)
    arrays["w"] += 1  # they can be changed in place


@pytest.mark.parametrize(
    "change",
    [
        lambda head: head["arrays"][0].__setitem__(2, [10**12]),
        lambda head: head["arrays"][0].__setitem__(2, [-2, -3]),
        lambda head: head["arrays"][0].__setitem__(1, "|O8"),
        lambda head: head["arrays"][0].__setitem__(1, "<f8,<f8"),
        lambda head: head["arrays"][-1].__setitem__(0, "w"),
        lambda head: head["arrays"][-1].__setitem__(0, 7),
        lambda head: head["arrays"][-1].pop(),
        lambda head: head["arrays"].pop(),
        lambda head: head["arrays"].append(["more", "<f8", [1]]),
        lambda head: head["arrays"][0].__setitem__(2, [0] * 100_000),
        lambda head: head.update(record=[]),
        lambda head: head.pop("record"),
        lambda head: head.update(arrays=7),
    ],
)
def test_a_head_of_something_else_is_refused(change):
    content = pack_arrays({"round": 1}, ARRAYS)
    assert with_head(content, lambda head: None) == content
    with pytest.raises(ValueError, match="it was not written by this package"):
        unpack_arrays(with_head(content, change))


def test_a_change_of_any_byte_is_noticed():
    content = pack_arrays({"round": 1}, {"w": np.arange(3.0)})
    for place in range(len(content)):
        changed = content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
        with pytest.raises(ValueError, match="it is damaged"):
            unpack_arrays(changed)
    for end in range(len(content)):
        with pytest.raises(ValueError, match="it is damaged"):
            unpack_arrays(content[:end])


def test_what_is_no_number_is_refused_when_it_is_written():
    with pytest.raises(ValueError, match="Expected arrays of numbers, got 'names' of <U1"):
        pack_arrays({}, {"names": np.array(["a"])})
