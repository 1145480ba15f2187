"""One round up to the server's step: local updates, their encoding, and the decoded mean."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from randquant.aggregation.alongside import EXAMPLES
from randquant.aggregation.mechanism import CoordinateError, UpdateMechanism
from randquant.channels.keys import Key
from randquant.local_training.client import Learner
from randquant.local_training.clients import named
from randquant.local_training.together import KNOWN_ATTENTION
from randquant.privacy.accounting.sampling import HiddenCohorts
from randquant.rounds.preparation import UpdatePreparation

ZEROS_AT_ONCE = 16
"""Absent clients that are encoded together: memory must not grow with the population."""


class RoundResult(NamedTuple):
    """What a round gives the server, and what it cost.

    Attributes:
        mean: (d,) float32, decoded.
        losses: (n,) float64, in nats, each client's first step.
        bytes_up: bytes that all clients send, under the trust in force; zeros of absent clients
            included where they must be sent.
        seconds_gradient: wall time of forward and backward passes, in seconds.
        noise_norm: expected L2 norm of the noise in the mean; None where the mechanism does not
            say.
        numbers: decoded means of the numbers that clients sent with their updates, each with the
            standard deviation of its noise as `NAME_deviation`, or None.
    """

    mean: np.ndarray
    losses: np.ndarray
    bytes_up: int
    seconds_gradient: float
    noise_norm: float | None = None
    numbers: dict[str, float] | None = None


class _Upload(NamedTuple):
    """Payloads and losses of some clients, and the seconds spent on their gradients."""

    payloads: list[bytes]
    losses: np.ndarray
    seconds: float


@dataclass(frozen=True, slots=True)
class RoundCollector:
    """Collects the mean of a cohort: `collector(cohort, key, public_seed)` is one round.

    The key is the round's; the public seed is of `UpdateMechanism.in_round`.

    Args:
        learner: computes the clients' updates, which are encoded on the CPU.
        mechanism: protects and aggregates them.
        pool, workers: threads that clients are simulated on; they do not change the result.
        hidden: how clients take part if nobody sees which of them do; None if it is seen.
        preparation: what clients do with their updates before they encode them.

    Guarantees:
        With hidden cohorts whose size varies, every client's payload is in the sum, an encoding of
        zeros where it does not take part, and the sum is divided by a public number.
        With hidden cohorts nothing in a payload follows from its client's number.
    """

    learner: Learner
    mechanism: UpdateMechanism
    pool: Executor
    workers: int
    hidden: HiddenCohorts | None = None
    preparation: UpdatePreparation = UpdatePreparation()  # noqa: RUF009 - it is frozen

    def __call__(self, cohort: Sequence[int], key: Key, public_seed: int) -> RoundResult:
        mechanism = self.mechanism.in_round(public_seed)
        uploads, seconds = self._uploads(cohort, key, mechanism)
        payloads = [payload for upload in uploads for payload in upload.payloads]
        senders, varying = len(cohort), self._varying
        if varying is not None:
            payloads += self._zeros(varying, cohort, key, mechanism)
            senders = senders if mechanism.trust == "central" else varying.population
        mean = mechanism.mean(payloads, self.dimension, key.fold_in("server"))
        if varying is not None:
            # theory/sampling.md, Proposition 18: divided by a public number, not by how many took
            # part, which would tell whether one client did.
            mean = (mean * np.float64(varying.population / varying.cohort)).astype(np.float32)
        noise = self._noise(mechanism, senders, len(cohort))
        mean, numbers = self._without_numbers(mean, noise)
        return RoundResult(
            mean,
            np.concatenate([np.empty(0), *(upload.losses for upload in uploads)]),
            senders * mechanism.upload_bytes(self.dimension, senders or None),
            seconds,
            None if noise is None else noise.norm(len(mean)),
            numbers,
        )

    @property
    def dimension(self) -> int:
        """Coordinates of what a client encodes: its update and its numbers."""
        return self.learner.dimension + self.preparation.extra

    @property
    def _varying(self) -> HiddenCohorts | None:
        """Hidden cohorts whose size varies: absent clients send zeros, or it would tell of one."""
        return None if self.hidden is None or self.hidden.draw == "fixed" else self.hidden

    def _uploads(
        self, cohort: Sequence[int], key: Key, mechanism: UpdateMechanism
    ) -> tuple[list[_Upload], float]:
        """What groups of clients upload, in order; and the seconds of their gradients."""
        learner, groups = self.learner, self.learner.groups(cohort, self.workers)
        weights = learner.parameters()

        def upload(clients: Sequence[int]) -> _Upload:
            return self._upload(clients, weights, key, mechanism)

        # A worker has one thread of torch: where cohorts are hidden, not even their size may change
        # how a client's update is rounded, so one group goes to a worker as several do.
        on_this_thread = learner.on_gpu or (len(groups) == 1 and self.hidden is None)
        with KNOWN_ATTENTION():
            if learner.one_thread and not learner.on_gpu:
                # One after the other, on a thread whose torch has no threads of its own.
                uploads = [self.pool.submit(upload, group).result() for group in groups]
            else:
                uploads = list((map if on_this_thread else self.pool.map)(upload, groups))
        seconds = sum(each.seconds for each in uploads)
        return uploads, seconds / (1 if on_this_thread or learner.one_thread else self.workers)

    def _upload(
        self, clients: Sequence[int], weights: np.ndarray, key: Key, mechanism: UpdateMechanism
    ) -> _Upload:
        """Compute and encode the updates of some clients."""
        started = time.perf_counter()
        updates, losses = self.learner.updates(clients, key)
        seconds = time.perf_counter() - started
        problem = self.learner.problem
        vectors = np.empty((len(clients), self.dimension), dtype=np.float32)
        for row, client in enumerate(clients):
            relative_loss = 1.0 if problem.guess is None else float(losses[row] / problem.guess)
            with named(problem.clients.names[client]):
                _check_finite(updates[row])
                vectors[row] = self.preparation.vector(
                    updates[row], weights, relative_loss, self._measured(client)
                )
        return _Upload(self._encoded(clients, vectors, key, mechanism), losses, seconds)

    def _encoded(
        self, clients: Sequence[int], updates: np.ndarray, key: Key, mechanism: UpdateMechanism
    ) -> list[bytes]:
        """Encode some clients' updates, each with its own secret key.

        theory/sampling.md, Proposition 18: of a client's number nothing shows in its payload.
        """
        return mechanism.encode_many(updates, [key.fold_in("client", client) for client in clients])

    def _zeros(
        self, varying: HiddenCohorts, cohort: Sequence[int], key: Key, mechanism: UpdateMechanism
    ) -> list[bytes]:
        """Encode zeros for the clients that do not take part, by keys of their own."""
        absent, payloads = sorted(set(range(varying.population)) - set(cohort)), []
        for start in range(0, len(absent), ZEROS_AT_ONCE):
            group = absent[start : start + ZEROS_AT_ONCE]
            zeros = np.zeros((len(group), self.dimension), dtype=np.float32)
            payloads += self._encoded(group, zeros, key, mechanism)
        return payloads

    def _measured(self, client: int) -> dict[str, float]:
        """A client's numbers, as far as they are sent: of the loaded weights on all of its data."""
        if (alongside := self.preparation.alongside) is None:
            return {}
        values = {EXAMPLES: float(self.learner.problem.clients.sizes[client])}
        if {number.name for number in alongside.numbers} & {"accuracy", "loss"}:
            scores = self.learner.evaluate(client)
            scored = {"accuracy": scores.accuracy, "loss": scores.loss}
            values |= {name: value for name, value in scored.items() if value is not None}
        return values

    def _noise(self, mechanism: UpdateMechanism, senders: int, cohort: int) -> _Noise | None:
        """Return what is known of the noise in a round's mean.

        Args:
            mechanism: the round's.
            senders: how many clients send a payload.
            cohort: how many take part.

        Returns:
            None where a mechanism does not say: it does not clip whole updates in L2.
        """
        try:
            error = mechanism.expected_error(self.dimension)
        except TypeError:
            return None
        # How many take part, as far as it is public.
        divisor = max(1, cohort if self.hidden is None else self.hidden.cohort)
        noisy = divisor if mechanism.trust == "central" else senders
        return _Noise(error, noisy, divisor / noisy)

    def _without_numbers(
        self, mean: np.ndarray, noise: _Noise | None
    ) -> tuple[np.ndarray, dict[str, float] | None]:
        """Part the decoded mean into the mean update and the numbers, if there are any."""
        if (alongside := self.preparation.alongside) is None:
            return mean, None
        update, numbers = alongside.parted(mean)
        assert noise is not None  # the mechanism clips in L2, as numbers need
        deviation = noise.of_numbers
        deviations = {f"{name}_deviation": alongside.deviation(name, deviation) for name in numbers}
        return update, {**numbers, **deviations}


