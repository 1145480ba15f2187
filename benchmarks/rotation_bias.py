"""A search for the update that signs and Hadamard transforms bias most: see `benchmarks/rank.py`.

Given a rotation, the mean of what clients send is known: no index is drawn. By symmetry under signs
the mean of a decoded update is zero where the update is (docs/theory/rank.md, Proposition 11).
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import ndtr

from randquant.aggregation.rank.designs import top_sum, two_levels
from randquant.aggregation.rank.mechanism import RankMechanism
from randquant.aggregation.walsh_hadamard import hadamard

EPSILON = 8.0
SETTINGS = ((256, 1), (256, 2), (256, 3), (8192, 1), (8192, 2), (8192, 3))
"""Coordinates, and passes of signs and a transform."""

ROTATIONS = {256: (2000, 100_000), 8192: (400, 20_000)}
"""How many rotations a candidate and the finalists are tried with."""

FINALISTS = 3


def candidates(size: int) -> dict[str, np.ndarray]:
    """Updates of norm 1 that a transform may leave far from normal: spikes in all arrangements."""
    generator, found = np.random.default_rng(1), {}
    for count in (1, 2, 3, 4, 5, 6, 8, 16, 64, size):
        places = {
            "first": np.arange(count),  # a subgroup where count is a power of two
            "axes": np.array([0, *(1 << bit for bit in range(13))])[:count],  # independent
            "random": generator.permutation(size)[:count],
        }
        for where, at in places.items():
            at = at[at < size]
            if len(at) == count:
                found[f"{count} equal, {where}"] = _unit(size, at, np.ones(count))
    for ratio in (0.3, 0.5, 0.7, 0.9):
        for where, at in (("first", np.arange(12)), ("random", generator.permutation(size)[:12])):
            found[f"falling by {ratio}, {where}"] = _unit(size, at, ratio ** np.arange(12))
    found["normal"] = _unit(size, np.arange(size), generator.normal(size=size))
    return found


def _unit(size: int, places: np.ndarray, values: np.ndarray) -> np.ndarray:
    update = np.zeros(size)
    update[places] = values / np.linalg.norm(values)
    return update


def climbed(size: int, passes: int, start: np.ndarray, steps: int = 30) -> np.ndarray:
    """Change an update's nonzero values at random, and keep what is biased more."""
    generator, best = np.random.default_rng(2), start
    most = abs(measured(best, passes, 400, 3)["bias"])
    for _ in range(steps):
        places = np.flatnonzero(best)[:32]
        tried = _unit(size, places, best[places] * np.exp(generator.normal(0, 0.3, len(places))))
        bias = abs(measured(tried, passes, 400, 3)["bias"])
        if bias > most:
            best, most = tried, bias
    return best


def measured(update: np.ndarray, passes: int, rotations: int, seed: int) -> dict[str, float]:
    """Bias along the update, over its norm, and across it, each with two standard errors of it."""
    size = update.size
    cut = two_levels(size, EPSILON).counts[0]
    generator, expected = np.random.default_rng([seed, size]), top_sum(size, cut)
    along, support = np.empty(rotations), np.flatnonzero(update)
    total, squares = np.zeros(len(support)), 0.0
    for turn in range(rotations):
        signs = 1.0 - 2.0 * generator.integers(0, 2, (passes, size), dtype=np.int8)
        x = update.copy()
        for each in signs:
            x *= each
            hadamard(x, math.sqrt(size))
        top = np.argpartition(np.abs(x), size - cut)[size - cut :]
        along[turn] = np.abs(x[top]).sum() / expected - 1
        if len(support) <= 16 and passes > 1:  # what a mean of clients reads, rotated back
            back = np.zeros(size)
            back[top] = np.sign(x[top]) / expected
            for each in signs[::-1]:
                hadamard(back, math.sqrt(size))
                back *= each
            across = back[support] - (1 + along[turn]) * update[support]
            total += across
            squares += float(across @ across)
    found = {"bias": float(along.mean()), "two_errors": 2 * float(along.std() / rotations**0.5)}
    if squares > 0:
        found["across"] = float(np.linalg.norm(total)) / rotations
        found["across_two_errors"] = 2 * math.sqrt(squares) / rotations
    return found


def search(size: int, passes: int) -> list[dict]:
    """The worst candidates, measured again with other and more rotations."""
    rows, (few, many) = [], ROTATIONS[size]
    found = candidates(size)
    first = {name: measured(x, passes, few, 0)["bias"] for name, x in found.items()}
    worst = sorted(first, key=lambda name: -abs(first[name]))[:FINALISTS]
    if size == 256:
        found["climbed"] = climbed(size, passes, found[worst[0]])
        worst.append("climbed")
    # Of one pass the bias is plain; of the rest it is small beside the chance of a rotation.
    times = many if passes > 1 else few
    for name in dict.fromkeys([*worst, "1 equal, first", "normal"]):
        setting = {"size": size, "passes": passes, "tried": len(found), "update": name}
        rows.append({**setting, "rotations": times, **measured(found[name], passes, times, 4)})
        print(rows[-1], flush=True)
    return rows


def proven(size: int) -> dict:
    """What is proven for every update: docs/theory/rank.md, Proposition 11, and 13 for blocks."""
    table = two_levels(size, EPSILON)
    cut, root = table.counts[0], math.sqrt(size)
    thresholds = np.arange(0, 4, 0.01)
    tails, densities = ndtr(-thresholds), np.exp(-(thresholds**2) / 2) / math.sqrt(2 * math.pi)
    cubes = 2 * ((thresholds**2 + 2) * densities - (thresholds**3 + 3 * thresholds) * tails)
    most = np.min(cut * thresholds + cut ** (2 / 3) * (size * cubes) ** (1 / 3)) / root
    most = min(float(most), math.sqrt(cut)) / top_sum(size, cut) - 1
    least = cut / (math.sqrt(2) * root * top_sum(size, cut)) - 1
    blocks = [RankMechanism(1.0, EPSILON, unbiased=unbiased) for unbiased in (True, False)]
    errors = [mechanism.expected_error(size).deviation(1) for mechanism in blocks]
    return {"size": size, "proven": {"along_at_least": least, "along_at_most": most},
            "unbiased": 0.0, "error_of_unbiased": errors[0] / errors[1]}  # fmt: skip


def noise() -> list[dict]:
    """What is proven, and the deviation of a mean of clients along their update, to compare."""
    rows = []
    for size in (256, 8192):
        rows.append(proven(size))
        print(rows[-1], flush=True)
        table = two_levels(size, EPSILON)
        cut = table.counts[0]
        gain = top_sum(size, cut) * (table.weights[0] - table.weights[1]) / table.total
        for clients in (10**4, 10**6):
            rows.append({"size": size, "clients": clients,
                         "noise": math.sqrt((second(size) / gain**2 - 1) / clients)})  # fmt: skip
            print(rows[-1], flush=True)
    return rows


def second(size: int) -> float:
    """Mean square of a signed coordinate drawn by its rank, for a uniformly random direction."""
    table = two_levels(size, EPSILON)
    cut, generator = table.counts[0], np.random.default_rng(5)
    share = cut * (table.weights[0] - table.weights[1]) / table.total
    squares = np.empty(400)
    for turn in range(400):
        x = generator.normal(size=size)
        x = np.sort(np.square(x / np.linalg.norm(x)))
        squares[turn] = share * x[size - cut :].mean() + (1 - share) / size
    return float(squares.mean())
