"""A server's offer to its clients, as text: a mechanism for updates of some dimension."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from randquant._internal import validate
from randquant._internal.serialization import to_json
from randquant.aggregation.alongside import Alongside, Number
from randquant.aggregation.mechanism import UpdateMechanism
from randquant.aggregation.registry import all_mechanisms, from_record
from randquant.privacy.accounting.release import Release
from randquant.privacy.accounting.sampling import release_of
from randquant.privacy.guarantee import Neighboring, Trust
from randquant.rounds.parameter_free import squared_noise
from randquant.rounds.preparation import UpdatePreparation
from randquant.rounds.protocol import LONGEST_TEXT
from randquant.rounds.trained import BUFFERS, Buffers

FORMAT = "randquant offer, version 1"


@dataclass(frozen=True, slots=True)
class Offer:
    """A mechanism that a server asks clients to use. It contains no secret.

    Its text, with the channel's certificate, is made once, when the offer is.

    Args:
        mechanism: how updates are protected, and the trust and cohort that this counts on; one
            that sends codes.
        dimension: coordinates of what a client encodes: of its update, and of what it sends beside.
        parts: names of the arrays that are trained, encoded and counted, in the model's order;
            empty for all of floating-point numbers other than running statistics.
        buffers: what is done about running statistics: the model has none (`refuse`), clients leave
            them as they are (`frozen`), or the server has its own (`server`). They are never sent.
        beside: what a client sends beside its update, in the same vector; None for nothing.
        examples: fewest examples (patients) of a client, if the account is for one of them and
            updates are means of gradients that are clipped one by one; None for a whole client.
        scaled: whether a client scales its update to clip_norm, a short one too, for a server whose
            steps need no rate.

    Raises:
        TypeError, ValueError: an argument is of the wrong kind or out of bounds.

    Example:
        >>> import randquant as rq
        >>> from randquant.aggregation.vector import VectorMechanism
        >>> channel = rq.stochastic_rounding(clip=0.5, levels=2, margin=0.5)
        >>> offer = Offer(VectorMechanism(channel, clip_norm=1.0), 650)
        >>> offer.size, Offer.from_text(offer.to_text()) == offer
        (1024, True)
    """

    mechanism: UpdateMechanism
    dimension: int
    parts: tuple[str, ...] = ()
    buffers: Buffers = "refuse"
    beside: Alongside | None = None
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
        validate.choice("buffers", self.buffers, BUFFERS)
        if self.beside is not None:
            validate.whole("dimension", self.of_model, low=1)
            if self.beside.clip_norm != self.mechanism.clip_norm:
                raise ValueError("Expected numbers in the norm that the mechanism clips to.")
        self.mechanism.size(self.dimension)  # ValueError: a rotation has an upper limit
        if self.examples is not None:
            # ValueError: there is no bound for one
            self.release(1, "replace_one", self.mechanism.trust or "local")
        validate.kind("scaled", self.scaled, bool)
        if self.scaled and (self.mechanism.clip_norm is None or self.examples):
            raise ValueError(
                "Expected updates scaled to clip_norm, of clients as a whole, got single examples "
                "or no clip_norm: take a server's step with a rate, such as FedAvg()."
            )
        object.__setattr__(self, "_text", self._written())

    @property
    def largest(self) -> int:
        """The largest code of a client, of an offer that sends codes."""
        coding = self.mechanism.in_round(0).coding
        assert coding is not None
        return coding.levels - 1

    @property
    def plain_bytes(self) -> int:
        """Bytes of an update without masks, as the server would see it."""
        return self.mechanism.in_round(0).payload_bytes(self.dimension)

    @property
    def of_model(self) -> int:
        """Coordinates of an update."""
        return self.dimension - (0 if self.beside is None else self.beside.extra)

    @property
    def size(self) -> int:
        """Number of codes of an update."""
        return self.mechanism.size(self.dimension)

    @property
    def drawn(self) -> bool:
        """Whether each round has a seed, which server and clients draw together."""
        return self.mechanism.in_round(0) != self.mechanism.in_round(1)

    @property
    def preparation(self) -> UpdatePreparation:
        """What a client does with its update before it encodes it."""
        mechanism, length, noise = self.mechanism, None, 0.0
        if self.scaled and (length := mechanism.clip_norm) is not None:
            # Of the fewest clients: how many take part is the server's word alone.
            noise = squared_noise(mechanism, self.dimension, mechanism.cohort, length)
        return UpdatePreparation(length, noise, self.beside)

    def bits(self, clients: int) -> int:
        """Bits of the modulus of the sum over `clients` clients, at least."""
        return self.mechanism.sum_bits(self.dimension, clients)

    def release(self, rounds: int, neighboring: Neighboring, trust: Trust) -> Release:
        """The release of `rounds` answers, composed under `trust`.

        Under `aggregate` trust the server still sees the codes of an offer of local trust one by
        one: such an offer is composed as a sum of one. Under `local` trust it sees the codes of
        every offer so, also of one that is for a sum.
        """
        release = release_of(
            self.mechanism, self.dimension, rounds, neighboring,
            examples=self.examples, numbers=self.beside is not None,
        )  # fmt: skip
        if release is None:
            raise ValueError(f"Expected a mechanism that protects, got {self.mechanism!r}.")
        return release.under(trust)

    def for_unit(self, examples: int | None) -> Offer:
        """The same offer, counted for one of so many examples of a client, or for all its data.

        A mean of single examples' gradients must not be scaled up: each would count for more.

        Raises:
            ValueError: there is no bound for one example.
        """
        if self.examples == examples:
            return self
        return replace(self, examples=examples, scaled=self.scaled and examples is None)

    def to_text(self) -> str:
        """Return JSON: the mechanism, a channel with its certificate, and the other fields."""
        return self._text

    def _written(self) -> str:
        own = {"format": FORMAT, "dimension": self.dimension, "examples": self.examples}
        trained = {"parts": self.parts, "buffers": self.buffers, "scaled": self.scaled}
        beside = {} if self.beside is None else {"beside": _told(self.beside)}
        fields = {**self.mechanism.record(), **own, **trained, **beside}
        return json.dumps(to_json(fields), sort_keys=True)

    @staticmethod
    @functools.lru_cache(maxsize=8)  # every message and every account of a sum has the same text
    def from_text(text: str) -> Offer:
        """Undo `to_text`, and certify the channel again.

        Raises:
            ValueError: the text, which need not be trusted, is no offer, or its channel's
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
        """SHA-256 of the offer: 64 hexadecimal characters."""
        return hashlib.sha256(self._text.encode()).hexdigest()


