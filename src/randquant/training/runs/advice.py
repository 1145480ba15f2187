"""What a finished run tells about its threshold or its steps: from released values, at no cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from randquant.aggregation.mechanism import UpdateMechanism
from randquant.training.config import TrainConfig
from randquant.training.server import AUTO

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


class _Means(NamedTuple):
    """What the released means show beside their noise, in units of clip_norm.

    Attributes:
        squares: estimates (T,) of the squared length of each round's mean update.
        noise: squared length of the noise in one of them.
        far: how far an estimate must be from zero to show something.
    """

    squares: np.ndarray
    noise: float
    far: float

    @classmethod
    def of(
        cls, config: TrainConfig, mechanism: UpdateMechanism, size: int, lengths: Sequence[float]
    ) -> _Means | None:
        """From the lengths of the decoded means; None if their noise is not known here.

        It is where cohorts have a fixed size that is seen, and clients send all coordinates of an
        update that is clipped in L2, and nothing else.
        """
        seen = config.privacy.sampling == "fixed" and config.trust != "model"
        alone = not config.privacy.beside and config.privacy.norm == "l2"
        norm = mechanism.clip_norm
        if not (seen and alone and norm and len(lengths) >= FEWEST):
            return None
        try:
            error = mechanism.expected_error(size)
        except TypeError:
            return None  # a mechanism of one's own, whose error is not known
        if error.omitted or error.gain <= 0:
            return None
        noise = size * error.deviation(config.cohort, 0.0) ** 2 / norm**2
        far = DEVIATIONS * math.sqrt(2 / size) * noise  # for a normal vector, of its square
        return cls(np.square(np.array(lengths) / (error.gain * norm)) - noise, noise, far)

    @property
    def hidden(self) -> bool:
        """Whether noise hides them: all together, and the first ones by themselves.

        What is learned in a few rounds is not to be averaged away.
        """
        first = self.squares[: max(FIRST, len(self.squares) // 10)]
        return all(
            abs(float(some.mean())) < self.far / math.sqrt(len(some))
            for some in (self.squares, first)
        )

    @property
    def longest(self) -> float:
        """A length that the mean updates are most likely below."""
        mean = max(float(self.squares.mean()), 0.0)
        return math.sqrt(mean + self.far / math.sqrt(len(self.squares)))


def about_steps(
    config: TrainConfig,
    mechanism: UpdateMechanism,
    size: int,
    lengths: Sequence[float],
    agreement: float,
) -> str:
    """Say if parameter-free steps led one way to the end, or noise hid all that clients sent.

    It costs no privacy, like `about_threshold`.

    Args:
        config: of the run.
        mechanism: that sums the updates.
        size: coordinates of an update.
        lengths: the L2 norm of each round's decoded mean.
        agreement: of each mean with the way from the start, from -1 to 1 without noise, added up.

    Returns:
        A sentence with what to do; empty if there is nothing to say or to tell it by.
    """
    means = _Means.of(config, mechanism, size, lengths)
    if means is None:
        return ""
    rounds = len(lengths)
    slack = DEVIATIONS * math.sqrt(means.noise / size / rounds)
    if agreement / rounds - slack >= FULL:
        return (
            f"The updates of all {rounds} rounds led away from where the model began, to the end, "
            "so it is probably still on its way. Scale features, and what it is to predict "
            "(targets of a regression to mean 0 and deviation 1, by public figures), or raise "
            "rounds."
        )
    if size >= COORDINATES and means.hidden and agreement / rounds < slack:
        return (
            "The noise was longer than the mean updates in every round, and hides them in all "
            "rounds together, so that the model has hardly learnt. More clients, fewer trained "
            "parameters (parts), or a larger epsilon would help."
        )
    return ""


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
        tell, or the server takes other steps than plain ones of SGD, or the noise of the means is
        not known (`_Means.of`).
    """
    plain = config.server.optimizer in ("SGD", AUTO) and not config.server.options
    rate, rounds = config.server.learning_rate or 1.0, len(lengths)
    means = _Means.of(config, mechanism, len(moved), lengths)
    if not plain or means is None:
        return ""
    norm, size = mechanism.clip_norm or 1.0, len(moved)
    scale = rate * mechanism.expected_error(size).gain * norm
    total = float(np.square(moved.astype(np.float64) / scale).sum())
    # The noises of rounds are independent: their squares add up.
    path = total / rounds**2 - means.noise / rounds
    slack = math.hypot(means.far, 2 * DEVIATIONS * math.sqrt(means.noise * rounds / size)) / rounds
    if path - slack >= FULL**2:
        return (
            f"The mean updates of all {rounds} rounds add up to {math.sqrt(min(path, 1.0)):.0%} of "
            f"the most that clip_norm={norm:g} allows: most updates were cut to it and pointed one "
            "way, so the model is probably still on its way. Scale what it is to predict (targets "
            "of a regression to mean 0 and deviation 1, by public figures), or raise clip_norm, "
            "learning_rate or rounds."
        )
    seen = means.longest >= SHORT or path >= means.far / rounds
    if size >= COORDINATES and means.hidden and not seen:
        return (
            f"The mean update of a round was shorter than {means.longest:.0%} of clip_norm="
            f"{norm:g}, and the noise hides it, also in the sum over all rounds: the clients' "
            "updates are far shorter than that, or do not agree. Lower clip_norm or give "
            "clip_quantile=0.5, or raise local_learning_rate; noise shrinks with clip_norm."
        )
    return ""
