"""The server's side of a run on an engine: target, account, released numbers, steps, and store."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from logging import ERROR, INFO, WARNING
from typing import Any, Literal

import numpy as np

from randquant._internal import validate
from randquant._internal.progress import waiting
from randquant.aggregation.auxiliary_numbers import AuxiliaryNumbers
from randquant.aggregation.layout import Arrays, Buffers, Layout
from randquant.aggregation.mechanism import UpdateMechanism, describe_influence
from randquant.aggregation.registry import update_mechanism
from randquant.planning.planner import choose
from randquant.planning.plans import CLIP_NORM, Need, Privacy, refuse_spent
from randquant.privacy.accounting.release_protocol import check_examples
from randquant.privacy.guarantee import DEFAULT_DELTA
from randquant.rounds.accountant import RoundEvent, RunAccountant
from randquant.rounds.offer import Offer
from randquant.rounds.parameter_free import REACH_LENGTHS, ParameterFreeStep, Predicts
from randquant.rounds.store import History, Measured, RoundRow, ServerStore, StoredRounds
from randquant.rounds.sums import Log, RoundSum

MODEL_PREFIX, MOMENTS_PREFIX, RUN_PREFIX = "model/", "moments/", "run/"
"""Prefixes of array names in a store: the model, the moments of an engine's own optimizer, and the
state of the steps without a rate. They are on users' disks: changing one loses runs."""

ModelAndMoments = tuple[Arrays, Arrays]
"""A model, and the moments of an engine's own optimizer."""


DEFAULT_PATIENCE = 3
"""Failed rounds in a row that end a run. After each, clients are asked anew, and charged anew: with
twice as many a broken run goes on for longer, with 1 a single loss of the network ends it."""


class RoundsFailed(RuntimeError):
    """Several rounds in a row have failed; the model is that of the last successful round."""


