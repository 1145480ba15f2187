"""Figures 3, 9 and 10 of the RQM paper: error against divergence, and divergences of low order."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from randquant import Channel, Interval, certify, moments
from randquant import pbm as pbm_channel
from randquant import rqm as rqm_channel
from randquant.reports import Axis, line_chart
from randquant_papers.axes import DIVERGENCE
from randquant_papers.result import Claim, Reproduction, Table
from randquant_papers.rqm.tables import CLIP, PANELS, PAPER

UNIT = 2.0**-53
"""Unit roundoff of float64."""

KEEPS = [0.01, 0.02, 0.05, *map(float, np.linspace(0.1, 0.7, 13))]

LOW_ORDERS = [*(Fraction(k, 8) for k in range(1, 8)), *map(Fraction, (1.001, 1.1, 1.25, 1.5, 2, 3))]
"""Rényi orders of figure 9: eighths below 1, which `below_one` takes, and a few above."""


def figure_3() -> Reproduction:
    """Figure 3: mean squared error against Rényi divergence of order 1.5."""
    return _trade_off(Fraction(3, 2), "rqm-fig3", "figure 3", "section 5.4", "")


def figure_10() -> Reproduction:
    """Figure 10: mean squared error against Rényi divergence of order 0.5."""
    remark = (
        " A divergence of an order below 1 is no privacy guarantee: it can be finite where some "
        "code betrays the input."
    )
    return _trade_off(Fraction(1, 2), "rqm-fig10", "figure 10", "appendix B.1.3", remark)


def _trade_off(order: Fraction, name: str, number: str, section: str, remark: str) -> Reproduction:
    claims, tables, figures = [], [], []
    grid, shown = np.linspace(-CLIP, CLIP, 30), float(order)
    for levels in (4, 16, 64):
        rows = []
        for keep in KEEPS:
            channel = rqm_channel(CLIP, CLIP, levels, keep)
            epsilon = divergence(channel, order)
            theta = _pbm_theta(epsilon.upper, levels - 1, shown)
            error = float(moments(channel).mse_at(grid).mean())
            other = float(_pbm_variance(theta, levels - 1, grid).mean())
            rows.append((epsilon, keep, error, theta, other, other / error))
        ratios = [row[-1] for row in rows]
        claims.append(
            Claim(
                f"{levels} levels: at equal divergence RQM has the smaller mean squared error",
                None,
                f"{min(ratios):.3f} to {max(ratios):.3f} times",
                "holds" if min(ratios) > 1 else "does not hold",
                f"PBM's error over RQM's at {len(rows)} values of keep from 0.01 to 0.7, PBM's "
                "theta solved for RQM's divergence over all pairs.",
            )
        )
        columns = ("epsilon", "RQM keep", "RQM MSE", "PBM theta", "PBM MSE", "ratio")
        title = f"{levels} levels: Rényi divergence of order {shown} in nats, MSE of one coordinate"
        tables.append(Table(title, columns, rows))
        lines = [
            ("RQM", [(row[0].upper, row[2]) for row in rows], "c1"),
            ("PBM", [(row[0].upper, row[4]) for row in rows], "c2 dashed"),
        ]
        axes = (
            Axis(f"Rényi divergence of order {shown}, nats", bound=True),
            Axis("MSE (log scale)", log=True),
        )
        figures.append(line_chart(f"{levels} levels", lines, *axes))
    return Reproduction(
        name=name,
        title=f"RQM, {number}: privacy against mean squared error, beside PBM",
        source=f"{PAPER}, {section}",
        setting=(
            f"clip = margin = 1.5, order {shown}, keep and theta swept. The MSE is the exact mean "
            "over the paper's 30 evenly spaced inputs, where the paper draws 100,000 samples at "
            "each; PBM's is its closed form. The paper prints curves and no numbers." + remark
        ),
        claims=claims,
        tables=tables,
        figures=figures,
    )


def _pbm_theta(epsilon: float, trials: int, order: float) -> float:
    """PBM's theta with this divergence between ±clip, which is its worst pair."""
    low, high = 0.0, 0.5
    for _ in range(60):
        theta = (low + high) / 2
        up, down = 0.5 + theta, 0.5 - theta
        moment = up**order * down ** (1 - order) + down**order * up ** (1 - order)
        below = trials * math.log(moment) / (order - 1) < epsilon
        low, high = (theta, high) if below else (low, theta)
    return low


