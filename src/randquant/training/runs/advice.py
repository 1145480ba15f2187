"""What a finished run tells about its clipping threshold: from released values, at no cost."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from randquant.aggregation.mechanism import UpdateMechanism
from randquant.training.config import TrainConfig

FULL = 0.5
"""Length of the sum of the clients' mean updates, over the longest that clip_norm allows, from
which on it is said: at most half of the rounds can have led nowhere. Runs that learn digits come to
0.1 to 0.3, raw targets of a regression to 0.6 to 1."""

SHORT, COORDINATES = 0.25, 100
"""Root mean square of the means' lengths, over clip_norm, below which it is said, if noise hides
both them and their sum: a threshold of a quarter would have a sixteenth of the noise's square. Not
of fewer coordinates: their noise varies so much that it hides also what was learned well."""

FEWEST = 10
"""Rounds below which nothing is said: so few may well all lead one way."""

FIRST = 5
"""Rounds that are looked at by themselves, or a tenth of them."""

DEVIATIONS = 3.0
"""Standard deviations of the noise by which estimates must exceed what they are compared with."""


def about_threshold(
    config: TrainConfig, mechanism: UpdateMechanism, moved: np.ndarray, lengths: Sequence[float]
) -> str:
    """Say if nearly all updates were cut to the threshold, or were too short to be seen in noise.

    It costs no privacy: it is computed from the released means and models, and public settings.

    Args:
        config: of the run.
        mechanism: that sums the updates.
        moved: (d,) the model's trained weights at the beginning minus those at the end.
        lengths: the L2 norm of each round's decoded mean.

    Returns:
        A sentence with what to do; empty if there is nothing to say, or there are too few rounds to
        tell. Also where the noise of these
        means is not known here: unless the server takes plain steps of SGD, cohorts have a fixed
        size that is seen, and clients send all coordinates of an update clipped in L2 and nothing
        else.
    """
    stepped = config.server.optimizer == "SGD" and not config.server.options
    seen = config.privacy.sampling == "fixed" and config.trust != "model"
    alone = not config.privacy.beside and config.privacy.norm == "l2"
    norm, rate, rounds = mechanism.clip_norm, config.server.learning_rate, len(lengths)
    if not (stepped and seen and alone and norm and rate and rounds >= FEWEST):
        return ""
    try:
        error = mechanism.expected_error(len(moved))
    except TypeError:
        return ""  # a mechanism of one's own, whose error is not known
    if error.omitted or error.gain <= 0:
        return ""
    noise = len(moved) * error.deviation(config.cohort, 0.0) ** 2 / norm**2
    far = DEVIATIONS * math.sqrt(2 / len(moved)) * noise  # for a normal vector, of its square
    total = float(np.square(moved.astype(np.float64) / (rate * error.gain * norm)).sum())
    squares = np.square(np.array(lengths) / (error.gain * norm)) - noise
    # The noises of rounds are independent: their squares add up.
    path = total / rounds**2 - noise / rounds
    slack = math.hypot(far, 2 * DEVIATIONS * math.sqrt(noise * rounds / len(moved))) / rounds
    if path - slack >= FULL**2:
        return (
            f"The mean updates of all {rounds} rounds add up to {math.sqrt(min(path, 1.0)):.0%} of "
            f"the most that clip_norm={norm:g} allows: most updates were cut to it and pointed one "
            "way, so the model is probably still on its way. Scale what it is to predict (targets "
            "of a regression to mean 0 and deviation 1, by public figures), or raise clip_norm, "
            "learning_rate or rounds."
        )
    # The first rounds by themselves: what is learned in a few is not to be averaged away.
    hidden = all(
        abs(float(some.mean())) < far / math.sqrt(len(some))
        for some in (squares, squares[: max(FIRST, rounds // 10)])
    )
    longest = math.sqrt(max(float(squares.mean()), 0.0) + far / math.sqrt(rounds))
    enough = len(moved) >= COORDINATES
    if enough and hidden and path < far / rounds and longest < SHORT:
        return (
            f"The mean update of a round was shorter than {longest:.0%} of clip_norm={norm:g}, and "
            "the noise hides it, also in the sum over all rounds: the clients' updates are far "
            "shorter than that, or do not agree. Lower clip_norm or give clip_quantile=0.5, or "
            "raise local_learning_rate; noise shrinks with clip_norm."
        )
    return ""
