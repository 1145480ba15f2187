"""From the releases of a run to one (epsilon, delta) guarantee for one client.

What was released is a record (`releases`); how releases compose is here.
Derivations: `docs/theory/accounting.md`.

Libraries that add noise to sums mostly state epsilon for adding or removing a client: whether it
contributes, or zeros in its place. That is `zero_out`; `replace_one` asks for more of the same
noise, so its epsilon is larger. Which to compare with whose: `docs/guarantees.md`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from randquant._internal import validate
from randquant._internal.formatting import round_up
from randquant._internal.progress import searching
from randquant.channels.channel import Channel
from randquant.privacy.accounting.composition import compose, compose_pairs
from randquant.privacy.accounting.gaussian import RoundLoss, gaussian_epsilon, martingale_epsilon
from randquant.privacy.accounting.privacy_loss import DominatingPairs
from randquant.privacy.accounting.release_protocol import Release, check_release
from randquant.privacy.divergence import UNIT
from randquant.privacy.guarantee import Guarantee, Neighboring, rounded_up

ORDERS: tuple[float, ...] = tuple(float(1 + step) for step in np.geomspace(1e-6, 1e5, 221))
"""Rényi orders tried: 20 per decade of order - 1, so 1.0005 and far below it are covered."""

MAX_ORDERS_FROM_START = 8
"""Restart the search for the best order after moving this many orders."""

RESERVED_SHARE = 2.0**-10
"""Share of delta that is set aside where the law that is sent is only close to the certified one.
Half as much would halve the distance that can be paid for."""

MAX_GAUSSIAN_RATIO = 4.0
"""If a bound exceeds the divergence of Gaussian noise by this factor, it is too loose to use at its
order, and the search starts at a lower one. Any value gives a proven bound."""


def account(
    releases: Iterable[Release],
    delta: float,
    *,
    quick: bool = False,
    start_order: float | None = None,
) -> Guarantee:
    """Compose everything that one client's data was released through into one guarantee.

    Args:
        releases: all releases of that client, coordinates and rounds included.
        delta: in [0, 1); 0 asks for pure differential privacy.
        quick: leave out what takes more than milliseconds for many releases of one channel: the
            bound is proven all the same, about as low and never below the other.
        start_order: a Rényi order near which the best one is expected: the search over ORDERS
            begins there, which saves time. Any order gives a proven bound.

    Returns:
        The best of pure composition (which needs no delta), comparison with Gaussian noise (exact
        for Gaussian releases, close for sums of one bit and for integer noise), Rényi composition
        over ORDERS and, where one channel was used throughout, composition of its privacy loss.

    Guarantees:
        The composed mechanism is (epsilon, delta)-differentially private for the releases' own
        neighbours, also when later releases depend on the outcome of earlier ones. Where the
        releases as sent are only close to what their Rényi bounds are for, a part of delta,
        RESERVED_SHARE, pays for the distance; where it does not, epsilon is infinite.

    Raises:
        ValueError: delta is out of range, there is no release, or they assume different trust or
            neighbours.
        TypeError: releases is not a list of releases, or delta not a number.

    References:
        Mironov 2017, Proposition 1 (composition); Canonne, Kamath and Steinke 2020,
        Proposition 12 (conversion to epsilon and delta); `composition.compose`.

    Example:
        >>> import randquant as rq
        >>> from randquant.privacy.accounting.releases import ChannelRelease
        >>> channel = rq.rqm(clip=1.5, margin=1.5, levels=16, keep=0.42)
        >>> print(account([ChannelRelease(channel, dimension=650, rounds=20)], delta=1e-5))
        epsilon <= 60257.7 at delta = 1e-05 (replace_one, local trust)
    """
    if not isinstance(releases, Iterable):
        raise TypeError(
            f"Expected a list of releases, got {type(releases).__name__}: put it in []."
        )
    releases = validate.listed("releases", releases)  # an iterator could be read only once
    for release in releases:
        check_release("each release", release)
    quick = validate.flag("quick", quick)
    delta = validate.real("delta", delta, low=0, below=1, why="delta is a small probability")
    trust = _common_word("trust", [release.trust for release in releases])
    neighboring = _common_word("neighboring", [release.neighboring for release in releases])
    unit = _common_word("unit", [release.unit for release in releases])
    total = sum(release.releases for release in releases)
    distance = rounded_up(math.fsum(release.distance for release in releases))
    # theory/accounting.md, Proposition 3.
    candidates = [(_composed(releases, math.inf), math.inf)]
    if delta > 0 and total > 0:
        # theory/accounting.md, Proposition 4: this part of delta is for the law that is bounded,
        # RESERVED_SHARE of it for the distance to the law that is sent.
        left = delta * (1 - RESERVED_SHARE) if distance > 0 else delta
        bound, order, energy = _by_gaussian_noise(releases, left)
        candidates.append((bound, order))
        # theory/accounting.md, Proposition 10: what is pure by itself adds its epsilon, no delta.
        pure = [release.renyi(math.inf) for release in releases]
        rest = [one for one, each in zip(releases, pure, strict=True) if each > bound]
        if 0 < len(rest) < len(releases):
            rest_bound, order, _ = _by_gaussian_noise(rest, left)
            total_bound = _sum([rest_bound, *(each for each in pure if each <= bound)])
            candidates.append((total_bound, order))
        if _renyi_may_help(releases, left, bound, energy):
            candidates.append(_by_renyi(releases, left, start_order))
        if not quick:
            candidates.append(_by_pairs(releases, left))
    epsilon, order = min(candidates, key=lambda candidate: candidate[0])
    if not _reserve_pays(distance, epsilon, delta):
        epsilon, order = math.inf, math.inf
    channel = _only_channel(releases)
    if channel is not None:
        # theory/composition.md, Propositions 1 and 10.
        composed = compose(channel, total, delta, quick=quick)
        epsilon, order = min((epsilon, order), composed, key=lambda candidate: candidate[0])
    hidden = any(release.sampled for release in releases)
    return Guarantee(epsilon, delta, neighboring, trust, order, total, hidden, unit)


def account_at(releases: Sequence[Release], delta: float, order: float) -> float:
    """Bound epsilon by one Rényi order, in milliseconds; `account` searches for the best order.

    Args:
        releases: as for `account`.
        delta: in (0, 1).
        order: in (1, inf].

    Returns:
        An upper bound of epsilon, in nats.

    Example:
        >>> from randquant.privacy.accounting.releases import GaussianRelease
        >>> release = GaussianRelease(relative_deviation=2.0, dimension=5, rounds=1)
        >>> [round(account_at([release], 1e-5, order), 2) for order in (8.0, 64.0)]
        [2.21, 8.1]
    """
    distance = rounded_up(math.fsum(release.distance for release in releases))
    # theory/accounting.md, Proposition 4, as in `account`.
    left = delta * (1 - RESERVED_SHARE) if distance > 0 else delta
    divergence = _composed(releases, order)
    epsilon = divergence if math.isinf(order) else _to_epsilon(divergence, order, left)
    return epsilon if _reserve_pays(distance, epsilon, delta) else math.inf


def gaussian_order(epsilon: float, delta: float) -> float:
    """Return the entry of ORDERS that best bounds Gaussian noise with this guarantee.

    Example:
        >>> round(gaussian_order(8.0, 1e-5), 1)
        3.8
    """
    orders = np.array(ORDERS)
    # The divergence of Gaussian noise is rate · order: take the order that allows the largest rate.
    conversion = np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)
    return ORDERS[int(np.argmax((epsilon - conversion) / orders))]


def _common_word(name: str, words: Sequence[str]) -> Any:
    if len(set(words)) != 1:
        raise ValueError(
            f"Expected releases under one {name}, got {sorted(set(words)) or 'none'}: "
            "a guarantee holds against one kind of adversary, who compares one kind of neighbours."
        )
    return words[0]


def _only_channel(releases: Sequence[Release]) -> Channel | None:
    # A dominating pair is over all pairs of inputs, so it bounds `replace_one` neighbours only.
    used = {r.coordinate_channel if r.neighboring == "replace_one" else None for r in releases}
    return used.pop() if len(used) == 1 else None


MAX_ENERGY_RATIO = 1.001
"""Largest epsilon over that of Gaussian noise of the same energy at which the search stops: no
other comparison with Gaussian noise could win more than 0.1 %."""


MIN_RENYI_SHARE = 0.98
"""Smallest share of its estimate that Rényi composition is expected to reach. Composition takes
most of an account's time, and where its bounds are tight it is run in vain."""


