"""Figure 4, a and b, of the OPTM paper: measured errors of encoded and decoded vectors."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import optimize, stats

from randquant import (
    Channel,
    Interval,
    Key,
    certify,
    decode,
    design,
    encode,
    moments,
    mvu,
    optm,
    rqm,
)
from randquant.reports import Axis, Figure, line_chart
from randquant_papers.result import Claim, Table, Verdict

EPSILONS = (0.75, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0)
"""Per coordinate. The paper's figure has no numbers; its bins allow none below log 2."""

COUNT = 10_000
"""Vectors of each kind, as in the paper."""

SIGMAS = 5.0
"""Two averages differ if they are this many standard errors apart: by chance once in a million."""

PUBLISHED = {1.0: (-2.42, -1.69, 1.69, 2.42), 1.5: (-1.83, -1.11, 1.11, 1.83)}
"""MVU's levels in the paper's tables 4 and 5, by epsilon."""


@dataclass(frozen=True, slots=True)
class Input:
    """A distribution of vectors.

    Attributes:
        title: in the figure's words.
        dimension: coordinates of a vector.
        draw: (count, generator) to (count, dimension) float64 within [-1, 1].
        density: quantiles of one coordinate, for a channel designed for it; None where uniform.
    """

    title: str
    dimension: int
    draw: Callable[[int, np.random.Generator], np.ndarray]
    density: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class VectorErrors:
    """Euclidean errors of one mechanism on vectors of one kind.

    Attributes:
        epsilon: the target per coordinate.
        name: of the mechanism.
        certified: its certified pure epsilon per coordinate.
        count: how many vectors.
        mean, deviation: of their errors, as the paper draws them.
        root: measured root mean square error.
        exact: what that is on average over the codes, for the same vectors, in closed form.
    """

    epsilon: float
    name: str
    certified: float
    count: int
    mean: float
    deviation: float
    root: float
    exact: float


def ball(count: int, generator: np.random.Generator) -> np.ndarray:
    """Points of the unit ball of R^100, uniform: 100 coordinates of points of a sphere in R^102."""
    points = generator.standard_normal((count, 102))
    return points[:, :100] / np.linalg.norm(points, axis=1, keepdims=True)


def _ball_density() -> tuple[float, ...]:
    """Quantiles of one coordinate x of `ball`: (1 + x)/2 has a beta distribution."""
    shares = (np.arange(400) + 0.5) / 400
    return tuple((2 * stats.beta.ppf(shares, 50.5, 50.5) - 1).tolist())


UNIFORM = Input(
    "10 coordinates, uniform on [-1, 1]", 10, lambda n, rng: rng.uniform(-1, 1, (n, 10))
)
BALL = Input("unit ball of R^100", 100, ball, _ball_density())

STYLES = {"OPTM": "c1", "RQM": "c2", "MVU": "c3", "optimum": "c6 dashed"}


def channels(epsilon: float, kind: Input) -> dict[str, Channel]:
    """Mechanisms of the figure at one epsilon, four codes each, and the optimum for an input."""
    mechanisms = {
        "OPTM": optm(1.0, [-3, -0.5, 0.5, 3], epsilon),
        "RQM": rqm(1.0, 2.0, 4, keep(epsilon)),
        "MVU": mvu(1.0, 4, epsilon),
        "optimum": free_levels(epsilon, kind.density),
    }
    if epsilon in PUBLISHED:
        mechanisms["MVU, levels of the paper"] = design.optimal(
            1.0, PUBLISHED[epsilon], constraint=design.Pure(epsilon), objective="mse", inputs=17
        ).channel
    return mechanisms


@functools.cache
def keep(epsilon: float) -> float:
    """The largest `keep` with which RQM on levels ±3, ±1 has this epsilon, by bisection."""

    def excess(keep: float) -> float:
        return certify(rqm(1.0, 2.0, 4, keep)).epsilon.upper - epsilon

    root, solved = optimize.bisect(excess, 0.0, 1 - 1e-9, xtol=1e-12, full_output=True)
    assert solved.converged
    return max(root - 1e-11, 0.0)  # on the private side of the root


