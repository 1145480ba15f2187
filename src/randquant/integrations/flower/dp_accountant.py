"""The account of Flower's own DP strategies: its `PrivacyAccountant` protocol."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections import Counter
from typing import Any

from flwr.supercore.privacy_accounting import (
    GaussianPrivacyEvent,
    NeighboringRelation,
    PrivacyConfig,
    PrivacySpent,
    SamplingMethod,
)

from randquant._internal import validate
from randquant.privacy.accounting.ledger import Drawn, GaussianSteps
from randquant.privacy.accounting.sampling import sampling_rate
from randquant.privacy.guarantee import Guarantee

NAME = "randquant"
DRAWN: dict[SamplingMethod, Drawn] = {
    SamplingMethod.POISSON: "poisson",
    SamplingMethod.WITHOUT_REPLACEMENT: "fixed",
    SamplingMethod.NO_AMPLIFICATION: "seen",
}


class GaussianAccountant:
    """An upper bound of epsilon for Flower's DP strategies, as `accountant=` of these.

    Args:
        config: delta, population, relation and sampling, as for Flower's `RdpAccountant`.

    Guarantees:
        Noise is counted at the distance at which Flower's strategies add it, `noise_multiplier`
        times the clip norm of one client: a replaced client moves a sum by twice that. So does one
        that is removed where fewer than all clients are asked, since another is asked in its place
        (`docs/theory/sampling.md`, Proposition 1). Where all are asked, or by Poisson
        sampling, it counts as zeros.

    Example:
        >>> from flwr.supercore.privacy_accounting import *
        >>> relation, sampling = NeighboringRelation.ADD_OR_REMOVE_ONE, SamplingMethod.POISSON
        >>> accountant = GaussianAccountant(PrivacyConfig(1e-5, 1000, relation, sampling))
        >>> accountant.compose(GaussianPrivacyEvent(1.0, 10, 1000), count=1000)
        >>> print(accountant.guarantee(1e-5))
        epsilon <= 1.82893 at delta = 1e-05 (zero_out, central trust, hidden cohorts)
    """

    def __init__(self, config: PrivacyConfig) -> None:
        validate.kind("config", config, PrivacyConfig)
        self.config = config
        # Equal events are counted, so that a run of many equal rounds is accounted for as one
        # release.
        self._events: Counter[GaussianPrivacyEvent] = Counter()

    @property
    def num_releases(self) -> int:
        return self._events.total()

    def compose(self, event: GaussianPrivacyEvent, count: int = 1) -> None:
        """Add sums that are about to be released.

        Raises:
            ValueError: the event is of another population.
        """
        if event.population_size != self.config.population_size:
            raise ValueError(
                f"Expected an event of {self.config.population_size} clients, as configured, got "
                f"{event.population_size}."
            )
        self._events[event] += validate.whole("count", count, low=1)

    def guarantee(self, delta: float) -> Guarantee:
        """Return epsilon with all that it is for, at least for the configured relation."""
        adds = self.config.neighboring_relation is NeighboringRelation.ADD_OR_REMOVE_ONE
        drawn = DRAWN[self.config.sampling_method]
        everybody = all(event.sample_size == event.population_size for event in self._events)
        replaced = not adds or (drawn == "seen" and not everybody)
        steps = GaussianSteps("replace_one" if replaced else "zero_out", "client")
        for event, count in self._events.items():
            # Where no sampling may be counted on, the rate is 1, however few clients a round asks.
            sample = event.population_size if drawn == "seen" else event.sample_size
            rate = sampling_rate(sample, event.population_size)
            steps.step(event.noise_multiplier, drawn=drawn, rate=rate, times=count)
        return steps.guarantee(delta)

    def get_epsilon(self, delta: float) -> float:
        return self.guarantee(delta).epsilon

    def get_delta(self, epsilon: float) -> float:
        """Return delta, an upper bound, to a thousandth of itself; 1 where none is found."""
        epsilon = validate.real("epsilon", epsilon, low=0)
        # The upper end is one at which epsilon was computed, or 1, which always holds.
        low, high = math.log(sys.float_info.min), 0.0
        while high - low > 1e-3:
            # In logarithms: about twenty halvings reach any delta, each at the price of a whole
            # account.
            middle = (low + high) / 2
            exceeded = self.get_epsilon(math.exp(middle)) > epsilon
            low, high = (middle, high) if exceeded else (low, middle)
        return math.exp(high)

    def get_privacy_spent(self, delta: float | None = None) -> PrivacySpent:
        """Return epsilon at a delta, by default the configured one."""
        delta = self.config.target_delta if delta is None else delta
        return PrivacySpent(self.get_epsilon(delta), delta, self.num_releases, NAME)

    def would_exceed(
        self, event: GaussianPrivacyEvent, max_epsilon: float | None = None, count: int = 1
    ) -> bool:
        """Tell if further sums would exceed an epsilon, by default the configured one.

        Raises:
            ValueError: there is none.
        """
        limit = self.config.max_epsilon if max_epsilon is None else max_epsilon
        if limit is None:
            raise ValueError(f"Expected max_epsilon, in PrivacyConfig or here, got {limit}.")
        # On a copy: to ask what something would cost must not charge for it.
        after = GaussianAccountant(self.config)
        after._events.update(self._events)
        after.compose(event, count)
        return after.get_epsilon(self.config.target_delta) > validate.real("max_epsilon", limit)

    def state_dict(self) -> dict[str, object]:
        """Return what was composed, as JSON data."""
        events = [{**dataclasses.asdict(e), "count": n} for e, n in self._events.items()]
        return {"backend": NAME, "config": dataclasses.asdict(self.config), "events": events}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned.

        Raises:
            ValueError: it is of another accountant or configuration.
        """
        if {**state, "events": []} != GaussianAccountant(self.config).state_dict():
            shown = validate.shown(state)
            raise ValueError(f"Expected a state of an accountant of {self.config}, got {shown}.")
        # Into another accountant first: a state that fails halfway leaves this one as it was.
        restored = GaussianAccountant(self.config)
        for event in state["events"]:
            fields = dict(event)
            restored.compose(count=fields.pop("count"), event=GaussianPrivacyEvent(**fields))
        self._events = restored._events
