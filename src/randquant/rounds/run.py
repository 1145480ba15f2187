"""What a server keeps of a run, whatever engine it is on: the account, and what rounds released."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from logging import ERROR, INFO

import numpy as np

from randquant._internal import validate
from randquant.aggregation.alongside import Alongside
from randquant.aggregation.hostile import one_client
from randquant.aggregation.mechanism import UpdateMechanism
from randquant.planning.privacy import CLIP_NORM, Privacy
from randquant.rounds.accountant import RoundEvent, RunAccountant
from randquant.rounds.history import History, Measured, RoundRow
from randquant.rounds.offer import Offer
from randquant.rounds.store import ServerStore, StoredRounds
from randquant.rounds.sums import Log, RoundSum
from randquant.rounds.trained import Arrays, Buffers, Layout
from randquant.rounds.untuned import START, UntunedSteps

MODEL, MOMENTS, RUN = "model/", "moments/", "run/"
"""The first part of an array's name in a store: of the model, of what an engine's own step
remembers, and of what a step without a rate does."""

ModelAndMoments = tuple[Arrays, Arrays]
"""A model, and the arrays that the engine's own step remembers."""


class RoundsFailed(RuntimeError):
    """Several rounds in a row have failed; the model is that of the last successful round."""


class ServerRun:
    """A run on the server: its clients' account, and what its rounds have released.

    Args:
        mechanism: how updates are protected.
        accountant: empty.
        log: takes a level of `logging` and a line.
        alongside: what clients send beside their updates; None for nothing.
        patience: how many rounds in a row may fail.
        untuned: steps without a rate; None if another step is taken with a mean.
        store: where the run is kept; None keeps it in memory alone.

    Attributes:
        done: rounds that are over, those before a restart included.
        stopped: why training is over; empty while it is not.
        history: all rounds, with those that failed.
        numbers: the last round's numbers.

    Guarantees:
        A round is in the account, and in the store, before it has requests.
    """

    def __init__(
        self,
        mechanism: UpdateMechanism,
        accountant: RunAccountant,
        log: Log,
        alongside: Alongside | None = None,
        patience: int = 3,
        untuned: UntunedSteps | None = None,
        store: ServerStore | None = None,
    ) -> None:
        self.store = store
        self.mechanism, self.accountant, self.alongside = mechanism, accountant, alongside
        self.untuned = untuned
        if untuned is not None and mechanism.clip_norm is None:
            raise ValueError(
                "Expected a mechanism with a clip_norm for steps without a rate, got "
                f"{mechanism!r}, which clips coordinates one by one: take FedAvg() on Flower, "
                "JobOptions(learning_rate=1.0) on NVFlare."
            )
        self.patience, self._log = validate.whole("patience", patience, low=1), log
        self.begin()

    def begin(self) -> None:
        """Start anew, with the account as it is."""
        self.done = self._failures = 0
        self._has_file = False
        self.stopped = self._hostile = ""
        self.history: list[RoundRow] = []
        self.numbers: Mapping[str, float] = {}
        if self.untuned is not None:
            self.untuned.restore({}, None)

    def offer(self, layout: Layout, buffers: Buffers, examples: int | None = None) -> Offer:
        """What clients are offered in every round."""
        extra = 0 if self.alongside is None else self.alongside.extra
        return Offer(
            self.mechanism, layout.dimension + extra, layout.parts, buffers, self.alongside,
            examples, scaled=self.untuned is not None and examples is None,
        )  # fmt: skip

    def eligible(self, offer: Offer, connected: Iterable[int]) -> list[int]:
        """The connected clients that an answer would not take above the limit."""
        connected = list(connected)
        self.accountant.meet(connected)
        if self.accountant.max_epsilon is None:
            return connected
        exceeds = self.accountant.would_exceed
        return [c for c in connected if not exceeds(RoundEvent(offer, frozenset({c})))]

    def charge(
        self,
        number: int,
        offer: Offer,
        clients: Collection[int],
        initial: Callable[[], ModelAndMoments],
        step_name: str = "",
    ) -> None:
        """Count a round, before its requests leave: once asked, a client may send an update.

        Args:
            number: of the round, 1 for the first.
            offer: of the round.
            clients: who is asked.
            initial: gives what a run begins with.
            step_name: of what steps with the mean.
        """
        self.accountant.compose(RoundEvent(offer, frozenset(clients)))
        if self.store is not None:
            account = self.accountant.state_dict()
            # A file that this run has written to and that is gone is an error.
            if self._has_file or self.store.exists():
                self.store.record_before_sending(account, number - 1)
            else:
                run = {"offer": offer.digest, "step": step_name}
                arrays = self._arrays(*initial())
                self.store.create(run, account, number - 1, arrays, self.history)
            self._has_file = True
        told = self._hostile
        self._hostile = one_client(offer.mechanism, offer.dimension, len(clients))
        if self._hostile and not told:
            self._log(INFO, f"randquant: {self._hostile}.")

    def step(self, taken: RoundSum, layout: Layout, model: Arrays, rounds: int) -> np.ndarray:
        """What to add to the trained arrays: the mean update, unless steps are untuned.

        Keeps what later rounds use of the mean.
        """
        mean = taken.mean()
        if self.alongside is not None:
            mean, self.numbers = self.alongside.parted(mean)
        if self.untuned is None:
            return mean
        return self.untuned.step(taken.offer, layout, model, mean, taken.clients, rounds)

    def figures(self, offer: Offer, clients: int) -> dict[str, float]:
        """The last round's numbers, each with the standard deviation of its noise."""
        found: dict[str, float] = {}
        if self.alongside is None:
            return found
        coordinate = offer.mechanism.expected_error(offer.dimension).deviation(clients)
        for name, value in self.numbers.items():
            found[name] = value
            found[f"{name}_deviation"] = noise = self.alongside.deviation(name, coordinate)
            line = f"randquant: {name} {value:.4g}, noise of standard deviation {noise:.2g}."
            self._log(INFO, line)
        return found

    def succeeded(
        self,
        number: int,
        asked: int,
        clients: int,
        sizes: Mapping[str, int],
        after: ModelAndMoments,
    ) -> RoundRow:
        """Note a round with so many clients in its mean, and keep the model after it."""
        self._failures = 0
        if self.untuned is not None:
            self.untuned.taken()
        row = self._note(number, asked, asked - clients, sizes)
        if self.store is not None:
            untuned = {} if self.untuned is None else self.untuned.record()
            progress = {"rounds": number, "untuned": untuned}
            self.store.commit(row, progress, self._arrays(*after))
        return row

    def failed(self, number: int, asked: int, error: Exception) -> None:
        """Note a round that failed; RoundsFailed if that were too many in a row."""
        self._log(ERROR, f"randquant: round {number} failed, the model is as before: {error}")
        self._failures += 1
        row = self._note(number, asked, asked, {}, str(error))
        if self.store is not None and self.store.exists():
            self.store.note(row)
        if self._failures >= self.patience:
            raise RoundsFailed(
                f"Expected a round to succeed, got {self._failures} failures in a row, the last: "
                f"{error}"
            ) from error

    def stored(self, offer: Offer, model: Arrays, step_name: str = "") -> StoredRounds | None:
        """Read the store; None if the run has not begun there.

        Args:
            offer: what clients are offered.
            model: has the names, shapes and dtypes of the run's.
            step_name: as in `charge`.

        Raises:
            ValueError: it is damaged, or of another offer, model or step.
            OSError: it cannot be read.
        """
        if self.store is None or not self.store.exists():
            return None
        stored = self.store.read()
        same = stored.run == {"offer": offer.digest, "step": step_name}
        if not same or _kinds(_named(stored, MODEL)) != _kinds(model):
            raise ValueError(
                f"Expected {self.store.path} to be of this mechanism, model and step, got another "
                "run's: choose another folder."
            )
        return stored

    def restore(self, stored: StoredRounds) -> ModelAndMoments:
        """Go on from what the store has.

        Raises:
            ValueError: it is of another account.
        """
        self.begin()
        if self.untuned is not None:
            start = _named(stored, RUN).get(START)
            self.untuned.restore(stored.progress.get("untuned", {}), start)
        done = validate.whole("rounds", stored.progress.get("rounds"), low=0)
        self.accountant.load_state_dict(stored.account)
        self._has_file = True
        # A round that failed is over too once another was asked for after it.
        self.done, self.history = max(done, stored.rounds_over), stored.history
        return _named(stored, MODEL), _named(stored, MOMENTS)

    def _arrays(self, model: Arrays, moments: Arrays) -> dict[str, np.ndarray]:
        """All arrays of a state, by their names in the store."""
        run = {} if self.untuned is None else self.untuned.arrays()
        parts = {MODEL: model, MOMENTS: moments, RUN: run}
        return {kind + name: a for kind, arrays in parts.items() for name, a in arrays.items()}

    @property
    def names(self) -> list[str]:
        """Names of the numbers that clients send."""
        return [] if self.alongside is None else [each.name for each in self.alongside.numbers]

    def outcome(self, title: str, measured: Measured) -> History:
        """The run for a report, with what the server has measured."""
        own = self.accountant
        spent = own.get_privacy_spent()
        return History(
            title, self.history, spent, measured, own.max_epsilon, own.assumes(),
            bool(own.counts_on), self._hostile,
        )  # fmt: skip

    def _note(
        self, number: int, asked: int, dropped: int, sizes: Mapping[str, int], why: str = ""
    ) -> RoundRow:
        epsilon = self.accountant.get_epsilon(self.accountant.delta)
        row = RoundRow(number, epsilon, asked, dropped, **sizes, failed=why)
        self.history.append(row)
        self._log(INFO, f"randquant: {row.line()}.")
        return row


