"""Advice on a finished run, from its released means and its loss on test data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from torch.nn.functional import mse_loss

from randquant.aggregation.mechanism import UpdateMechanism
from randquant.local_training.examples import StoredExamples, converted
from randquant.local_training.problem import Problem
from randquant.training.config import TrainConfig

SCALE = (
    "Scale features, and targets of a regression, to mean 0 and deviation 1 "
    "(Local(standardize=randquant.Standardize(...)) does it from their public bounds)"
)
"""Advice for runs that have not converged."""

CONVERGENCE_THRESHOLD = 0.5
"""Average cosine between round means and the displacement from the start, at or above which a run
is reported as not converged. Runs that learn digits have 0.1 to 0.3, and regressions on raw targets
0.6 to 1: half of it would warn about the former, and twice as much about none."""

MIN_NOISE_DIMENSION = 100
"""Smallest dimension of an update for which noise may be reported to hide the means. The length of
noise in fewer coordinates varies so much that it would be reported for runs that learned well."""

MIN_ROUNDS = 10
"""Rounds, or evaluations, below which there is no advice: the means of half as many may all point
one way by chance, and with twice as many most short runs would get none."""

FIRST_ROUNDS = 5
"""Rounds at the start of a run whose means are also tested without the others; a tenth of the
rounds if that is more. The average of half as many has 1.4 times the noise, and that of twice as
many may hide what the very first ones learned."""

DEVIATIONS_THRESHOLD = 3.0
"""Standard deviations of the noise by which an estimate must differ to count: normal noise alone
exceeds 3 of them once in 370 times, 1.5 once in 7, and 6 practically never."""

LOSS_RISE_THRESHOLD = 1.25
"""Ratio of the last loss on test data to the one it is compared with, above which it is reported.
A ratio near 1 would report changes that do not matter to a user; at 1.5 losses could be half as
high again without a word."""


class _Means(NamedTuple):
    """The released means compared with their noise, in units of clip_norm.

    Attributes:
        squares: estimates (T,) of the squared length of each round's mean update.
        noise: squared length of the noise in one of them.
        threshold: how far an estimate must be from zero to show something.
    """

    squares: np.ndarray
    noise: float
    threshold: float

    @classmethod
    def from_lengths(
        cls, config: TrainConfig, mechanism: UpdateMechanism, size: int, lengths: Sequence[float]
    ) -> _Means | None:
        """Estimate from the lengths of the decoded means; None if their noise is not known.

        It is known if cohorts have a fixed size that is seen, and clients send all coordinates of
        an update that is clipped in L2, and nothing else.
        """
        fixed = config.privacy.sampling == "fixed" and config.trust != "model"
        updates_only = not config.privacy.numbers
        norm = mechanism.clip_norm
        if not (fixed and updates_only and norm and len(lengths) >= MIN_ROUNDS):
            return None
        try:
            error = mechanism.expected_error(size)
        except TypeError:
            return None  # a user's own mechanism that does not state its error
        if error.omitted or error.gain <= 0:
            return None
        noise = size * error.deviation(config.cohort, 0.0) ** 2 / norm**2
        # The squared length of a normal vector has the standard deviation sqrt(2/size) * noise.
        threshold = DEVIATIONS_THRESHOLD * math.sqrt(2 / size) * noise
        return cls(np.square(np.array(lengths) / (error.gain * norm)) - noise, noise, threshold)

    @property
    def hidden(self) -> bool:
        """True if noise hides the means of all rounds, and also those of the first ones."""
        # The first on their own: an average over all rounds would hide what a few have learned.
        first = self.squares[: max(FIRST_ROUNDS, len(self.squares) // 10)]
        return all(
            abs(float(squares.mean())) < self.threshold / math.sqrt(len(squares))
            for squares in (self.squares, first)
        )


def about_steps(
    config: TrainConfig,
    mechanism: UpdateMechanism,
    size: int,
    lengths: Sequence[float],
    agreement: float,
) -> str:
    """Say if parameter-free steps all led one way, or if noise hid all that clients sent.

    It costs no privacy: it is computed from the released means and public settings.

    Args:
        config: the run's.
        mechanism: the run's.
        size: coordinates of an update.
        lengths: the L2 norm of each round's decoded mean.
        agreement: the cosines between each mean and the displacement from the start, added up;
            without noise each is from -1 to 1.

    Returns:
        A sentence with what to do; empty if there is nothing to say, or no way to know.
    """
    means = _Means.from_lengths(config, mechanism, size, lengths)
    if means is None:
        return ""
    rounds = len(lengths)
    # The standard deviation of the noise along one direction, averaged over all rounds.
    slack = DEVIATIONS_THRESHOLD * math.sqrt(means.noise / size / rounds)
    if agreement / rounds - slack >= CONVERGENCE_THRESHOLD:
        return (
            f"The updates of all {rounds} rounds led away from where the model began, to the end, "
            f"so it is probably still on its way. {SCALE}, or raise rounds."
        )
    if size >= MIN_NOISE_DIMENSION and means.hidden and agreement / rounds < slack:
        return (
            "The noise was longer than the mean updates in every round, and hides them even in all "
            "rounds together. More clients, fewer trained parameters (parts), or a larger epsilon "
            "would help."
        )
    return ""


def best_constant(problem: Problem) -> float | None:
    """Return the least loss on test data of a model whose output is the same for all of them.

    None if no test data are in memory, or the loss is not the cross entropy of classes or of
    binary logits, or the mean squared error.
    """
    test, classes = problem.test, problem.labels
    if not isinstance(test, StoredExamples):
        return None
    targets = converted(test.own(test.targets))
    if classes is not None:
        return _entropy(np.bincount(targets.reshape(-1).numpy(), minlength=classes))
    exact = targets.reshape(len(targets), -1).double().numpy()
    if problem.binary:
        shares = exact.mean(0)
        return float(np.mean([_entropy(np.array([share, 1 - share])) for share in shares]))
    # The best constant is the mean of the targets, and its loss their variance.
    return float(exact.var(0).mean()) if problem.loss is mse_loss else None


def _entropy(shares: np.ndarray) -> float:
    # Also of counts. A share of 0 adds nothing, but its logarithm would be infinite.
    shares = shares[shares > 0] / shares.sum()
    return float(-(shares * np.log(shares)).sum())


def about_constant(losses: Sequence[float], constant: float | None) -> str:
    """Say if a model is worse on its test data than the best constant output.

    Args:
        losses: the mean loss of each evaluation (T,).
        constant: see `best_constant`.

    Returns:
        A sentence with what to do; empty if it is not worse, or there is no way to know.

    Example:
        >>> about_constant(10 * [0.5], 0.11)[:56]
        'The loss on test data is 0.5, where the same output for '
        >>> about_constant(10 * [0.1], 0.11)
        ''
    """
    if constant is None or len(losses) < MIN_ROUNDS:
        return ""
    if losses[-1] <= LOSS_RISE_THRESHOLD * constant:
        return ""
    return (
        f"The loss on test data is {losses[-1]:.3g}, where the same output for all, the classes' "
        f"shares or the mean target, would have {constant:.3g}: the model tells nothing apart that "
        "would make up for its errors, whatever its accuracy where one class is frequent. More "
        "clients or rounds, or a larger epsilon would help."
    )


def majority_share(problem: Problem) -> float | None:
    """Return the share of the most frequent class among test data; None without classes there."""
    test = problem.test
    if not isinstance(test, StoredExamples) or not (problem.labels or problem.binary):
        return None
    targets = test.own(test.targets)
    if problem.binary and targets.numel() != len(targets):
        return None  # several tags an example: their shares differ
    classes = targets > 0.5 if problem.binary else targets
    counts = np.bincount(classes.reshape(-1).long().numpy(), minlength=1)
    return float(counts.max() / counts.sum())


def about_majority(evaluations: int, accuracy: float | None, share: float | None) -> str:
    """Say if a classifier is right no more often than one that names the same class for all.

    Example:
        >>> about_majority(10, 0.9, 0.9)[:48]
        'Naming the most frequent class for all would be '
        >>> about_majority(10, 0.91, 0.9)
        ''
    """
    if evaluations < MIN_ROUNDS or accuracy is None or share is None or accuracy > share:
        return ""
    return (
        f"Naming the most frequent class for all would be right for {100 * share:.2f} % of the "
        f"test data, and the model is for {100 * accuracy:.2f} %: it is no better than that. More "
        "clients or rounds, or a larger epsilon would help."
    )


def about_loss(losses: Sequence[float], accuracy: float, classes: int) -> str:
    """Warn if a classifier is overconfident on test data.

    It is if its loss rose, and is above that of predicting the same classes with the accuracy as
    the probability of each.

    Args:
        losses: the mean cross entropy of each evaluation (T,), in nats.
        accuracy: that of the last evaluation, in [0, 1].
        classes: how many there are.

    Returns:
        A sentence with what to do; empty if it is not, or all predictions are right or all wrong.

    Example:
        >>> about_loss([0.7, 0.3] + 9 * [0.6], 0.9, 2)[:52]
        'The loss on test data was lowest after evaluation 2 '
        >>> about_loss([0.7, 0.02] + 9 * [0.04], 0.98, 2)
        ''
    """
    if len(losses) < MIN_ROUNDS or not 0 < accuracy < 1:
        return ""
    if losses[-1] <= LOSS_RISE_THRESHOLD * min(losses):
        return ""
    # The rest of the probability is shared equally by the other classes.
    wrong = 1 - accuracy
    calibrated = -accuracy * math.log(accuracy) - wrong * math.log(wrong / max(classes - 1, 1))
    if losses[-1] <= calibrated:
        return ""
    least = losses.index(min(losses))
    return (
        f"The loss on test data was lowest after evaluation {least + 1} of {len(losses)}, "
        f"{losses[least]:.3g}, and is {losses[-1]:.3g} now, where the same classes with the "
        f"accuracy as their probability would have {calibrated:.3g}: the model is surer than it is "
        "right. Do not take its outputs for probabilities, fit them a temperature on data that are "
        "public, or take fewer rounds."
    )
