"""The account of a run: how often each client has answered which offer; a client's own is on disk.

`RunAccountant` counts; its methods have the names of Flower's `PrivacyAccountant`. A client keeps
its account, and the steps of sums that it has taken, in an `AnswerLedger`: one SQLite file, written
before anything that it counts is sent. Its table `account` has one JSON record, whose checksum
covers the rows of `steps` too.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import math
import sqlite3
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from randquant._internal import files, validate
from randquant._internal.files import Database
from randquant._internal.formatting import round_up
from randquant.privacy.guarantee import NEIGHBORINGS, Guarantee, Neighboring, Trust
from randquant.secure_sums.terms import ProtocolError

if TYPE_CHECKING:  # most messages only load and save an account: their processes start faster
    from randquant.privacy.accounting.release_protocol import Release
    from randquant.rounds.offer import Offer


ACCOUNT_VERSION = 2
SO_FAR = (
    "valid if the run was declared to end here; if it is ended by looking at its models, only a "
    "limit that was set before is valid"
)
"""Condition printed with every epsilon of the rounds so far: nobody has told the account when the
run ends (docs/theory/accounting.md, Proposition 8)."""
MAX_ROUNDS = 2**53
"""Largest count of one offer in a stored account: whole numbers up to it are exact in doubles. No
run comes near it, so half of it would do as well; twice of it would let counts be rounded."""

Spent = frozenset[tuple["Offer", int]]
"""A client's offers, each with the number of its answers."""


@dataclass(frozen=True, slots=True)
class RoundEvent:
    """One round: the clients that answer an offer."""

    offer: Offer
    clients: frozenset[int]


