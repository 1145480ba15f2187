"""Rows of codes and of their sums in whole numbers: no rounding at all."""

import itertools
import math
from fractions import Fraction

import numpy as np
import oracle

import randquant as rq
from randquant.channels import from_probabilities, with_even
from randquant.mechanisms import binomial_codes
from randquant.privacy.certificates import sum_tools


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
    rows = [[int(w) for w in each] for each in rows]
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


def over_square(p: list[int], q: list[int], order: float, distance) -> float:
    total = math.prod((sum(p), sum(q)))
    p, q = [w * (total // sum(p)) for w in p], [w * (total // sum(q)) for w in q]
    return float(oracle.renyi(p, q, order)) / float(distance) ** 2


def worst(channel, clients: int, order: float, places) -> float:
    """Over all arrangements of the others at vertices, and all pairs of these inputs."""
    rows = [row(channel, x) for x in places]
    ends = [[int(w) for w in each] for each in channel.weights]
    found = 0.0
    for others in itertools.combinations_with_replacement(ends, clients - 1):
        laws = [summed([each, *others]) for each in rows]
        for (x, p), (y, q) in itertools.permutations(zip(places, laws, strict=True), 2):
            found = max(found, over_square(p, q, order, x - y))
    return found


def partly_even(monkeypatch) -> rq.Channel:
    """Two trials; an eighth of all codes is drawn evenly."""
    monkeypatch.setattr(sum_tools, "EVEN_SHARE", 1 / 8)
    rows = binomial_codes.binomial(2, *(np.linspace(*ends, 5) for ends in ((1, 3), (3, 1)))) / 16
    rows = with_even(rows, sum_tools.EVEN_SHARE)
    return from_probabilities(np.linspace(-1.0, 1.0, 5), np.array([-2.0, 0.0, 2.0]), rows)
