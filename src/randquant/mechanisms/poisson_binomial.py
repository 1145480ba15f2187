"""PBM, the Poisson binomial mechanism."""

from __future__ import annotations

import math

import numpy as np

from randquant._internal import validate
from randquant.channels.channel import (
    EVEN_SHARE,
    MAX_MAGNITUDE,
    Channel,
    from_probabilities,
    with_even,
)
from randquant.mechanisms.record import (
    CLIP,
    INPUTS,
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


def _implied(
    clip: float, theta: float, trials: int, inputs: int = 65, mixing: float | None = None
) -> dict[str, float]:
    # The mixing that `pbm` chooses by itself, for `MechanismRecord.implied`.
    if mixing is not None:
        return {}
    success = 0.5 + theta * (2 * np.arange(inputs) - (inputs - 1)) / (inputs - 1)
    share = _default_mixing(binomial(trials, success, 1 - success))
    return {"mixing": share} if share else {}


def _updates(setting: UpdateSetting) -> UpdateFamily:
    clip, trials = setting.clip, setting.levels - 1
    return UpdateFamily(
        lambda t: {"clip": clip, "theta": six_digits(0.5 / t), "trials": trials, "inputs": 17},
        reach=(1.05, 1e12),
        # From the variance at ±clip, clip² (t² - 1) / trials, solved for t.
        start=lambda deviation: math.sqrt(1 + trials * (deviation / clip) ** 2),
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
            update=_updates,
            slow=("aggregate",),
        ),
        implied=_implied,
        place=2,
    ),
)
