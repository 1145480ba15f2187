"""One round up to the server's step: updates, their encoding, and the decoded mean."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any, NamedTuple

import numpy as np

from randquant.aggregation.alongside import EXAMPLES, Alongside
from randquant.aggregation.mechanism import CoordinateError, UpdateMechanism
from randquant.aggregation.payloads import finite
from randquant.channels.keys import Key
from randquant.local_training.client import Learner
from randquant.local_training.clients import named
from randquant.local_training.together import KNOWN_ATTENTION
from randquant.privacy.accounting.sampling import HiddenCohorts


class Collected(NamedTuple):
    """What a round gives the server, and what it cost.

    Attributes:
        mean: (d,) float32, decoded.
        losses: (n,) float64, in nats, each client's first step.
        bytes_up: bytes that all clients send, under the trust in force; zeros of absent clients
            included where they must be sent.
        seconds_gradient: wall time of forward and backward passes, in seconds.
        noise_norm: L2 norm that the noise in the mean is expected to have; None where the mechanism
            does not say.
        numbers: decoded means of what clients sent beside their updates, each with the standard
            deviation of its noise as `NAME_deviation`; None for nothing.
    """

    mean: np.ndarray
    losses: np.ndarray
    bytes_up: int
    seconds_gradient: float
    noise_norm: float | None = None
    numbers: dict[str, float] | None = None


ZEROS_AT_ONCE = 16
"""Absent clients that are encoded together."""

Collect = Callable[[Sequence[int], Key, int], Collected]


def collector(
    learner: Learner,
    mechanism: UpdateMechanism,
    pool: Executor,
    workers: int,
    hidden: HiddenCohorts | None = None,
    beside: Alongside | None = None,
) -> Collect:
    """Return the function that collects a cohort's mean.

    It is given the cohort, and the round's key and public seed (`in_round`).

    Args:
        learner: computes the clients' updates, which are encoded on the CPU.
        mechanism: protects and aggregates them.
        pool, workers: threads that clients are simulated on; they do not change the result.
        hidden: how clients take part if nobody sees which of them do; None if it is seen.
        beside: what clients send beside their updates, of `config.MEASURED`; None for nothing.

    Guarantees:
        With hidden cohorts whose size varies, every client's payload is in the sum, an encoding of
        zeros where it does not take part, and the sum is divided by a public number.
        With hidden cohorts nothing in a payload follows from its client's number.
    """
    size = learner.dimension + (0 if beside is None else beside.extra)
    filled = None if hidden is None or hidden.draw == "fixed" else hidden

    def upload(
        clients: Sequence[int], key: Key, encoder: UpdateMechanism
    ) -> tuple[list[bytes], np.ndarray, float]:
        """Return some clients' payloads and losses, and the seconds spent on gradients."""
        started = time.perf_counter()
        updates, losses = learner.updates(clients, key)
        seconds = time.perf_counter() - started
        _check(learner, clients, updates)
        if beside is not None:
            updates = _joined(beside, learner, clients, updates)
        keys = [key.fold_in("client", client) for client in clients]
        return _encoded(encoder, clients, updates, keys, hidden), losses, seconds

    def by_payloads(cohort: Sequence[int], key: Key, seed: int) -> Collected:
        groups, now = learner.groups(cohort, workers), mechanism.in_round(seed)
        # A worker has one thread of torch: where cohorts are hidden, not even their size may round
        # a client's update otherwise.
        here = learner.on_gpu or (len(groups) == 1 and hidden is None)
        replies = _replies(learner, pool, here, upload, [(g, key, now) for g in groups])
        payloads = [payload for reply in replies for payload in reply[0]]
        senders = len(cohort)
        if filled is not None:
            payloads += _zeros(size, now, cohort, key, filled)
            senders = senders if mechanism.trust == "central" else filled.population
        mean = now.mean(payloads, size, key.fold_in("server"))
        if filled is not None:
            # theory/sampling.md, Proposition 18: a public number, not how many took part.
            mean = (mean * np.float64(filled.population / filled.cohort)).astype(np.float32)
        noise = _noise(now, size, senders, _known(cohort, hidden))
        mean, numbers = _parted(beside, mean, noise)
        losses = np.concatenate([np.empty(0), *(reply[1] for reply in replies)])
        seconds = sum(reply[2] for reply in replies)
        seconds /= 1 if here or learner.one_thread else workers
        sent = senders * sender(now, hidden).upload_bytes(size, senders or None)
        noise_norm = None if noise is None else noise.norm(len(mean))
        return Collected(mean, losses, sent, seconds, noise_norm, numbers)

    return by_payloads


def _check(learner: Learner, clients: Sequence[int], updates: np.ndarray) -> None:
    """Refuse updates that are not finite; the error names their client."""
    for client, update in zip(clients, updates, strict=True):
        with named(learner.problem.clients.names[client]):
            finite(update)


def sender(mechanism: UpdateMechanism, hidden: HiddenCohorts | None) -> UpdateMechanism:
    """The mechanism of a client, for the bytes that it sends; `hidden` as for `collector`."""
    return mechanism.of_client(0) if hidden is None else mechanism


