"""The words a privacy statement is made of: intervals, guarantees, neighbours, trust."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from randquant._internal import validate
from randquant._internal.formatting import round_up

Neighboring = Literal["replace_one", "zero_out"]
"""What an adversary tries to tell apart. `replace_one`: everything one client holds is exchanged
for anything else. `zero_out`: its every update is exchanged for zeros, which are encoded and sent
like any update; who took part is the same in both worlds."""

NEIGHBORINGS = ("replace_one", "zero_out")

Trust = Literal["local", "aggregate", "central", "model"]
"""Who sees what. `local`: the server sees each client's codes, and needs no trust.
`aggregate`: the server sees only the sum of a cohort's codes (secure aggregation).
`central`: the server sees raw updates and is trusted; only its output is protected.
`model`: the adversary sees the published models, and nothing else of the run: no client's message,
no sum, and not who takes part."""

MODEL_TERMS = (
    "it holds against those who see the published models and nothing else: not against anybody "
    "who sees a client's message, a sum or who takes part in a round, or is told (docs/sampling.md)"
)
"""When a guarantee under `model` trust may be claimed; printed wherever one is."""

SIMULATED = "simulation from a seed: protects nobody"
"""Note printed with a guarantee of a run whose noise everybody who knows its seed can undo."""

Unit = Literal["client", "example"]
"""What a guarantee protects: all data of one client, or one of its examples."""

UNITS = ("client", "example")

DEFAULT_DELTA = 1e-5
"""Delta of a run, plan, account or limit where none is given, in Python, on the command line and on
engines, whose runs of many clients take less (`rounds.run.default_delta`). With ten times as much,
to publish one of 10,000 clients at random would be private; a tenth of it takes more noise."""

DEFAULT_TABLE_DELTA = 1e-6
"""Delta of a table of statistics where none is given: less, since a table may be of more records
than a run has clients."""

LARGEST_COHORT = 10**6
"""Most clients in one sum: beyond, its curvature would take long to bound."""


CROSSING_TOLERANCE = 1e-9
"""Relative amount by which two ends that are computed separately may cross where both are exact:
millions of roundings of float64, and far less than any digit that is printed."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A real number known to lie in [lower, upper].

    Example:
        >>> Interval(1.0, 1.5).width
        0.5
    """

    lower: float
    upper: float

    def __post_init__(self) -> None:
        validate.convert_numbers(self)
        # Written so that NaN is refused too, which compares false with everything.
        if not self.lower <= self.upper:
            raise ValueError(f"Expected lower <= upper, got [{self.lower}, {self.upper}].")

    @property
    def width(self) -> float:
        # Two infinite ends differ by nothing; their difference would be NaN.
        return 0.0 if math.isinf(self.lower) else self.upper - self.lower


@dataclass(frozen=True, slots=True)
class Guarantee:
    """(epsilon, delta)-differential privacy of one client's whole participation.

    Attributes:
        epsilon: a proven upper bound, in nats; infinity when nothing is promised.
        delta: the probability with which the epsilon bound may fail; 0 for pure privacy.
        neighboring: what the adversary tries to tell apart.
        trust: who sees what.
        order: the Rényi order that gave the bound, or about which the privacy loss was composed;
            infinity for pure composition and for a single release.
        releases: how many single-coordinate releases of one client were composed.
        hidden: whether it rests on nobody seeing which rounds a client takes part in; see
            docs/sampling.md for when that may be claimed.
        unit: what is protected: all data of a `client`, or one `example` of a client.
        simulated: whether the run drew its noise from a seed. The guarantee is then that of the
            same run with secret keys: everybody who knows the seed can undo the noise.

    Raises:
        ValueError: epsilon is negative or delta not a probability, or one of them is not a number.
    """

    epsilon: float
    delta: float
    neighboring: Neighboring
    trust: Trust
    order: float
    releases: int
    hidden: bool = False
    unit: Unit = "client"
    simulated: bool = False

    def __post_init__(self) -> None:
        validate.convert_numbers(self)
        if not self.epsilon >= 0:
            raise ValueError(f"Expected epsilon >= 0, got epsilon={self.epsilon}.")
        if not 0 <= self.delta <= 1:
            raise ValueError(f"Expected 0 <= delta <= 1, got delta={self.delta}.")
        validate.flag("hidden", self.hidden)
        validate.flag("simulated", self.simulated)

    def __add__(self, other: Guarantee) -> Guarantee:
        """Return the guarantee of both together, one after the other: epsilons add, and deltas.

        `rq.account` of both releases is tighter, where they are at hand.

        Raises:
            ValueError: they protect something else, or against somebody else.

        References:
            Dwork et al. 2006 (Our data, ourselves), Theorem 1.

        Example:
            >>> one = Guarantee(1.0, 1e-6, "replace_one", "aggregate", math.inf, 3)
            >>> print(one + one)
            epsilon <= 2 at delta = 2e-06 (replace_one, aggregate trust)
        """
        if not isinstance(other, Guarantee):
            return NotImplemented
        for what in ("neighboring", "trust", "unit"):
            if getattr(self, what) != getattr(other, what):
                raise ValueError(
                    f"Expected guarantees of one {what} to add, got {getattr(self, what)} and "
                    f"{getattr(other, what)}: ask for both in one way."
                )
        # No single order gave the sum. It rests on all that either of the two rests on: hidden
        # cohorts of one are an assumption of the whole.
        return Guarantee(
            _sum_above(self.epsilon, other.epsilon), min(_sum_above(self.delta, other.delta), 1.0),
            self.neighboring, self.trust, math.inf, self.releases + other.releases,
            hidden=self.hidden or other.hidden, unit=self.unit,
            simulated=self.simulated or other.simulated,
        )  # fmt: skip

    def remaining(self, epsilon: float, delta: float) -> tuple[float, float]:
        """Return (epsilon, delta) that a target leaves after this guarantee, rounded down.

        Raises:
            ValueError: it leaves nothing.

        Example:
            >>> Guarantee(3.0, 0.0, "replace_one", "local", math.inf, 1).remaining(8.0, 1e-5)
            (5.0, 1e-05)
        """
        # A target of delta = 0 may be left whole by a pure guarantee; one above 0 must leave some,
        # or the rest could only be pure.
        if self.epsilon >= epsilon or self.delta >= delta > 0 or self.delta > delta:
            raise ValueError(
                f"Expected a target above what was spent, epsilon={self.epsilon} at delta="
                f"{self.delta}, got epsilon={epsilon} at delta={delta}: nothing is left; raise "
                f"{'epsilon' if self.epsilon >= epsilon else 'delta'} by what the rest may cost."
            )
        # Minus a sum that was rounded up is a difference rounded down. Subtracted from 0.0 rather
        # than negated, since nothing left should not read -0.0.
        return 0.0 - _sum_above(-epsilon, self.epsilon), 0.0 - _sum_above(-delta, self.delta)

    def __str__(self) -> str:
        about = self.neighboring if self.unit == "client" else f"{self.neighboring} {self.unit}"
        if math.isinf(self.epsilon):
            return f"no guarantee ({about}, {self.trust} trust)"
        return (
            f"epsilon <= {round_up(self.epsilon)} at delta = {self.delta} "
            f"({about}, {self.trust} trust{', hidden cohorts' * self.hidden})"
            + f"; {SIMULATED}"
            * self.simulated
        )


def _sum_above(one: float, other: float) -> float:
    total = one + other
    # Fractions compare exactly: a float sum, rounded to nearest, may be below the true one.
    if math.isinf(total) or Fraction(total) >= Fraction(one) + Fraction(other):
        return total
    return math.nextafter(total, math.inf)


def at_most(lower: float, upper: float) -> float:
    """Return a lower end that was computed separately from the upper one, capped by the upper one.

    Raises:
        ArithmeticError: it is larger by more than rounding, so one of the two is no bound.

    Example:
        >>> at_most(1.0 + 1e-15, 1.0)
        1.0
    """
    if not lower <= upper * (1 + CROSSING_TOLERANCE):
        raise ArithmeticError(f"Attained {lower}, above the bound {upper}: please report this.")
    return min(lower, upper)


def rounded_up(value: float) -> float:
    """Raise `value` above the exact result of a few products or sums of non-negative floats.

    Each float operation is off by at most 2**-53 of its result; eight of them are paid for.

    Example:
        >>> rounded_up(1.0) > 1.0
        True
    """
    return value * (1 + 8 * 2.0**-53)
