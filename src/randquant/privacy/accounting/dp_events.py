"""Releases of this package as dp-accounting events, and accountants that support them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from randquant._internal import validate
from randquant._internal.extras import needed
from randquant.channels.channel import Channel
from randquant.privacy.accounting.accountant import account
from randquant.privacy.accounting.composition.envelope import SLIP, dominating_pair
from randquant.privacy.accounting.release import Release, ReleaseDefaults
from randquant.privacy.accounting.sampled import Sampled
from randquant.privacy.divergence import UNIT, hockey_stick, log_ratio
from randquant.privacy.guarantee import NEIGHBORINGS, Guarantee, Neighboring, Trust

with needed("accounting by dp-accounting", "accounting"):
    import attr
    import dp_accounting
    from dp_accounting import dp_event
    from dp_accounting.pld import PLDAccountant, pld_pmf, privacy_loss_distribution
    from dp_accounting.rdp import RdpAccountant as TheirRdpAccountant

Refusal = dp_accounting.PrivacyAccountant.CompositionErrorDetails

LARGEST_GRID = 2**24
"""Most points of a composed privacy loss distribution: 128 MiB an array."""

LESS, DELTAS = 8.0, 10
"""How far below Rényi's a delta is looked for, on a logarithmic scale, and in how many steps."""

_RELATIONS = {
    "replace_one": dp_accounting.NeighboringRelation.REPLACE_ONE,
    "zero_out": dp_accounting.NeighboringRelation.REPLACE_SPECIAL,
}


@attr.s(frozen=True, slots=True, auto_attribs=True)
class ReleaseEvent(dp_event.DpEvent):
    """A release (`ChannelRelease`, `Sampled`, …) as a DpEvent of dp-accounting.

    Attributes:
        release: the release, coordinates and rounds included.

    Only the accountants below support it; others refuse it as unknown.

    Example:
        >>> import randquant as rq
        >>> event = ReleaseEvent(rq.GaussianRelease(2.0, dimension=10, rounds=5))
        >>> dp_accounting.rdp.RdpAccountant().supports(event)
        False
    """

    release: Release


