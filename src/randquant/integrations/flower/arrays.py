"""Arrays of messages as NumPy arrays; every byte is checked."""

from __future__ import annotations

import math
import re
from typing import Literal

import numpy as np
from flwr.app import Array

STYPE = "numpy.ndarray"
"""Flower's name for arrays in the format of `numpy.save`."""

MAGIC, LONGEST_HEADER = b"\x93NUMPY", 10_000
WIDTHS = {b"\1\0": 2, b"\2\0": 4, b"\3\0": 4}
"""Bytes of the header's length, by the file's version."""
HEADER = re.compile(
    rb"\{'descr': '([<>|][biuf][0-9]{1,2})', 'fortran_order': (True|False), "
    rb"'shape': \((|SIDE,|SIDE(?:, SIDE)+)\), \} *\n".replace(b"SIDE", rb"(?:0|[1-9][0-9]{0,12})")
)
DTYPES = frozenset("?bBhHiIlLqQefd")
MOST = 2**40
SIDES = 32


def read(array: Array) -> np.ndarray:
    """Return the numbers of an array, read-only, in the memory of the message.

    Guarantees:
        No memory is allocated because the header asks for it. Bytes that are not exactly one array
        of booleans, integers or floats of at most 64 bits, with the dtype and shape that the
        message states, raise.

    Raises:
        ValueError: it is anything else.
    """
    if array.stype != STYPE:
        raise ValueError(f"Expected an array of type {STYPE!r}, got another.")
    dtype, order, shape, start = _header(array.data)
    if (str(dtype), shape) != (array.dtype, tuple(array.shape)):
        raise ValueError("Expected the dtype and shape that the message states, got others.")
    if len(array.data) - start != math.prod(shape) * dtype.itemsize:
        raise ValueError("Expected as many bytes as the array's shape needs, got others.")
    return np.frombuffer(array.data, dtype, offset=start).reshape(shape, order=order)


def _header(data: bytes) -> tuple[np.dtype, Literal["C", "F"], tuple[int, ...], int]:
    """Return (dtype, order, shape, offset of the numbers) of a `numpy.save` file."""
    width = WIDTHS.get(data[6:8], 0) if data[:6] == MAGIC else 0
    start = 8 + width + int.from_bytes(data[8 : 8 + width], "little")
    header = HEADER.fullmatch(data[8 + width : start]) if start <= LONGEST_HEADER else None
    if not width or header is None:
        raise ValueError("Expected an array of numbers as numpy.save writes it, got another file.")
    shape = tuple(int(side) for side in header[3].split(b",") if side.strip())
    if len(shape) > SIDES or math.prod(max(side, 1) for side in shape) > MOST:
        raise ValueError(f"Expected at most {SIDES} sides and 2**40 numbers, got more.")
    order = "F" if header[2] == b"True" else "C"
    return _dtype(header[1].decode()), order, shape, start


def _dtype(text: str) -> np.dtype:
    try:
        dtype = np.dtype(text)
    except TypeError:  # for example floats of three bytes
        dtype = None
    if dtype is None or dtype.char not in DTYPES:
        raise ValueError("Expected truth values, integers or floats of at most 64 bits.")
    return dtype
