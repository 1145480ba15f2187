"""What a server asks its sites for, and what their answers have cost."""

from __future__ import annotations

import functools
import hashlib
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from nvflare.apis.dxo import DXO, from_shareable
from nvflare.apis.shareable import Shareable

from randquant._internal import validate
from randquant._internal.serialization import to_json
from randquant.aggregation.layout import StateLayout
from randquant.aggregation.mechanism import UpdateMechanism
from randquant.aggregation.saved import from_record
from randquant.channels import wire
from randquant.channels.wire.payload import Coding, Format
from randquant.integrations.accountant import SO_FAR, Accountant, RoundEvent
from randquant.privacy.accounting.release import Release
from randquant.privacy.certificates.work import Allowance
from randquant.privacy.guarantee import Guarantee, Neighboring, Trust

FORMAT = "randquant request for NVFlare, version 1"
REQUEST, SESSION, PAYLOAD = "randquant.request", "randquant.session", "randquant.payload"
"""Headers of a task, and the field of an answer."""

LONGEST_TEXT = 2**23
SESSION_BYTES = 16


@dataclass(frozen=True, slots=True)
class Request:
    """An update of a model, protected by a mechanism; it contains no secret.

    Args:
        mechanism: one of local trust that sends codes of a channel: NVFlare's server sees every
            site's answer by itself.
        layout: the model's arrays: those of floating-point numbers other than running statistics
            are sent, counted and moved; the server keeps the others as they are.
        examples: fewest examples (patients) of a site, if the account is for one of them and
            updates are means of gradients that are clipped one by one; None for a whole site.

    Raises:
        TypeError, ValueError: an argument is of the wrong kind or out of bounds.
    """

    mechanism: UpdateMechanism
    layout: StateLayout
    examples: int | None = None

    def __post_init__(self) -> None:
        # Of a round: what is sent of some coordinates is known with the round's seed.
        if self.mechanism.in_round(0).coding is None or self.mechanism.trust != "local":
            raise ValueError(
                f"Expected a mechanism of local trust that sends codes, got {self.mechanism!r}: "
                "NVFlare's server sees every site's answer by itself."
            )
        self.mechanism.size(validate.whole("dimension", self.dimension, low=1, high=2**40))
        self.release(1, "replace_one", "local")  # refuses `examples` without a bound for one

    @property
    def dimension(self) -> int:
        """Coordinates of an update."""
        return self.layout.dimension

    def release(self, rounds: int, neighboring: Neighboring, trust: Trust) -> Release:
        """The release of `rounds` answers."""
        release = self.mechanism.release(self.dimension, rounds, neighboring)
        if release is None:
            raise ValueError("Expected a mechanism that protects, got one that does not.")
        release = release.under(trust)
        return release if self.examples is None else release.of_one_example(self.examples)

    def to_text(self) -> str:
        """JSON, from which `from_text` makes an equal request."""
        own = {"format": FORMAT, "mechanism": self.mechanism.record(), "examples": self.examples}
        return json.dumps(to_json({**own, **asdict(self.layout)}), sort_keys=True)

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
            mechanism = from_record(record.pop("mechanism"), "in a request", Allowance())
            names, shapes, rest = (record.pop(n) for n in ("names", "shapes", "left_out"))
            text_only = all(isinstance(name, str) for name in [*names, *rest])
            if not text_only or not len(names) == len({*names}) == len(shapes):
                raise ValueError("its arrays are not named once each")
            sides = tuple(
                tuple(validate.whole("side", side, low=0, high=2**40) for side in shape)
                for shape in shapes
            )
            layout = StateLayout(tuple(names), sides, tuple(rest))
            return Request(mechanism, layout, **record)
        except (ArithmeticError, AttributeError, KeyError, MemoryError, TypeError, ValueError,
                RecursionError) as error:  # fmt: skip
            reason = str(error).rstrip(".")
            raise ValueError(
                f"Expected a request of this package's version, but: {reason}."
            ) from error

    def addressed(self, payload: bytes, session: bytes, site: str) -> bytes:
        """A payload as it is sent: its codes say of which round and site they are."""
        mechanism, coding, form = self.in_session(session, site)
        return wire.pack(form, wire.unpack(coding, payload, mechanism.size(self.dimension)))

    def unaddressed(self, payload: bytes, session: bytes, site: str) -> bytes:
        """Undo `addressed`; ValueError if it is damaged, or of another round or site."""
        mechanism, coding, form = self.in_session(session, site)
        size = mechanism.size(self.dimension)
        return wire.pack(coding, wire.unpack(form, payload, size), size - self.dimension)

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
        >>> layout = StateLayout(("weight",), ((14,),))
        >>> request = Request(VectorMechanism(channel, 1.0), layout, examples=120)
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
        return f"one {spent.unit}: {spent}; a whole site: {site}{self.chosen()}; {SO_FAR}"


def header_of(message: Shareable, name: str) -> Any:
    """A header of a task; None if it has none."""
    try:
        return message.get_header(name)
    except ValueError:  # its headers are something else
        return None


def data_of(message: Shareable) -> DXO:
    """The data of a task or an answer; ValueError if there are none."""
    try:
        return from_shareable(message)
    except Exception as error:  # any error that a malicious message causes
        raise ValueError("Expected a message with data, got one without.") from error


def site_name(name: object) -> str:
    """The name of a site; ValueError unless it can be in a file's name, a key and a line of a log.

    Example:
        >>> site_name("cleveland")
        'cleveland'
    """
    if (
        not (isinstance(name, str) and name and name.isprintable())
        or ":" in name
        or Path(name).name != name
    ):
        raise ValueError(
            "Expected the name of a site in printable characters, without ':' and slashes, got "
            f"{validate.shown(name)}: provision it under another name."
        )
    return name


def number(site: str) -> int:
    """A site's number in accounts: a hash of its name, which NVFlare authenticates."""
    return int.from_bytes(hashlib.sha256(site.encode()).digest()[:8], "little")
