"""Rows of codes and of their sums in whole numbers: no rounding at all."""

import math
from fractions import Fraction

import randquant as rq


def row(channel, x) -> list[int]:
    """The row at x in whole numbers, over any total."""
    inputs = [Fraction(float(u)) for u in channel.inputs]
    x = Fraction(x)
    cell = next(i for i in range(len(inputs) - 1) if inputs[i] <= x <= inputs[i + 1])
    part = (x - inputs[cell]) / (inputs[cell + 1] - inputs[cell])
    n, d = part.numerator, part.denominator
    ends = channel.weights[cell : cell + 2].tolist()
    return [(d - n) * a + n * b for a, b in zip(*ends, strict=True)]


def summed(rows) -> list[int]:
    """The sum's law in whole numbers, by one product of long integers (Kronecker)."""
    rows = list(rows)
    width = sum(sum(each).bit_length() for each in rows) + 1
    product = math.prod(sum(w << width * i for i, w in enumerate(each)) for each in rows)
    length = sum(len(each) - 1 for each in rows) + 1
    return [product >> width * i & (1 << width) - 1 for i in range(length)]


def perturbed(channel, size: float, vertex: int):
    """A vertex's row off its binomial law: the cell beside it becomes steeper."""
    weights = channel.weights.copy()
    moved = int(size * weights[vertex, 0])
    weights[vertex, 0] += moved
    weights[vertex, 1] -= moved
    return rq.Channel(channel.inputs, channel.values, weights, channel.denominator)