class ServerRun:
    """A run on the server: the account of its clients, and the numbers that its rounds released.

    Args:
        mechanism: protects the updates.
        accountant: with no rounds counted yet.
        log: takes a level of `logging` and a line.
        scalars: encodes the numbers that clients send with their updates; None if they send none.
        patience: number of failed rounds in a row that ends the run.
        untuned: steps without a learning rate; None if the engine steps with the mean.
        store: the run's file; None keeps the run in memory only.

    Attributes:
        done: number of rounds that are over, those before a restart included.
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
        scalars: AuxiliaryNumbers | None = None,
        patience: int = DEFAULT_PATIENCE,
        untuned: UntunedSteps | None = None,
        store: ServerStore | None = None,
    ) -> None:
        self.store = store
        self.mechanism, self.accountant, self.scalars = mechanism, accountant, scalars
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
        extra = 0 if self.scalars is None else self.scalars.extra
        # Offers for one example are never scaled: in a mean of clipped gradients that is scaled up,
        # each example would count for more than its clipping allows.
        return Offer(
            self.mechanism, layout.dimension + extra, layout.parts, buffers, self.scalars,
            examples, scaled=self.untuned is not None and examples is None,
        )  # fmt: skip

    def eligible(self, offer: Offer, connected: Iterable[int]) -> list[int]:
        """Return the connected clients that one more answer keeps within the limit."""
        connected = list(connected)
        # Before the limit is checked: a new number inherits the largest counts.
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
            clients: those that are asked.
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
        # All from here on is a function of the released mean: post-processing, which costs nothing.
        if self.scalars is not None:
            mean, self.numbers = self.scalars.separate(mean)
        if self.untuned is None:
            return mean
        offer, clients = round_sum.offer, round_sum.clients
        return self.untuned.step(offer, layout, model, mean, clients, rounds)

    def numbers_with_noise(self, offer: Offer, clients: int) -> dict[str, float]:
        """Return and log the last numbers, each with the standard deviation of its noise."""
        numbers: dict[str, float] = {}
        if self.scalars is None:
            return numbers
        coordinate = offer.mechanism.expected_error(offer.dimension).deviation(clients)
        for name, value in self.numbers.items():
            numbers[name] = value
            # A number without its noise would be read as exact.
            numbers[f"{name}_deviation"] = noise = self.scalars.deviation(name, coordinate)
            line = f"randquant: {name} {value:.4g}, noise of standard deviation {noise:.2g}."
            self._log(INFO, line)
        return numbers

    def write_certificate(self) -> None:
        """Write the run's certificate file next to its store, or log why it cannot be stated."""
        if self.store is None or not self.accountant.num_releases:
            return
        from randquant.rounds.statement import certificate_file

        path = self.store.path.parent / "certificate.json"
        try:
            certificate_file(self.accountant, path)
            self._log(INFO, f"randquant: what was released, and its epsilon, to verify: {path}.")
        except (OSError, ValueError) as error:  # the run is over and its model is kept
            self._log(INFO, f"randquant: no certificate was written: {error}")

    def succeeded(
        self,
        number: int,
        requested: int,
        clients: int,
        sizes: Mapping[str, int],
        after: ModelAndMoments,
    ) -> RoundRow:
        """Record a successful round, and store the model after it.

        Args:
            number: of the round.
            requested: number of clients that were asked for an update.
            clients: number of clients in the mean.
            sizes: fields of `RoundRow` in bytes, by name.
            after: the model and moments after the round.
        """
        self._failures = 0
        if self.untuned is not None:
            # Before `record`: the state on disk must be that after this round, like the model.
            self.untuned.keep_step()
        row = self._note(number, requested, requested - clients, sizes)
        if self.store is not None:
            untuned = {} if self.untuned is None else self.untuned.record()
            progress = {"rounds": number, "untuned": untuned}
            self.store.commit(row, progress, self._arrays(*after))
        return row

    def failed(self, number: int, requested: int, error: Exception) -> None:
        """Record a failed round.

        Raises:
            RoundsFailed: `patience` rounds in a row have failed.
        """
        self._log(ERROR, f"randquant: round {number} failed, the model is as before: {error}")
        self._failures += 1
        # Its cost stays in the account: clients may have answered before it failed.
        row = self._note(number, requested, requested, {}, str(error))
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
        # by name, shape and dtype.
        run, arrays = {"offer": offer.digest, "step": step_name}, _named(stored, MODEL_PREFIX)
        began = run, {**run, "offer": offer.digest_of_0_1_0}
        if stored.run not in began or _kinds(arrays) != _kinds(model):
            raise ValueError(
                f"Expected {self.store.path} to be of this mechanism, model and step, "
                f"{_kept(run, model)}, got {_kept(stored.run, arrays)}: choose another folder."
            )
        return stored

    def restore(self, stored: StoredRounds, offer: Offer) -> ModelAndMoments:
        """Continue from a stored run of an offer; return its model and moments.

        A round that was asked for and not finished is asked again, and charged a second time.

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
    def scalar_names(self) -> list[str]:
        return [] if self.scalars is None else [n.name for n in self.scalars.numbers]

    def outcome(self, title: str, measured: Measured) -> History:
        """Return the run for a report, with the server's own evaluation."""
        accountant = self.accountant
        spent = accountant.get_privacy_spent()
        return History(
            title, self.history, spent, measured, accountant.max_epsilon, accountant.assumes(),
            bool(accountant.counts_on), self._hostile(), accountant.other_relation,
        )  # fmt: skip

    def _hostile(self) -> str:
        # By the clients in the mean: those that have dropped out do not dilute a hostile one.
        summed = [row.asked - row.dropped for row in self.history if not row.failed]
        if self._offer is None or not summed:
            return ""
        return describe_influence(self._offer.mechanism, self._offer.dimension, summed[-1])

    def _note(
        self, number: int, requested: int, dropped: int, sizes: Mapping[str, int], reason: str = ""
    ) -> RoundRow:
        # Of the whole account: a failed round has cost its clients the same.
        epsilon = self.accountant.get_epsilon(self.accountant.delta)
        row = RoundRow(number, epsilon, requested, dropped, **sizes, failed=reason)
        self.history.append(row)
        self._log(INFO, f"randquant: {row.line(self.accountant.in_short())}.")
        return row


def _named(stored: StoredRounds, prefix: str) -> dict[str, np.ndarray]:
    arrays = stored.arrays.items()
    return {name.removeprefix(prefix): a for name, a in arrays if name.startswith(prefix)}


def _kept(run: Mapping[str, Any], model: Arrays) -> str:
    offer, step = str(run.get("offer"))[:16], run.get("step")
    return f"offer {offer}..., step {step!r} and {len(model)} arrays"


def _kinds(model: Arrays) -> list[tuple[str, np.dtype, tuple[int, ...]]]:
    return [(name, array.dtype, array.shape) for name, array in model.items()]


