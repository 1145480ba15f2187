"""The server's step without a learning rate: it is set by shapes, noise and past means."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    from randquant.aggregation.mechanism import UpdateMechanism

OF_CLASSES, OF_NUMBERS = 4.0, 1.0
"""How far the first steps would come together, in lengths of an initialisation, if all the means
were the same update and nothing were noise. Classes are told apart by weights of any length, which
is why they may reach far; where numbers are predicted, noise that has gone too far costs most."""

Predicts = Literal["classes", "numbers"]
REACH: Mapping[Predicts, float] = {"classes": OF_CLASSES, "numbers": OF_NUMBERS}

GROWTH, FASTEST, SOFT = 6.0, 0.2, 0.3
"""Most that a step's logarithm changes in all rounds and in one of them, and the agreement at which
a round changes it by most of that."""

STEADY = 0.5
"""Share of the rounds after which steps begin to shrink, to nothing after the last."""


@dataclass(frozen=True, slots=True)
class ParameterFreeStep:
    """Steps along the released means, which grow while they lead away from the start.

    With x the weights, x0 those at the start, m the mean update as a share of clip_norm, s the
    deviation of its noise, d coordinates and T rounds:

        eta_1 = reach D / sqrt(T (1 + d s^2))        D: the length of a usual initialisation
        h = <m, x - x0> / |x - x0|
        eta_k = eta_{k-1} exp(min(GROWTH / T, FASTEST) h / sqrt(SOFT^2 + h^2 + s^2))
        x += eta_k min(1, (1 - (k - 1) / T) / STEADY) m

    Args:
        shapes: of the trained parameters, in the model's order.
        rounds: T, as declared.
        scale: what a mean of equal updates of clip_norm decodes to.
        deviation: s; None to take all of a mean for noise, where a mechanism does not say.
        reach: OF_CLASSES or OF_NUMBERS, by what the model predicts.

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
    reach: float = OF_CLASSES

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
        """The steps of a run whose updates have the length that its mechanism clips to.

        Args:
            mechanism: with a clip_norm.
            shapes: of the trained parameters.
            extra: coordinates beside them, of numbers that are sent with an update.
            clients: how many a mean is of.
            rounds: of the whole run, as declared.
            predicts: what the model predicts.
        """
        norm, dimension = mechanism.clip_norm, sum(map(math.prod, shapes)) + extra
        assert norm is not None
        scale, noise = scale_and_noise(mechanism, dimension, clients, norm)
        return cls(shapes, rounds, scale, noise, REACH[predicts])

    @property
    def dimension(self) -> int:
        """Coordinates of an update."""
        return sum(math.prod(shape) for shape in self.shapes)

    def init(self) -> Mapping[str, Any]:
        """The state before the first round."""
        return {}

    def step(
        self, parameters: np.ndarray, mean: np.ndarray, state: Mapping[str, Any]
    ) -> tuple[np.ndarray, Mapping[str, Any]]:
        """Return new parameters, (d,) float32, and the new state."""
        here, move = parameters.astype(np.float64), -mean.astype(np.float64) / self.scale
        noise = self.deviation
        if noise is None:
            noise = _norm(move) / math.sqrt(self.dimension)
        if not state:
            first = self.reach * usual_length(self.shapes)
            size = first / math.sqrt(self.rounds * (1 + self.dimension * noise**2))
            state = {"start": parameters.copy(), "size": size, "round": 0, "agreement": 0.0}
        away = here - state["start"]
        far = _norm(away)
        agreement = float(np.sum(move * away)) / far if far else 0.0
        most = min(GROWTH / self.rounds, FASTEST)
        change = most * agreement / math.sqrt(SOFT**2 + agreement**2 + noise**2)
        size, done = state["size"] * math.exp(change), state["round"]
        left = min(1.0, (1 - min(done / self.rounds, 1.0)) / STEADY)
        stepped = (here + size * left * move).astype(np.float32)
        agreed = state["agreement"] + agreement
        return stepped, {**state, "size": size, "round": done + 1, "agreement": agreed}


def scale_and_noise(
    mechanism: UpdateMechanism, dimension: int, clients: int, norm: float
) -> tuple[float, float | None]:
    """Return what a mean of equal updates of this norm decodes to, and its noise.

    Args:
        mechanism: decodes the mean.
        dimension: of an update, and of what is sent beside it.
        clients: how many the mean is of.
        norm: of their updates.

    Returns:
        The decoded norm, and the deviation of a coordinate as a share of `norm`; `norm` and None
        for a mechanism whose error is not known.
    """
    with contextlib.suppress(TypeError):
        error = mechanism.expected_error(dimension)
        return error.gain * norm, error.deviation(clients, 0.0) / norm
    return norm, None


def squared_noise(mechanism: UpdateMechanism, dimension: int, clients: int, norm: float) -> float:
    """Return the mean's squared length of noise as a share of norm^2; inf where it is not known.

    The arguments are those of `scale_and_noise`.
    """
    deviation = scale_and_noise(mechanism, dimension, clients, norm)[1]
    return math.inf if deviation is None else dimension * deviation**2


def usual_length(shapes: Sequence[tuple[int, ...]]) -> float:
    """Return the length of an initialisation as torch's linear layers have it, by public shapes.

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
