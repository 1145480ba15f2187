"""The server's side of a run on an engine: its account, its released numbers, and its store."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from logging import ERROR, INFO

import numpy as np

from randquant._internal import validate
from randquant.aggregation.auxiliary_numbers import AuxiliaryNumbers
from randquant.aggregation.mechanism import UpdateMechanism
from randquant.aggregation.worst_case_influence import describe_influence
from randquant.planning.privacy import CLIP_NORM, Privacy
from randquant.rounds.accountant import RoundEvent, RunAccountant
from randquant.rounds.history import History, Measured, RoundRow
from randquant.rounds.offer import Offer
from randquant.rounds.store import ServerStore, StoredRounds
from randquant.rounds.sums import Log, RoundSum
from randquant.rounds.trained import Arrays, Buffers, Layout
from randquant.rounds.untuned import START, UntunedSteps

MODEL_PREFIX, MOMENTS_PREFIX, RUN_PREFIX = "model/", "moments/", "run/"
"""Prefixes of array names in a store: the model, the moments of an engine's own optimizer, and the
state of the steps without a rate. They are on users' disks: changing one loses runs."""

ModelAndMoments = tuple[Arrays, Arrays]
"""A model, and the moments of an engine's own optimizer."""


class RoundsFailed(RuntimeError):
    """Several rounds in a row have failed; the model is that of the last successful round."""