def _by_gaussian_noise(releases: Sequence[Release], delta: float) -> tuple[float, float, float]:
    # Returns (epsilon, order, squared distance over variance of the noise): infinite if Gaussian
    # noise is known to dominate some releases only.
    small = [release.round_loss for release in releases]
    if all(part is not None and part.largest > 0 for part in small):
        bound = _by_parts([part for part in small if part is not None], delta)
        # No Gaussian noise that hides these steps has less energy: nearly the least is enough.
        if bound[0] <= MAX_ENERGY_RATIO * gaussian_epsilon(math.sqrt(bound[2]), delta):
            return bound
    squares = [release.squared_mu for release in releases]
    # theory/martingale.md, Proposition 5: Gaussian noise adds no error.
    noise = [None if square is None else RoundLoss(square) for square in squares]
    # Some releases have both bounds: that of small steps is the tighter one where there are many.
    choices = [
        [one or another for one, another in zip(noise, small, strict=True)],
        [another or one for one, another in zip(noise, small, strict=True)],
    ]
    bounds = [
        _by_parts(known, delta)
        for parts in choices
        if len(known := [part for part in parts if part is not None]) == len(parts)
    ]
    return min(bounds, default=(math.inf, math.inf, 0.0))


def _by_parts(parts: Sequence[RoundLoss], delta: float) -> tuple[float, float, float]:
    steps = RoundLoss.combined(parts)
    if steps.largest > 0:
        return *martingale_epsilon(steps, delta), steps.energy
    # theory/gaussian.md, Propositions 1 and 2. At that order the Rényi bound is lowest, about.
    epsilon = gaussian_epsilon(rounded_up(math.sqrt(steps.energy)), delta)
    return epsilon, 1 + epsilon / steps.energy if steps.energy > 0 else math.inf, steps.energy


