"""What a finished run tells about its steps: from what was released, and from its test data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from torch.nn.functional import mse_loss

from randquant.aggregation.mechanism import UpdateMechanism
from randquant.local_training.examples import StoredExamples
from randquant.local_training.problem import Problem
from randquant.training.config import TrainConfig

SCALE = (
    "Scale features, and targets of a regression, to mean 0 and deviation 1 "
    "(Local(standardize=randquant.Standardize(...)) does it from their public bounds)"
)
"""What brings a model to its end sooner."""

FULL = 0.5
"""Agreement of the means with the way from the start, on average, from which on it is said that
they led one way: runs that learn digits come to 0.1 to 0.3, raw targets of a regression to 0.6 to
1."""

COORDINATES = 100
"""Coordinates from which on it is said that noise hides the means: that of fewer varies so much
that it hides also what was learned well."""

FEWEST = 10
"""Rounds, or evaluations, below which nothing is said: so few may well all lead one way."""

FIRST = 5
"""Rounds that are looked at by themselves, or a tenth of them."""

DEVIATIONS = 3.0
"""Standard deviations of the noise by which estimates must exceed what they are compared with."""


RISEN = 1.25
"""How far the loss on test data has risen, as a factor, where it is said."""


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
        alone = not config.privacy.numbers
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


def about_steps(
    config: TrainConfig,
    mechanism: UpdateMechanism,
    size: int,
    lengths: Sequence[float],
    agreement: float,
) -> str:
    """Say if parameter-free steps led one way to the end, or noise hid all that clients sent.

    It costs no privacy: it is computed from the released means and public settings.

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
            f"so it is probably still on its way. {SCALE}, or raise rounds."
        )
    if size >= COORDINATES and means.hidden and agreement / rounds < slack:
        return (
            "The noise was longer than the mean updates in every round, and hides them even in all "
            "rounds together. More clients, fewer trained parameters (parts), or a larger epsilon "
            "would help."
        )
    return ""


def best_constant(problem: Problem) -> float | None:
    """The least loss on test data of a model whose output is the same for all of them.

    None where there are no test data in memory, or for another loss than the cross entropy of
    classes or of single logits, or the mean square.
    """
    test, classes = problem.test, problem.labels
    if not isinstance(test, StoredExamples):
        return None
    targets = test.targets
    if classes is not None:
        return _entropy(np.bincount(targets.reshape(-1).numpy(), minlength=classes))
    exact = targets.reshape(len(targets), -1).double().numpy()
    if problem.binary:
        ones = exact.mean(0)
        return float(np.mean([_entropy(np.array([one, 1 - one])) for one in ones]))
    return float(exact.var(0).mean()) if problem.loss is mse_loss else None


def _entropy(shares: np.ndarray) -> float:
    shares = shares[shares > 0] / shares.sum()
    return float(-(shares * np.log(shares)).sum())


def about_constant(losses: Sequence[float], constant: float | None) -> str:
    """Say if a model is worse on its test data than the best constant output.

    Args:
        losses: the mean loss of each evaluation (T,).
        constant: see `best_constant`.

    Returns:
        A sentence with what to do; empty if it is not, or there is nothing to tell it by.

    Example:
        >>> about_constant(10 * [0.5], 0.11)[:56]
        'The loss on test data is 0.5, where the same output for '
        >>> about_constant(10 * [0.1], 0.11)
        ''
    """
    if constant is None or len(losses) < FEWEST or losses[-1] <= RISEN * constant:
        return ""
    return (
        f"The loss on test data is {losses[-1]:.3g}, where the same output for all, the classes' "
        f"shares or the mean target, would have {constant:.3g}: the model tells nothing apart that "
        "would make up for its errors, whatever its accuracy where one class is frequent. More "
        "clients or rounds, or a larger epsilon would help."
    )


def about_loss(losses: Sequence[float], accuracy: float, classes: int) -> str:
    """Warn if a classifier is overconfident on test data, by its test data.

    It has if its loss rose, and is above that of naming the same classes, each with the accuracy as
    its probability.

    Args:
        losses: the mean cross entropy of each evaluation (T,), in nats.
        accuracy: of the last one, in [0, 1].
        classes: how many there are.

    Returns:
        A sentence with what to do; empty if it has not, or all classes are right.

    Example:
        >>> about_loss([0.7, 0.3] + 9 * [0.6], 0.9, 2)[:52]
        'The loss on test data was lowest after evaluation 2 '
        >>> about_loss([0.7, 0.02] + 9 * [0.04], 0.98, 2)
        ''
    """
    if len(losses) < FEWEST or losses[-1] <= RISEN * min(losses) or not 0 < accuracy < 1:
        return ""
    wrong = 1 - accuracy
    plain = -accuracy * math.log(accuracy) - wrong * math.log(wrong / max(classes - 1, 1))
    if losses[-1] <= plain:
        return ""
    least = losses.index(min(losses))
    return (
        f"The loss on test data was lowest after evaluation {least + 1} of {len(losses)}, "
        f"{losses[least]:.3g}, and is {losses[-1]:.3g} now, where the same classes with the "
        f"accuracy as their probability would have {plain:.3g}: the model is surer than it is "
        "right. Do not take its outputs for probabilities, fit them a temperature on data that are "
        "public, or take fewer rounds."
    )
