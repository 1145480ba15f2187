"""What accounting asks of a release, with default answers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

from randquant._internal import validate
from randquant.channels.channel import Channel
from randquant.privacy.divergence import UNIT
from randquant.privacy.guarantee import LARGEST_COHORT, NEIGHBORINGS, Neighboring, Trust, Unit

if TYPE_CHECKING:  # a client on Flower checks `examples` here, in a process for each message
    from randquant.privacy.accounting.gaussian import RoundLoss
    from randquant.privacy.accounting.privacy_loss import DominatingPairs


class ReleaseDefaults(Protocol):
    """Properties that accounting reads of a release, with answers for one that has a bound only.

    Attributes:
        unit: the protected unit, all data of a `client`, or one `example` of a client.
        coordinate_channel: the channel of each of the `releases` coordinates, if each is clipped by
            itself; None if coordinates are bounded jointly, or do not go through one channel.
        gaussian_multiplier: standard deviation over sensitivity in every round, if the noise is
            Gaussian.
        squared_mu: squared distance over variance of Gaussian noise that dominates all rounds
            together; None if none is known. Each round is dominated by its share of that noise, for
            every set of outcomes and in both orders of the neighbours, so that rounds and releases
            add up.
        round_loss: bounds of all rounds' likelihood-ratio steps; None if they are not known.
        sampled: whether the bound relies on the client taking part in each round at random.
        dominating_pairs: dominating pairs of a part of the run, and the number of such parts; None
            if they are not known.

    `zeroed` returns the release for `zero_out` neighbours; None if it does not follow from this
    one.
    """

    __slots__ = ()

    @property
    def unit(self) -> Unit:
        return "client"

    @property
    def coordinate_channel(self) -> Channel | None:
        return None

    @property
    def gaussian_multiplier(self) -> float | None:
        return None

    @property
    def squared_mu(self) -> float | None:
        return None

    def squared_mu_except(self, spared: float) -> float | None:
        """Return squared_mu of noise that divergences of all rounds exceed by `spared` at most."""
        return self.squared_mu

    @property
    def round_loss(self) -> RoundLoss | None:
        return None

    @property
    def sampled(self) -> bool:
        return False

    @property
    def dominating_pairs(self) -> tuple[DominatingPairs, int] | None:
        return None

    def zeroed(self) -> Release | None:
        return None

    def under(self, trust: Trust) -> Release:
        """Return this release under another trust: `local` if the server sees this client's codes.

        Raises:
            ValueError: the bound does not hold, or is not known to hold, under that trust.
        """
        raise ValueError(
            f"Expected a release of codes to compose under {trust} trust, got a "
            f"{type(self).__name__}: use its own trust."
        )


class Release(ReleaseDefaults, Protocol):
    """The release of one client's data through a mechanism, over one or more rounds.

    A release of your own derives from `ReleaseDefaults`, and defines these.
    """

    @property
    def trust(self) -> Trust:
        """The trust under which the bound holds."""
        ...

    @property
    def neighboring(self) -> Neighboring:
        """The neighbouring relation."""
        ...

    @property
    def rounds(self) -> int:
        """Number of rounds that the bound covers."""
        ...

    @property
    def releases(self) -> int:
        """Number of single-coordinate releases."""
        ...

    @property
    def distance(self) -> float:
        """Largest total variation distance between what is sent and the law that `renyi` bounds."""
        ...

    def renyi(self, order: float) -> float:
        """Bound the Rényi divergence of all rounds from above, in nats; order in (1, inf]."""
        ...


class Rounds(ReleaseDefaults):
    """Base of releases of a number of coordinates in each of a number of rounds."""

    __slots__ = ()

    dimension: int
    rounds: int

    @property
    def releases(self) -> int:
        # Single coordinates, as `Release.releases` counts them.
        return self.dimension * self.rounds


class Releasing(Protocol):
    """The part of a whole-update mechanism that the accountant uses."""

    __slots__ = ()

    def release(
        self, dimension: int, rounds: int, neighboring: Neighboring = "replace_one"
    ) -> Release | None:
        """Return the release of this many rounds; None if nothing is protected."""
        ...

    def example_release(
        self, dimension: int, rounds: int, neighboring: Neighboring, examples: int
    ) -> Release:
        """Return the release for neighbours that differ in one example of a client.

        Callers use `sampling.run_release`, which refuses what is not derived.

        Args:
            dimension, rounds, neighboring: as for `release`.
            examples: fewest examples whose gradients, each clipped to clip_norm, an update is the
                mean of.

        Raises:
            ValueError: how far one example moves what is sent is not derived, as by default.
        """
        raise ValueError(
            "Expected a mechanism that clips the norm of each example's gradient in L2, got "
            f"{self!r}: no distance of updates that differ in one of {examples} examples is "
            "derived for it; protect clients, or take another mechanism."
        )


def check_release(name: str, release: object) -> None:
    """Raise TypeError, with the way to build one, unless it is a release."""
    if isinstance(release, Channel):
        raise TypeError(
            f"Expected {name} to be a release, got a Channel, which says nothing about how often "
            "it is used: build rq.ChannelRelease(channel, dimension=..., rounds=...), or use a "
            "mechanism's release(dimension, rounds)."
        )
    wanted = (
        "a release, such as rq.ChannelRelease(channel, dimension=..., rounds=...) or a mechanism's "
        "release(dimension, rounds)"
    )
    validate.answers(name, release, wanted, "trust", "neighboring", "releases", "renyi", "sampled",
        "unit",)  # fmt: skip


def check_size(dimension: int, rounds: int) -> None:
    """Refuse numbers of coordinates and rounds out of bounds."""
    validate.whole("dimension", dimension, low=1, high=2**53)
    validate.whole("rounds", rounds, low=0, high=2**53)


def check_words(trust: str, neighboring: str, trusts: tuple[str, ...]) -> None:
    """Refuse a trust or a neighbouring relation that a release does not know."""
    validate.choice("trust", trust, trusts)
    validate.choice("neighboring", neighboring, NEIGHBORINGS)


def hiding(trust: Trust, cohort: int) -> int:
    """Return the number of clients in the sum that hides one of them: 1 under local trust."""
    validate.choice("trust", trust, ("local", "aggregate"))
    return 1 if trust == "local" else cohort


def check_cohort(cohort: int, trust: str) -> None:
    """Refuse cohorts out of bounds, and more than one client under local trust."""
    validate.whole("cohort", cohort, low=1, high=LARGEST_COHORT)
    if trust == "local" and cohort != 1:
        raise ValueError(
            f"Expected cohort=1 under local trust, got {cohort}: other clients do not hide a "
            "client whose own codes the server sees."
        )


# How far apart what two neighbouring clients send can be: derived here and nowhere else.
#
# Neighbours differ in all data of a client, or in one of its examples. Code that accounts for a
# mechanism calls `sampling.run_release`, which refuses every combination without a derivation.

ROUNDING = 2.0**-20
"""Distance that rounding to float32 adds between two means of gradients, over clip_norm.

