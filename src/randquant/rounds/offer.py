"""A server's offer to its clients: mechanism and preparation of updates, sent as text."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from randquant._internal import validate
from randquant._internal.formatting import to_json
from randquant.aggregation.auxiliary_numbers import AuxiliaryNumbers, Number
from randquant.aggregation.clipping import scale_to_norm, shorten
from randquant.aggregation.layout import BUFFER_MODES, Buffers
from randquant.aggregation.mechanism import UpdateMechanism
from randquant.aggregation.registry import all_mechanisms, from_record
from randquant.mechanisms.registry import parameters_of_0_1_0
from randquant.privacy.accounting.release_protocol import Release
from randquant.privacy.accounting.sampling import run_release
from randquant.privacy.guarantee import Neighboring, Trust
from randquant.rounds.parameter_free import squared_noise
from randquant.rounds.protocol import MAX_TEXT_CHARACTERS

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
    scalars: AuxiliaryNumbers | None = None

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
        return update if self.scalars is None else self.scalars.join(update, numbers)


FORMAT = "randquant offer, version 1"


@dataclass(frozen=True, slots=True)
class Offer:
    """A mechanism that a server asks its clients to use, for updates of one model.

    It contains no secret.

    Args:
        mechanism: protects the updates, by codes, under its trust and cohort.
        dimension: coordinates of the encoded vector: the update and the numbers sent with it.
        parts: names of the arrays that are trained, encoded and counted, in the model's order;
            empty for all of floating-point numbers other than running statistics.
        buffers: treatment of running statistics, which are never sent: the model has none
            (`refuse`), clients leave them unchanged (`frozen`), or the server has its own
            (`server`).
        scalars: encodes the numbers that a client sends in the vector of its update; None if it
            sends none.
        examples: the number by which clients divide their sums of gradients that are clipped one by
            one, if the account protects one example (patient); None to protect a client.
        scaled: True if a client scales even a shorter update up to clip_norm, for a server whose
            steps need no rate.

    Raises:
        TypeError, ValueError: an argument is of the wrong kind or out of bounds.

    Example:
        >>> import randquant as rq
        >>> from randquant.aggregation.channel_mechanisms import VectorMechanism
        >>> channel = rq.stochastic_rounding(clip=0.5, levels=2, margin=0.5)
        >>> offer = Offer(VectorMechanism(channel, clip_norm=1.0), 650)
        >>> offer.size, Offer.from_text(offer.to_text()) == offer
        (1024, True)
    """

    mechanism: UpdateMechanism
    dimension: int
    parts: tuple[str, ...] = ()
    buffers: Buffers = "refuse"
    scalars: AuxiliaryNumbers | None = None
    examples: int | None = None
    scaled: bool = False
    _text: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        validate.convert_numbers(self)
        if not _deployable(self.mechanism):
            raise TypeError(
                f"Expected a mechanism that sends codes, got {self.mechanism!r}: baselines are for "
                "simulation."
            )
        validate.whole("dimension", self.dimension, low=1, high=2**40)
        validate.kind("parts", self.parts, tuple)
        for name in self.parts:
            if not isinstance(name, str):
                raise TypeError(f"Expected parts by their names, got {validate.shown(name)}.")
        if len(set(self.parts)) < len(self.parts):
            raise ValueError(
                f"Expected each part once, got {len(self.parts)} names of {len(set(self.parts))} "
                "parts."
            )
        validate.choice("buffers", self.buffers, BUFFER_MODES)
        if self.scalars is not None:
            validate.whole("dimension", self.update_dimension, low=1)
            if self.scalars.clip_norm != self.mechanism.clip_norm:
                raise ValueError(
                    f"Expected numbers in the mechanism's clip_norm {self.mechanism.clip_norm}, "
                    f"got {self.scalars.clip_norm}."
                )
        # Both calls are for their ValueErrors: an offer that exists can be sent and accounted. A
        # rotation has an upper limit, and not every mechanism has a bound for one example.
        self.mechanism.size(self.dimension)
        if self.examples is not None:
            self.release(1, "replace_one", self.mechanism.trust or "local")
        validate.kind("scaled", self.scaled, bool)
        if self.scaled and (self.mechanism.clip_norm is None or self.examples):
            raise ValueError(
                "Expected updates scaled to clip_norm, of clients as a whole, got single examples "
                "or no clip_norm: take a server's step with a rate, such as FedAvg()."
            )
        # Once, with the offer: certifying a channel may take seconds.
        object.__setattr__(self, "_text", self._to_json(self.mechanism.record()))

    @property
    def largest(self) -> int:
        """The largest code that a client can send."""
        # The seed of a round chooses coordinates, and changes no code: any seed will do.
        coding = self.mechanism.in_round(0).coding
        assert coding is not None
        return coding.levels - 1

    @property
    def plain_bytes(self) -> int:
        # Of an update's codes without masks. As in `largest`, any seed will do.
        return self.mechanism.in_round(0).payload_bytes(self.dimension)

    @property
    def update_dimension(self) -> int:
        return self.dimension - (0 if self.scalars is None else self.scalars.extra)

    @property
    def size(self) -> int:
        # In codes: a rotation pads an update, and a subset of its coordinates has fewer.
        return self.mechanism.size(self.dimension)

    @property
    def needs_seed(self) -> bool:
        # Of each round. Mechanisms that use none are equal under any two seeds.
        return self.mechanism.in_round(0) != self.mechanism.in_round(1)

    @property
    def preparation(self) -> UpdatePreparation:
        """A client's scaling and joining of an update before it encodes it."""
        mechanism, length, noise = self.mechanism, None, 0.0
        if self.scaled and (length := mechanism.clip_norm) is not None:
            # The noise with the fewest clients: for more there is only the server's word. A
            # helper's noise does not depend on them; the offer says for how many it is made.
            parties: Any = mechanism
            clients = parties.clients if parties.helper_noise else mechanism.cohort
            noise = squared_noise(mechanism, self.dimension, clients, length)
        return UpdatePreparation(length, noise, self.scalars)

    @property
    def helper_variance(self) -> float:
        """Variance of the noise that the helper of a secure sum must add to each coordinate, in
        squared steps of the codes; 0 if clients add their own."""
        # A mechanism of one's own that says it has `helper_noise` must have `party_variance`, too.
        mechanism: Any = self.mechanism
        return mechanism.party_variance(self.dimension) if mechanism.helper_noise else 0.0

    @property
    def sends_remainders(self) -> bool:
        # Then the guarantee is for sums of one modulus only (theory/additive.md, Proposition 10).
        return self.mechanism.channel is None

    def sum_bits(self, clients: int) -> int:
        # Of the smallest modulus with which a sum over these clients does not wrap around.
        return self.mechanism.sum_bits(self.dimension, clients)

    def release(self, rounds: int, neighboring: Neighboring, trust: Trust) -> Release:
        """Return the release of `rounds` answers for an account under `trust`.

        An offer of local trust is always composed as a sum of one client, since the server sees
        each client's codes. Under `local` trust an offer for a sum is composed in the same way.
        """
        release = run_release(
            self.mechanism, self.dimension, rounds, neighboring,
            examples=self.examples, numbers=self.scalars is not None,
        )  # fmt: skip
        if release is None:
            raise ValueError(f"Expected a mechanism with a guarantee, got {self.mechanism!r}.")
        return release.under(trust)

    def for_unit(self, examples: int | None) -> Offer:
        """Return the same offer, accounted for one of a client's examples, or for all its data.

        A sum of clipped gradients must not be scaled up: each example would count for more.

        Args:
            examples: as in `ClientLimits`.

        Raises:
            ValueError: there is no bound for one example.
        """
        if self.examples == examples:
            return self
        return replace(self, examples=examples, scaled=self.scaled and examples is None)

    def to_text(self) -> str:
        """Return the offer as JSON, with the certificate of its channel.

        Equal offers have equal texts: helpers and stores know an offer by its text's digest.
        """
        return self._text

    def _to_json(self, mechanism: Mapping[str, Any]) -> str:
        size = {"format": FORMAT, "dimension": self.dimension, "examples": self.examples}
        trained = {"parts": self.parts, "buffers": self.buffers, "scaled": self.scaled}
        numbers = {} if self.scalars is None else {"beside": _scalars_record(self.scalars)}
        fields = {**mechanism, **size, **trained, **numbers}
        # Sorted, so that the text does not depend on the order in which fields were filled in.
        return json.dumps(to_json(fields), sort_keys=True)

    @staticmethod
    @functools.lru_cache(maxsize=8)  # every message and every account of a sum has the same text
    def from_text(text: str) -> Offer:
        """Undo `to_text`, and certify the channel again.

        Raises:
            ValueError: the text, which may be a stranger's, is not an offer, or its channel's
                certificate is not the stated one or would take too long.
        """
        try:
            return _read(text)
        except (ArithmeticError, AttributeError, KeyError, MemoryError, TypeError, ValueError,
                RecursionError) as error:  # fmt: skip
            reason = str(error).rstrip(".")
            raise ValueError(
                f"Expected an offer of this package's version, but: {reason}."
            ) from error

    @property
    def digest(self) -> str:
        return hashlib.sha256(self._text.encode()).hexdigest()

    @property
    def digest_of_0_1_0(self) -> str:
        """The digest of the text in which version 0.1.0 wrote the offer: its runs name it so."""
        record = self.mechanism.record()
        text = self._to_json(parameters_of_0_1_0(record["mechanism"], record))
        return hashlib.sha256(text.encode()).hexdigest()


