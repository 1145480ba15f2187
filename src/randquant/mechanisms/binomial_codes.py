"""Codes that count independent random bits: PBM, the Poisson binomial mechanism, and I-MVU.

I-MVU is the interpolated minimum-variance unbiased mechanism.
"""

from __future__ import annotations

import math
from decimal import Context, Decimal

import numpy as np

from randquant._internal import validate
from randquant.channels.channel import (
    EVEN_SHARE,
    MAX_MAGNITUDE,
    Channel,
    from_probabilities,
    with_even,
)
from randquant.mechanisms.registry import (
    CLIP,
    CLIP_NORM,
    INPUTS,
    LEVELS,
    CoordinateFamily,
    MechanismRecord,
    Tuning,
    UpdateFamily,
    UpdateSetting,
    six_digits,
)

MIN_PROBABILITY = 2.0**-36
"""Smallest probability of a code without mixing. A smaller one would be fewer than 2**26 units of
2**-62: too coarse for certificates of sums to recognise a sum of bits."""


def pbm(
    clip: float, theta: float, trials: int, inputs: int = 65, mixing: float | None = None
) -> Channel:
    """Poisson binomial mechanism: the input sets the success probability of a binomial law.

    The code is Binomial(trials, 1/2 + theta·x/clip) and decodes without bias. If some code would be
    rarer than MIN_PROBABILITY, a share of 2**-20 of all codes is drawn evenly: certificates of sums
    can then recognise the other codes as sums of bits.

    Args:
        clip: c, per-coordinate clipping threshold, > 0.
        theta: θ in (0, 1/2]; at 1/2 the code of ±clip is deterministic and nothing is protected.
        trials: m in the paper, 1 to 255; there are trials + 1 codes.
        inputs: vertices, evenly spaced from -clip to clip, 2 to 1000.
        mixing: share of all codes that is drawn evenly, in [0, 1/2]; by default 0, or 2**-20 in the
            case above. With 0 it is PBM as published.

    Returns:
        A Channel. PBM is smooth in x; between vertices its row is replaced by a mixture of the two
        neighbouring rows. This changes neither the mean nor the worst pair (±clip, a pair of
        vertices), and adds at most (clip/(inputs - 1))^2 to the variance.

    Guarantees:
        Unbiased up to float64 rounding.
        The same integers on every IEEE 754 machine.
        No code is impossible, unless theta is 1/2.

    Raises:
        ValueError, TypeError: an argument is out of bounds or of the wrong kind.

    References:
        Chen, Özgür and Kairouz 2022, Algorithm 2.

    Example:
        >>> import randquant as rq
        >>> channel = pbm(clip=1.5, theta=0.25, trials=15)
        >>> channel.levels, sorted(rq.certify(channel, order=2.0).witness)
        (16, [-1.5, 1.5])
    """
    clip = validate.real(
        "clip", clip, above=0, high=MAX_MAGNITUDE, why="clip is the largest magnitude sent"
    )
    theta = validate.real(
        "theta", theta, above=0, high=0.5, why="1/2 + theta·x/clip is a probability"
    )
    trials = validate.whole("trials", trials, low=1, high=255, why="a code is one byte")
    inputs = validate.whole("inputs", inputs, low=2, high=1000)
    if mixing is not None:
        why = "mixing is a share of the codes"
        mixing = validate.real("mixing", mixing, low=0, high=0.5, why=why)
    scaled = (2 * np.arange(inputs) - (inputs - 1)) / (inputs - 1)  # x / clip
    values = clip / (theta * trials) * (np.arange(trials + 1) - trials / 2)
    success = 0.5 + theta * scaled
    rows = binomial(trials, success, 1 - success)
    if mixing is None:
        mixing = _default_mixing(rows)
    if mixing:  # evenly drawn codes decode to zero on average: the other values grow
        rows, values = with_even(rows, mixing), values / (1 - mixing)
    return from_probabilities(clip * scaled, values, rows)


def _default_mixing(rows: np.ndarray) -> float:
    # At theta = 1/2 a probability is zero: PBM protects nothing there, and is left as published.
    return EVEN_SHARE if 0 < rows.min() < MIN_PROBABILITY else 0.0


def binomial(trials: int, success: np.ndarray, failure: np.ndarray) -> np.ndarray:
    """Compute binomial probabilities (V, trials + 1), trial by trial and without cancellation.

    Args:
        trials: number of trials.
        success, failure: (V,) probabilities of each trial, which sum to 1.
    """
    rows = np.ones((len(success), 1))
    for _ in range(trials):
        padded = np.pad(rows, ((0, 0), (1, 1)))
        rows = padded[:, 1:] * failure[:, None] + padded[:, :-1] * success[:, None]
    return rows


