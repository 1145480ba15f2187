"""Fewer coordinates where the mean is short: how many is decided by the sums released so far.

Derivation: `docs/theory/subsets.md`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from randquant._internal import validate
from randquant.aggregation.defaults import MechanismDefaults
from randquant.aggregation.error import CoordinateError
from randquant.aggregation.mechanism import UpdateMechanism
from randquant.channels import wire
from randquant.channels.channel import Channel
from randquant.channels.keys import Key
from randquant.privacy.accounting.chosen import ChosenRelease
from randquant.privacy.accounting.release import Release
from randquant.privacy.guarantee import Neighboring, Trust

TOLERATED = 1.05
"""Error of what is sent, at most, over the least: an error that is 5 % larger costs about as much
accuracy as 5 % less epsilon."""

MEMORY = 5
"""Rounds that the length of the mean is estimated from."""

MOST_CHOICES = 16


@final
@dataclass(frozen=True, slots=True)
class AdaptiveMechanism(MechanismDefaults):
    """In each round one of several mechanisms, which send more or fewer coordinates.

    The server estimates the length of the mean from the means it has decoded, and takes the fewest
    bytes whose expected error is within TOLERATED of the least. In a run's first round the mean is
    assumed to be as long as it can be.

    Args:
        choices: mechanisms of one trust, cohort and clip_norm; at most MOST_CHOICES.
        chosen: which of them this round's is.

    Guarantees:
        The bound of `release` holds whatever is chosen from round to round, by whom and by what was
        released before: each round counts as the costliest choice (`docs/theory/subsets.md`).

    Raises:
        ValueError, TypeError: the choices do not go together, or there is none of that number.

    Example:
        >>> from randquant.aggregation.registry import update_mechanism
        >>> def sending(count, margin):  # as much less noise as is sent
        ...     bits = {"clip": 0.02, "levels": 2, "margin": margin}
        ...     options = {"trust": "aggregate", "cohort": 1000, "coordinates": count}
        ...     return update_mechanism("stochastic-rounding", bits, clip_norm=1.0, **options)
        >>> mechanism = AdaptiveMechanism((sending(None, 1.0), sending(32_768, 0.7071)))
        >>> [mechanism.adapted(squares, 60_000, 100_000).chosen for squares in ((), (1e-4,))]
        [0, 1]
    """

    choices: tuple[UpdateMechanism, ...]
    chosen: int = 0

    def __post_init__(self) -> None:
        choices = validate.listed("choices", self.choices)
        validate.whole("number of choices", len(choices), low=1, high=MOST_CHOICES)
        validate.whole("chosen", self.chosen, low=0, high=len(choices) - 1)
        object.__setattr__(self, "choices", tuple(choices))
        if len({(each.trust, each.cohort, each.clip_norm) for each in choices}) > 1:
            raise ValueError(
                "Expected choices of one trust, cohort and clip_norm, got several: the guarantee "
                "is one for all."
            )
        if self.clip_norm is None or self.trust not in ("local", "aggregate"):
            raise ValueError(
                "Expected choices that clip a whole update and protect what is sent, got others: "
                "only then is their error known, and a part of the coordinates enough."
            )

    @property
    def now(self) -> UpdateMechanism:
        """The chosen mechanism."""
        return self.choices[self.chosen]

    @property
    def trust(self) -> Trust | None:
        """That of all choices."""
        return self.choices[0].trust

    @property
    def cohort(self) -> int:
        """That of all choices."""
        return self.choices[0].cohort

    @property
    def clip_norm(self) -> float | None:
        """That of all choices."""
        return self.choices[0].clip_norm

    @property
    def channel(self) -> Channel | None:
        """The chosen mechanism's."""
        return self.now.channel

    @property
    def coding(self) -> wire.Coding | None:
        """The chosen mechanism's."""
        return self.now.coding

    def in_round(self, seed: int) -> AdaptiveMechanism:
        """With this seed in every choice."""
        return replace(self, choices=tuple(each.in_round(seed) for each in self.choices))

    def adapted(self, squares: Sequence[float], dimension: int, clients: int) -> AdaptiveMechanism:
        """With the choice of the fewest bytes whose expected error is near the least."""
        length = self.clip_norm
        assert length is not None
        if squares:
            # theory/subsets.md, Proposition 4; a mean of clipped updates is no longer than they.
            length = min(math.sqrt(max(math.fsum(squares) / len(squares), 0.0)), length)
        errors = [e.expected_error(dimension).deviation(clients, length) for e in self.choices]
        most = TOLERATED * min(errors)
        near = [place for place, error in enumerate(errors) if error <= most]
        sent = [each.upload_bytes(dimension, clients) for each in self.choices]
        return replace(self, chosen=min(near, key=sent.__getitem__))

    def noted(self, squares: Sequence[float], mean: np.ndarray, clients: int) -> tuple[float, ...]:
        """The squared lengths of the last MEMORY means, as estimated."""
        own = self.now.expected_error(mean.size).squared_length(mean, clients)
        return (*squares, own)[-MEMORY:]

    def release(
        self, dimension: int, rounds: int, neighboring: Neighboring = "replace_one"
    ) -> Release:
        """In each round whichever choice costs most."""
        # theory/subsets.md, Proposition 6.
        known = [each.release(dimension, 1, neighboring) for each in self.choices]
        return ChosenRelease(tuple(each for each in known if each is not None), rounds)

    def encode_vector(self, vector: np.ndarray, key: Key) -> bytes:
        """As the chosen mechanism does."""
        return self.now.encode(vector, key)

    def encode_many(self, updates: np.ndarray, keys: Sequence[Key]) -> list[bytes]:
        """As the chosen mechanism does."""
        return self.now.encode_many(updates, keys)

    def mean_vector(self, payloads: Sequence[bytes], dimension: int, key: Key | None) -> np.ndarray:
        """As the chosen mechanism does."""
        return self.now.mean_vector(payloads, dimension, key)

    def dimension_of(self, payload: bytes) -> int:
        """As the chosen mechanism does."""
        return self.now.dimension_of(payload)

    def log_equal(self, dimension: int) -> float:
        """The chosen mechanism's."""
        return self.now.log_equal(dimension)

    def payload_bytes(self, dimension: int) -> int:
        """The chosen mechanism's."""
        return self.now.payload_bytes(dimension)

    def upload_bytes(self, dimension: int, clients: int | None = None) -> int:
        """The chosen mechanism's."""
        return self.now.upload_bytes(dimension, clients)

    def sum_bits(self, dimension: int, clients: int) -> int:
        """The chosen mechanism's."""
        return self.now.sum_bits(dimension, clients)

    def size(self, dimension: int) -> int:
        """The chosen mechanism's."""
        return self.now.size(dimension)

    def decode(
        self, totals: np.ndarray, clients: int, dimension: int, bits: int | None = None
    ) -> np.ndarray:
        """As the chosen mechanism does."""
        return self.now.decode(totals, clients, dimension, bits)

    def influence(self, dimension: int, clients: int) -> float:
        """The chosen mechanism's."""
        return self.now.influence(dimension, clients)

    def decoded(self, x: np.ndarray, dimension: int) -> tuple[np.ndarray, np.ndarray]:
        """The chosen mechanism's."""
        return self.now.decoded(x, dimension)

    def expected_error(self, dimension: int) -> CoordinateError:
        """The chosen mechanism's."""
        return self.now.expected_error(dimension)

    def audit_inputs(self, neighboring: Neighboring = "replace_one") -> tuple[float, float]:
        """The chosen mechanism's."""
        return self.now.audit_inputs(neighboring)

    def record(self) -> dict[str, Any]:
        """The records of all choices, and which of them is chosen."""
        return {
            "mechanism": "adaptive",
            "choices": [each.record() for each in self.choices],
            "chosen": self.chosen,
        }
