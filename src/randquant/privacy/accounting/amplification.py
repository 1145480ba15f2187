"""Privacy amplification by sampling: a bound for a subsampled mechanism, from its Rényi curve.

One bound for any mechanism, at every real order. Derivations: `docs/theory/sampling.md`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np

from randquant._internal import validate
from randquant.privacy.divergence import UNIT
from randquant.privacy.guarantee import NEIGHBORINGS, Neighboring

LARGEST_ORDER = 256.0
"""Above it only bounds are used that need the curve at that order alone."""

SHIFTS = (0, 1, 2, 3, 4, 6, 8, 12)
"""How many orders higher the mass of a remainder is looked up; any gives a valid bound."""


def amplified(
    renyi: Callable[[float], float],
    rate: float,
    order: float,
    neighboring: Neighboring,
    absent: Callable[[float], float] | None = None,
) -> float:
    """Bound the Rényi divergence of a mechanism in which each client takes part at random.

    Args:
        renyi: order in (1, inf] to an upper bound, in nats, of the divergence between any two
            neighbouring inputs of the mechanism, in both directions; asked for at `order`, at
            infinity, and at whole orders of GRID.
        rate: probability of taking part, in (0, 1].
        order: in (1, inf].
        neighboring: what `renyi` is for and what the result is for.
        absent: for `replace_one`, if it is known: the same between an input and absence, where
            absence is closer to every input than inputs are to each other.

    Returns:
        An upper bound, in nats, rounded up.

    Guarantees:
        Let P and P' be the mechanism's laws with two inputs of one client and A its law without
        the client. Under `replace_one`, if any two of the three are within `renyi` (and P and P'
        within `absent` of A), then (1 - rate)·A + rate·P and (1 - rate)·A + rate·P' are within the
        result. Under `zero_out` the same holds of (1 - rate)·A + rate·P and A, in both directions.
        Mixtures of such triples are covered, and so are cohorts of a fixed size under
        `replace_one`.

    Raises:
        ValueError, TypeError: an argument is out of bounds or of the wrong kind.

    References:
        Wang, Balle and Kasiviswanathan 2019, Theorem 9, and Zhu and Wang 2019, Theorems 5 and 6,
        bound the same at whole orders; derived anew in `docs/theory/sampling.md`.

    Example:
        >>> def gaussian(order):  # noise of four times the distance of neighbouring sums
        ...     return order / 32
        >>> bound = amplified(gaussian, 0.01, 8.0, "replace_one")
        >>> gaussian(8.0) / bound > 1000
        True
    """
    rate = validate.real("rate", rate, above=0, high=1, why="it is a probability")
    order = validate.renyi_order(order)
    validate.choice("neighboring", neighboring, NEIGHBORINGS)
    if rate == 1:
        return renyi(order)
    # theory/sampling.md, Proposition 7: A, P and A are a triple too, so it covers `zero_out`.
    bounds = [_mixed(renyi, rate, order, _apart)]
    if neighboring == "zero_out":
        # theory/sampling.md, Propositions 5 and 6: both directions, for neither covers the other.
        bounds.append(max(_mixed(renyi, rate, order, way) for way in (_forward, _backward)))
    elif absent is not None and not LARGEST_ORDER < 2 * order < math.inf:
        # theory/sampling.md, Proposition 9. The difference is at least 1/2 and off by 2 units, the
        # quotient and the product by 1 each; 2 order - 1 is exact.
        share = 1 / (1 - 0.5 / order) * (1 + 4 * UNIT)  # 2 order / (2 order - 1)
        there = _mixed(absent, rate, 2 * order - 1, _forward)
        bounds.append(share * there + _mixed(absent, rate, 2 * order, _backward))
    # theory/sampling.md, Proposition 11: a sum, a quotient and a product since logarithms.
    return math.nextafter(min(bounds) * (1 + 16 * UNIT), math.inf)


def _mixed(
    renyi: Callable[[float], float],
    rate: float,
    order: float,
    bound: Callable[[np.ndarray, float, float], float],
) -> float:
    """Least upper bound for two worlds that are mixed with one law, A, at 1 - rate.

    Args:
        bound: which worlds, by log((M - 1)/(order (order - 1) rate^2)) from curve, rate and order.
    """
    # theory/sampling.md, Proposition 10: by convexity, at order infinity, which is above every
    # order.
    bounds = [_log1p_exp(_log(rate) + _log_expm1(renyi(math.inf)))]
    if bound is _backward:
        # theory/sampling.md, Proposition 6: A is at most 1/(1 - rate) times the mixture.
        bounds.append(-math.log1p(-rate) * (1 + 8 * UNIT))
    if order < math.inf:
        moments = []
        if not 2 <= order <= LARGEST_ORDER:
            moments = [_log(rate) + _log_expm1((order - 1) * renyi(order) * (1 + 2 * UNIT))]
        if order <= LARGEST_ORDER:
            curve = _curve(renyi, order)
            # theory/sampling.md, Propositions 5 to 7, all in units of order (order - 1) rate^2.
            excesses = [bound(curve, rate, order)]
            if order >= 2:  # M - 1 <= rate · (the mechanism's own), between whole orders mixed
                excesses.append(_between(curve, order) - math.log(rate) * (1 + 8 * UNIT))
            logs = (_log(order), _log(order - 1), 2 * _log(rate))
            moments.append(min(excesses) + sum(logs) + 8 * UNIT * sum(map(abs, logs)))
        bounds.append(_log1p_exp(min(moments)) / (order - 1))
    return min(bounds)


def _curve(renyi: Callable[[float], float], order: float) -> np.ndarray:
    """Logs of V_k = (e^((k-1) D_k) - 1)/(k (k-1)), raised, for k = 0, 1, 2, …

    V_1 bounds the divergence of order 1, entry 0 is not used. (k - 1) D_k is convex in k: between
    GRID orders it is below its chord.
    """
    top = math.ceil(order) + SHIFTS[-1] + 1
    # theory/sampling.md, Proposition 12: a convex function is below its chords.
    asked = [k for k, before in zip(GRID[1:], GRID, strict=False) if before < top]
    moments = np.array([0.0, *((k - 1) * renyi(float(k)) for k in asked)])
    known, whole = np.array([1, *asked]), np.arange(2, top + 1)
    place = np.searchsorted(known, whole) - 1
    part = (whole - known[place]) / (known[place + 1] - known[place])
    with np.errstate(invalid="ignore"):  # 0 · inf, where the curve ends
        chord = (1 - part) * moments[place] + part * moments[place + 1]
    chord = np.where(np.isnan(chord), np.inf, chord) * (1 + 8 * UNIT)
    # 16 units: 8 of the logarithm, 1 of the difference; `_log_expm1` raises its own.
    spread = np.log(whole * (whole - 1.0))
    logs = np.array([_log_expm1(float(x)) for x in chord]) - spread + 16 * UNIT * (1 + spread)
    # theory/sampling.md, Proposition 3: the divergence of order 1 is at most V_1.
    two = float(moments[1])  # D_2 is above D_1, and so is V_2
    first = min(float(logs[0]), _log(two) if two > 0 else -math.inf)
    return np.concatenate([[-np.inf, first], logs])


def _forward(curve: np.ndarray, rate: float, order: float) -> float:
    """Of (1 - rate)·A + rate·P against A."""
    if order < 2:
        # theory/sampling.md, Proposition 5; the order between 1 and 2 is within 3 units.
        return _between(curve, 2 - rate * (2 - order), 16 * UNIT)
    weights = _binomial(order - 2, rate)
    return _log_sum(weights + curve[2 : 2 + len(weights)])


def _backward(curve: np.ndarray, rate: float, order: float) -> float:
    """Of A against (1 - rate)·A + rate·P."""
    # theory/sampling.md, Proposition 6: within 5 units of the order itself.
    return _between(curve, max(2.0, rate * (order + 1) - 1), 8 * UNIT * order)


def _between(curve: np.ndarray, order: float, rounded: float = 0.0) -> float:
    """log of the mix of V at the whole orders around one that may be off by `rounded`."""
    least = math.floor(order)
    part = order - least
    if part == rounded == 0:
        return float(curve[least])
    # theory/sampling.md, Proposition 11: what the order may be off is added to both weights.
    weights = np.log([1 - part + rounded, part + rounded])
    return _log_sum(weights + 16 * UNIT * (1 + np.abs(weights)) + curve[least : least + 2])


def _apart(curve: np.ndarray, rate: float, order: float) -> float:
    """Of (1 - rate)·A + rate·P against (1 - rate)·A + rate·P'."""
    # theory/sampling.md, Proposition 7: `joined` is of P and P', `rest` of each with A.
    joined = _binomial(order - 1, rate)
    rest = [_remainder(curve, 1 + rate * order), _remainder(curve, rate * (order + 1))]
    if order < 2:
        rest.append(_remainder(curve, rate * (2 - order)))
    else:
        weights = _binomial(order - 2, rate)
        logs = [_log_tilt(by) + curve[2 + by : 2 + by + len(weights)] for by in SHIFTS]
        rest.append(_log_sum(weights + np.min(logs, axis=0)))
    absent = math.log1p(-rate) * (1 - 4 * UNIT)
    main = _log_sum(joined + curve[1 : 1 + len(joined)])
    return _log_sum(np.array([main, *(absent + part for part in rest)]))