class RunAccountant:
    """Counts each client's answers; the guarantee is that of the client with the largest epsilon.

    Flower's own accountant, whose methods it has, knows Gaussian noise only. No amplification by
    sampling is claimed: the server sees who answers.

    Args:
        delta: of every guarantee unless a method takes another, in (0, 1).
        neighboring: which two inputs the guarantee makes hard to distinguish.
        max_epsilon: limit of `would_exceed` unless that takes another.
        stable: True if a client is certain to keep its number when it reconnects.
        counts_on: a condition on other parties than the clients, which `assumes` states; empty if
            there is none.

    Example:
        >>> import randquant as rq
        >>> from randquant.aggregation.channel_mechanisms import VectorMechanism
        >>> from randquant.flower import Offer
        >>> channel = rq.stochastic_rounding(clip=0.05, levels=2, margin=0.5)
        >>> offer = Offer(VectorMechanism(channel, 1.0, "aggregate", 40), 650)
        >>> accountant = RunAccountant(delta=1e-5, max_epsilon=8.0)
        >>> accountant.compose(RoundEvent(offer, frozenset({1, 2})))
        >>> accountant.compose(RoundEvent(offer, frozenset({2, 3})))
        >>> print(accountant.get_privacy_spent())
        epsilon <= 3.4999 at delta = 1e-05 (replace_one, aggregate trust)
    """

    def __init__(
        self,
        delta: float,
        neighboring: Neighboring = "replace_one",
        max_epsilon: float | None = None,
        *,
        stable: bool = False,
        counts_on: str = "",
    ) -> None:
        self.delta = validate.real("delta", delta, above=0, below=1)
        validate.choice("neighboring", neighboring, NEIGHBORINGS)
        self.neighboring: Neighboring = neighboring
        if max_epsilon is not None and max_epsilon != math.inf:
            max_epsilon = validate.real("max_epsilon", max_epsilon, above=0)
        self.max_epsilon = max_epsilon
        self.stable, self.counts_on = validate.flag("stable", stable), counts_on
        self._spent: dict[int, Counter[Offer]] = {}
        self.num_releases = 0

    def compose(self, event: RoundEvent, count: int = 1) -> None:
        """Count a round, or `count` equal ones."""
        count = validate.whole("count", count, low=1)
        # Answers are counted and not their epsilons added up: composition is proven to cost less.
        for client in event.clients:
            self._spent.setdefault(client, Counter())[event.offer] += count
        self.num_releases += count

    def meet(self, connected: Iterable[int]) -> None:
        """Register the clients that are connected now.

        A new number may be that of a known client, which has reconnected. Unless numbers are
        `stable`, it is therefore assumed to have answered each offer as often as any client has.
        (Flower gives a SuperNode that reconnects a new number, unless SuperNodes are authenticated
        and the SuperLink keeps its database.)
        """
        # The largest count of each offer, not the account with the largest epsilon: with several
        # offers no single account need be the worst under all later ones.
        worst: Counter[Offer] = Counter()
        if not self.stable:
            for spent in self._spent.values():
                worst |= spent
        for client in set(connected) - self._spent.keys():
            self._spent[client] = Counter(worst)

    def answers(self, client: int) -> int:
        # An upper bound: a new number may have inherited the counts of others (`meet`).
        return self._spent.get(client, Counter()).total()

    def get_epsilon(self, delta: float, *, without_others: bool = False) -> float:
        """Proven upper bound of the epsilon of every client, at this delta.

        Args:
            delta: in (0, 1).
            without_others: True for the bound without the noise of other clients: as if the server
                had invented all of them, and so saw each real client's codes one by one.
        """
        delta = validate.real("delta", delta, above=0, below=1)
        return self._worst(self._spent.values(), delta, without_others)

    def get_delta(self, epsilon: float) -> float:
        """Return the least delta, up to a factor of 1.01, at which `epsilon` is proven."""
        epsilon = validate.real("epsilon", epsilon, low=0)
        # Bisection of log10(delta): epsilon falls as delta grows. 1e-300 is close to the smallest
        # normal double, and 0.999 to 1, at which every epsilon holds.
        # Invariant: 10**high suffices, if any delta does; 10**low does not.
        low, high = -300.0, math.log10(0.999)
        if self.get_epsilon(10**high) > epsilon:
            return 1.0
        if self.get_epsilon(10**low) <= epsilon:
            return 10**low
        while high - low > math.log10(1.01):
            middle = (low + high) / 2
            low, high = (low, middle) if self.get_epsilon(10**middle) <= epsilon else (middle, high)
        return 10**high  # the end that suffices: the bound is rounded to the safe side

    def get_privacy_spent(self, delta: float | None = None) -> Guarantee:
        """Return every client's guarantee for the rounds so far, the least of all bounds.

        It holds for an end that was declared beforehand (`SO_FAR`). `releases` is 0 before the
        first round.
        """
        delta = self.delta if delta is None else validate.real("delta", delta, above=0, below=1)
        # One trust for all clients: a guarantee says which server it is against.
        trust = _trust(self._offers())
        guarantees = [
            _guarantee(spent, delta, self.neighboring, trust, False)
            for spent in _distinct(self._spent.values())
        ]
        nothing = Guarantee(0.0, delta, self.neighboring, trust, math.inf, 0)
        return max(guarantees, key=lambda guarantee: guarantee.epsilon, default=nothing)

    @property
    def other_relation(self) -> Guarantee | None:
        """`get_privacy_spent` under the relation that the account is not for.

        None before the first round, and if it is not derived for every client's offers.
        """
        return self._other_relation(_trust(self._offers()), quick=False)

    def _other_relation(self, trust: Trust, *, quick: bool) -> Guarantee | None:
        worst: Guarantee | None = None
        for spent in _distinct(self._spent.values()):
            other = _under_other_relation(spent, self.delta, self.neighboring, trust, quick)
            if other is None:  # not derived for one client: then nothing is proven for all of them
                return None
            worst = max(filter(None, (worst, other)), key=lambda each: each.epsilon)
        return worst

    def _offers(self) -> Iterable[Offer]:
        return (offer for spent in self._spent.values() for offer in spent)

    def largest_accounts(self) -> list[Counter[Offer]]:
        """Return clients' different accounts, without those that another one contains."""
        different = [Counter(dict(spent)) for spent in _distinct(self._spent.values())]
        return [one for one in different if not any(one < other for other in different)]

    def client_guarantee(self) -> Guarantee:
        """Return the guarantee for all data of a client, where offers protect one example."""
        return self._for_clients().get_privacy_spent()

    def _for_clients(self) -> RunAccountant:
        whole = RunAccountant(self.delta, self.neighboring, counts_on=self.counts_on)
        for client, spent in self._spent.items():
            for offer, count in spent.items():
                whole.compose(RoundEvent(replace(offer, examples=None), frozenset({client})), count)
        return whole

    def summary(self) -> str:
        """Return the bound and its assumptions as a sentence for a log.

        Where offers protect one example, the sentence has the bound for all data of a client too.
        """
        if any(offer.examples is not None for offer in self._offers()):
            # Each with its own bound without others: that of all data is far larger.
            every = self._for_clients()._guarantee_with_assumptions()
            one = self._guarantee_with_assumptions()
            return f"one example: {one}; all data of a client: {every}"
        return f"{self._bound()} at delta = {self.delta} {self.assumes()}"

    def _bound(self, without_others: bool = False) -> str:
        epsilon = self.get_epsilon(self.delta, without_others=without_others)
        if math.isinf(epsilon):
            return "no guarantee"
        return f"epsilon <= {round_up(epsilon)}{self.in_short(without_others)}"

    def in_short(self, without_others: bool = False) -> str:
        """Return the figure under the other relation, to stand behind one of `get_epsilon`."""
        from randquant.privacy.accounting.accountant import in_short

        trust = "local" if without_others else _trust(self._offers())
        return in_short(self._other_relation(trust, quick=True))

    def spent_text(self) -> str:
        """Return `get_privacy_spent` as a line, with its figure under the other relation."""
        from randquant.privacy.accounting.accountant import in_one_line

        return in_one_line(self.get_privacy_spent(), self.other_relation)

    def _guarantee_with_assumptions(self) -> str:
        relies = self._honest_others() or self._relies_on_helper()
        assumed = f" {self.assumes()}" if relies else self.chosen()
        return f"{self.spent_text()}{assumed}"

    def assumes(self) -> str:
        """State what `get_epsilon` assumes of others, and the bound without it."""
        # The bound without others also holds against an adversary who sees individual codes, such
        # as a server that colludes with the helper; but not where the helper's noise is in it.
        others, helped, without = self._honest_others(), self._relies_on_helper(), []
        if others:
            left = self._bound(without_others=True)
            otherwise = "it does, or " if self.counts_on and not helped else ""
            without = [f"{left} if {otherwise}all others are invented"]
        if helped:
            without.append("no guarantee if it does not")
        return ", and ".join([self._conditions(), *without]) + self.chosen()

    def _conditions(self) -> str:
        assumed, helped = _assumed(others := self._honest_others()), self._relies_on_helper()
        on = HELPER_ADDS_NOISE if helped else self.counts_on if others else ""
        joined = " and " if others else ", if "
        return f"{assumed}{joined}{on}" if on else assumed

    def chosen(self) -> str:
        """Return what the bound assumes if a client has answered several kinds of offers, or ""."""
        # docs/theory/accounting.md, Proposition 9: if a later mechanism was chosen by looking at
        # earlier answers, only the sum of their epsilons is proven, and not the joint figure.
        kinds = [
            len({offer.release(1, self.neighboring, _trust([offer])) for offer in spent})
            for spent in self._spent.values()
        ]
        most = max(kinds, default=0)
        return f"; if its {most} kinds of offers did not depend on its answers" * (most > 1)

    def would_exceed(
        self,
        event: RoundEvent,
        max_epsilon: float | None = None,
        count: int = 1,
        *,
        without_others: bool = False,
    ) -> bool:
        """Return whether a round would take a client above the limit.

        Args:
            event: the round.
            max_epsilon: the limit; None for that of the account.
            count: how many such rounds.
            without_others: as in `get_epsilon`.
        """
        limit = validate.number(self.max_epsilon if max_epsilon is None else max_epsilon)
        if limit is None:
            raise ValueError("Expected max_epsilon, here or in the accountant, got None in both.")
        count = validate.whole("count", count, low=0)
        after = [
            self._spent.get(client, Counter()) + Counter({event.offer: count})
            for client in event.clients
        ]
        # Not by `>`: NaN exceeds every limit.
        return not self._worst(after, self.delta, without_others) <= limit

    def state_dict(self) -> dict[str, object]:
        """Return all counts so far, as JSON data with a checksum."""
        # Each offer once, since its text with the certificate may have megabytes.
        offers = list(dict.fromkeys(self._offers()))
        place = {offer: str(n) for n, offer in enumerate(offers)}
        state = {
            "schema": ACCOUNT_VERSION,
            "delta": self.delta,
            "neighboring": self.neighboring,
            "num_releases": self.num_releases,
            "assumes": self._conditions(),
            "offers": [offer.to_text() for offer in offers],
            "clients": {
                str(client): {place[offer]: count for offer, count in spent.items()}
                for client, spent in self._spent.items()
            },
        }
        return {**state, "checksum": _checksum(state)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Undo `state_dict`.

        Raises:
            ValueError: the state is damaged, or of another delta or neighbouring relation.
        """
        try:
            # The checksum first: of damaged content nothing else is worth a message.
            content = {name: part for name, part in state.items() if name != "checksum"}
            if state["checksum"] != _checksum(content):
                raise ValueError("it was damaged or changed")
            # Counts could be kept under another delta, but a limit that was set for one delta would
            # silently become one for another.
            kind = (state["schema"], state["delta"], state["neighboring"])
            if kind != (ACCOUNT_VERSION, self.delta, self.neighboring):
                raise ValueError(f"it is of schema, delta and neighbours {kind}")
            if len(set(state["offers"])) < len(state["offers"]):
                raise ValueError("it has an offer twice")  # `state_dict` writes each once
            from randquant.rounds.offer import Offer

            offers = {str(n): Offer.from_text(text) for n, text in enumerate(state["offers"])}
            spent = {
                _client_number(client): _answers_by_offer(offers, counts)
                for client, counts in state["clients"].items()
            }
            releases = validate.whole("num_releases", state["num_releases"], low=0)
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            reason = str(error).rstrip(".")
            raise ValueError(f"Expected the state of this accountant, but: {reason}.") from error
        # Last, so that an error leaves the account as it was.
        self._spent, self.num_releases = spent, releases

    def _honest_others(self) -> int:
        # Their noise is counted on in every sum: the largest number that any offer needs.
        return max((offer.mechanism.cohort for offer in self._offers()), default=1) - 1

    def _relies_on_helper(self) -> bool:
        # Of one offer: then the whole account does.
        return any(offer.mechanism.helper_noise for offer in self._offers())

    def _worst(
        self, accounts: Collection[Counter[Offer]], delta: float, without_others: bool = False
    ) -> float:
        # Quick bounds, never below those of `get_privacy_spent`: a limit that holds for them holds.
        epsilons = []
        for spent in _distinct(accounts):
            # Local trust composes every offer without the noise of other clients.
            trust = "local" if without_others else _trust(offer for offer, _ in spent)
            epsilons.append(_guarantee(spent, delta, self.neighboring, trust, True).epsilon)
        return max(epsilons, default=0.0)


HELPER_ADDS_NOISE = "the helper adds its noise and does not collude with the server"
"""The condition of a guarantee in which clients add no noise (theory/helper-sums.md, Proposition
13)."""


def _assumed(others: int) -> str:
    if not others:
        return "whoever the other clients are"
    return f"if every sum has at least {others:,} honest other{'s' * (others > 1)}"


def _checksum(state: Mapping[str, Any]) -> str:
    # Detects damage, not forgery: anyone who can change the state can compute it as well.
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def _client_number(text: str) -> int:
    # "01" or " 1" would be a second entry of client 1, which would replace its count.
    if str(int(text)) != text:
        raise ValueError(f"{text!r} is not a client's number")
    return int(text)


def _answers_by_offer(offers: Mapping[str, Offer], counts: Mapping[str, Any]) -> Counter[Offer]:
    spent: Counter[Offer] = Counter()
    for place, count in counts.items():
        spent[offers[place]] += validate.whole("count", count, low=1, high=MAX_ROUNDS)
    return spent


def _distinct(accounts: Collection[Counter[Offer]]) -> set[Spent]:
    # Many clients have equal accounts: the bound of each account is computed once.
    return {frozenset(spent.items()) for spent in accounts if spent}


def _trust(offers: Iterable[Offer]) -> Trust:
    # One offer that relies on a sum makes the whole guarantee rely on sums.
    return "aggregate" if any(o.mechanism.trust == "aggregate" for o in offers) else "local"


# Clients, rounds and limits ask for the same bound again and again. An entry is small; with half as
# many a run of many cohorts computes some bounds twice, twice as many would hardly ever be used.
@functools.lru_cache(maxsize=4096)
def _guarantee(
    spent: Spent, delta: float, neighboring: Neighboring, trust: Trust, quick: bool
) -> Guarantee:
    from randquant.privacy.accounting.accountant import account

    return account(_releases(spent, neighboring, trust), delta, quick=quick)


@functools.lru_cache(maxsize=4096)  # as above
def _under_other_relation(
    spent: Spent, delta: float, neighboring: Neighboring, trust: Trust, quick: bool
) -> Guarantee | None:
    from randquant.privacy.accounting.accountant import under_other_relation

    stated = _guarantee(spent, delta, neighboring, trust, quick)
    return under_other_relation(
        stated, lambda relation: _releases(spent, relation, trust), quick=quick
    )


def _releases(spent: Spent, neighboring: Neighboring, trust: Trust) -> list[Release]:
    return [offer.release(count, neighboring, trust) for offer, count in spent]


# A client's account on disk.

THIS_CLIENT = 0
"""The client's number in its account on disk. It is not its number in a run, which may change."""

LEDGER_VERSION = 1
TABLES = (
    "CREATE TABLE account (only INTEGER PRIMARY KEY, content TEXT)",
    "CREATE TABLE steps (step BLOB PRIMARY KEY) WITHOUT ROWID",
)
STEP_BYTES = 16
"""Bytes stored of a step's hash. If two steps share them the second is refused, which costs a round
and no privacy; among a billion steps that has probability 2e-21. With half as many bytes it is 3 %,
with twice as many the file has twice the size."""
MAX_CHECKS = 20
"""Number of checks of an account that other processes keep changing, after which a message is
refused. With half, busy clients refuse more often; with twice as many, a message may wait twice as
long."""

ACCOUNT_RECORD = "randquant.spent"
"""Name of a record in a client's state: the account if it has no file, else the file's version."""

State = MutableMapping[str, dict[str, Any]]
"""A client's state between two messages of a run, by name: bytes, numbers and texts, never sent. An
engine may store it only after it has sent the reply, so a kill can lose the last change."""


class DamagedFile(ValueError):
    """A client's file is damaged or invalid."""


class AnswerLedger:
    """The account of one client, which is locked while it is read and changed.

    Args:
        accountant: an empty account with this client's delta and neighbouring relation.
        path: the file; None keeps the account in the run's state.
        state: of the run. It has the number of writes that this run last saw in the file.

    Guarantees:
        A step that was taken is refused for ever, which takes some 20 bytes per step. Processes
        that share the file take each step once, and count every answer.
        Whenever a process ends, the file has the content before a step or after it. Once the
        context of `locked` or `checked` has ended, it has the content after it, on the disk.
        Only this user can read the file. A file with any other content is refused, and so is a link
        to one, whose two names would have two locks. Not detected are a restored copy of an older
        account, unless this run has seen a newer one, and a file whose checksum was recomputed.
    """

    def __init__(
        self, accountant: RunAccountant, path: str | Path | None, state: State | None = None
    ) -> None:
        self._accountant = accountant
        self._unread: dict[str, Any] | None = None  # read from the file, not yet from its offers
        self._database = _open_database(path)
        self._connection: sqlite3.Connection | None = None
        self._state: State = {} if state is None else state
        self._taken: set[bytes] = set()
        self._new: list[bytes] = []
        self._written = 0

    @property
    def accountant(self) -> RunAccountant:
        """This client's answers so far.

        Raises:
            DamagedFile: the account is damaged, or has other clients.
        """
        # Read when first needed: most steps of a sum cost nothing, and reading certifies the
        # channels of all earlier offers again, which takes long.
        if self._unread is not None:
            with _readable():
                if not set(self._unread["clients"]) <= {str(THIS_CLIENT)}:
                    raise ValueError("it is of other clients")
                self._accountant.load_state_dict(self._unread)
            self._unread = None
        return self._accountant

    @property
    def steps(self) -> int:
        return len(self._taken)

    @contextlib.contextmanager
    def locked(self) -> Iterator[Self]:
        """Lock and read the account; other processes of this client wait.

        Raises:
            DamagedFile: the account is damaged, or older than this run has seen it.
            OSError: the file is a link, cannot be read, or another process holds it for too long.
        """
        if self._database is None:
            self._look()
            yield self
            return
        self._check_place()
        # A deleted file counts as older: a new one would begin at epsilon 0.
        if not files.exists(self._database.path):
            self._check_newest()
        self._database.create()
        try:
            with self._database.transaction() as self._connection:
                self._read(self._connection)
                yield self
        finally:
            self._connection = None
        # Only now that this version is on the disk: after a crash in between, a state ahead of the
        # file would refuse a good account.
        if self._written:
            self._state[ACCOUNT_RECORD] = {"written": self._written}

    @contextlib.contextmanager
    def checked(self, check: Callable[[RunAccountant], None]) -> Iterator[Self]:
        """Lock the account once it has passed a check, which may take long.

        Other processes of this client may use the account during the check; if they change it, the
        changed one is checked again.

        Raises:
            BlockingIOError: other processes keep changing it.
            Exception: that of `check`, or of `locked`.
        """
        # An optimistic lock: to hold the file while an epsilon is computed would stop all others.
        for _ in range(MAX_CHECKS):
            self._look()
            before = self._unread
            check(self.accountant)
            with self.locked():
                # Only this content has passed the check: a changed one may be beyond the limit.
                if self._unread == before:
                    self._unread = None  # `check` has loaded it into the accountant
                    yield self
                    return
        raise BlockingIOError(
            f"Expected a client's account to be left alone during a check, but other processes of "
            f"this client changed it {MAX_CHECKS} times: send it fewer requests at once."
        )

    def take(self, session: bytes, step: str) -> None:
        """Record a step of a session; ProtocolError if it was taken before."""
        # Hashed, so that steps have one length, whatever session a server sends.
        name = hashlib.sha256(repr((session, step)).encode()).digest()[:STEP_BYTES]
        if name in self._taken:
            raise ProtocolError(f"Expected each step of a round once, got {step!r} again.")
        self._taken.add(name)
        self._new.append(name)

    def save(self) -> None:
        """Write the account; it is on the disk when the context ends, before anything is sent."""
        if self._database is not None and self._connection is None:
            raise RuntimeError("Expected an account to be saved while it is held.")
        self._written += 1
        # Unread means unchanged: it is written as it was, without certifying its offers.
        account = self._unread
        if account is None:
            account = self._accountant.state_dict()
        record = {"written": self._written, "account": account}
        content = files.seal(record, _digest(self._taken))
        if self._connection is None:
            steps = [step.hex() for step in sorted(self._taken)]
            self._state[ACCOUNT_RECORD] = {
                "account": json.dumps({**content, "steps": steps}).encode()
            }
        else:
            self._connection.execute("REPLACE INTO account VALUES (0, ?)", [json.dumps(content)])
            rows = ([step] for step in self._new)
            self._connection.executemany("INSERT INTO steps VALUES (?)", rows)
        self._new = []

    def look(self) -> RunAccountant:
        """Read this client's answers so far without a lock: no other process waits.

        Raises:
            DamagedFile, OSError: as `locked`.
        """
        self._look()
        return self.accountant

    def _look(self) -> None:
        self._check_place()
        if self._database is None:
            if (kept := self._state.get(ACCOUNT_RECORD, {}).get("account")) is not None:
                with _readable():
                    content = json.loads(kept)
                    steps = list(map(bytes.fromhex, content.pop("steps")))
                    self._load(json.dumps(content), steps)
        elif files.exists(self._database.path):
            with self._database.reading() as database:
                self._read(database)
        else:
            self._check_newest()

    def _read(self, database: sqlite3.Connection) -> None:
        self._taken, self._new, self._written = set(), [], 0
        rows = database.execute("SELECT only, content FROM account").fetchall()
        steps = [step for (step,) in database.execute("SELECT step FROM steps")]
        with _readable():
            # A file that was just created has neither; steps without an account are damage.
            if rows or steps:
                [(only, content)] = rows
                if only != 0:
                    raise ValueError("it is another row")
                self._load(content, steps)
        self._check_newest()

    def _check_newest(self) -> None:
        # A restored copy of an older file is detected only if this run has seen a newer one.
        with _readable():
            is_older = self._written < self._state.get(ACCOUNT_RECORD, {}).get("written", 0)
        if is_older:
            # The counts are in the log alone: `refusal_reason` does not send this sentence.
            raise DamagedFile(
                f"Expected this client's newest account, got an older one: {self._written} writes."
            )

    def _check_place(self) -> None:
        # An account in another place would begin at epsilon 0 in the middle of a run.
        other = "written" if self._database is None else "account"
        if other in self._state.get(ACCOUNT_RECORD, {}):
            raise DamagedFile(
                "Expected this client's account where this run has begun it, got "
                f"{'no file' if self._database is None else 'a file'}: change randquant-ledger "
                "between two runs."
            )

    def _load(self, content: str, steps: list[bytes]) -> None:
        distinct = set(steps)
        if len(distinct) < len(steps) or any(len(step) != STEP_BYTES for step in distinct):
            raise ValueError(
                f"one of its {len(steps)} steps comes twice, or is not {STEP_BYTES} bytes"
            )
        record, _ = files.unseal(content, _digest(distinct))
        self._written = validate.whole("written", record["written"], low=1)
        self._unread, self._taken, self._new = record["account"], distinct, []


def _open_database(path: str | Path | None) -> Database | None:
    if path is None:
        return None
    return Database(Path(path), TABLES, LEDGER_VERSION, "a client's account")


def _digest(steps: set[bytes]) -> str:
    # The account's checksum covers this digest, so that no row can be lost unnoticed: its step
    # could be taken again. Sorted, since a set has no order.
    return hashlib.sha256(b"".join(sorted(steps))).hexdigest()


@contextlib.contextmanager
def _readable() -> Iterator[None]:
    # Turns every error that damaged content can cause in the parsers into one that says so.
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        reason = str(error).rstrip(".")
        raise DamagedFile(f"Expected this client's account, but: {reason}.") from error