def _renyi_may_help(
    releases: Sequence[Release], delta: float, epsilon: float, energy: float
) -> bool:
    """Tell if Rényi composition might beat `epsilon`, since it is slow and rarely does.

    It does not beat the exact epsilon of Gaussian noise of the same energy, and other bounds grow
    with the order about as those of Gaussian noise do. Either answer leaves a proven bound.
    """
    orders = np.array(ORDERS)
    conversion = np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)
    converted = orders * (energy / 2) + conversion
    best = int(converted.argmin())
    if epsilon > converted[best]:
        return True
    slope = _composed(releases, ORDERS[best]) / ORDERS[best]
    return (
        slope < 0.999 * energy / 2
        and MIN_RENYI_SHARE * (orders * slope + conversion).min() < epsilon
    )


def _by_pairs(releases: Sequence[Release], delta: float) -> tuple[float, float]:
    """Return (epsilon, order) of one dominating pair many times, with or without Gaussian noise.

    Infinity where parts of the run are dominated by different pairs.
    """
    known = [release.dominating_pairs for release in releases]
    plain = [r.squared_mu for r, each in zip(releases, known, strict=True) if each is None]
    pairs, parts = _common_pairs(known)
    if pairs is None or None in plain:
        return math.inf, math.inf
    # theory/sampling.md, Propositions 15 and 20.
    noise = rounded_up(math.fsum(square for square in plain if square is not None))
    return compose_pairs(pairs, parts, delta, noise)


def _common_pairs(
    known: Sequence[tuple[DominatingPairs, int] | None],
) -> tuple[DominatingPairs | None, int]:
    parts = [each for each in known if each is not None]
    if len({pairs for pairs, _ in parts}) != 1:
        return None, 0
    return parts[0][0], sum(count for _, count in parts)


def _nearest(order: float) -> int:
    return int(np.searchsorted(ORDERS, order).clip(0, len(ORDERS) - 1))


