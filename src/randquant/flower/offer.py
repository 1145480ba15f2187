"""A server's offer to its clients, as text: a mechanism for updates of some dimension."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from typing import Any

from randquant import _validate, upload
from randquant.aggregate import ChannelMechanism, VectorMechanism
from randquant.channel_file import channel_from_record, channel_record
from randquant.privacy import Neighboring, Trust
from randquant.records import to_json
from randquant.releases import Release

FORMAT = "randquant offer, version 2"


@dataclass(frozen=True, slots=True)
class Offer:
    """A mechanism that a server asks clients to use. It contains no secret.

    Args:
        mechanism: how updates are protected, with the trust and cohort that this needs.
        dimension: coordinates of an update.
        buffers: names of the model's floating-point arrays that are not part of an update.

    Raises:
        TypeError, ValueError: an argument is of the wrong kind or out of bounds.

    Example:
        >>> import randquant as rq
        >>> channel = rq.stochastic_rounding(clip=0.5, levels=2, margin=0.5)
        >>> offer = Offer(VectorMechanism(channel, clip_norm=1.0), 650)
        >>> offer.size, Offer.from_text(offer.to_text()) == offer
        (1024, True)
    """

    mechanism: ChannelMechanism | VectorMechanism
    dimension: int
    buffers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.mechanism, ChannelMechanism | VectorMechanism):
            raise TypeError(
                "Expected a ChannelMechanism or a VectorMechanism, got "
                f"{type(self.mechanism).__name__}: baselines are for simulation."
            )
        _validate.whole("dimension", self.dimension, low=1, high=2**40)
        _validate.kind("buffers", self.buffers, tuple)
        if not all(isinstance(name, str) for name in self.buffers):
            raise TypeError("Expected buffers by their names, got something else.")
        if len(set(self.buffers)) < len(self.buffers):
            raise ValueError("Expected each buffer once, got one twice.")
        self.size  # noqa: B018 - checks the dimension: a rotation has an upper limit

    @property
    def size(self) -> int:
        """Number of codes of an update."""
        return self.mechanism.size(self.dimension)

    def bits(self, clients: int) -> int:
        """Bits per coordinate with which the sum of `clients` clients' codes is exact."""
        return upload.sum_bits(self.mechanism.channel.levels, clients)

    def release(self, rounds: int, neighboring: Neighboring, trust: Trust) -> Release:
        """The release of `rounds` answers, composed under `trust`.

        Under `aggregate` trust the server still sees the codes of an offer of local trust one by
        one: such an offer is composed as a sum of one.
        """
        release = self.mechanism.release(self.dimension, rounds, neighboring)
        return dataclasses.replace(release, trust=trust)  # type: ignore[type-var]

    def to_text(self) -> str:
        """Return JSON: the channel with its certificate, and the other fields."""
        fields = {
            field.name: getattr(self.mechanism, field.name)
            for field in dataclasses.fields(self.mechanism)
        }
        record = {
            "format": FORMAT,
            **fields,
            "channel": channel_record(self.mechanism.channel),
            "dimension": self.dimension,
            "buffers": self.buffers,
        }
        return json.dumps(to_json(record), sort_keys=True)

    @classmethod
    def from_text(cls, text: str) -> Offer:
        """Undo `to_text`, and certify the channel again.

        Raises:
            ValueError: it is not an offer, or its channel's certificate is not the stated one.
        """
        try:
            record: dict[str, Any] = json.loads(text)
            if record.pop("format") != FORMAT:
                raise ValueError("its format is another")
            channel, _ = channel_from_record(record.pop("channel"), "in an offer")
            dimension, buffers = record.pop("dimension"), record.pop("buffers")
            if not isinstance(buffers, list):
                raise ValueError("its buffers are not a list of names")
            kind = VectorMechanism if "clip_norm" in record else ChannelMechanism
            return cls(kind(channel, **record), dimension, tuple(buffers))
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            reason = str(error).rstrip(".")
            raise ValueError(
                f"Expected an offer of this package's version, but: {reason}."
            ) from error

    @property
    def digest(self) -> str:
        """SHA-256 of the offer: 64 hexadecimal characters."""
        return hashlib.sha256(self.to_text().encode()).hexdigest()
