"""What a server asks its sites for, and what their answers have cost."""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from randquant._internal import validate
from randquant._internal.serialization import to_json
from randquant.aggregation.mechanism import UpdateMechanism
from randquant.aggregation.saved import from_record
from randquant.channels.wire.payload import Coding, Format
from randquant.integrations.accountant import Accountant, RoundEvent
from randquant.privacy.accounting.release import Release
from randquant.privacy.guarantee import Guarantee, Neighboring, Trust

FORMAT = "randquant request for NVFlare, version 1"
REQUEST, SESSION, PAYLOAD = "randquant.request", "randquant.session", "randquant.payload"
"""Headers of a task, and the field of an answer."""

LONGEST_TEXT = 2**23
SESSION_BYTES = 16

Shapes = tuple[tuple[str, tuple[int, ...]], ...]
"""Name and shape of every array of a model, in order."""


@dataclass(frozen=True, slots=True)
class Request:
    """An update of a model, protected by a mechanism; it contains no secret.

    Args:
        mechanism: one of local trust that sends codes of a channel: NVFlare's server sees every
            site's answer by itself.
        shapes: name and shape of every array of the model.
        examples: fewest examples (patients) of a site, if the account is for one of them and
            updates are means of gradients that are clipped one by one; None for a whole site.

    Raises:
        TypeError, ValueError: an argument is of the wrong kind or out of bounds.
    """

    mechanism: UpdateMechanism
    shapes: Shapes
    examples: int | None = None

    def __post_init__(self) -> None:
        if self.mechanism.coding is None or self.mechanism.trust != "local":
            raise ValueError(
                f"Expected a mechanism of local trust that sends codes, got {self.mechanism!r}: "
                "NVFlare's server sees every site's answer by itself."
            )
        if len(dict(self.shapes)) < len(self.shapes) or not self.shapes:
            raise ValueError("Expected each array of a model once, got none or one twice.")
        self.mechanism.size(validate.whole("dimension", self.dimension, low=1, high=2**40))
        self.release(1, "replace_one", "local")  # refuses `examples` without a bound for one

    @property
    def dimension(self) -> int:
        """Coordinates of an update."""
        return sum(math.prod(shape) for _, shape in self.shapes)

    def release(self, rounds: int, neighboring: Neighboring, trust: Trust) -> Release:
        """The release of `rounds` answers."""
        release = self.mechanism.release(self.dimension, rounds, neighboring)
        if release is None:
            raise ValueError("Expected a mechanism that protects, got one that does not.")
        release = release.under(trust)
        return release if self.examples is None else release.of_one_example(self.examples)

    def to_text(self) -> str:
        """JSON, from which `from_text` makes an equal request."""
        fields = {"mechanism": self.mechanism.record(), "shapes": self.shapes}
        return json.dumps(
            to_json({"format": FORMAT, "examples": self.examples, **fields}), sort_keys=True
        )

    @staticmethod
    @functools.lru_cache(maxsize=8)  # a server sends the same text in every round
    def from_text(text: str) -> Request:
        """Undo `to_text`, and certify the mechanism's channel again.

        Raises:
            ValueError: the text, which need not be trusted, is no request.
        """
        try:
            if len(text) > LONGEST_TEXT:
                raise ValueError("it is too long")
            record: dict[str, Any] = json.loads(text)
            if record.pop("format") != FORMAT:
                raise ValueError("its format is another")
            mechanism = from_record(record.pop("mechanism"), "in a request")
            shapes = tuple(
                (
                    str(name),
                    tuple(validate.whole("side", side, low=0, high=2**40) for side in shape),
                )
                for name, shape in record.pop("shapes")
            )
            return Request(mechanism, shapes, **record)
        except (ArithmeticError, AttributeError, KeyError, MemoryError, TypeError, ValueError,
                RecursionError) as error:  # fmt: skip
            reason = str(error).rstrip(".")
            raise ValueError(
                f"Expected a request of this package's version, but: {reason}."
            ) from error

    def flattened(self, arrays: Mapping[str, Any]) -> np.ndarray:
        """The arrays of an update, (dimension,) float64; ValueError unless they are the model's."""
        found = tuple((name, np.shape(array)) for name, array in arrays.items())
        if sorted(found) != sorted(self.shapes):
            raise ValueError("Expected an update of the model's arrays and shapes, got another.")
        parts = [np.asarray(arrays[name]) for name, _ in self.shapes]
        if any(part.dtype.kind != "f" for part in parts):
            raise ValueError("Expected an update in floating-point numbers, got another.")
        return np.concatenate([part.astype(np.float64).ravel() for part in parts])

    def arrays(self, vector: np.ndarray) -> dict[str, np.ndarray]:
        """Undo `flattened`."""
        arrays, start = {}, 0
        for name, shape in self.shapes:
            arrays[name] = vector[start : start + math.prod(shape)].reshape(shape)
            start += math.prod(shape)
        return arrays

    def in_session(self, session: bytes, site: str) -> tuple[UpdateMechanism, Coding, Format]:
        """The mechanism of one round, its coding, and the format of one site's answer."""
        seed = int.from_bytes(hashlib.sha256(session).digest()[:8], "little")
        mechanism = self.mechanism.in_round(seed)  # whose guarantee holds for any public seed
        coding = mechanism.coding
        assert coding is not None  # checked above
        facts = ("nvflare", coding.fingerprint.hex(), session.hex(), site)
        return mechanism, coding, Format.of(coding.levels, *facts)


class SiteAccountant(Accountant):
    """The `Accountant` of answers to requests.

    Example:
        >>> import randquant as rq
        >>> from randquant.aggregation.vector import VectorMechanism
        >>> channel = rq.stochastic_rounding(clip=0.3, levels=2, margin=0.1)
        >>> request = Request(VectorMechanism(channel, 1.0), (("weight", (14,)),), examples=120)
        >>> accountant = SiteAccountant(delta=1e-5)
        >>> accountant.compose(RoundEvent(request, frozenset({number("cleveland")})), 30)
        >>> accountant.get_privacy_spent().unit, accountant.of_site().unit
        ('example', 'client')
    """

    @staticmethod
    def read(text: str) -> Request:
        """See `Accountant`."""
        return Request.from_text(text)

    def of_site(self) -> Guarantee:
        """The guarantee of all data of a site, whatever the account is for."""
        whole = SiteAccountant(self.delta, self.neighboring)
        for site, spent in self._spent.items():
            for request, count in spent.items():
                assert isinstance(request, Request)
                whole.compose(RoundEvent(replace(request, examples=None), frozenset({site})), count)
        return whole.get_privacy_spent()

    def told(self) -> str:
        """Both guarantees, as they are logged."""
        spent, site = self.get_privacy_spent(), self.of_site()
        return f"one {spent.unit}: {spent}; a whole site: {site}"


def number(site: str) -> int:
    """A site's number in accounts: a hash of its name, which NVFlare authenticates."""
    return int.from_bytes(hashlib.sha256(site.encode()).digest()[:8], "little")