def _remainder(curve: np.ndarray, decay: float) -> float:
    """log of a bound of the integral of (g - 1) g^(-1 - decay) H_g over g > 1."""
    # theory/sampling.md, Proposition 8: any of SHIFTS gives a bound. The decay has 2 roundings.
    decay *= 1 - 4 * UNIT  # less decay gives more
    return min(_log_tilt(decay + by) + float(curve[2 + by]) for by in SHIFTS)


def _log_tilt(decay: float) -> float:
    """log of the largest (g - 1) g^(-1 - decay) over g > 1, raised."""
    if decay == 0:
        return 0.0
    value = decay * math.log(decay / (1 + decay)) - math.log1p(decay)
    # theory/sampling.md, Proposition 11: the quotient is within 2 units, which decay multiplies.
    return value + UNIT * (32 * (1 + abs(value)) + 4 * decay)


def _binomial(trials: float, rate: float) -> np.ndarray:
    """Logs of weights w_k, raised, with (1 - rate + rate·g)^trials <= sum w_k g^k for every g > 0.

    Binomial probabilities; between whole numbers of trials, the mix of both.
    """
    least = math.floor(trials)
    part = trials - least
    if part == 0:
        return _log_binomial(least, rate)
    below = np.append(_log_binomial(least, rate), -np.inf) + math.log1p(-part)
    above = _log_binomial(least + 1, rate) + math.log(part)
    # theory/sampling.md, Proposition 4; `_log_binomial` raises by 16 units, of which 6 are its own,
    # so that 10 units of each logarithm pay for these sums.
    return np.logaddexp(below, above) + 64 * UNIT * (1 + abs(math.log(part)))


