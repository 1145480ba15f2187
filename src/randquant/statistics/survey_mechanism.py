"""A survey's sum as a mechanism, so that engines ask, count and sum it as they do a round."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np

from randquant._internal import validate
from randquant.aggregation.defaults import MechanismDefaults
from randquant.aggregation.payloads import each, enough
from randquant.channels import wire
from randquant.channels.keys import Key
from randquant.privacy.accounting.release import Release
from randquant.privacy.guarantee import Neighboring, Trust
from randquant.statistics.answers import Table
from randquant.statistics.records import columns_of, one_of_each
from randquant.statistics.surveys import EXACT, Survey, survey_from, text_of

MARKS = 16
"""Numbers behind a vector that say which survey it is of: a whole SHA-256, since whoever found two
surveys with the same marks could offer one and have the other answered. They are not sent."""


@final
@dataclass(frozen=True, slots=True, init=False)
class SurveyMechanism(MechanismDefaults):
    """Sends a client's vector of a survey with its share of the noise, modulo a power of two.

    An update is what `update` makes of a client's records: only that is within the distance that
    the guarantee counts on, so vectors that do not bear the survey's marks are refused.

    Args:
        survey: the terms, or their text, as an offer has it.

    Guarantees:
        As `Survey`'s, against a server that sees the sum of at least `cohort` clients (one, under
        `local` trust). Who sets the terms cannot make a client that computes by other terms send
        more than either allows: its vector is refused.

    Raises:
        ValueError, TypeError: it is no survey, or one of central trust.

    Example:
        >>> from randquant.statistics import Counts, survey
        >>> asked = {"sex": Counts(["f", "m"])}
        >>> terms = survey(asked, 1.0, 1e-6, "aggregate", clients=50, records=50)
        >>> mechanism = SurveyMechanism(terms)
        >>> update = mechanism.update({"sex": np.array(["f"])}, Key.from_seed(0))
        >>> payloads = [mechanism.encode(update, Key.from_seed(k)) for k in range(50)]
        >>> table = mechanism.table(mechanism.mean(payloads), clients=50, records=50)
        >>> bool(abs(table["sex"]["f"].estimate - 50) < 20)
        True
    """

    survey: str

    channel = None
    clip_norm = None
    from_zero: ClassVar[bool] = True

    def __init__(self, survey: Survey | str) -> None:
        text = survey if isinstance(survey, str) else text_of(survey)
        object.__setattr__(self, "survey", text_of(survey_from(text)))
        if self.trust == "central":
            raise ValueError(
                "Expected a survey of aggregate or local trust, got central: a trusted server asks "
                "rq.statistics itself."
            )
        validate.whole("a survey's bits", self.terms.bits, low=2, high=32)
        # No integer of a record is larger than two records can be apart: whole numbers up to here
        # are exact in float32, and rounding would part neighbours (theory/statistics.md, 1).
        if (largest := self.terms.largest) > 2 * EXACT:
            raise ValueError(
                f"Expected a survey with vectors up to {2 * EXACT}, exact in float32, got up to "
                f"{largest:.6g}: lower its amplitudes, or its records of a client."
            )

    @property
    def terms(self) -> Survey:
        """The survey."""
        return survey_from(self.survey)

    @property
    def _marks(self) -> np.ndarray:
        digest = hashlib.sha256(self.survey.encode()).digest()
        return np.frombuffer(digest, "<u2").astype(np.float32)

    @property
    def trust(self) -> Trust:
        """The survey's."""
        return self.terms.trust

    @property
    def cohort(self) -> int:
        """The survey's."""
        return self.terms.cohort

    @property
    def dimension(self) -> int:
        """Coordinates of an update."""
        return self.terms.dimension + MARKS

    @property
    def coding(self) -> wire.Format:
        """Remainders modulo a power of two that any sum stays within."""
        return wire.Format.of(1 << self.terms.bits, "survey", self.survey)

    def size(self, dimension: int) -> int:
        """Numbers of a vector."""
        return validate.whole("dimension", dimension, low=MARKS + 1) - MARKS

    def sum_bits(self, dimension: int, clients: int) -> int:
        """The survey's, for any number of clients."""
        return self.terms.bits

    def payload_bytes(self, dimension: int) -> int:
        """Packed remainders."""
        return wire.coded(self.coding, self.size(dimension))

    def update(self, records: Any, key: Key) -> np.ndarray:
        """Encode a client's records without noise: (dimension,) float32, for `encode`.

        Args:
            records: a mapping of values, or of arrays, or a table, as `statistics` takes them. Of a
                `client` one is drawn at random, and with none it counts as a missing one.
            key: of its rounding and of that draw.

        Raises:
            ValueError, TypeError: a column is missing or cannot be read, or there are more records
                than the survey allows a client.
        """
        terms, columns = self.terms, columns_of(records, "a client")
        if terms.unit == "client":
            columns = one_of_each(columns, key.fold_in("record"))
        count = len(next(iter(columns.values())))
        if count > terms.most:
            raise ValueError(
                f"Expected at most {terms.most} records of a client in this survey, got {count}."
            )
        return np.append(terms.vector(columns, key), self._marks).astype(np.float32)

    def encode_vector(self, vector: np.ndarray, key: Key) -> bytes:
        """Check the marks, add a share of the noise, and pack the remainders."""
        if vector.size != self.dimension or not np.array_equal(vector[-MARKS:], self._marks):
            raise ValueError(
                "Expected a vector of this survey, as its update() makes it, got another: a client "
                "answers by the terms that it was offered."
            )
        whole = vector[:-MARKS].astype(np.int64)
        if not np.array_equal(whole, vector[:-MARKS]):
            raise ValueError("Expected whole numbers, as a survey's update() makes them.")
        key.claim()
        noisy = whole + self.terms.share(key)
        codes = noisy & ((1 << self.terms.bits) - 1)
        return wire.pack(self.coding, codes.astype(np.uint32), -MARKS)

    def mean_vector(self, payloads: Sequence[bytes], dimension: int, key: Key | None) -> np.ndarray:
        """Add up the remainders and decode."""
        totals = np.zeros(self.size(dimension), np.int64)
        each(payloads, lambda payload: wire.add(self.coding, payload, totals, -MARKS))
        return self.decode(totals, len(payloads), dimension)

    def decode(
        self, totals: np.ndarray, clients: int, dimension: int, bits: int | None = None
    ) -> np.ndarray:
        """The mean vector, from the sum's remainders; zeros for the marks."""
        enough(clients, self.cohort)
        half = 1 << (self.terms.bits - 1)
        centred = ((totals + half) & (2 * half - 1)) - half
        return np.append(centred / clients, np.zeros(MARKS)).astype(np.float32)

    def release(
        self, dimension: int, rounds: int, neighboring: Neighboring = "replace_one"
    ) -> Release:
        """The survey's, in each of so many rounds; also what bounds `zero_out` neighbours."""
        return self.terms.released(rounds, neighboring, "client")

    def example_release(
        self, dimension: int, rounds: int, neighboring: Neighboring, examples: int
    ) -> Release:
        """The survey's for one record, whatever the number of a client's records."""
        return self.terms.released(rounds, neighboring, "example")

    def table(self, mean: np.ndarray, clients: int, records: int) -> Table:
        """Read a mean of so many clients' vectors.

        Args:
            mean: (dimension,), as `mean` or an engine gives it.
            clients: how many are in it.
            records: how many records they have together, which is public.
        """
        terms = self.terms
        clients = validate.whole(
            "clients", clients, low=terms.cohort,
            why="a round that failed, or has fewer than its noise counts on, is no table",
        )  # fmt: skip
        records = validate.whole("records", records, low=0)
        totals = np.asarray(mean, np.float64)[:-MARKS] * clients
        answers = terms.read(totals, records, clients)
        return Table(answers, records, clients, terms.guarantee, terms.release)

    def record(self) -> dict[str, Any]:
        """The survey's terms."""
        return {"mechanism": "survey", "survey": self.survey}