def scalar_encoder(mechanism: UpdateMechanism, privacy: Privacy) -> AuxiliaryNumbers | None:
    """Return the encoder of the numbers that settings send with an update; None if there are none.

    Raises:
        ValueError: the mechanism does not clip whole updates, or it decides a setting itself.
    """
    # A mechanism has these settings already: to ignore what a user set would mislead them about
    # what protects their clients.
    usual = {"unit": "client", "sampling": "fixed", "bits": "auto", "clip_norm": CLIP_NORM,
             "noise": "clients", "coordinates": None, "max_participations": None,
             "spent": None}  # fmt: skip
    changed = [name for name, value in usual.items() if getattr(privacy, name) != value]
    if changed:
        raise ValueError(
            "Expected privacy of what a mechanism leaves open (neighboring, numbers, weighted_by), "
            f"got a value for {', '.join(changed)} too: for_target plans a mechanism for it."
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


START = "start of the run"
"""Name, in a run's store, of the weights that the steps started from."""


class UntunedSteps:
    """A run's steps without a learning rate: `ParameterFreeStep` with the settings of its offers.

    Args:
        predicts: what the model predicts, which decides how far the first steps go.

    Raises:
        ValueError: `predicts` is neither `classes` nor `numbers`.
    """

    def __init__(self, predicts: Predicts) -> None:
        validate.choice("predicts", predicts, tuple(REACH_LENGTHS))
        self.predicts: Predicts = predicts
        self._state: Mapping[str, Any] = {}
        self._next: Mapping[str, Any] = {}

    def step(
        self,
        offer: Offer,
        layout: Layout,
        model: Arrays,
        mean: np.ndarray,
        clients: int,
        rounds: int,
    ) -> np.ndarray:
        """Return what to add to the trained arrays, (dimension,) float32.

        Args:
            offer: of the round, with a clip_norm.
            layout, model: the trained arrays, before the step.
            mean: the mean update.
            clients: number of clients that the mean is of.
            rounds: of the whole run, as declared.
        """
        shapes = [shape for _, shape, _ in layout.trained]
        rule = ParameterFreeStep.for_mechanism(
            offer.mechanism, shapes, extra=offer.preparation.extra, clients=clients,
            rounds=rounds, predicts=self.predicts,
        )  # fmt: skip
        weights = layout.update(None, model)
        # The engine may still reject the step, so the new state waits for `keep_step`.
        # `rule` steps against a gradient: the update is its negative.
        stepped, self._next = rule.step(weights, -mean, self._state)
        return stepped - weights

    def keep_step(self) -> None:
        # A failed round leaves the model as it was, and must leave the steps so too.
        self._state = self._next

    def record(self) -> dict[str, Any]:
        # JSON; the array is in `arrays`.
        return {name: value for name, value in self._state.items() if name != "start"}

    def arrays(self) -> dict[str, np.ndarray]:
        return {START: self._state["start"]} if self._state else {}

    def restore(self, record: Mapping[str, Any], start: np.ndarray | None) -> None:
        # Inverts `record` and `arrays`. A run that has taken no step yet has no start.
        self._state = {} if start is None else {**record, "start": start}


@dataclass(frozen=True)
class Target:
    """What a run on an engine must not exceed, and the clients whose noise it counts on.

    Args:
        epsilon: in nats, for one client's (or one example's) whole participation.
        rounds: of the run.
        population: clients that there are.
        summed: clients whose noise every sum has, at least.
        delta: of the target; `default_delta` has the default.
        trust: `aggregate`, a server that sees sums only, or `local`, one that sees each client's
            codes.
        privacy: what is protected, how updates are clipped and sent, and what is sent with them.
        examples: protect one example instead of a client: the public number by which clients
            divide their sums of clipped gradients.

    Raises:
        TypeError, ValueError: an argument is out of bounds, or missing for `unit="example"`.
    """

    epsilon: float
    rounds: int
    population: int
    summed: int
    delta: float
    trust: Literal["aggregate", "local"]
    privacy: Privacy
    examples: int | None = None

    def __post_init__(self) -> None:
        validate.choice("trust", self.trust, ("aggregate", "local"))
        validate.kind("privacy", self.privacy, Privacy)
        validate.choice("sampling", self.privacy.sampling, ("fixed",))
        if self.examples is not None:
            check_examples(self.examples)
        elif self.privacy.unit == "example":
            raise ValueError(
                'Expected examples with unit="example", got examples=None: give the public number '
                "by which clients divide their sums of clipped gradients, such as the number of "
                "all clients' examples over the number of clients."
            )
        refuse_spent(self.privacy, self.epsilon, self.delta)

    def mechanism(self, dimension: int, log: Log) -> UpdateMechanism:
        """Calibrate a mechanism for updates of so many coordinates.

        Args:
            dimension: of a model's update, without the numbers sent with it.
            log: gets a warning where the target leaves no useful signal.

        Raises:
            OutOfReach: no noise meets the target.
        """
        privacy = self.privacy
        participations = min(self.rounds, privacy.max_participations or self.rounds)
        need = Need(
            dimension + len(privacy.numbers), self.population, self.summed, self.rounds,
            self.epsilon, self.delta, self.trust, privacy, participations,
        )  # fmt: skip
        with waiting():
            choice = choose(need, examples=self.examples)
        if choice.warning:
            log(WARNING, f"randquant: {choice.warning}")
        return update_mechanism(
            choice.mechanism, choice.parameters, trust=self.trust, clip_norm=choice.clip_norm,
            cohort=self.summed if self.trust == "aggregate" else None,
            coordinates=privacy.coordinates,
        )  # fmt: skip


def default_delta(population: int, examples: int | None) -> float:
    """Return a tenth of 1 / (clients, or their examples), and at most DEFAULT_DELTA."""
    return min(DEFAULT_DELTA, 0.1 / (population * (examples or 1)))
