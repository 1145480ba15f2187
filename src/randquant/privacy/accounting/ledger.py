"""A client's guarantee by its rounds; the account of a training loop of one's own."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Literal

from randquant._internal import validate
from randquant.privacy.accounting.accountant import account
from randquant.privacy.accounting.release_protocol import Release, Releasing, update_distance
from randquant.privacy.accounting.releases import GaussianRelease
from randquant.privacy.accounting.sampling import DRAWS, HiddenCohorts, Sampled, run_release
from randquant.privacy.divergence import UNIT
from randquant.privacy.guarantee import NEIGHBORINGS, UNITS, Guarantee, Neighboring, Unit


class Ledger:
    """The guarantee of a client by the number of rounds it took part in.

    With hidden cohorts nobody sees that number, and the guarantee is by the rounds of the run.

    Args:
        mechanism: the mechanism of every update.
        dimension: coordinates of an update.
        delta: of every guarantee, in [0, 1).
        neighboring: the neighbouring relation.
        limit: an epsilon not to exceed, if any; above it `epsilon` is as tight as `guarantee`.
        examples: for example-level privacy, the fewest clipped examples that an update is the mean
            of; None for client-level privacy.
        cohorts: how clients take part, if nobody sees which of them do; None if it is seen.
        simulated: whether the run draws its noise from a seed, which its guarantees say.
        spent: what the same people have spent before. All figures are totals with it, at `delta`,
            and `limit` is a total's.

    Raises:
        ValueError: delta is out of range, the mechanism does not work in that dimension or at
            example level, or cohorts cannot be hidden with it; or `spent` leaves nothing, or
            protects something else, or against somebody else.

    References:
        Dwork et al. 2006 (Our data, ourselves), Theorem 1, on what was spent before.

    Example:
        >>> from randquant.aggregation.registry import update_mechanism
        >>> mechanism = update_mechanism("local-gaussian", {"clip_norm": 1, "noise_multiplier": 18})
        >>> ledger = Ledger(mechanism, 100, delta=1e-5)
        >>> [round(ledger.epsilon(rounds), 3) for rounds in (0, 1, 10)]
        [0.0, 0.382, 1.347]
    """

    def __init__(
        self,
        mechanism: Releasing,
        dimension: int,
        *,
        delta: float,
        neighboring: Neighboring = "replace_one",
        limit: float | None = None,
        examples: int | None = None,
        cohorts: HiddenCohorts | None = None,
        simulated: bool = False,
        spent: Guarantee | None = None,
    ) -> None:
        self._mechanism = mechanism
        self._dimension = dimension
        self._delta, self.spent = delta, spent
        self._limit = math.inf if limit is None else limit
        self._left = (self._limit, delta) if spent is None else spent.remaining(self._limit, delta)
        self._neighboring: Neighboring = neighboring
        self.examples = examples
        self._cohorts = cohorts
        self._simulated = simulated
        self._known: dict[int, float | None] = {}
        if self.epsilon(1) is None and spent is not None:
            raise ValueError(
                f"Expected a mechanism that protects with spent={spent}, got {mechanism!r}, "
                "which has no guarantee."
            )

    @property
    def hidden(self) -> bool:
        # Nobody sees who takes part, so the rounds are those of the run.
        return self._cohorts is not None

    def release(self, rounds: int, neighboring: Neighboring | None = None) -> Release | None:
        return run_release(
            self._mechanism, self._dimension, rounds, neighboring or self._neighboring,
            examples=self.examples, cohorts=self._cohorts,
        )  # fmt: skip

    def guarantee(self, rounds: int) -> Guarantee | None:
        """Account for this many rounds as tightly as can be proven; None without privacy."""
        release = self.release(rounds)
        if release is None:
            return None
        run = replace(account([release], self._left[1]), simulated=self._simulated)
        # theory/accounting.md, Proposition 9: the deltas add up to at most the whole one.
        return run if self.spent is None else replace(run + self.spent, delta=self._delta)

    def epsilon(self, rounds: int) -> float | None:
        """Bound epsilon from above, once for each number of rounds; None without privacy.

        It equals `guarantee`'s if quick accounting exceeds the limit, and is never below it: if it
        is within the limit, so is the epsilon of `guarantee`.
        """
        if rounds not in self._known:
            self._known[rounds] = self._bound(rounds)
        return self._known[rounds]

    def _bound(self, rounds: int) -> float | None:
        release = self.release(rounds)
        if release is None:
            return None
        # The quick bound is proven too, and never below the full one: where it keeps the limit, no
        # second is spent on digits that decide nothing.
        limit, delta = self._left
        quick = account([release], delta, quick=True)
        total = quick.epsilon if self.spent is None else (quick + self.spent).epsilon
        if quick.epsilon <= limit and self._cohorts is None:
            return total
        if self._cohorts is not None and 0 < rounds < self._cohorts.rounds:
            # What is seen of a run is seen of the whole run, which is accounted for once.
            whole = self.epsilon(self._cohorts.rounds)
            assert whole is not None
            if min(total, whole) <= self._limit:
                return min(total, whole)
        guarantee = self.guarantee(rounds)
        assert guarantee is not None
        return guarantee.epsilon


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
        # A count without noise tells as much as a sum without: the smaller of the two decides.
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
