"""The account of a run: how often each client has answered which offer.

Its methods have the names of Flower's `PrivacyAccountant`.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from randquant._internal import validate
from randquant._internal.formatting import round_up
from randquant.privacy.guarantee import NEIGHBORINGS, Guarantee, Neighboring, Trust

if TYPE_CHECKING:  # most messages only load and save an account: their processes start faster
    from randquant.privacy.accounting.release import Release
    from randquant.rounds.offer import Offer

SCHEMA_VERSION = 2
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
        self.stable, self.counts_on = stable, counts_on
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
            "schema": SCHEMA_VERSION,
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
            if kind != (SCHEMA_VERSION, self.delta, self.neighboring):
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
