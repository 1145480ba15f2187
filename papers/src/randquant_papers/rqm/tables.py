"""Figures 2, 7 and 8 of the RQM paper, and its first version's claim about sums of codes."""

from __future__ import annotations

import itertools
import math

import numpy as np

from randquant import Channel, Interval, certify, certify_pair
from randquant import pbm as pbm_channel
from randquant import rqm as rqm_channel
from randquant.privacy import renyi, round_down, round_up
from randquant.reports import line_chart
from randquant_papers.axes import DIVERGENCE, ORDER
from randquant_papers.result import Claim, Reproduction, Table, Verdict, agrees

PAPER = "Randomized Quantization is All You Need for Differential Privacy in Federated Learning"
CLIP = 1.5
PANELS = ((0.15, 2.33, 0.42), (0.25, 1.0, 0.42), (0.35, 0.429, 0.49))
"""PBM's theta, RQM's margin / clip and keep, of figure 2 (section 5.3)."""


ORDERS = [float(order) for order in 1 + np.geomspace(1e-3, 999, 121)]
"""Rényi orders of figure 2, and of the comparison of trained curves."""


def _main_channel() -> Channel:
    """The channel of figures 7 and 8: margin = clip, 16 levels, keep 0.42."""
    return rqm_channel(CLIP, CLIP, 16, 0.42)


def figure_2() -> Reproduction:
    """Figure 2: Rényi divergence of RQM and PBM over the order."""
    orders = ORDERS
    claims, tables, figures = [], [], []
    for theta, ratio, keep in PANELS:
        pbm, rqm = pbm_channel(CLIP, theta, 15, mixing=0), rqm_channel(CLIP, ratio * CLIP, 16, keep)
        name = f"theta {theta} against margin {ratio:g} clip, keep {keep}"
        curves = {
            "RQM, all pairs": [certify(rqm, order).epsilon for order in orders],
            "RQM, (clip, -clip)": [_at_ends(rqm, order) for order in orders],
            "PBM, all pairs": [certify(pbm, order).epsilon for order in orders],
        }
        claims += [
            _below(name, rqm, pbm, list(curves.values())),
            _ends(name, orders, *list(curves.values())[:2]),
        ]
        few = [1.1, 1.5, 2.0, 4.0, 8.0, 16.0, 64.0, 1000.0, math.inf]
        rows = [
            (o, certify(rqm, o).epsilon, _at_ends(rqm, o), certify(pbm, o).epsilon) for o in few
        ]
        tables.append(Table(f"Rényi divergence, nats: {name}", ("order", *curves), rows))
        lines = [
            (label, [(o, e.upper) for o, e in zip(orders, curve, strict=True)], style)
            for (label, curve), style in zip(curves.items(), ("c1", "c3 dashed", "c2"), strict=True)
        ]
        figures.append(line_chart(name, lines, ORDER, DIVERGENCE))
    return Reproduction(
        name="rqm-fig2",
        title="RQM, figure 2: Rényi divergence over the order, beside PBM",
        source=f"{PAPER}, section 5.3",
        setting=(
            "16 codes for both (PBM with 15 trials; with 16, as its own convention has it, PBM "
            "diverges a little more). The paper prints curves and no numbers; it takes the pair "
            "(clip, -clip) for the worst one. Divergences rise with the order: RQM being below PBM "
            "at each of 121 orders, and below PBM at the order before, proves it in between."
        ),
        claims=claims,
        tables=tables,
        figures=figures,
    )


def _at_ends(channel: Channel, order: float) -> Interval:
    return certify_pair(channel, CLIP, -CLIP, order).epsilon


def _below(name: str, rqm: Channel, pbm: Channel, curves: list[list[Interval]]) -> Claim:
    """RQM < PBM at all orders between the grid's ends: divergences rise with the order."""
    worst, _, other = curves
    pure, pure_pbm = certify(rqm).epsilon, certify(pbm).epsilon
    steps = zip([*worst[1:], pure], [*other], strict=True)
    proven = all(ours.upper < theirs.lower for ours, theirs in steps)
    return Claim(
        f"{name}: RQM diverges less than PBM at every order",
        None,
        f"{round_up(pure.upper, 5)} < {round_down(pure_pbm.lower, 5)}",
        "holds" if proven else "cannot be told",
        "Proven for every order from 1.001 up; the numbers are those of order infinity.",
    )