Each mean is rounded where it is computed and where it is clipped again, by 2**-24 of its norm each
time: 2**-21 is needed (theory/vector.md, Proposition 16), and less than as much again for the
second clip of a subset (theory/subsets.md, Proposition 5)."""


def update_distance(
    clip_norm: float,
    neighboring: Neighboring,
    *,
    examples: int | None = None,
    norm_sent: float | None = None,
) -> float:
    """Bound the L2 distance between what two neighbouring clients send, before any noise.

    Args:
        clip_norm: C, threshold of the norm of an update, or of each example's gradient.
        neighboring: updates or gradients that are replaced, or become zeros.
        examples: fewest examples whose clipped gradients an update is the mean of, if neighbours
            differ in one of them; None if they differ in the whole update.
        norm_sent: threshold of the part of a rotated update that is sent; None if all is sent.

    Example:
        >>> update_distance(1.0, "replace_one"), update_distance(1.0, "zero_out", norm_sent=0.5)
        (2.0, 0.5)
        >>> round(update_distance(1.0, "replace_one", examples=50, norm_sent=0.125), 4)
        0.04
        >>> round(update_distance(1.0, "zero_out", examples=5, norm_sent=0.125), 4)
        0.2
    """
    # Two vectors within a ball are at most a diameter apart, a vector and zero half of that.
    radii = 2 if neighboring == "replace_one" else 1
    reach = clip_norm if norm_sent is None else norm_sent
    if examples is None:
        return radii * reach
    # theory/subsets.md, Proposition 5: the whole of a gradient may lie in the part that is sent, so
    # that an example's share is one of clip_norm, not of norm_sent. A mean in which one gradient is
    # zero is not zero itself: also then the two may lie on opposite sides of the ball.
    return min(2 * reach, radii * clip_norm * (1 / examples + ROUNDING))


def squared_distance_on_grid(steps: float, size: int, most: int) -> int:
    """Bound the squared L2 distance of two vectors once they are rounded at random to integers.

    Args:
        steps: their distance before that, in steps of the grid.
        size: coordinates, of which rounding moves each by less than a step.
        most: the largest squared distance of any two rounded updates.

    Example:
        >>> squared_distance_on_grid(3.0, 4, 1000), squared_distance_on_grid(3.0, 4, 10)
        (50, 10)
    """
    # theory/additive.md, Proposition 9; some roundings of floats.
    return min(math.ceil((steps + 2 * math.sqrt(size)) ** 2 * (1 + 64 * UNIT)), most)


def check_examples(examples: int) -> int:
    return validate.whole("examples", examples, low=1, high=10**9)