class RdpAccountant(TheirRdpAccountant):
    """dp-accounting's accountant by Rényi divergences, with support for releases of this package.

    Args:
        orders: Rényi orders for other events; by default those of dp-accounting.
        neighboring: the neighbouring relation of all events: `replace_one` (dp-accounting's
            REPLACE_ONE) or `zero_out` (REPLACE_SPECIAL).
        trust: the trust under which the composed guarantee is to hold. Releases under another trust
            are refused; other events do not state a trust and are accepted.

    Releases compose by `account`; without other events epsilon is exactly that of `account`. It
    supports releases, all events that dp-accounting's own accountant supports, compositions of
    both, and a sampled release of one round (Poisson, or without replacement) if `Sampled` has a
    proof. All others raise UnsupportedEventError, as does repeating and selecting a release.

    Under `replace_one` the noise of a Gaussian or Laplace event counts half: dp-accounting's
    definition bounds the norm of one record, and replacing it moves a sum by up to twice as much.

    The figures of other events are dp-accounting's, not rounded outward.

    Example:
        >>> import randquant as rq
        >>> channel = rq.stochastic_rounding(clip=1.0, levels=2, margin=9.0)
        >>> release = rq.ChannelRelease(channel, dimension=50, rounds=4)
        >>> accountant = RdpAccountant()
        >>> _ = accountant.compose(ReleaseEvent(release))
        >>> accountant.get_epsilon(1e-5) == rq.account([release], 1e-5).epsilon
        True
        >>> _ = accountant.compose(dp_accounting.ZCDpEvent(rho=0.01), count=3)
        >>> bool(accountant.get_epsilon(1e-5) > rq.account([release], 1e-5).epsilon)
        True
    """

    def __init__(
        self,
        orders: Sequence[float] | None = None,
        neighboring: Neighboring = "replace_one",
        trust: Trust = "local",
    ) -> None:
        validate.choice("neighboring", neighboring, NEIGHBORINGS)
        validate.choice("trust", trust, ("local", "aggregate", "central"))
        super().__init__(orders, _RELATIONS[neighboring])
        self._neighboring: Neighboring = neighboring
        self._trust: Trust = trust
        self._releases: list[Release] = []

    def _maybe_compose(self, event, count, do_compose):
        if isinstance(event, ReleaseEvent):
            refusal = _refusal(event, self._neighboring, self._trust)
            if refusal is None and do_compose:
                repeated = event.release.repeated(count)
                assert repeated is not None  # checked by `_refusal`
                self._releases.append(repeated)
            return refusal
        if isinstance(event, dp_event.RepeatAndSelectDpEvent) and _mentions_release(event.event):
            return Refusal(event, "A release cannot be repeated and selected from: no proof.")
        inner = getattr(event, "event", None)
        sampled = (dp_event.PoissonSampledDpEvent, dp_event.SampledWithoutReplacementDpEvent)
        if isinstance(event, sampled) and isinstance(inner, ReleaseEvent):
            try:
                release = _sampled(event, inner.release)
            except (ValueError, TypeError) as error:
                return Refusal(event, str(error))
            return self._maybe_compose(ReleaseEvent(release), count, do_compose)
        if self._neighboring == "replace_one":
            event = _halved(event)
        return super()._maybe_compose(event, count, do_compose)

    def guarantee(self, delta: float) -> Guarantee:
        """Everything composed so far as one Guarantee; see `account`."""
        everything = [*self._releases]
        if self._rdp.any() or not everything:
            everything.append(_Foreign(self._orders, self._rdp, self._neighboring, self._trust))
        return account(everything, delta)

    def get_epsilon_and_optimal_order(self, target_delta: float) -> tuple[float, float]:
        """Return epsilon at a delta, and the order that gave it."""
        guarantee = self.guarantee(target_delta)
        return guarantee.epsilon, guarantee.order

    def get_epsilon(self, target_delta: float) -> float:
        """Return epsilon at a delta."""
        return self.guarantee(target_delta).epsilon

    @property
    def rdp(self) -> np.ndarray:
        """Rényi divergences of all events at `orders`."""
        own = [sum(release.renyi(order) for release in self._releases) for order in self._orders]
        return self._rdp + np.array(own)

    def get_delta_and_optimal_order(self, target_epsilon: float) -> tuple[float, float]:
        """Return a delta at an epsilon, and the order that gave it.

        The least of those tried at which `account` states that epsilon or less; never more than
        Rényi divergences give.
        """
        delta, order = self._delta_by_orders(target_epsilon)
        if not self._releases or delta == 0:
            return delta, order
        low, high = math.log(delta) - LESS, math.log(delta)
        for _ in range(DELTAS):
            middle = (low + high) / 2
            guarantee = self.guarantee(math.exp(middle))
            # Whatever the search tries, what it returns is stated by `account`.
            if guarantee.epsilon <= target_epsilon:
                high, delta, order = middle, math.exp(middle), guarantee.order
            else:
                low = middle
        return delta, order

    def _delta_by_orders(self, target_epsilon: float) -> tuple[float, float]:
        distance = math.fsum(release.distance for release in self._releases)
        theirs = TheirRdpAccountant(self._orders.tolist(), self._neighboring_relation)
        theirs._rdp = self.rdp * (1 + 8 * UNIT)
        delta, order = theirs.get_delta_and_optimal_order(target_epsilon)
        cost = distance * (1 + math.exp(min(target_epsilon, 700.0))) if distance else 0.0
        return min(1.0, delta + cost), order

    def get_delta(self, target_epsilon: float) -> float:
        """Return delta at an epsilon."""
        return self.get_delta_and_optimal_order(target_epsilon)[0]


class PldAccountant(PLDAccountant):
    """dp-accounting's accountant by privacy loss distributions, with support for two releases.

    Args:
        neighboring, trust: as in `RdpAccountant`.
        value_discretization_interval: step of the grid, in nats; losses are split between its
            points such that the result is pessimistic.

    It supports ChannelRelease, by a dominating pair for all pairs of inputs, and GaussianRelease,
    besides the events that dp-accounting's own accountant supports. A release that needs more than
    LARGEST_GRID points is refused: use RdpAccountant, or a larger step. The arithmetic is
    dp-accounting's, not rounded outward; use `account` for a bound that is proven to the last
    digit.

    Example:
        >>> import randquant as rq
        >>> channel = rq.stochastic_rounding(clip=1.0, levels=2, margin=9.0)
        >>> release = rq.ChannelRelease(channel, dimension=50, rounds=4)
        >>> accountant = PldAccountant().compose(ReleaseEvent(release))
        >>> bool(abs(accountant.get_epsilon(1e-5) / rq.account([release], 1e-5).epsilon - 1) < 1e-3)
        True
    """

    def __init__(
        self,
        neighboring: Neighboring = "replace_one",
        trust: Trust = "local",
        value_discretization_interval: float = 1e-4,
    ) -> None:
        validate.choice("neighboring", neighboring, NEIGHBORINGS)
        validate.choice("trust", trust, ("local", "aggregate", "central"))
        super().__init__(_RELATIONS[neighboring], value_discretization_interval)
        self._neighboring: Neighboring = neighboring
        self._trust: Trust = trust

    def _maybe_compose(self, event, count, do_compose):
        if not isinstance(event, ReleaseEvent):
            return super()._maybe_compose(event, count, do_compose)
        release, step = event.release, self._value_discretization_interval
        refusal = _refusal(event, self._neighboring, self._trust)
        if refusal is not None:
            return refusal
        multiplier, channel = release.gaussian_multiplier, release.coordinate_channel
        if multiplier is not None:
            if do_compose and count * release.rounds > 0:
                spread = multiplier / math.sqrt(count * release.rounds)
                # The multiplier is relative to the distance of neighbours: no factor of two.
                loss = privacy_loss_distribution.from_gaussian_mechanism(
                    spread, value_discretization_interval=step
                )
                self._pld = self._pld.compose(loss)
            return None
        if channel is None:
            kind = type(release).__name__
            return Refusal(event, f"A {kind} has no privacy loss distribution: use RdpAccountant.")
        points, deltas = _dots(channel, step)
        times = count * release.releases
        if min(times, 9 * math.sqrt(times)) * (points[-1] - points[0]) > LARGEST_GRID:
            return Refusal(event, "Too many points: use RdpAccountant or a larger interval.")
        if do_compose and times > 0:
            dots = pld_pmf.create_pmf_pessimistic_connect_dots(step, points, deltas)
            loss = privacy_loss_distribution.PrivacyLossDistribution(dots)
            self._pld = self._pld.compose(loss.self_compose(times))
        return None


