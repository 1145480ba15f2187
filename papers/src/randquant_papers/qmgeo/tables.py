"""Figures 3 and 4 of the QMGeo paper, and why its equations 24 and 26 do not hold."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from randquant import Interval, certify, certify_pair, qmgeo
from randquant.privacy import renyi, round_down, round_up
from randquant.reports import Axis, line_chart
from randquant_papers.axes import DIVERGENCE, ORDER
from randquant_papers.result import Claim, Reproduction, Table, agrees

PAPER = (
    "QMGeo: Differentially Private Federated Learning via Stochastic Quantization with Mixed "
    "Truncated Geometric Distribution"
)
MIXING = 0.05
"""Of the repaired mechanism that is drawn beside the published one."""

DIMENSION, RATE = 3562, 0.005333
"""Coordinates of an update and sampling rate of section VI."""

PRINTED = (
    (8, Fraction(1, 2), "0.564"),
    (8, Fraction(9, 10), "1.807"),
    (16, Fraction(9, 10), "3.673"),
)
"""levels, p and the epsilon per round that section VI prints."""


def figure_3() -> Reproduction:
    """Figure 3: pure epsilon of QMGeo over its parameter p."""
    grid = [float(p) for p in np.linspace(0.02, 0.98, 49)]
    claims, rows, drawn, repaired = [], [], [], []
    for levels, style in ((4, "c1"), (8, "c2"), (16, "c3")):
        formula = [equation_21(levels, p) for p in grid]
        drawn.append((f"{levels} levels", list(zip(grid, formula, strict=True)), style))
        finite = [(p, certify(qmgeo(1.0, levels, p, MIXING)).epsilon.upper) for p in grid]
        repaired.append((f"{levels} levels", finite, style))
        for p in (0.1, 0.2, 0.5, 0.9):
            published = certify(qmgeo(1.0, levels, p)).epsilon
            mended = certify(qmgeo(1.0, levels, p, MIXING)).epsilon
            middle = _at_middles(levels, p, math.inf)
            rows.append((levels, p, equation_21(levels, p), middle, published, mended))
        claims.append(_pure_claim(levels))
    axes = ("p", Axis("epsilon, nats", zero=True, bound=True))
    columns = ("levels", "p", "equation 21", "at mid-points", "all pairs", f"mixing {MIXING}")
    return Reproduction(
        name="qmgeo-fig3",
        title="QMGeo, figure 3: pure epsilon over p",
        source=f"{PAPER}, section IV-B1",
        setting=(
            "The paper prints curves of equation 21 and no numbers. Beside a level one whole side "
            "of the codes has probability zero, so the published mechanism has no finite epsilon; "
            "equation 21 is the ratio at the mid-points of the first and the last cell. The repair "
            f"keeps the probability of either side at {MIXING} or more."
        ),
        claims=claims,
        tables=[Table("Pure epsilon, nats", columns, rows)],
        figures=[
            line_chart("Equation 21, as in the paper", drawn, *axes),
            line_chart(f"Repaired with mixing {MIXING}, certified", repaired, *axes),
        ],
    )


def _pure_claim(levels: int) -> Claim:
    worst, middle = certify(qmgeo(1.0, levels, 0.5)), _at_middles(levels, 0.5, math.inf)
    return Claim(
        f"{levels} levels, p 0.5: epsilon is that of equation 21",
        f"{equation_21(levels, 0.5):.5f}",
        worst.epsilon,
        "does not hold",
        f"x = {worst.witness[0]:.6g} can send code {worst.code}, x' = {worst.witness[1]:.6g} never "
        f"does. At the mid-points of the end cells: {round_up(middle.upper)}.",
    )


def figure_4() -> Reproduction:
    """Figure 4 and equation 26: Rényi epsilon of QMGeo, and its amplification by sampling."""
    levels, p = 8, Fraction(1, 2)
    orders = [float(order) for order in 1 + np.geomspace(0.05, 99, 60)]
    curves = {
        "equation 24": [equation_24(levels, float(p), order) for order in orders],
        "at mid-points": [_at_middles(levels, float(p), o).upper for o in orders],
        "X and R + 1 - X": [geometric_pair(levels, p, o).upper for o in orders],
        f"repaired, mixing {MIXING}": [
            certify(qmgeo(1.0, levels, float(p), MIXING), o).epsilon.upper for o in orders
        ],
    }
    few = [1.1, 1.5, 2.0, 4.0, 8.0, 32.0, 100.0]
    rows = [
        (
            order,
            equation_24(levels, float(p), order),
            _at_middles(levels, float(p), order),
            geometric_pair(levels, p, order),
            certify(qmgeo(1.0, levels, float(p)), order).epsilon,
            certify(qmgeo(1.0, levels, float(p), MIXING), order).epsilon,
        )
        for order in few
    ]
    columns = ("order", *list(curves)[:3], "all pairs", list(curves)[3])
    styles = ("c2", "c1", "c3 dashed", "c5")
    lines = [
        (label, list(zip(orders, curve, strict=True)), style)
        for (label, curve), style in zip(curves.items(), styles, strict=True)
    ]
    title = "8 levels, p 0.5 (over all pairs the published mechanism is infinite)"
    return Reproduction(
        name="qmgeo-fig4",
        title="QMGeo, figure 4: Rényi epsilon, and its amplification by sampling",
        source=f"{PAPER}, sections IV-B2, IV-C and VI",
        setting=(
            "8 levels, p 0.5 in the figure. Equation 24 is meant for the inputs ±clip, whose rows "
            "the paper describes in two ways: as two geometric distributions over all levels, X "
            "and R + 1 - X, and (in equation 20) as the rows at the mid-points of the end cells. "
            f"Section VI: {DIMENSION} coordinates, sampling rate {RATE}, order 2."
        ),
        claims=[
            *_equation_24_claims(),
            *[printed_claim(*printed) for printed in PRINTED],
            *_sampling_claims(levels, p),
        ],
        tables=[
            Table("Rényi divergence of order alpha, nats", columns, rows),
            _sampling_table(levels, p),
        ],
        figures=[line_chart(title, lines, ORDER, DIVERGENCE)],
    )


def equation_21(levels: int, p: float) -> float:
    """The paper's pure epsilon."""
    q = 1 - p
    return -math.log(p) - (levels - 2) * math.log(q) + math.log1p(-(q ** (levels - 1)))


