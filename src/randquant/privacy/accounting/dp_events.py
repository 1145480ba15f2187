"""Events of dp-accounting as releases, which `account` composes with those of this package."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from randquant._internal import validate
from randquant._internal.extras import needed
from randquant.privacy.accounting.release import Release, ReleaseDefaults
from randquant.privacy.divergence import UNIT
from randquant.privacy.guarantee import NEIGHBORINGS, Neighboring, Trust

with needed("accounting by dp-accounting", "accounting"):
    import attr
    import dp_accounting
    from dp_accounting import dp_event
    from dp_accounting.rdp import RdpAccountant

_RELATIONS = {
    "replace_one": dp_accounting.NeighboringRelation.REPLACE_ONE,
    "zero_out": dp_accounting.NeighboringRelation.REPLACE_SPECIAL,
}


def event_release(
    event: dp_event.DpEvent,
    neighboring: Neighboring = "replace_one",
    trust: Trust = "local",
    orders: Sequence[float] | None = None,
) -> Release:
    """Return the release of what a DpEvent describes, by its Rényi divergences.

    Args:
        event: any event that dp-accounting's RdpAccountant supports; repeated and composed events
            are one release.
        neighboring: the neighbouring relation: `replace_one` (dp-accounting's REPLACE_ONE) or
            `zero_out` (REPLACE_SPECIAL).
        trust: whom the event's mechanism hides the data from; events do not state it.
        orders: the Rényi orders at which dp-accounting bounds it; by default its own.

    Guarantees:
        Under `replace_one` the noise of a Gaussian or Laplace event counts half: dp-accounting's
        definition bounds the norm of one record, and replacing it moves a sum by up to twice as
        much. The figures at `orders` are dp-accounting's, not rounded outward.

    Raises:
        UnsupportedEventError: dp-accounting does not account for such an event.
        ValueError: neighboring or trust is unknown.

    Example:
        >>> import randquant as rq
        >>> release = rq.GaussianRelease(2.0, dimension=10, rounds=5)
        >>> other = event_release(dp_accounting.ZCDpEvent(rho=0.01), trust="central")
        >>> print(rq.account([release, other], delta=1e-5))
        epsilon <= 5.42749 at delta = 1e-05 (replace_one, central trust)
    """
    validate.choice("neighboring", neighboring, NEIGHBORINGS)
    validate.choice("trust", trust, ("local", "aggregate", "central"))
    accountant = RdpAccountant(orders, _RELATIONS[neighboring])
    accountant.compose(_halved(event) if neighboring == "replace_one" else event)
    return _Foreign(accountant._orders, accountant._rdp, neighboring, trust)


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


def _halved(event: dp_event.DpEvent) -> dp_event.DpEvent:
    """The event for neighbours that replace a record instead of adding or removing one."""
    changes = {}
    for field in attr.fields(type(event)):
        value = getattr(event, field.name)
        if field.name == "noise_multiplier":
            changes[field.name] = value / 2
        elif field.name == "event":
            changes[field.name] = _halved(value)
        elif field.name == "events":
            changes[field.name] = [_halved(part) for part in value]
    return attr.evolve(event, **changes)