def _scalars_record(scalars: AuxiliaryNumbers) -> dict[str, Any]:
    # Without the norm, which is the mechanism's.
    return {
        "numbers": [[n.name, n.low, n.high, n.share] for n in scalars.numbers],
        "weight": scalars.weight,
    }


def _read_scalars(record: Mapping[str, Any], mechanism: UpdateMechanism) -> AuxiliaryNumbers:
    # Invert `_scalars_record`; a TypeError or ValueError of any kind refuses the offer.
    if mechanism.clip_norm is None or record.keys() != {"numbers", "weight"}:
        raise ValueError("a clipped update cannot carry its numbers")
    numbers = tuple(Number(*fields) for fields in record["numbers"])
    return AuxiliaryNumbers(mechanism.clip_norm, numbers, record["weight"])


def _read(text: str) -> Offer:
    # The length first: to parse a stranger's text takes memory in proportion.
    if len(text) > MAX_TEXT_CHARACTERS:
        raise ValueError(f"it has {len(text)} characters, more than {MAX_TEXT_CHARACTERS}")
    record: dict[str, Any] = json.loads(text)
    if record.pop("format") != FORMAT:
        raise ValueError(f"its format is not {FORMAT!r}")
    fields = {name: record.pop(name) for name in ("dimension", "buffers", "examples", "scaled")}
    # "beside" is a name on the wire: clients with another version of this package read it too.
    parts, numbers = record.pop("parts"), record.pop("beside", None)
    if not isinstance(parts, list):
        raise ValueError("its parts are not a list of names")
    # Bounded: a stranger must not choose a channel whose certificate takes hours.
    mechanism = from_record(record, "in an offer", bounded=True)
    scalars = None if numbers is None else _read_scalars(numbers, mechanism)
    return Offer(mechanism, parts=tuple(parts), scalars=scalars, **fields)


def _deployable(mechanism: UpdateMechanism) -> bool:
    # True if it sends codes that are sampled exactly. Baselines draw floating-point noise, whose
    # lowest bits reveal more than their guarantee says (Mironov 2012).
    if mechanism.channel is not None:
        return True
    if mechanism.in_round(0).coding is None:
        return False
    known = all_mechanisms().get(mechanism.record()["mechanism"])
    return known is None or not known.baseline