def _by_renyi(
    releases: Sequence[Release], delta: float, start_order: float | None = None
) -> tuple[float, float]:
    """Find (epsilon, order) with the least epsilon over ORDERS, starting near the Gaussian's order.

    (order - 1) times a divergence is convex in the order, so epsilon is quasi-convex in it: it
    falls, then rises. Where bounds are not quite convex the descent may end elsewhere: every order
    gives a valid bound. Higher orders take longer, and are looked at only where they may help.
    """
    bounds: dict[int, float] = {}
    pure = _composed(releases, math.inf)

    def epsilon(divergence: float, place: int) -> float:
        return _to_epsilon(divergence, ORDERS[place], delta)

    def at(place: int) -> float:
        if place not in bounds:
            with searching(f"Rényi order {ORDERS[place]:.4g}", len(bounds)):
                bounds[place] = _composed(releases, ORDERS[place])
        return epsilon(bounds[place], place)

    def may_help(higher: int, best: int, lower: int) -> bool:
        if bounds[best] >= pure:
            return False
        # Mostly bounds grow with the order as those of Gaussian noise, which are in proportion to
        # it, or faster.
        slope = bounds[best] / ORDERS[best]
        slower = slope < bounds[lower] / ORDERS[lower]
        return slower or epsilon(slope * ORDERS[higher], higher) < at(best)

    if start_order is None:
        # The divergence of Gaussian noise is rate · order, its best order is
        # 1 + sqrt(log(1/delta)/rate).
        rate = max(_composed(releases, 2.0) / 2, 1e-300)
        best, step = _nearest(1 + math.sqrt(-math.log(delta) / rate)), 4
        # theory/accounting.md, Proposition 2: any order will do. Where a bound is loose, as of a
        # sum that is bounded by one client's code, epsilon only falls towards the last orders, so
        # the search starts at a lower one.
        limit = MAX_GAUSSIAN_RATIO * rate
        while (order := ORDERS[best]) > 2 and _composed(releases, order) > limit * order:
            best = min(_nearest(1 + (order - 1) / 2), best - 1)
    else:
        best, step = _nearest(start_order), 1
        # Where the caller's order was far off, begin at that of Gaussian noise with this epsilon.
        nearer = _nearest(gaussian_order(at(best), delta))
        if abs(nearer - best) > MAX_ORDERS_FROM_START:
            best, step = nearer, 4
    while step:
        lower, higher = max(best - step, 0), min(best + step, len(ORDERS) - 1)
        nearer = min(best, lower, key=at)
        if nearer == best and (higher in bounds or may_help(higher, best, lower)):
            nearer = min(best, higher, key=at)
        step, best = (step, nearer) if nearer != best else (step // 2, best)
    # theory/accounting.md, Proposition 2: no divergence is larger than that of order inf.
    capped = min((_to_epsilon(pure, order, delta), order) for order in ORDERS[best:])
    by_variance = (_by_variance(_composed(releases, 2.0), delta), 2.0)
    return min((at(best), ORDERS[best]), capped, by_variance)


def _by_variance(divergence: float, delta: float) -> float:
    # This bound is the tightest where a client hardly ever takes part; above 1 nat it never is.
    if divergence > 1:
        return math.inf
    # theory/accounting.md, Proposition 2, at order 2: 9 and 2 of the units below are needed, then
    # 20; a delta whose square is 0 makes the bound larger.
    variance, spared = math.expm1(divergence) * (1 + 16 * UNIT), 4 * delta**2 * (1 - 8 * UNIT)
    return math.log1p(max(variance - spared, 0.0) / (4 * delta)) * (1 + 32 * UNIT)


def _reserve_pays(distance: float, epsilon: float, delta: float) -> bool:
    if distance == 0 or math.isinf(epsilon):
        return True
    # theory/accounting.md, Proposition 4: log((1 + e^epsilon) · distance), without overflow; the
    # margin is far above its rounding, a few units.
    cost = math.log(distance) + epsilon + math.log1p(math.exp(-epsilon))
    return delta > 0 and cost + 1e-9 * (1 + abs(cost)) <= math.log(delta * RESERVED_SHARE)


def _composed(releases: Sequence[Release], order: float) -> float:
    return _sum([release.renyi(order) for release in releases])


def _sum(parts: Sequence[float]) -> float:
    return rounded_up(math.fsum(parts))


def _to_epsilon(divergence: float, order: float, delta: float) -> float:
    """Return the least epsilon that a Rényi bound gives at delta, rounded up.

    epsilon = divergence + log(1 - 1/order) - (log(delta) + log(order)) / (order - 1)
    """
    if math.isinf(divergence):
        return math.inf
    terms = (
        divergence,
        math.log((order - 1) / order),  # order - 1 is exact; log1p(-1/order) would not be
        -math.log(delta) / (order - 1),
        -math.log(order) / (order - 1),
    )
    # theory/accounting.md, Proposition 2.
    slack = UNIT * (4 + 64 * sum(abs(term) for term in terms))
    return max(0.0, math.fsum(terms) + slack)


def other_relation(neighboring: Neighboring) -> Neighboring:
    return "zero_out" if neighboring == "replace_one" else "replace_one"


def under_other_relation(
    stated: Guarantee | None,
    released: Callable[[Neighboring], Release | Sequence[Release] | None],
    before: Callable[[Neighboring], Guarantee | None] | None = None,
    *,
    quick: bool = False,
) -> Guarantee | None:
    """Account for what a guarantee covers under the relation that it is not for.

    Args:
        stated: the guarantee of a run, a plan or a table; None without privacy.
        released: what it covers, as one or more releases between neighbours of a relation.
        before: what was spent before under a relation, which `stated` counts too; None if nothing.
        quick: as in `account`.

    Returns:
        The guarantee at the same delta, against the same adversary; None if there is none, or if
        the release, or what was spent, is not derived for that relation.

    Example:
        >>> from randquant.privacy.accounting.releases import GaussianRelease
        >>> noise = {"replace_one": 1.0, "zero_out": 2.0}  # in units of neighbours' distance
        >>> def released(relation):
        ...     return GaussianRelease(noise[relation], 5, 1, neighboring=relation)
        >>> print(stated := account([released("replace_one")], 1e-5))
        epsilon <= 4.37718 at delta = 1e-05 (replace_one, central trust)
        >>> print(under_other_relation(stated, released))
        epsilon <= 1.9931 at delta = 1e-05 (zero_out, central trust)
    """
    if stated is None or math.isinf(stated.epsilon):
        return None
    relation = other_relation(stated.neighboring)
    try:
        releases = released(relation)
        spent = None if before is None else before(relation)
        left = stated.delta if spent is None else spent.remaining(math.inf, stated.delta)[1]
        if releases is None or (before is not None and spent is None):
            return None
        listed = releases if isinstance(releases, Sequence) else [releases]
        # theory/accounting.md, Proposition 8: both relations hold of the declared releases at
        # once; Proposition 9 adds what was spent before.
        total = account(listed, left, quick=quick)
        total = total if spent is None else total + spent
    except (ValueError, TypeError, ArithmeticError, AssertionError, NotImplementedError):
        # No distance is derived for this relation; a mechanism of somebody's own may say so in
        # another way than ours, and a run that has ended must not fail for a second figure.
        return None
    # Such a mechanism may also know one relation only, whatever it is asked for.
    stands = total.neighboring == relation and math.isfinite(total.epsilon)
    if not stands or (total.trust, total.unit) != (stated.trust, stated.unit):
        return None
    return replace(total, delta=stated.delta, simulated=stated.simulated)


def by_relation(*guarantees: Guarantee | None) -> Mapping[Neighboring, Guarantee]:
    """Return the guarantees there are by their neighbouring relations."""
    return {each.neighboring: each for each in guarantees if each is not None}


def other_relation_lines(other: Guarantee | None) -> Iterable[str]:
    """Return the line that stands below a guarantee: of the same under the other relation, if any.

    Example:
        >>> print(*other_relation_lines(Guarantee(1.5, 1e-5, "zero_out", "aggregate", 9.0, 3)))
        if one client is left out (counts as zeros) instead of replaced: epsilon <= 1.5 at delta = \
1e-05 (zero_out, aggregate trust)
    """
    if other is None:
        return []
    changes = {
        "zero_out": "is left out (counts as zeros) instead of replaced",
        "replace_one": "is replaced instead of left out (counted as zeros)",
    }
    return [f"if one {other.unit} {changes[other.neighboring]}: {other}"]


def in_short(other: Guarantee | None) -> str:
    """Return the same in parentheses, to stand behind a figure within a line; "" if there is none.

    Example:
        >>> print(f"epsilon <= 3.1{in_short(Guarantee(1.5, 1e-5, 'zero_out', 'local', 9.0, 3))}")
        epsilon <= 3.1 (<= 1.5 under zero_out)
    """
    if other is None:
        return ""
    return f" (<= {round_up(other.epsilon)} under {other.neighboring})"


def in_one_line(stated: Guarantee, other: Guarantee | None) -> str:
    """Return a guarantee with its figure under the other relation, if any.

    Example:
        >>> stated, other = (Guarantee(epsilon, 1e-5, relation, "local", 9.0, 3)
        ...                  for epsilon, relation in ((3.5, "replace_one"), (1.5, "zero_out")))
        >>> print(in_one_line(stated, other))
        epsilon <= 3.5 (<= 1.5 under zero_out) at delta = 1e-05 (replace_one, local trust)
    """
    bound, at, rest = str(stated).partition(" at delta")
    return f"{bound}{in_short(other)}{at}{rest}"