def _ends(name: str, orders: list[float], worst: list[Interval], ends: list[Interval]) -> Claim:
    excess = [w.lower - e.upper for w, e in zip(worst, ends, strict=True)]
    most = int(np.argmax(excess))
    if excess[most] <= 0:
        verdict: Verdict = "holds"
        why = "At all 121 orders the two certificates coincide."
    else:
        wrong = [o for o, e in zip(orders, excess, strict=True) if e > 0]
        verdict = "does not hold"
        why = (
            f"Fails at orders from {wrong[0]:.3g} to {wrong[-1]:.3g}; at {orders[most]:.3g} the "
            f"worst pair has {round_down(worst[most].lower, 7)}, (clip, -clip) "
            f"{round_up(ends[most].upper, 7)}."
        )
    return Claim(f"{name}: (clip, -clip) is RQM's worst pair", None, worst[most], verdict, why)


def figure_7() -> Reproduction:
    """Figure 7: the divergence over all pairs of inputs."""
    channel = _main_channel()
    places = [float(x) for x in np.linspace(-CLIP, CLIP, 31)]
    mixed = [channel.mix(x) for x in places]
    rows, total = np.array([row for row, _ in mixed]), mixed[0][1]
    claims, tables, figures = [], [], []
    for order in (2.0, 1000.0):
        _, upper = renyi(rows[None, :], rows[:, None], total, order)
        np.fill_diagonal(upper, 0.0)  # equal inputs: exactly zero
        worst = certify(channel, order)
        ends = _at_ends(channel, order)
        claims.append(
            Claim(
                f"order {order:g}: the peak is at (clip, -clip) and (-clip, clip)",
                "5.46838" if order == 1000 else None,
                worst.epsilon,
                "holds" if ends.upper >= worst.epsilon.lower else "does not hold",
                "Certified over all pairs of inputs; the witness is "
                f"({worst.witness[0]:g}, {worst.witness[1]:g}).",
            )
        )
        title = f"Rényi divergence of order {order:g}"
        lines = [
            (f"x = {places[at]:g}", [*zip(places, upper[:, at], strict=True)], style)
            for at, style in zip((0, 7, 15, 23, 30), ("c1", "c2", "c3", "c4", "c5"), strict=True)
        ]
        figures.append(line_chart(title, lines, "x', what x is exchanged for", DIVERGENCE))
        coarse = places[::5]
        cells = [(x, *map(float, upper[5 * j, ::5])) for j, x in enumerate(coarse)]
        columns = ("x' \\ x", *(f"{x:g}" for x in coarse))
        tables.append(Table(f"{title}, nats, by x' (down) and x (across)", columns, cells))
    claims.append(_not_at_order_8(channel))
    return Reproduction(
        name="rqm-fig7",
        title="RQM, figure 7: the divergence over all pairs of inputs",
        source=f"{PAPER}, appendix B.1.1",
        setting="clip = margin = 1.5, 16 levels, keep 0.42. The paper prints two pictures.",
        claims=claims,
        tables=tables,
        figures=figures,
    )


def _not_at_order_8(channel: Channel) -> Claim:
    worst, ends = certify(channel, 8.0), _at_ends(channel, 8.0)
    return Claim(
        "(clip, -clip) can be taken for the worst pair in general",
        None,
        worst.epsilon,
        "does not hold",
        f"At order 8 the pair ({worst.witness[0]:g}, {worst.witness[1]:g}) has "
        f"{round_down(worst.epsilon.lower, 7)}, (clip, -clip) only {round_up(ends.upper, 7)}.",
    )


def figure_8() -> Reproduction:
    """Figure 8: the divergence at x' = -clip while x moves from -clip to clip."""
    channel = _main_channel()
    places = [float(x) for x in np.linspace(-CLIP, CLIP, 601)]
    lines, dips = {}, {}
    for order in (2.0, 1000.0):
        curve = [certify_pair(channel, x, -CLIP, order).epsilon for x in places]
        lines[order] = curve
        peaks = np.maximum.accumulate([e.lower for e in curve])
        falls = peaks - np.array([e.upper for e in curve])
        dips[order] = (float(falls.max()), places[int(falls.argmax())])
    level = 1.4  # the outermost level inside [-clip, clip]
    ends, beside = _at_ends(channel, 1000.0), certify_pair(channel, level, -CLIP, 1000.0)
    claims = [
        _number("order 1000: the divergence at (clip, -clip)", "5.46838", ends),
        _number("order 1000: the local maximum at the level beside", "5.46190", beside.epsilon),
    ]
    claims += [
        Claim(
            f"order {order:g}: the divergence rises almost monotonically as x moves away",
            None,
            f"falls by {fall:.4f}",
            "holds",
            f"The largest fall below an earlier value, over 601 inputs; it is at x = {place:g}.",
        )
        for order, (fall, place) in dips.items()
    ]
    rows = [(x, *(curve[i] for curve in lines.values())) for i, x in enumerate(places)][::20]
    drawn = [
        line_chart(
            f"x' = -clip, order {order:g}",
            [("divergence", [(x, e.upper) for x, e in zip(places, curve, strict=True)], "c1")],
            "x", DIVERGENCE,
        )
        for order, curve in lines.items()
    ]  # fmt: skip
    return Reproduction(
        name="rqm-fig8",
        title="RQM, figure 8: the divergence from -clip as the input moves",
        source=f"{PAPER}, appendix B.1.1",
        setting="clip = margin = 1.5, 16 levels, keep 0.42, x' = -clip.",
        claims=[*claims, _not_at_order_8(channel)],
        tables=[Table("Rényi divergence, nats", ("x", "order 2", "order 1000"), rows)],
        figures=drawn,
    )