def equation_24(levels: int, p: float, order: float) -> float:
    """The paper's Rényi epsilon, as printed."""
    q, norm = 1 - p, 1 - (1 - p) ** (levels - 1)
    first = 0.5 * (norm / (q**levels * p)) ** (order - 1)
    last = 0.5 * (p * q ** (levels - 1) / norm) ** order
    ratio = q ** (4 * order - 2)
    inner = q ** (4 * order - 2) * (1 - q ** ((2 * order - 1) * (levels - 2))) / (1 - ratio)
    middle = p * q ** (-2 * order + (1 - order) * levels + 1) / (2 * norm) * inner
    return math.log(first + last + middle) / (order - 1)


def geometric_pair(levels: int, p: Fraction, order: float) -> Interval:
    """D(X || R + 1 - X) of a geometric X truncated to 1 … R, in exact integers."""
    q = 1 - p
    row = np.array(
        [q.numerator**k * q.denominator ** (levels - 1 - k) for k in range(levels)], dtype=object
    )
    lower, upper = renyi(row, row[::-1], int(row.sum()), order)
    return Interval(float(lower), float(upper))


def _at_middles(levels: int, p: float, order: float) -> Interval:
    middle = 1 - 1 / (levels - 1)
    return certify_pair(qmgeo(1.0, levels, p), -middle, middle, order).epsilon


def _equation_24_claims() -> list[Claim]:
    levels, p, order = 8, Fraction(1, 2), 2.0
    said = f"{equation_24(levels, float(p), order):.5f}"
    text = "equation 24 at order 2 (8 levels, p 0.5) is the divergence "
    worst = certify(qmgeo(1.0, levels, float(p)), order)
    return [
        Claim(
            f"{text}of the rows at the mid-points", said, _at_middles(levels, float(p), order),
            "does not hold",
            "Its q^R and q^(R-1) should be q^(R-2), and its last term p/(2N) q^((R-3)(1-alpha)) "
            "(1 - q^((2 alpha - 1)(R-2))) / (1 - q^(2 alpha - 1)) with N = 1 - q^(R-1).",
        ),
        Claim(
            "equation 24 at order 1.1 is a bound for these rows at least",
            f"{equation_24(levels, float(p), 1.1):.5f}", _at_middles(levels, float(p), 1.1),
            "does not hold", "Near order 1 it is below the divergence that it is to bound.",
        ),
        Claim(
            f"{text}of X and R + 1 - X", said, geometric_pair(levels, p, order), "does not hold",
            "Two truncated geometric distributions over all 8 levels, in exact integers.",
        ),
        Claim(
            f"{text}of the worst pair of inputs", said, worst.epsilon, "does not hold",
            f"x = {worst.witness[0]:.6g} can send code {worst.code}, x' = {worst.witness[1]:.6g} "
            "never does; so every order is infinite.",
        ),
    ]  # fmt: skip