class ServerRun:
    """A run on the server: the account of its clients, and the numbers that its rounds released.

    Args:
        mechanism: protects the updates.
        accountant: with no rounds counted yet.
        log: takes a level of `logging` and a line.
        alongside: encodes the numbers that clients send with their updates; None if they send none.
        patience: failed rounds in a row that end the run. With twice as many a broken run goes on
            for longer, and its clients are charged for each round; with 1 a single loss of the
            network ends it.
        untuned: steps without a learning rate; None if the engine steps with the mean.
        store: the run's file; None keeps the run in memory only.

    Attributes:
        done: how many rounds are over, those before a restart included.
        stopped: why training is over; empty while it goes on.
        history: all rounds, failed ones included.
        numbers: released with the last mean, by name.

    Guarantees:
        A round is in the account, and in the store, before it has requests.
    """

    def __init__(
        self,
        mechanism: UpdateMechanism,
        accountant: RunAccountant,
        log: Log,
        alongside: AuxiliaryNumbers | None = None,
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
        """Start again with no rounds done; the account keeps what it has counted."""
        self.done = self._failures = 0
        self._has_file = False
        self.stopped = ""
        self._offer: Offer | None = None
        self.history: list[RoundRow] = []
        self.numbers: Mapping[str, float] = {}
        if self.untuned is not None:
            self.untuned.restore({}, None)

    def offer(self, layout: Layout, buffers: Buffers, examples: int | None = None) -> Offer:
        extra = 0 if self.alongside is None else self.alongside.extra
        # An update of clipped gradients must not be scaled up, so offers for one example never are.
        return Offer(
            self.mechanism, layout.dimension + extra, layout.parts, buffers, self.alongside,
            examples, scaled=self.untuned is not None and examples is None,
        )  # fmt: skip

    def eligible(self, offer: Offer, connected: Iterable[int]) -> list[int]:
        """Return the connected clients that one more answer keeps within the limit."""
        connected = list(connected)
        # A new number may be a known client that has reconnected: first it inherits the largest
        # account, then the limit is checked.
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
        """Record the cost of a round on disk before any of its requests is sent.

        Args:
            number: of the round, 1 for the first.
            offer: of the round.
            clients: who is asked.
            initial: returns the model and moments that a run begins with.
            step_name: of the rule that steps with the mean.
        """
        # All clients that are asked are charged: once asked, a client may send an update.
        self.accountant.compose(RoundEvent(offer, frozenset(clients)))
        if self.store is not None:
            account = self.accountant.state_dict()
            # Once this run has written its file, a missing file is an error of `changing`: a new
            # one would state a smaller cost than was spent.
            if self._has_file or self.store.exists():
                self.store.record_before_sending(account, number - 1)
            else:
                run = {"offer": offer.digest, "step": step_name}
                arrays = self._arrays(*initial())
                self.store.create(run, account, number - 1, arrays, self.history)
            self._has_file = True
        hostile = describe_influence(offer.mechanism, offer.dimension, len(clients))
        if hostile and self._offer is None:  # one line a run, not one a round
            self._log(INFO, f"randquant: {hostile}.")
        self._offer = offer

    def step(self, round_sum: RoundSum, layout: Layout, model: Arrays, rounds: int) -> np.ndarray:
        """Return what to add to the trained arrays: the mean update, or a step without a rate.

        It also keeps the numbers that were released with the mean.
        """
        mean = round_sum.mean()
        if self.alongside is not None:
            mean, self.numbers = self.alongside.separate(mean)
        if self.untuned is None:
            return mean
        offer, clients = round_sum.offer, round_sum.clients
        return self.untuned.step(offer, layout, model, mean, clients, rounds)

    def numbers_with_noise(self, offer: Offer, clients: int) -> dict[str, float]:
        """Return and log the last numbers, each with the standard deviation of its noise."""
        numbers: dict[str, float] = {}
        if self.alongside is None:
            return numbers
        coordinate = offer.mechanism.expected_error(offer.dimension).deviation(clients)
        for name, value in self.numbers.items():
            numbers[name] = value
            # A number without its noise would be read as exact.
            numbers[f"{name}_deviation"] = noise = self.alongside.deviation(name, coordinate)
            line = f"randquant: {name} {value:.4g}, noise of standard deviation {noise:.2g}."
            self._log(INFO, line)
        return numbers

    def succeeded(
        self,
        number: int,
        asked: int,
        clients: int,
        sizes: Mapping[str, int],
        after: ModelAndMoments,
    ) -> RoundRow:
        """Record a successful round, and store the model after it.

        Args:
            number: of the round.
            asked: how many clients were asked.
            clients: how many are in the mean.
            sizes: fields of `RoundRow` in bytes, by name.
            after: the model and moments after the round.
        """
        self._failures = 0
        if self.untuned is not None:
            # Before `record`: the state on disk must be that after this round, like the model.
            self.untuned.keep_step()
        row = self._note(number, asked, asked - clients, sizes)
        if self.store is not None:
            untuned = {} if self.untuned is None else self.untuned.record()
            progress = {"rounds": number, "untuned": untuned}
            self.store.commit(row, progress, self._arrays(*after))
        return row

    def failed(self, number: int, asked: int, error: Exception) -> None:
        """Record a failed round.

        Raises:
            RoundsFailed: `patience` rounds in a row have failed.
        """
        self._log(ERROR, f"randquant: round {number} failed, the model is as before: {error}")
        self._failures += 1
        # Its cost stays in the account: clients may have answered before it failed.
        row = self._note(number, asked, asked, {}, str(error))
        # A run whose first round failed before anybody was asked has no file: `charge` writes the
        # history into it when it creates it.
        if self.store is not None and self.store.exists():
            self.store.record_failure(row)
        if self._failures >= self.patience:
            raise RoundsFailed(
                f"Expected a round to succeed, got {self._failures} failures in a row, the last: "
                f"{error}"
            ) from error

    def stored(self, offer: Offer, model: Arrays, step_name: str = "") -> StoredRounds | None:
        """Read the store; return None if the run has not begun there.

        Args:
            offer: to the clients of the run that is about to go on.
            model: with the names, shapes and dtypes of its arrays.
            step_name: as in `charge`.

        Raises:
            ValueError: the store is damaged, or of another offer, model or step.
            OSError: the store cannot be read.
        """
        if self.store is None or not self.store.exists():
            return None
        stored = self.store.read()
        # The digest covers mechanism, dimension and trained arrays; what is not trained is compared
        # by name, shape and dtype. Which of them differs cannot be read off two digests.
        same = stored.run == {"offer": offer.digest, "step": step_name}
        if not same or _kinds(_named(stored, MODEL_PREFIX)) != _kinds(model):
            raise ValueError(
                f"Expected {self.store.path} to be of this mechanism, model and step, got another "
                "run's: choose another folder."
            )
        return stored

    def restore(self, stored: StoredRounds, offer: Offer) -> ModelAndMoments:
        """Continue from a stored run of an offer; return its model and moments.

        Raises:
            ValueError: its account is damaged, or of another delta or neighbouring relation.
        """
        self.begin()
        if self.untuned is not None:
            start = _named(stored, RUN_PREFIX).get(START)
            self.untuned.restore(stored.progress.get("untuned", {}), start)
        done = validate.whole("rounds", stored.progress.get("rounds"), low=0)
        self.accountant.load_state_dict(stored.account)
        self._has_file, self._offer = True, offer
        # Failed rounds are not in `progress`; they are over once a later round was asked for.
        self.done, self.history = max(done, stored.rounds_over), stored.history
        return _named(stored, MODEL_PREFIX), _named(stored, MOMENTS_PREFIX)

    def _arrays(self, model: Arrays, moments: Arrays) -> dict[str, np.ndarray]:
        run = {} if self.untuned is None else self.untuned.arrays()
        parts = {MODEL_PREFIX: model, MOMENTS_PREFIX: moments, RUN_PREFIX: run}
        return {kind + name: a for kind, arrays in parts.items() for name, a in arrays.items()}

    @property
    def names(self) -> list[str]:
        # Those that clients send with their updates.
        return [] if self.alongside is None else [n.name for n in self.alongside.numbers]

    def outcome(self, title: str, measured: Measured) -> History:
        """Return the run for a report, with the server's own evaluation."""
        accountant = self.accountant
        spent = accountant.get_privacy_spent()
        return History(
            title, self.history, spent, measured, accountant.max_epsilon, accountant.assumes(),
            bool(accountant.counts_on), self._hostile(),
        )  # fmt: skip

    def _hostile(self) -> str:
        # Of those in the mean: clients that have dropped out do not dilute a hostile one.
        means = [row.asked - row.dropped for row in self.history if not row.failed]
        if self._offer is None or not means:
            return ""
        return describe_influence(self._offer.mechanism, self._offer.dimension, means[-1])

    def _note(
        self, number: int, asked: int, dropped: int, sizes: Mapping[str, int], why: str = ""
    ) -> RoundRow:
        # Of the account, so with the rounds that failed.
        epsilon = self.accountant.get_epsilon(self.accountant.delta)
        row = RoundRow(number, epsilon, asked, dropped, **sizes, failed=why)
        self.history.append(row)
        self._log(INFO, f"randquant: {row.line()}.")
        return row


def _named(stored: StoredRounds, prefix: str) -> dict[str, np.ndarray]:
    arrays = stored.arrays.items()
    return {name.removeprefix(prefix): a for name, a in arrays if name.startswith(prefix)}


def _kinds(model: Arrays) -> list[tuple[str, np.dtype, tuple[int, ...]]]:
    return [(name, array.dtype, array.shape) for name, array in model.items()]


def alongside_numbers(mechanism: UpdateMechanism, privacy: Privacy) -> AuxiliaryNumbers | None:
    """Return the encoder of the numbers that settings send with an update; None without any.

    Raises:
        ValueError: the mechanism does not clip whole updates, or it decides a setting itself.
    """
    # A mechanism has these settings already: to ignore what a user set would mislead them about
    # what protects their clients.
    fixed = (privacy.unit, privacy.sampling, privacy.bits, privacy.clip_norm,
             privacy.coordinates, privacy.max_participations, privacy.spent)  # fmt: skip
    if fixed != ("client", "fixed", "auto", CLIP_NORM, None, None, None):
        raise ValueError(
            "Expected privacy of what a mechanism leaves open (neighboring, numbers, weighted_by), "
            "got other settings too: for_target plans a mechanism for them."
        )
    if not privacy.numbers and privacy.weighted_by is None:
        return None
    if mechanism.clip_norm is None:
        raise ValueError(
            "Expected a mechanism with a clip_norm for numbers sent with updates, got "
            f"{mechanism!r}, which clips coordinates one by one: numbers share the norm of an "
            "update."
        )
    return AuxiliaryNumbers(mechanism.clip_norm, privacy.read_numbers, privacy.weighted_by)