def _told(beside: Alongside) -> dict[str, Any]:
    """What an offer says about the numbers; the norm is the mechanism's."""
    return {
        "numbers": [[n.name, n.low, n.high, n.share] for n in beside.numbers],
        "weight": beside.weight,
    }


def _beside(told: Mapping[str, Any], mechanism: UpdateMechanism) -> Alongside:
    """Undo `_told`; ValueError or TypeError if it is something else."""
    if mechanism.clip_norm is None or told.keys() != {"numbers", "weight"}:
        raise ValueError("its numbers are none that a clipped update can carry")
    numbers = tuple(Number(*each) for each in told["numbers"])
    return Alongside(mechanism.clip_norm, numbers, told["weight"])


def _read(text: str) -> Offer:
    """`Offer.from_text`, with any error."""
    if len(text) > LONGEST_TEXT:
        raise ValueError("it is too long")
    record: dict[str, Any] = json.loads(text)
    if record.pop("format") != FORMAT:
        raise ValueError("its format is another")
    own = {name: record.pop(name) for name in ("dimension", "buffers", "examples", "scaled")}
    parts, told = record.pop("parts"), record.pop("beside", None)
    if not isinstance(parts, list):
        raise ValueError("its parts are not a list of names")
    mechanism = from_record(record, "in an offer", bounded=True)
    beside = None if told is None else _beside(told, mechanism)
    return Offer(mechanism, parts=tuple(parts), beside=beside, **own)


def _deployable(mechanism: UpdateMechanism) -> bool:
    """Whether it sends codes that were sampled exactly."""
    if mechanism.channel is not None:
        return True
    if mechanism.in_round(0).coding is None:
        return False
    known = all_mechanisms().get(mechanism.record()["mechanism"])
    return known is None or not known.baseline
