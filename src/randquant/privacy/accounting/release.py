"""What accounting asks of a release: the protocol, and answers that most releases share."""

from __future__ import annotations

from typing import Protocol

from randquant.channels.channel import Channel
from randquant.privacy.guarantee import Neighboring, Trust


class Release(Protocol):
    """Something that one client's data was released through, possibly many times.

    A release of your own derives from `ReleaseDefaults`; it then only has to define what is above
    `renyi` and `renyi` itself.
    """

    @property
    def trust(self) -> Trust:
        """Against whom the bound holds."""
        ...

    @property
    def neighboring(self) -> Neighboring:
        """What the two worlds differ by."""
        ...

    @property
    def rounds(self) -> int:
        """How many rounds it is for."""
        ...

    @property
    def releases(self) -> int:
        """How many single-coordinate releases there are."""
        ...

    @property
    def distance(self) -> float:
        """Total variation distance, at most, between what is sent and what `renyi` bounds."""
        ...

    def renyi(self, order: float) -> float:
        """Upper bound, in nats, of the Rényi divergence of all of them; order in (1, inf]."""
        ...

    @property
    def coordinate_channel(self) -> Channel | None:
        """The channel that each of `releases` coordinates went through, each clipped by itself.

        None where coordinates are bounded together, or through something else.
        """
        ...

    @property
    def gaussian_multiplier(self) -> float | None:
        """The noise multiplier of every round, where it is Gaussian noise and nothing else."""
        ...

    @property
    def sampled(self) -> bool:
        """Whether the client takes part in each round by chance, and the bound counts on that."""
        ...

    def zeroed(self) -> Release | None:
        """The same for `zero_out` neighbours; None where it does not follow from this one."""
        ...

    def repeated(self, times: int) -> Release | None:
        """The same, so many times over; None where a release does not know its rounds."""
        ...

    def under(self, trust: Trust) -> Release:
        """The same, composed with releases of that trust, in which the server sees no more.

        Raises:
            ValueError: the bound does not hold there.
        """
        ...

    def of_one_example(self, examples: int) -> Release:
        """The same where neighbours differ in one of so many clipped examples.

        Raises:
            ValueError: what one example can change is not bounded.
        """
        ...


class Releasing(Protocol):
    """What the accountant asks of a mechanism for whole updates."""

    def release(
        self, dimension: int, rounds: int, neighboring: Neighboring = "replace_one"
    ) -> Release | None:
        """The record that accounting needs; None where nothing is protected."""
        ...


class ReleaseDefaults:
    """What a release answers of which nothing more is known than its bound."""

    __slots__ = ()

    @property
    def coordinate_channel(self) -> Channel | None:
        """None."""
        return None

    @property
    def gaussian_multiplier(self) -> float | None:
        """None."""
        return None

    @property
    def sampled(self) -> bool:
        """No: the client takes part in all rounds that it is for."""
        return False

    def zeroed(self) -> Release | None:
        """None: not known."""
        return None

    def repeated(self, times: int) -> Release | None:
        """None: not known."""
        return None

    def under(self, trust: Trust) -> Release:
        """Refused: the bound is not known to hold there."""
        raise ValueError(
            f"Expected a release of codes to compose under {trust} trust, got a "
            f"{type(self).__name__}: use the trust that it is for."
        )

    def of_one_example(self, examples: int) -> Release:
        """Refused: what one example can change is not bounded."""
        raise ValueError(
            "Expected a mechanism that clips an update's norm in L2, got "
            f"{type(self).__name__}: what one example can change is bounded in L2 only."
        )