def _implied_mixing(
    clip: float, theta: float, trials: int, inputs: int = 65, mixing: float | None = None
) -> dict[str, float]:
    # The mixing that `pbm` chooses by itself, for `MechanismRecord.implied`.
    if mixing is not None:
        return {}
    success = 0.5 + theta * (2 * np.arange(inputs) - (inputs - 1)) / (inputs - 1)
    share = _default_mixing(binomial(trials, success, 1 - success))
    return {"mixing": share} if share else {}


def _pbm_updates(setting: UpdateSetting) -> UpdateFamily:
    clip, trials = setting.clip, setting.levels - 1
    return UpdateFamily(
        lambda t: {"clip": clip, "theta": six_digits(0.5 / t), "trials": trials, "inputs": 17},
        # At t = 1 theta is 1/2, where the code of an input at the clip is certain.
        reach=(1.05, 1e12),
        # From the variance at ±clip, clip² (t² - 1) / trials, solved for t.
        start=lambda deviation: math.sqrt(1 + trials * (deviation / clip) ** 2),
    )


MAX_LOG_ODDS = 48.0
"""Log odds of one bit at which all codes but the outermost have a weight of one unit: larger ones
would give the same integers, and more vertices. exp(-48) is below 2**-62 already."""

LOG_ODDS_GRID = np.concatenate(
    [
        np.arange(0, 4, 1 / 16),
        np.arange(4, 8, 1 / 8),
        np.arange(8, 16, 1 / 4),
        np.arange(16, 32, 1 / 2),
        np.arange(32, MAX_LOG_ODDS + 1),
    ]
)
"""Vertices >= 0, in log odds of one bit: dense where the rows change fastest."""


def imvu(clip_norm: float, levels: int, epsilon: float, beta: float = 1.0) -> Channel:
    """Interpolated MVU mechanism of one coordinate u of an update of bounded L2 norm.

    The input is z = 1/2 + beta·u/(2·clip_norm). The logarithms of the rows at z = 0 and z = 1 are
    interpolated linearly, and extrapolated to all of [-clip_norm, clip_norm].

    With two levels the rows are the optimum of the paper: the least variance of all mechanisms with
    two inputs that are unbiased under pure epsilon. That optimum has two values for any number of
    bits; the paper does not define what more levels mean. Here the code then counts how many of
    levels - 1 independent two-level mechanisms, each of epsilon/(levels - 1), answer 1: the values
    are evenly spaced, so that sums of codes decode, and at equal M = epsilon^2/(levels - 1) more
    levels mean less bias everywhere and less variance near 0. At equal epsilon two levels have the
    least variance.

    Args:
        clip_norm: C, L2 clipping threshold of the update, > 0. The channel clips its coordinate to
            [-clip_norm, clip_norm]; the caller clips the update.
        levels: B_out, number of codes, 2 to 16 (1 to 4 bits).
        epsilon: pure epsilon between the inputs ±clip_norm/beta (z = 0 and 1), 1e-6 to 20. The
            certificate over all inputs is beta·epsilon, until rare codes reach 2**-62.
        beta: input scaling, 1 to 10,000; larger values suit coordinates that are small compared
            with the norm.

    Returns:
        A Channel with ±clip_norm and ±clip_norm/beta among up to 357 vertices, at which its rows
        are those of I-MVU. Between vertices rows are mixed linearly. This changes the mean by at
        most 1e-4 of the largest value and the second moment by at most 2.5e-4 of its square;
        `fisher_information` is at most 1 + levels/2000 times that of I-MVU.

    Guarantees:
        Unbiased at ±clip_norm/beta and at 0, biased elsewhere, and heavily biased if beta·u is far
        outside [-clip_norm, clip_norm]: see `moments(channel)`.
        Rows are mirror images: the code of -u has the law of levels - 1 - code of u.
        The same integers on every IEEE 754 machine (exponentials are computed in decimal).
        Codes with a probability below 2**-62 keep a weight of one unit.

    Raises:
        ValueError, TypeError: an argument is out of bounds or of the wrong kind.

    References:
        Guo et al. 2022, "The Interpolated MVU Mechanism", section 3.
        Derivations: `docs/theory/imvu.md`.

    Example:
        >>> import randquant as rq
        >>> channel = imvu(clip_norm=1.0, levels=2, epsilon=2.0, beta=8.0)
        >>> round(rq.certify_pair(channel, 1 / 8, -1 / 8).epsilon.upper, 9)
        2.0
        >>> round(rq.certify(channel).epsilon.upper, 6)
        16.0
    """
    clip_norm = validate.real("clip_norm", clip_norm, above=0)
    levels = validate.whole("levels", levels, low=2, high=16, why="I-MVU sends 1 to 4 bits")
    why = "beyond, 2**-62 is too coarse for its rows"
    epsilon = validate.real("epsilon", epsilon, low=1e-6, high=20, why=why)
    beta = validate.real(
        "beta", beta, low=1, high=10_000, why="at 1 inputs span what the rows are designed for"
    )
    trials = levels - 1
    unit = epsilon / trials  # the log odds of one bit are unit·(2z - 1) = unit·beta·u/clip_norm
    logits = _vertices(unit, beta * unit)
    rows = binomial(trials, *_bit_probabilities(logits))
    scaled = logits / logits[-1]  # u / clip_norm
    inputs = clip_norm * np.concatenate([-scaled[:0:-1], scaled])
    values = clip_norm / beta * _coth_half(unit) * (2 * np.arange(levels) - trials) / trials
    # The rows below 0 are mirrored, not computed, so that they are mirror images in every bit.
    return from_probabilities(inputs, values, np.concatenate([rows[:0:-1, ::-1], rows]))


