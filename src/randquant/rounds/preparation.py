"""The step from an update to the encoded vector, the same on a device and in a simulation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from randquant.aggregation.alongside import Alongside
from randquant.aggregation.clipping import scale_to_norm, shorten

NO_NUMBERS: Mapping[str, float] = {}


@dataclass(frozen=True, slots=True)
class UpdatePreparation:
    """A client's work on an update before its mechanism clips and encodes it.

    The update is scaled, shortened, and joined with the numbers that are sent with it.

    Attributes:
        length: L2 norm that updates are scaled to, for a server's steps without a rate; None if
            they are not scaled.
        noise: squared length of the noise in the mean update, as a share of `length` squared; inf
            if it is not known.
        scalars: appends the numbers that are sent with an update; None if none are.

    Guarantees:
        It costs no privacy: a mechanism clips what it gets, and its guarantee holds for any vector
        (`docs/theory/untuned.md`, Propositions 1 and 2; `docs/theory/alongside.md`, Proposition 1).

    Example:
        >>> preparation = UpdatePreparation(length=1.0)
        >>> preparation.vector(np.float32([30, 40]), np.zeros(2, np.float32)).round(3)
        array([0.6, 0.8], dtype=float32)
    """

    length: float | None = None
    noise: float = 0.0
    scalars: Alongside | None = None

    @property
    def extra(self) -> int:
        return 0 if self.scalars is None else self.scalars.extra

    def vector(
        self,
        update: np.ndarray,
        weights: np.ndarray,
        relative_loss: float = 1.0,
        numbers: Mapping[str, float] = NO_NUMBERS,
    ) -> np.ndarray:
        """Return the vector to encode, (d + extra,) float32.

        Args:
            update: (d,) float32.
            weights: (d,) float32, at which the update was computed.
            relative_loss: the client's loss at these weights, as a share of the loss of a model
                that gives all classes the same probability; 1.0 if that is not known.
            numbers: the client's, by name; only those of `scalars` are sent.

        Raises:
            ValueError: the update is not finite, or a number is missing or NaN.
        """
        if self.length is not None:
            scaled = scale_to_norm(update, self.length)
            update = shorten(scaled, weights, relative_loss, self.noise)
        return update if self.scalars is None else self.scalars.joined(update, numbers)