@dataclasses.dataclass(frozen=True)
class _Foreign(ReleaseDefaults):
    """Other events as one release: their Rényi curve, interpolated between the known orders."""

    orders: np.ndarray
    divergences: np.ndarray
    neighboring: Neighboring
    trust: Trust
    rounds: int = 1
    releases: int = 1
    distance: float = 0.0

    def renyi(self, order: float) -> float:
        """(order - 1) times the divergence is convex: bounded by its chords, and 0 at order 1."""
        if not self.divergences.any():
            return 0.0
        if not 1 < order <= self.orders.max():
            return math.inf
        place = np.argsort(self.orders)
        place = place[self.orders[place] > 1]
        known = np.append(1.0, self.orders[place])
        moments = np.append(0.0, (known[1:] - 1) * self.divergences[place])
        with np.errstate(invalid="ignore"):
            value = float(np.interp(order, known, moments)) / (order - 1)
        return math.inf if math.isnan(value) else value * (1 + 16 * UNIT)


def _refusal(event: ReleaseEvent, neighboring: Neighboring, trust: Trust) -> Refusal | None:
    """The reason why a release does not compose with others here; None if it does."""
    release = event.release
    if release.neighboring != neighboring:
        reason = f"The release is for {release.neighboring} neighbours, not for {neighboring}."
    elif release.repeated(1) is None:
        reason = "The release does not state its number of rounds: use one of randquant's."
    elif release.trust != trust:
        reason = f"The release holds under {release.trust} trust, not under {trust}."
    else:
        return None
    return Refusal(event, reason)


def _sampled(event: dp_event.DpEvent, release: Release) -> Release:
    if isinstance(event, dp_event.PoissonSampledDpEvent):
        return Sampled(release, event.sampling_probability, rounds=1)
    assert isinstance(event, dp_event.SampledWithoutReplacementDpEvent)
    return Sampled.of_cohort(release, event.source_dataset_size, event.sample_size, rounds=1)


def _mentions_release(event: dp_event.DpEvent) -> bool:
    """Whether the event contains a release."""
    inside = [*getattr(event, "events", []), getattr(event, "event", None)]
    return isinstance(event, ReleaseEvent) or any(
        _mentions_release(part) for part in inside if part is not None
    )


def _halved(event: dp_event.DpEvent) -> dp_event.DpEvent:
    """The event for neighbours that replace a record instead of adding or removing one."""
    if isinstance(event, (dp_event.GaussianDpEvent, dp_event.LaplaceDpEvent)):
        return attr.evolve(event, noise_multiplier=event.noise_multiplier / 2)
    if isinstance(event, dp_event.SampledWithoutReplacementDpEvent):
        return attr.evolve(event, event=_halved_throughout(event.event))
    return event


def _halved_throughout(event: dp_event.DpEvent) -> dp_event.DpEvent:
    """`_halved` inside a sampled event, where the accountant does not decompose compositions."""
    if isinstance(event, dp_event.ComposedDpEvent):
        return attr.evolve(event, events=[_halved_throughout(part) for part in event.events])
    if isinstance(event, dp_event.SelfComposedDpEvent):
        return attr.evolve(event, event=_halved_throughout(event.event))
    return _halved(event)


def _dots(channel: Channel, step: float) -> tuple[np.ndarray, np.ndarray]:
    """Grid points around every loss of the dominating pair, and upper bounds of delta there."""
    p, q = dominating_pair(channel)
    losses = log_ratio(p, q) + SLIP
    losses = losses[np.isfinite(losses)] / step
    points = np.unique(np.concatenate([np.floor(losses), np.ceil(losses)])).astype(int)
    _, deltas = hockey_stick(p, q, channel.denominator, points * step - SLIP)
    return points, np.minimum.accumulate(deltas)
