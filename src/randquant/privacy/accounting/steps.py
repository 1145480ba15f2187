"""The account of a training loop that adds Gaussian noise to sums of clipped vectors."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Literal

from randquant._internal import validate
from randquant.privacy.accounting.accountant import account
from randquant.privacy.accounting.release import Release, update_distance
from randquant.privacy.accounting.releases import GaussianRelease
from randquant.privacy.accounting.sampling import DRAWS, Sampled
from randquant.privacy.divergence import UNIT
from randquant.privacy.guarantee import NEIGHBORINGS, UNITS, Guarantee, Neighboring, Unit

Drawn = Literal["poisson", "fixed", "seen"]
"""How a step's records are drawn: as in `sampling.Draw`; or `seen`: nothing is gained by it."""

MIN_NOISE = 1e-50
"""Below it, in clip norms, noise counts as none: its epsilon is no float."""


class GaussianSteps:
    """Steps of a loop, each a sum of clipped vectors with Gaussian noise, and what they cost.

    A record is what has one clipped vector in a sum: an example with its gradient, or a client with
    its update. Sums are divided by public numbers only, and noise is added by a trusted party.

    Args:
        neighboring: `zero_out`, where one record's vectors count as zeros: what others call add or
            remove, with a public number of records. `replace_one`, where it is another record.
        unit: what a record is, for the guarantee's text.

    Guarantees:
        The epsilon is an upper bound for real-valued noise, also where later steps depend on
        earlier ones. It covers ends that were declared, not ends chosen by looking at results
        (`docs/theory/accounting.md`, Proposition 8).

    Example:
        >>> steps = GaussianSteps("zero_out", "example")
        >>> steps.step(noise_multiplier=1.0, drawn="poisson", rate=0.01, times=1000)
        >>> round(steps.epsilon(delta=1e-5), 3)
        1.829
        >>> shuffled = GaussianSteps("zero_out", "example")  # ten passes through shuffled data
        >>> shuffled.step(noise_multiplier=1.0, times=10)
        >>> round(shuffled.epsilon(delta=1e-5), 3)
        17.857
    """

    def __init__(self, neighboring: Neighboring = "zero_out", unit: Unit = "example") -> None:
        validate.choice("neighboring", neighboring, NEIGHBORINGS)
        validate.choice("unit", unit, UNITS)
        self._neighboring: Neighboring = neighboring
        self._unit: Unit = unit
        self._times: Counter[tuple[float, float | None, Drawn, float]] = Counter()

    def step(
        self,
        noise_multiplier: float,
        *,
        drawn: Drawn = "seen",
        rate: float = 1.0,
        count_noise: float | None = None,
        times: int = 1,
    ) -> None:
        """Count a step; call it before the step's result is used.

        Args:
            noise_multiplier: standard deviation of the noise in the sum, over the clip norm, >= 0.
            drawn: `poisson`, where each record is in the sum independently with probability `rate`;
                `fixed`, where each set of a fixed size is equally likely, a share `rate` of all
                records. Both anew and secretly in each step. `seen` for everything else. A loader
                that goes through shuffled data has a record in one batch of a pass: count a
                `seen` step for each pass it begins, with its least noise, and none for batches.
            rate: see `drawn`; 1 for `seen`.
            count_noise: standard deviation of the noise in a count of the same records that is
                released with the sum, each counting 0 or 1, as adaptive clipping does; None for
                none.
            times: number of such steps.

        Raises:
            ValueError, TypeError: an argument is out of bounds or of the wrong kind.
        """
        noise_multiplier = validate.real("noise_multiplier", noise_multiplier, low=0, high=1e100)
        validate.choice("drawn", drawn, (*DRAWS, "seen"))
        rate = validate.real("rate", rate, above=0, high=1, why="it is a probability")
        if drawn == "seen" and rate < 1:
            raise ValueError(
                f"Expected drawn='poisson' or 'fixed' with rate={rate:g}, got 'seen': batches of "
                "shuffled data are not drawn anew; count one step for each pass, with rate=1."
            )
        if count_noise is not None:
            count_noise = validate.real("count_noise", count_noise, low=0, high=1e100)
        times = validate.whole("times", times, low=1)
        self._times[noise_multiplier, count_noise, drawn, rate] += times

    def epsilon(self, delta: float) -> float:
        """Bound epsilon from above, in nats; infinity where a step has no noise.

        Raises:
            ValueError: delta is out of range.
        """
        return self.guarantee(delta).epsilon

    def guarantee(self, delta: float) -> Guarantee:
        """Return the guarantee of all steps so far, for one record.

        Raises:
            ValueError: delta is out of range.
        """
        noiseless = any(
            min(noise, 1.0 if count is None else count) < MIN_NOISE
            for noise, count, *_ in self._times
        )
        if noiseless or not self._times:
            delta = validate.real("delta", delta, low=0, below=1)
            epsilon = math.inf if noiseless else 0.0
            return Guarantee(
                epsilon, delta, self._neighboring, "central", math.inf, 0, unit=self._unit
            )
        releases = [self._release(*key, times) for key, times in self._times.items()]
        return replace(account(releases, delta), unit=self._unit)

    def _release(
        self, noise: float, count: float | None, drawn: Drawn, rate: float, times: int
    ) -> Release:
        one = _one_step(noise, count, self._neighboring)
        if drawn == "seen":
            return replace(one, rounds=times)
        absent: GaussianRelease | None = None
        if (drawn == "fixed") == (self._neighboring == "zero_out"):
            # In place of an absent record another one is there (`fixed`), or zeros count.
            other: Neighboring = "replace_one" if drawn == "fixed" else "zero_out"
            absent = _one_step(noise, count, other)
        return Sampled(one, rate, times, drawn, absent=absent)


def _one_step(noise: float, count: float | None, neighboring: Neighboring) -> GaussianRelease:
    # theory/gaussian.md, Proposition 6: a sum and its count are one vector. A count moves
    # by 1 under either relation.
    apart = math.hypot(update_distance(1.0, neighboring) / noise, 0 if count is None else 1 / count)
    return GaussianRelease(1 / apart * (1 - 8 * UNIT), 1, 1, "central", neighboring)