def _pbm_variance(theta: float, trials: int, x: np.ndarray) -> np.ndarray:
    success = 0.5 + theta * x / CLIP
    return success * (1 - success) * (CLIP / theta) ** 2 / trials


def figure_9() -> Reproduction:
    """Figure 9: Rényi divergence of RQM and PBM at low orders."""
    theta, ratio, keep = PANELS[0]
    pbm, rqm = pbm_channel(CLIP, theta, 15, mixing=0), rqm_channel(CLIP, ratio * CLIP, 16, keep)
    rows = [(float(o), divergence(rqm, o), divergence(pbm, o)) for o in LOW_ORDERS]
    over = {order: ours.upper / theirs.upper for order, ours, theirs in rows}
    worst = max(over, key=lambda order: over[order])
    above = [order for order, ours, theirs in rows if ours.lower > theirs.upper]
    proven = all(ours.upper < theirs.lower for order, ours, theirs in rows if order > 1)
    claims = [
        Claim(
            "RQM remains competitive at very low orders",
            None,
            f"{min(over.values()):.3f} to {max(over.values()):.3f} times",
            "holds",
            f"RQM's divergence over PBM's, at orders from {min(over):g} to {max(over):g}: most at "
            f"{worst:g}. It is proven to be the larger one at orders from {min(above):g} to "
            f"{max(above):g}, which no guarantee is made of.",
        ),
        Claim(
            "RQM diverges less at moderate orders, before both become pure privacy",
            None,
            f"{over[2.0]:.3f} times at order 2",
            "holds" if proven else "does not hold",
            f"Proven at the {sum(order > 1 for order in over)} orders above 1 of the table; "
            "`rqm-fig2` has 121 of them.",
        ),
    ]
    lines = [
        ("RQM", [(order, ours.upper) for order, ours, _ in rows], "c1"),
        ("PBM", [(order, theirs.upper) for order, _, theirs in rows], "c2 dashed"),
    ]
    title = f"theta {theta} against margin {ratio:g} clip, keep {keep}"
    return Reproduction(
        name="rqm-fig9",
        title="RQM, figure 9: Rényi divergence at low orders, beside PBM",
        source=f"{PAPER}, appendix B.1.2",
        setting=(
            "The first panel of figure 2 again, from order 1/8 up: worst pairs of inputs, 16 codes "
            "for both. The paper prints curves and no numbers."
        ),
        claims=claims,
        tables=[Table(f"Rényi divergence, nats: {title}", ("order", "RQM", "PBM"), rows)],
        figures=[line_chart(title, lines, Axis("Rényi order"), DIVERGENCE)],
    )


def divergence(channel: Channel, order: Fraction) -> Interval:
    """The largest divergence over all pairs of inputs, of an order above 1 or of eighths below."""
    if order > 1:
        return certify(channel, float(order)).epsilon
    # Jointly convex in both rows (van Erven and Harremoës 2014, Theorem 11): vertices are worst.
    rows = channel.weights.tolist()
    found = [below_one(p, q, channel.denominator, order) for p in rows for q in rows]
    return Interval(max(each.lower for each in found), max(each.upper for each in found))


def below_one(p: list[int], q: list[int], total: int, order: Fraction) -> Interval:
    """The Rényi divergence of an order below 1, from integer roots.

    Args:
        p, q: (m,) integer weights of the two rows, no unit.
        total: what each row sums to.
        order: in (0, 1), its denominator a power of two.

    Returns:
        Interval: proven, in nats; infinite where the rows have no code in common.
    """
    k, n = order.numerator, order.denominator
    floor = 0
    for a, b in zip(p, q, strict=True):
        root = a**k * b ** (n - k) << 64 * n
        for _ in range(n.bit_length() - 1):
            root = math.isqrt(root)  # roots of floors have the floor of the whole root
        floor += root
    whole = total << 64
    common = sum(a * b > 0 for a, b in zip(p, q, strict=True))
    most, least = min(floor + common, whole), floor
    lower, upper = (_minus_log(left, whole) / float(1 - order) for left in (most, least))
    # A quotient, a logarithm and a quotient: 12 units at most (theory/rounding.md, conventions).
    return Interval(lower * (1 - 12 * UNIT), upper * (1 + 12 * UNIT))


def _minus_log(part: int, whole: int) -> float:
    """-log(part / whole), its relative error a few units wherever part lies in [0, whole]."""
    if part == 0:
        return math.inf
    lost = (whole - part) / whole
    return -math.log1p(-lost) if lost < 0.5 else -math.log(part / whole)