def _log_binomial(trials: int, rate: float) -> np.ndarray:
    k = np.arange(trials + 1)
    ways, taken, left = _log_ways(trials), k * math.log(rate), (trials - k) * math.log1p(-rate)
    return ways + taken + left + 16 * UNIT * (1 + ways - taken - left)


@functools.lru_cache(maxsize=64)
def _log_ways(trials: int) -> np.ndarray:
    return np.array([math.log(math.comb(trials, k)) for k in range(trials + 1)])


def _log_sum(logs: np.ndarray) -> float:
    """log of the sum of e^logs, raised."""
    peak = float(logs.max())
    if math.isinf(peak):
        return peak
    # Two differences, exp and log: below 32 units of what is largest; n - 1 sums.
    largest = float(np.abs(logs[np.isfinite(logs)]).max())
    total = float(np.exp(logs - peak).sum())
    return peak + math.log(total) + UNIT * (len(logs) + 32 + 32 * largest)


def _log(value: float) -> float:
    """log, raised."""
    log = math.log(value)
    return log + 8 * UNIT * abs(log)


def _log_expm1(value: float) -> float:
    """log(e^value - 1), raised; -inf at 0."""
    if value <= 0:
        return -math.inf
    if math.isinf(value):
        return math.inf
    log = value + math.log(-math.expm1(-value))
    return log + 32 * UNIT * (1 + abs(log) + value)


def _log1p_exp(value: float) -> float:
    """log(1 + e^value), raised."""
    if math.isinf(value):
        return max(value, 0.0)
    return float(np.logaddexp(0.0, value + 8 * UNIT * (1 + abs(value)))) * (1 + 32 * UNIT)


def _grid() -> tuple[int, ...]:
    orders = list(range(1, 17))
    while orders[-1] < LARGEST_ORDER + SHIFTS[-1] + 1:
        orders.append(math.ceil(orders[-1] * 1.25))
    return tuple(orders)


GRID = _grid()
"""Whole orders at which a curve is asked for: 1 to 16, then 25 % apart."""