def printed_claim(levels: int, p: Fraction, printed: str) -> Claim:
    """Judge an epsilon per round that section VI prints, by a lower bound of the true one."""
    formula = RATE**2 * DIMENSION * equation_24(levels, float(p), 2.0)
    true = sampled(_at_middles(levels, float(p), 2.0).lower, DIMENSION, RATE)
    came = "Equation 26 gives it" if agrees(printed, formula) else "Not even equation 26 gives it"
    return Claim(
        f"{levels} levels, p {float(p):g}: order-2 epsilon of one round (section VI)",
        printed,
        round_down(true),
        "does not hold",
        f"{came} ({formula:.4f}). Ours is a lower bound: a sampled example that moves all "
        f"{DIMENSION} coordinates from one mid-point to the other.",
    )


def sampled(divergence: float, dimension: int, rate: float) -> float:
    """Order-2 divergence of the joint mechanism when the example is present with chance `rate`.

    With rows P and Q of one coordinate and d independent coordinates,
    D_2((1-k)Q^d + k P^d || Q^d) = log(1 + k^2 (exp(d·D_2(P||Q)) - 1)): the chi-squared divergence
    of a mix is k^2 times that of its parts, and 1 + chi-squared multiplies over coordinates.

    Args:
        divergence: D_2(P || Q) of one coordinate, in nats.
        dimension: d, coordinates sampled together.
        rate: k, probability that the example is present.

    Example:
        >>> round(sampled(5.0, 1, 0.5), 6) == round(math.log(1 + 0.25 * (math.exp(5) - 1)), 6)
        True
    """
    total = dimension * divergence
    if total < 1.0:
        return math.log1p(rate**2 * math.expm1(total))
    # log(1 - k^2 + k^2 e^total) without overflow in e^total
    return math.log(rate**2) + total + math.log1p((1 - rate**2) / rate**2 * math.exp(-total))


def _sampling_claims(levels: int, p: Fraction) -> list[Claim]:
    single = _at_middles(levels, float(p), 2.0).lower
    one = sampled(single, 1, RATE)
    text = "equation 26: sampling with rate k turns an order-2 epsilon of d coordinates into k^2 d "
    text += "epsilon (paper: this, from the exact epsilon of one coordinate)"
    why = (
        f"One coordinate has D_2 = {round_down(single)} at the mid-points. k^2 epsilon is an O() "
        "statement for small epsilon; the exact value is log(1 + k^2 (exp(epsilon) - 1))."
    )
    joint = sampled(single, DIMENSION, RATE)
    return [
        Claim(f"{text}, d = 1", f"{RATE**2 * single:.6f}", round_down(one), "does not hold", why),
        Claim(
            f"{text}, d = {DIMENSION}",
            f"{RATE**2 * DIMENSION * single:.4f}",
            round_down(joint),
            "does not hold",
            "All coordinates come from one example, so all are sampled together: the exact value "
            "is log(1 + k^2 (exp(d epsilon) - 1)). Amplifying coordinate by coordinate, even "
            f"exactly, gives {round_down(DIMENSION * one)} and is no bound either.",
        ),
    ]


def _sampling_table(levels: int, p: Fraction) -> Table:
    single = _at_middles(levels, float(p), 2.0).lower
    rows = [
        (d, RATE**2 * d * single, d * sampled(single, 1, RATE), sampled(single, d, RATE))
        for d in (1, 2, 3, 4, 5, 10, 100, DIMENSION)
    ]
    return Table(
        f"Order-2 divergence of a sampled update, nats: 8 levels, p 0.5, k = {RATE}, mid-points",
        ("coordinates", "k^2 d epsilon", "coordinate by coordinate", "exact, joint"),
        rows,
    )