def _number(text: str, paper: str, ours: Interval) -> Claim:
    holds = agrees(paper, ours.upper)
    return Claim(text, paper, ours, "holds" if holds else "does not hold", "Exact, to its digits.")


SUMS = (
    (1.0, 0.42, 2, 1.5), (1.0, 0.42, 2, 2.0), (1.0, 0.42, 2, 8.0), (1.0, 0.42, 2, 1000.0),
    (1.0, 0.42, 2, math.inf), (1.0, 0.65, 2, 2.0), (1.0, 0.65, 3, 1.5), (1.0, 0.65, 4, 1.1),
)  # fmt: skip
"""margin / clip, keep, clients and order; keep 0.65 is the paper's own choice beside theta 0.35."""


def sums() -> Reproduction:
    """The first version, section 6.1: the worst divergence of a sum of codes."""
    claims, rows = [], []
    for ratio, keep, clients, order in SUMS:
        channel = rqm_channel(CLIP, ratio * CLIP, 16, keep)
        anywhere, where = worst_sum(channel, clients, order)
        ends, _ = worst_sum(channel, clients, order, ends_only=True)
        text = f"keep {keep}, {clients} clients, order {order:g}: inputs ±clip are the worst"
        fails = anywhere.lower > ends.upper
        why = f"With every input at ±clip at most {round_up(ends.upper, 9)}" + (
            f"; {round_down(anywhere.lower, 9)} with x, x' = {where[0]:g}, {where[1]:g} and the "
            f"others at {', '.join(f'{x:g}' for x in where[2:])}."
            if fails
            else ", and no other levels have more."
        )
        verdict: Verdict = "does not hold" if fails else "holds"
        claims.append(Claim(text, None, anywhere, verdict, why))
        rows.append((keep, clients, order, anywhere, ends))
    columns = ("keep", "clients", "order", "all inputs", "inputs ±clip only")
    return Reproduction(
        name="rqm-sum",
        title="RQM, first version: the worst divergence of a sum of codes",
        source=f"{PAPER}, first version (2023), section 6.1",
        setting=(
            "clip = margin = 1.5, 16 levels. One client's input changes from x to x', the others' "
            "inputs are fixed, the server sees the sum of all codes. The paper says that "
            "quasi-convexity puts the worst case at inputs ±clip (and draws the others' signs at "
            "random). Quasi-convexity puts it at the vertices: ±clip and the levels between them, "
            "for the distribution of a code is linear in the input only between levels."
        ),
        claims=claims,
        tables=[Table("Largest Rényi divergence of the sum, nats", columns, rows)],
        figures=[],
    )


def worst_sum(
    channel: Channel, clients: int, order: float, *, ends_only: bool = False
) -> tuple[Interval, tuple[float, ...]]:
    """Largest divergence of a sum of codes over one client's inputs x, x' and the others' inputs.

    Args:
        channel: applied by every client.
        clients: how many codes are summed; at most 16 (their weights' product stays a float64).
        order: Rényi order in (1, inf].
        ends_only: try inputs ±clip alone, for all clients.

    Returns:
        (interval, witness): the divergence over all vertices, hence (joint quasi-convexity in the
        rows) over all inputs; x, x' and the others' inputs that attain it.
    """
    rows = channel.weights.astype(object)
    vertices = (0, len(rows) - 1) if ends_only else range(len(rows))
    upper, best = 0.0, (-1.0, (0, 0))
    for others in itertools.combinations_with_replacement(vertices, clients - 1):
        table = rows[list(vertices)]
        for v in others:
            table = np.array([np.convolve(row, rows[v]) for row in table])
        total = channel.denominator**clients
        low, high = renyi(table[:, None], table[None, :], total, order)
        i, j = np.unravel_index(int(low.argmax()), low.shape)
        upper = max(upper, float(high.max()))
        where = (vertices[int(i)], vertices[int(j)], *others)
        best = max(best, (float(low[i, j]), where), key=lambda found: found[0])
    lower, witness = best
    return Interval(lower, upper), tuple(float(channel.inputs[v]) for v in witness)