def _encoded(
    mechanism: UpdateMechanism,
    clients: Sequence[int],
    updates: np.ndarray,
    keys: Sequence[Key],
    hidden: HiddenCohorts | None,
) -> list[bytes]:
    """What some clients send, completed by what the server knows of each.

    Args:
        mechanism, clients, updates, keys: of the round, and of each client.
        hidden: as for `collector`.
    """
    # theory/sampling.md, Proposition 18: what follows from a number shows in the sum whose it is.
    if hidden is not None or mechanism.of_client(0) is mechanism:
        return mechanism.encode_many(updates, keys)
    payloads = []
    for client, update, key in zip(clients, updates, keys, strict=True):
        own = mechanism.of_client(client)
        payloads.append(own.completed(own.encode(update, key), len(update)))
    return payloads


def _joined(
    beside: Alongside, learner: Learner, clients: Sequence[int], updates: np.ndarray
) -> np.ndarray:
    """What some clients encode: their updates and numbers, (n, d + extra) float32."""
    rows = []
    for client, update in zip(clients, updates, strict=True):
        with named(learner.problem.clients.names[client]):
            rows.append(beside.joined(update, _measured(beside, learner, client)))
    return np.array(rows, dtype=np.float32).reshape(len(rows), updates.shape[1] + beside.extra)


def _measured(beside: Alongside, learner: Learner, client: int) -> dict[str, float]:
    """A client's numbers, as far as they are sent: of the loaded weights on all of its data."""
    names = {number.name for number in beside.numbers}
    found = {EXAMPLES: float(learner.problem.clients.sizes[client])}
    if names & {"accuracy", "loss"}:
        scores = learner.evaluate(client)
        measured = {"accuracy": scores.accuracy, "loss": scores.loss}
        found |= {name: value for name, value in measured.items() if value is not None}
    return found


class _Noise(NamedTuple):
    """The noise in a coordinate of a decoded mean.

    Attributes:
        error: of one client's decoded coordinate.
        senders: how many clients' noise there is.
        part: what the sum is divided by, as a share of them.
    """

    error: CoordinateError
    senders: int
    part: float

    def norm(self, size: int) -> float | None:
        """Expected L2 norm of the noise in so many decoded coordinates; None if all is noise."""
        gain = self.error.gain  # deviations are of what is decoded over the gain
        if gain <= 0:
            return None
        return gain * math.sqrt(size) * self.error.deviation(self.senders, 0.0) / self.part

    @property
    def of_numbers(self) -> float:
        """Standard deviation in a coordinate that a number travels in."""
        # theory/alongside.md, Proposition 2: all payloads have noise, also those of absent clients.
        return self.error.deviation(self.senders, self.part * self.error.longest) / self.part


def _noise(now: UpdateMechanism, size: int, senders: int, divisor: int) -> _Noise | None:
    """What is known of the noise in a round's mean.

    Args:
        now: the round's mechanism.
        size: coordinates of what clients send.
        senders: how many clients send a payload.
        divisor: how many the sum is divided by.

    Returns:
        None where a mechanism does not say: it does not clip whole updates in L2.
    """
    try:
        error = now.expected_error(size)
    except TypeError:
        return None
    noisy = divisor if now.trust == "central" else senders  # one noise, of the server
    return _Noise(error, noisy, divisor / noisy)


def _parted(
    beside: Alongside | None, mean: np.ndarray, noise: _Noise | None
) -> tuple[np.ndarray, dict[str, float] | None]:
    """The mean update and the numbers (see `Collected`), if there are any."""
    if beside is None:
        return mean, None
    update, numbers = beside.parted(mean)
    assert noise is not None  # it clips in L2, as numbers need
    deviations = {f"{name}_deviation": beside.deviation(name, noise.of_numbers) for name in numbers}
    return update, {**numbers, **deviations}


def _known(cohort: Sequence[int], hidden: HiddenCohorts | None) -> int:
    """How many take part, as far as it is public: if they are hidden, what sums are divided by."""
    return max(1, len(cohort) if hidden is None else hidden.cohort)


def _replies(
    learner: Learner, pool: Executor, here: bool, upload: Callable[..., Any], work: Sequence[Any]
) -> list[Any]:
    """What groups of clients upload, in order; on threads of the pool unless it is to be `here`."""
    with KNOWN_ATTENTION():
        if learner.one_thread and not learner.on_gpu:
            # On a thread of the pool, whose torch has no threads of its own.
            return [pool.submit(upload, *each).result() for each in work]
        return list((map if here else pool.map)(lambda each: upload(*each), work))


def _zeros(
    size: int,
    mechanism: UpdateMechanism,
    cohort: Sequence[int],
    key: Key,
    hidden: HiddenCohorts,
) -> list[bytes]:
    """What the clients that do not take part send: encodings of zeros, by keys of their own."""
    absent, payloads = sorted(set(range(hidden.population)) - set(cohort)), []
    for start in range(0, len(absent), ZEROS_AT_ONCE):
        some = absent[start : start + ZEROS_AT_ONCE]
        zeros = np.zeros((len(some), size), dtype=np.float32)
        keys = [key.fold_in("client", each) for each in some]
        payloads += _encoded(mechanism, some, zeros, keys, hidden)
    return payloads