def _named(stored: StoredRounds, kind: str) -> dict[str, np.ndarray]:
    """Return the arrays of a kind, by their names within it."""
    arrays = stored.arrays.items()
    return {name.removeprefix(kind): each for name, each in arrays if name.startswith(kind)}


def _kinds(model: Arrays) -> list[tuple[str, np.dtype, tuple[int, ...]]]:
    return [(name, array.dtype, array.shape) for name, array in model.items()]


def beside(mechanism: UpdateMechanism, privacy: Privacy) -> Alongside | None:
    """What clients send beside their updates, as settings say; None for nothing.

    Raises:
        ValueError: the mechanism does not clip whole updates, or it decides a setting itself.
    """
    given = (privacy.unit, privacy.sampling, privacy.bits, privacy.clip_norm,
             privacy.coordinates, privacy.max_participations, privacy.spent)  # fmt: skip
    if given != ("client", "fixed", "auto", CLIP_NORM, None, None, None):
        raise ValueError(
            "Expected privacy of what a mechanism leaves open (neighboring, numbers, weighted_by), "
            "got other settings too: for_target plans a mechanism for them."
        )
    if not privacy.numbers and privacy.weighted_by is None:
        return None
    if mechanism.clip_norm is None:
        raise ValueError(
            f"Expected a mechanism with a clip_norm for numbers beside updates, got {mechanism!r}, "
            "which clips coordinates one by one: numbers share the norm of an update."
        )
    return Alongside(mechanism.clip_norm, privacy.read_numbers, privacy.weighted_by)
