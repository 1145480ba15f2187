"""The server's step without a learning rate, which follows from shapes, noise and past means.

A rate would have to be tuned on clients' data, and each trial would cost epsilon. All that a step
needs is public or was released: `docs/theory/untuned.md`.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    from randquant.aggregation.mechanism import UpdateMechanism

CLASSES_REACH_LENGTHS, NUMBERS_REACH_LENGTHS = 4.0, 1.0
"""Distance that all steps would cover together if all means were one update and had no noise, in
lengths of an initialisation, by what the model predicts. Weights of any length can separate
classes, so there steps may reach far; where numbers are predicted, noise that was carried too far
costs most. With half or twice of it steps begin half or twice as long. Chosen on simulated tasks,
like all constants here (docs/theory/untuned.md, "Where the constants are from")."""

Predicts = Literal["classes", "numbers"]
REACH_LENGTHS: Mapping[Predicts, float] = {
    "classes": CLASSES_REACH_LENGTHS,
    "numbers": NUMBERS_REACH_LENGTHS,
}

MAX_LOG_GROWTH, MAX_LOG_STEP, AGREEMENT_SCALE = 6.0, 0.2, 0.3
"""Largest change of the logarithm of the step size in a whole run and in one round, and the
agreement at which a round without noise changes it by 0.7 times that. With half the first, steps
can grow 20-fold in a run instead of 400-fold; with twice the second, one mean can change them by
half."""

SHRINKING_SHARE = 0.5
"""Share of the rounds, at the end of a run, in which steps shrink to nothing, so that the last
rounds average the noise. With twice of it steps shrink from the first round on; with half of it
fewer rounds average the noise."""


@dataclass(frozen=True, slots=True)
class ParameterFreeStep:
    """Server steps along the released means, which grow while they lead away from the start.

    With x the weights, x0 those at the start, m the mean update as a share of clip_norm, s the
    deviation of its noise, d coordinates and T rounds:

        eta_1 = reach D / sqrt(T (1 + d s^2))        D: the length of a usual initialisation
        h = <m, x - x0> / |x - x0|
        eta_k = eta_{k-1} exp(growth h / sqrt(AGREEMENT_SCALE^2 + h^2 + s^2))
            growth: min(MAX_LOG_GROWTH / T, MAX_LOG_STEP)
        x += eta_k min(1, (1 - (k - 1) / T) / SHRINKING_SHARE) m

    Args:
        shapes: of the trained parameters, in the model's order.
        rounds: T, as declared.
        scale: what a mean of equal updates of clip_norm decodes to.
        deviation: s; None if the mechanism does not know it: then each mean is taken for noise
            alone, which makes steps short.
        reach: one of REACH_LENGTHS, by what the model predicts.

    Guarantees:
        A step depends on shapes, settings, and the means of this and past rounds only: it is
        post-processing, and costs no privacy. What was passed to `step` stays as it was.

    References:
        `docs/theory/untuned.md`.

    Example:
        >>> server = ParameterFreeStep([(1, 4), (1,)], rounds=10, scale=1.0, deviation=0.0)
        >>> parameters, state = server.step(np.zeros(5, np.float32), np.ones(5, np.float32), {})
        >>> parameters.round(3), state["round"]
        (array([-0.816, -0.816, -0.816, -0.816, -0.816], dtype=float32), 1)
    """

    shapes: Sequence[tuple[int, ...]]
    rounds: int
    scale: float
    deviation: float | None = None
    reach: float = CLASSES_REACH_LENGTHS

    @classmethod
    def for_mechanism(
        cls,
        mechanism: UpdateMechanism,
        shapes: Sequence[tuple[int, ...]],
        *,
        extra: int,
        clients: int,
        rounds: int,
        predicts: Predicts,
    ) -> ParameterFreeStep:
        """Return the steps of a run whose updates have the mechanism's clip_norm.

        Args:
            mechanism: with a clip_norm.
            shapes: of the trained parameters.
            extra: coordinates of the numbers that are sent with an update.
            clients: number of clients that a mean is of.
            rounds: of the whole run, as declared.
            predicts: what the model predicts.
        """
        norm, dimension = mechanism.clip_norm, sum(map(math.prod, shapes)) + extra
        assert norm is not None
        scale, noise = scale_and_noise(mechanism, dimension, clients, norm)
        return cls(shapes, rounds, scale, noise, REACH_LENGTHS[predicts])

    @property
    def dimension(self) -> int:
        return sum(math.prod(shape) for shape in self.shapes)

    def init(self) -> Mapping[str, Any]:
        return {}

    def step(
        self, parameters: np.ndarray, mean: np.ndarray, state: Mapping[str, Any]
    ) -> tuple[np.ndarray, Mapping[str, Any]]:
        """Return new parameters, (d,) float32, and the new state."""
        # In double precision: the state goes through many rounds.
        weights, direction = parameters.astype(np.float64), -mean.astype(np.float64) / self.scale
        noise = self.deviation
        if noise is None:
            noise = _norm(direction) / math.sqrt(self.dimension)
        if not state:
            first = self.reach * usual_length(self.shapes)
            size = first / math.sqrt(self.rounds * (1 + self.dimension * noise**2))
            state = {"start": parameters.copy(), "size": size, "round": 0, "agreement": 0.0}
        displacement = weights - state["start"]
        distance = _norm(displacement)
        # At the start there is no direction yet that a mean could agree with.
        agreement = float(np.sum(direction * displacement)) / distance if distance else 0.0
        growth = min(MAX_LOG_GROWTH / self.rounds, MAX_LOG_STEP)
        change = growth * agreement / math.sqrt(AGREEMENT_SCALE**2 + agreement**2 + noise**2)
        size, done = state["size"] * math.exp(change), state["round"]
        # A run that goes on after its declared end takes steps of no length.
        left = min(1.0, (1 - min(done / self.rounds, 1.0)) / SHRINKING_SHARE)
        stepped = (weights + size * left * direction).astype(np.float32)
        total = state["agreement"] + agreement
        return stepped, {**state, "size": size, "round": done + 1, "agreement": total}


def scale_and_noise(
    mechanism: UpdateMechanism, dimension: int, clients: int, norm: float
) -> tuple[float, float | None]:
    """Return the decoded norm of a mean of equal updates, and the deviation of its noise.

    Args:
        mechanism: decodes the mean.
        dimension: of an update and the numbers sent with it.
        clients: number of clients that the mean is of.
        norm: of their updates.

    Returns:
        The decoded norm, and the deviation of a coordinate as a share of `norm`; `norm` and None
        for a mechanism whose error is not known.
    """
    with contextlib.suppress(TypeError):  # raised by mechanisms whose error is not known
        error = mechanism.expected_error(dimension)
        return error.gain * norm, error.deviation(clients, 0.0) / norm
    return norm, None


def squared_noise(mechanism: UpdateMechanism, dimension: int, clients: int, norm: float) -> float:
    """Return the squared length of the mean's noise as a share of norm^2; inf if it is not known.

    The arguments are those of `scale_and_noise`.
    """
    deviation = scale_and_noise(mechanism, dimension, clients, norm)[1]
    return math.inf if deviation is None else dimension * deviation**2


def usual_length(shapes: Sequence[tuple[int, ...]]) -> float:
    """Return the length of an initialisation by torch's linear layers, from the public shapes.

    Uniform weights between -1/sqrt(f) and 1/sqrt(f), with f inputs, have mean square 1/(3f). A
    vector belongs to the matrix before it.

    Example:
        >>> round(usual_length([(10, 64), (10,)]) ** 2, 6) == round((64 + 1) * 10 / (3 * 64), 6)
        True
    """
    square, inputs = 0.0, None
    for shape in shapes:
        if len(shape) > 1:
            inputs = math.prod(shape[1:])
        square += math.prod(shape) / (3 * (inputs or max(math.prod(shape), 1)))
    return math.sqrt(square)


def _norm(vector: np.ndarray) -> float:
    # Not by BLAS, whose last bits depend on its threads: a resumed run has the same bits.
    return math.sqrt(float(np.sum(np.square(vector))))