@functools.cache
def free_levels(epsilon: float, density: tuple[float, ...] | None = None) -> Channel:
    """The optimum of `design`: least mean squared error, with four searched levels, clip 1."""
    return design.optimal(
        1.0, constraint=design.Pure(epsilon), objective="mse", inputs=17, density=density, levels=4
    ).channel


def measure(kind: Input, epsilons: Sequence[float], count: int = COUNT) -> list[VectorErrors]:
    """Encode and decode the same vectors with every mechanism at every epsilon."""
    vectors = kind.draw(count, np.random.default_rng(0))
    return [
        _measured(epsilon, name, channel, vectors)
        for epsilon in epsilons
        for name, channel in channels(epsilon, kind).items()
    ]


def _measured(epsilon: float, name: str, channel: Channel, vectors: np.ndarray) -> VectorErrors:
    key = Key.from_seed(0).fold_in(f"{name} {epsilon}")
    decoded = decode(channel, encode(channel, vectors, key))
    errors = np.linalg.norm(decoded - vectors, axis=1)
    squares = moments(channel).mse_at(vectors).sum(axis=1)
    return VectorErrors(
        epsilon,
        name,
        certify(channel).epsilon.upper,
        len(vectors),
        float(errors.mean()),
        float(errors.std(ddof=1)),
        math.sqrt(float((errors**2).mean())),
        math.sqrt(float(squares.mean())),
    )


def chart(kind: Input, measured: Sequence[VectorErrors]) -> Figure:
    """Average error over epsilon, as in the figure."""
    lines = [
        (name, [(m.epsilon, m.mean) for m in measured if m.name == name], style)
        for name, style in STYLES.items()
    ]
    title = f"Average error: {kind.title}"
    return line_chart(
        title, lines, Axis("epsilon per coordinate, nats", bound=True), "Euclidean error"
    )


def table(kind: Input, measured: Sequence[VectorErrors]) -> Table:
    """All numbers, with the exact and the measured root mean square."""
    columns = ("epsilon", "mechanism", "certified", "mean", "deviation", "RMS", "exact RMS")
    rows = [
        (m.epsilon, m.name, Interval(0.0, m.certified), m.mean, m.deviation, m.root, m.exact)
        for m in measured
    ]
    return Table(f"Euclidean error, {kind.title}: {measured[0].count:,} vectors", columns, rows)


def lower(
    kind: Input, measured: Sequence[VectorErrors], first: str, other: str, quick: bool = False
) -> Claim:
    """Judge a claim that one mechanism has a lower average error at every epsilon."""
    by_name = {(m.epsilon, m.name): m for m in measured}
    shared = [e for e in dict.fromkeys(m.epsilon for m in measured) if (e, other) in by_name]
    pairs = [(by_name[epsilon, first], by_name[epsilon, other]) for epsilon in shared]
    apart = [
        (b.mean - a.mean) / math.sqrt((a.deviation**2 + b.deviation**2) / a.count) for a, b in pairs
    ]
    verdict: Verdict = "cannot be told"
    if not quick and min(apart) > SIGMAS:
        verdict = "holds"
    elif not quick and min(apart) < -SIGMAS:
        verdict = "does not hold"
    below = sum(distance > SIGMAS for distance in apart)
    above = sum(distance < -SIGMAS for distance in apart)
    a, b = min(pairs, key=lambda pair: abs(pair[0].epsilon - 1))
    why = (
        f"At epsilon {a.epsilon:g}; lower at {below} and higher at {above} of {len(pairs)} values "
        f"of epsilon, by more than {SIGMAS:g} standard errors of {a.count:,} vectors."
    )
    text = f"{kind.title}: {first} has a lower error than {other}"
    return Claim(text, None, f"{a.mean:.3f} against {b.mean:.3f}", verdict, why)