def _check_finite(update: np.ndarray) -> None:
    if not np.isfinite(update).all():
        # A client's own numbers are not shown: messages of a run may be kept or sent.
        raise ValueError(
            "Expected a finite update, got NaN or infinity: check the scale of its features and "
            "targets; far-out ones overflow in training."
        )


class _Noise(NamedTuple):
    """The noise in a coordinate of a decoded mean.

    Attributes:
        error: of one client's decoded coordinate.
        senders: how many clients' noise there is.
        divisor_share: what the sum is divided by, as a share of the senders.
    """

    error: CoordinateError
    senders: int
    divisor_share: float

    def norm(self, size: int) -> float | None:
        """Return the expected L2 norm of the noise in `size` coordinates; None if all is noise."""
        gain = self.error.gain  # deviations are of what is decoded over the gain
        if gain <= 0:
            return None
        deviation = self.error.deviation(self.senders, 0.0) / self.divisor_share
        return gain * math.sqrt(size) * deviation

    @property
    def of_numbers(self) -> float:
        """Standard deviation in a coordinate that a number travels in."""
        # theory/alongside.md, Proposition 2: all payloads have noise, also those of absent clients.
        length = self.divisor_share * self.error.longest
        return self.error.deviation(self.senders, length) / self.divisor_share