def _vertices(unit: float, end: float) -> np.ndarray:
    # Log odds >= 0 of the vertices. `unit` is where the mechanism is unbiased, `end` is clip_norm:
    # both are vertices, unless they coincide.
    fixed = [end] if end - unit <= max(1e-8 * end, 1e-10) else [unit, end]
    min_distance = min(1e-4 * end, 2.0**-10)  # closer grid points make cells needlessly narrow
    grid = [
        t
        for t in LOG_ODDS_GRID
        if t < end and min(abs(t - logit) for logit in fixed) > min_distance
    ]
    return np.unique([0.0, *grid, *fixed])


def _bit_probabilities(logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    # That a bit is 1 and that it is 0, each correctly rounded: 1 - p in float64 would have lost the
    # digits of a small probability.
    context = Context(prec=40)
    odds = [context.exp(-Decimal(min(float(logit), MAX_LOG_ODDS))) for logit in logits]
    success = [float(context.divide(1, context.add(1, odd))) for odd in odds]
    failure = [float(context.divide(odd, context.add(1, odd))) for odd in odds]
    return np.array(success), np.array(failure)


def _coth_half(x: float) -> float:
    # In decimal arithmetic: in binary, 1 - exp(-x) would lose digits.
    context = Context(prec=40)
    odd = context.exp(-Decimal(x))
    return float(context.divide(context.add(1, odd), context.subtract(1, odd)))


def _imvu_updates(setting: UpdateSetting) -> UpdateFamily:
    clip, levels = setting.clip, min(setting.levels, 16)
    return UpdateFamily(
        lambda t: {"clip_norm": clip, "levels": levels, "epsilon": six_digits(2 / t)},
        reach=(0.1, 2e6),
        start=lambda deviation: deviation / clip / math.sqrt(levels - 1),
    )


RECORDS = (
    MechanismRecord(
        "pbm",
        pbm,
        help={
            "clip": CLIP,
            "theta": "success probability is 1/2 + theta x / clip; 0 to 1/2",
            "trials": "binomial trials, 1 to 255; trials + 1 codes",
            "inputs": INPUTS,
            "mixing": "share of codes drawn evenly; 0 is PBM as published",
        },
        example={"clip": 1.5, "theta": 0.25, "trials": 3},
        tuning=Tuning(
            coordinate=CoordinateFamily(
                lambda target: {"theta": np.geomspace(1e-5, 0.5, 25)},
                lambda target, at: {
                    "clip": target.clip,
                    "theta": six_digits(at["theta"]),
                    "trials": target.levels - 1,
                },
            ),
            update=_pbm_updates,
            slow=("aggregate",),
        ),
        implied=_implied_mixing,
        place=2,
    ),
    MechanismRecord(
        "imvu",
        imvu,
        help={
            "clip_norm": CLIP_NORM,
            "levels": LEVELS,
            "epsilon": "pure epsilon between clip_norm/beta and -clip_norm/beta",
            "beta": "input scaling, 1 to 10,000; larger for coordinates far below clip_norm",
        },
        example={"clip_norm": 1.5, "levels": 4, "epsilon": 2.0},
        # There is one channel only: its epsilon is the target.
        tuning=Tuning(
            coordinate=CoordinateFamily(
                lambda target: {"": [0.0]},
                lambda target, at: {
                    "clip_norm": target.clip,
                    "levels": target.levels,
                    # A little less, or rounding to six digits might exceed the target.
                    "epsilon": six_digits(target.epsilon * (1 - 1e-5)),
                },
            ),
            update=_imvu_updates,
            slow=("aggregate",),
        ),
        place=7,
    ),
)
