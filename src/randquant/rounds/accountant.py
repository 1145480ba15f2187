"""What a run has cost its clients so far: survives restarts, with Flower's method names."""

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
from randquant._internal.rounding import round_up
from randquant.privacy.guarantee import NEIGHBORINGS, Guarantee, Neighboring, Trust

if TYPE_CHECKING:  # an account that nobody reads, in a message's own process, needs none of it
    from randquant.rounds.offer import Offer

SCHEMA = 2
SO_FAR = "for an end that was declared beforehand; for one chosen by looking, only a limit holds"
"""Said beside a figure of the rounds so far, which an engine does not declare to the account
(docs/theory/accounting.md, Proposition 8)."""
MOST = 2**53
"""Most rounds that can be accounted."""


Spent = frozenset[tuple["Offer", int]]
"""How often a client has answered each offer."""


@dataclass(frozen=True, slots=True)
class RoundEvent:
    """One round: these clients answer this offer."""

    offer: Offer
    clients: frozenset[int]


class RunAccountant:
    """Adds up each client's answers; the guarantee is that of the client with the largest epsilon.

    It has the methods of Flower's `PrivacyAccountant`, which only knows Gaussian noise, for the
    events of this package. No amplification by sampling is claimed: the server sees who answers.

    Args:
        delta: of every guarantee unless another is given, in (0, 1).
        neighboring: what the guarantee hides.
        max_epsilon: what `would_exceed` compares with unless another is given.
        stable: whether a client is certain to keep its number when it reconnects.

    Example:
        >>> import randquant as rq
        >>> from randquant.aggregation.vector import VectorMechanism
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
        for client in event.clients:
            self._spent.setdefault(client, Counter())[event.offer] += count
        self.num_releases += count

    def meet(self, connected: Iterable[int]) -> None:
        """Register the clients that are connected now.

        A new number may be a client that has reconnected, while its old number still seems to be
        connected. Unless numbers are `stable`, it is assumed to have answered as often as any other
        client. (Flower gives a SuperNode that reconnects a new number, unless SuperNodes are
        authenticated and the SuperLink keeps its database.)
        """
        worst: Counter[Offer] = Counter()
        if not self.stable:
            for spent in self._spent.values():
                worst |= spent  # the larger of the two counts
        for client in set(connected) - self._spent.keys():
            self._spent[client] = Counter(worst)

    def answers(self, client: int) -> int:
        """How many rounds a client has answered, or may have answered."""
        return self._spent.get(client, Counter()).total()

    def get_epsilon(self, delta: float, *, alone: bool = False) -> float:
        """Proven upper bound of the epsilon of every client, at this delta.

        Args:
            delta: in (0, 1).
            alone: as if the server saw each client's codes by themselves: what is left of the bound
                if nobody else in a sum is honest, because the server has invented all others.
        """
        delta = validate.real("delta", delta, above=0, below=1)
        return self._worst(self._spent.values(), delta, alone)

    def get_delta(self, epsilon: float) -> float:
        """The least delta, up to a factor of 1.01, at which `get_epsilon` is at most `epsilon`."""
        epsilon = validate.real("epsilon", epsilon, low=0)
        # Invariant: 10**high suffices, if any delta does; 10**low does not.
        low, high = -300.0, math.log10(0.999)
        if self.get_epsilon(10**high) > epsilon:
            return 1.0
        if self.get_epsilon(10**low) <= epsilon:
            return 10**low
        while high - low > math.log10(1.01):
            middle = (low + high) / 2
            low, high = (low, middle) if self.get_epsilon(10**middle) <= epsilon else (middle, high)
        return 10**high

    def get_privacy_spent(self, delta: float | None = None) -> Guarantee:
        """The guarantee of every client for the rounds so far, by all methods of accounting.

        It holds for an end that was declared beforehand (`SO_FAR`). `releases` is 0 before the
        first round.
        """
        delta = self.delta if delta is None else validate.real("delta", delta, above=0, below=1)
        trust = _trust(offer for spent in self._spent.values() for offer in spent)
        guarantees = [
            _guarantee(spent, delta, self.neighboring, trust, False)
            for spent in _distinct(self._spent.values())
        ]
        nothing = Guarantee(0.0, delta, self.neighboring, trust, math.inf, 0)
        return max(guarantees, key=lambda guarantee: guarantee.epsilon, default=nothing)

    def of_clients(self) -> Guarantee:
        """The guarantee of all data of a client, where offers are counted for one example."""
        whole = RunAccountant(self.delta, self.neighboring)
        for client, spent in self._spent.items():
            for offer, count in spent.items():
                whole.compose(RoundEvent(replace(offer, examples=None), frozenset({client})), count)
        return whole.get_privacy_spent()

    def told(self) -> str:
        """The bound and what it assumes, as it is logged; of an example, also that of a client."""
        if any(offer.examples is not None for spent in self._spent.values() for offer in spent):
            one, every = self.get_privacy_spent(), self.of_clients()
            assumed = f" {self.assumes()}" if self._others() else self.chosen()
            return f"one {one.unit}: {one}; all data of a client: {every}{assumed}"
        spent = self.get_epsilon(self.delta)
        bound = "no guarantee" if math.isinf(spent) else f"epsilon <= {round_up(spent)}"
        return f"{bound} at delta = {self.delta} {self.assumes()}"

    def assumes(self) -> str:
        """What `get_epsilon` assumes of other clients and offers, and what is left without them."""
        assumed = _assumed(others := self._others())
        if others:
            alone = self.get_epsilon(self.delta, alone=True)
            left = "no guarantee" if math.isinf(alone) else f"epsilon <= {round_up(alone)}"
            # This also bounds an adversary who sees the individual codes.
            on = f" and {self.counts_on}" if self.counts_on else ""
            otherwise = "it does, or all others are invented" if on else "all others are invented"
            assumed = f"{assumed}{on}, and {left} if {otherwise}"
        return assumed + self.chosen()

    def chosen(self) -> str:
        """What the figure assumes of a client's different offers; empty for one kind of release."""
        # theory/accounting.md, Proposition 9: with a choice by looking, only sums are proven.
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
        alone: bool = False,
    ) -> bool:
        """Whether the event would take a client above the limit; `alone` as in `get_epsilon`."""
        limit = validate.number(self.max_epsilon if max_epsilon is None else max_epsilon)
        if limit is None:
            raise ValueError("Expected max_epsilon, here or in the accountant, got None in both.")
        count = validate.whole("count", count, low=0)
        after = [
            self._spent.get(client, Counter()) + Counter({event.offer: count})
            for client in event.clients
        ]
        return not self._worst(after, self.delta, alone) <= limit  # NaN exceeds every limit

    def state_dict(self) -> dict[str, object]:
        """Everything counted so far, as JSON data with a checksum."""
        offers = list({offer: None for spent in self._spent.values() for offer in spent})
        place = {offer: str(n) for n, offer in enumerate(offers)}
        state = {
            "schema": SCHEMA,
            "delta": self.delta,
            "neighboring": self.neighboring,
            "num_releases": self.num_releases,
            "assumes": _assumed(self._others()),
            "offers": [offer.to_text() for offer in offers],
            "clients": {
                str(client): {place[offer]: count for offer, count in spent.items()}
                for client, spent in self._spent.items()
            },
        }
        return {**state, "checksum": _checksum(state)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Undo `state_dict`; ValueError unless undamaged and of the same delta and neighbours."""
        try:
            told = {name: part for name, part in state.items() if name != "checksum"}
            if state["checksum"] != _checksum(told):
                raise ValueError("it was damaged or changed")
            same = (state["schema"], state["delta"], state["neighboring"])
            if same != (SCHEMA, self.delta, self.neighboring):
                raise ValueError(f"it is of schema, delta and neighbours {same}")
            if len(set(state["offers"])) < len(state["offers"]):
                raise ValueError("it has an offer twice")
            from randquant.rounds.offer import Offer

            offers = {str(n): Offer.from_text(text) for n, text in enumerate(state["offers"])}
            spent = {
                _client(client): _counted(offers, counts)
                for client, counts in state["clients"].items()
            }
            releases = validate.whole("num_releases", state["num_releases"], low=0)
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            reason = str(error).rstrip(".")
            raise ValueError(f"Expected the state of this accountant, but: {reason}.") from error
        self._spent, self.num_releases = spent, releases

    def _others(self) -> int:
        """How many honest others in a sum the guarantee counts on."""
        offers = (offer for spent in self._spent.values() for offer in spent)
        return max((offer.mechanism.cohort for offer in offers), default=1) - 1

    def _worst(
        self, accounts: Collection[Counter[Offer]], delta: float, alone: bool = False
    ) -> float:
        epsilons = (
            _guarantee(
                spent, delta, self.neighboring, "local" if alone else _trust(o for o, _ in spent),
                True,
            ).epsilon
            for spent in _distinct(accounts)
        )  # fmt: skip
        return max(epsilons, default=0.0)


def _assumed(others: int) -> str:
    """The condition of a guarantee that counts on so many others."""
    if not others:
        return "whoever the other clients are"
    return f"if every sum has at least {others:,} honest other{'s' * (others > 1)}"


def _checksum(state: Mapping[str, Any]) -> str:
    """SHA-256 of a state: 64 hexadecimal characters."""
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def _client(text: str) -> int:
    """The number of a client, from its only valid spelling."""
    if str(int(text)) != text:
        raise ValueError(f"{text!r} is not a client's number")
    return int(text)


def _counted(offers: Mapping[str, Offer], counts: Mapping[str, Any]) -> Counter[Offer]:
    """How often each offer was answered."""
    spent: Counter[Offer] = Counter()
    for place, count in counts.items():
        spent[offers[place]] += validate.whole("count", count, low=1, high=MOST)
    return spent


def _distinct(accounts: Collection[Counter[Offer]]) -> set[Spent]:
    """The different accounts of some clients."""
    return {frozenset(spent.items()) for spent in accounts if spent}


def _trust(offers: Iterable[Offer]) -> Trust:
    """The trust that all offers need: `aggregate` if one of them does."""
    return "aggregate" if any(o.mechanism.trust == "aggregate" for o in offers) else "local"


@functools.lru_cache(maxsize=4096)
def _guarantee(
    spent: Spent, delta: float, neighboring: Neighboring, trust: Trust, quick: bool
) -> Guarantee:
    from randquant.privacy.accounting.accountant import account

    releases = [offer.release(count, neighboring, trust) for offer, count in spent]
    return account(releases, delta, quick=quick)
