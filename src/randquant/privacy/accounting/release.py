"""What accounting asks of a release, with default answers."""

from __future__ import annotations

from typing import Protocol

from randquant._internal import validate
from randquant.channels.channel import Channel
from randquant.privacy.accounting.martingale import Steps
from randquant.privacy.accounting.privacy_loss import Worlds
from randquant.privacy.guarantee import LARGEST_COHORT, NEIGHBORINGS, Neighboring, Trust, Unit


class ReleaseDefaults(Protocol):
    """What accounting may ask of a release, and the answers where only the bound is known."""

    __slots__ = ()

    @property
    def unit(self) -> Unit:
        """What is protected: all data of a `client`, or one `example` of a client."""
        return "client"

    @property
    def coordinate_channel(self) -> Channel | None:
        """The channel of each of the `releases` coordinates, if each is clipped by itself.

        None if coordinates are bounded jointly, or do not go through one channel.
        """
        return None

    @property
    def gaussian_multiplier(self) -> float | None:
        """The noise multiplier of every round if the mechanism is Gaussian; else None."""
        return None

    @property
    def squared_mu(self) -> float | None:
        """Squared distance over variance of Gaussian noise that hides no more than all rounds.

        Each round is dominated by its share of that noise, for every set of outcomes and in both
        orders of the neighbours, so that rounds and releases add up. None if none is known.
        """
        return None

    @property
    def steps(self) -> Steps | None:
        """All rounds as many small steps of the likelihood ratio; None if they are not known."""
        return None

    @property
    def sampled(self) -> bool:
        """Whether the bound relies on the client taking part in each round at random."""
        return False

    @property
    def worlds(self) -> tuple[Worlds, int] | None:
        """What dominates a part of the run, if it is known, and how many such parts there are."""
        return None

    def zeroed(self) -> Release | None:
        """The same release for `zero_out` neighbours; None if it does not follow from this one."""
        return None

    def under(self, trust: Trust) -> Release:
        """The same release under another trust: `local` if the server sees what this client sends.

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
        """Upper bound, in nats, of the Rényi divergence of all rounds; order in (1, inf]."""
        ...


class Rounds(ReleaseDefaults):
    """So many coordinates in each of so many rounds: a base."""

    __slots__ = ()

    dimension: int
    rounds: int

    @property
    def releases(self) -> int:
        """Single-coordinate releases."""
        return self.dimension * self.rounds


class Releasing(Protocol):
    """The part of a whole-update mechanism that the accountant uses."""

    __slots__ = ()

    def release(
        self, dimension: int, rounds: int, neighboring: Neighboring = "replace_one"
    ) -> Release | None:
        """The release of so many rounds, for accounting; None if nothing is protected."""
        ...

    def example_release(
        self, dimension: int, rounds: int, neighboring: Neighboring, examples: int
    ) -> Release:
        """The same for neighbours that differ in one of a client's `examples` examples.

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
    """Refuse words that a release does not know."""
    validate.choice("trust", trust, trusts)
    validate.choice("neighboring", neighboring, NEIGHBORINGS)


def hiding(trust: Trust, cohort: int) -> int:
    """How many clients hide one of them under this trust: nobody else where it is seen alone."""
    validate.choice("trust", trust, ("local", "aggregate"))
    return 1 if trust == "local" else cohort


def check_cohort(cohort: int, trust: str) -> None:
    """Refuse cohorts out of bounds, and such that hide nobody."""
    validate.whole("cohort", cohort, low=1, high=LARGEST_COHORT)
    if trust == "local" and cohort != 1:
        raise ValueError(
            f"Expected cohort=1 under local trust, got {cohort}: other clients do not hide a "
            "client whose own codes the server sees."
        )
