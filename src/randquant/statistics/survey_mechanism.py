"""A survey's sum as a mechanism: engines offer, account and sum it like a round of training."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np

from randquant._internal import validate
from randquant.aggregation.mechanism import MechanismDefaults, check_cohort_size, for_each_payload
from randquant.channels import wire
from randquant.channels.keys import Key
from randquant.privacy.accounting.release import Release
from randquant.privacy.guarantee import Neighboring, Trust
from randquant.statistics.records import one_of_each, read_columns
from randquant.statistics.surveys import MAX_VECTOR_VALUE, Survey, survey_from, survey_text
from randquant.statistics.table import Table

DIGEST_NUMBERS = 16
"""Numbers at the end of a vector that identify its survey: all 256 bits of SHA-256 in words of 16
bits. With fewer, a server could search for two surveys of the same digest and have a client answer
one by the terms of the other. They are not sent."""


@final
@dataclass(frozen=True, slots=True, init=False)
class SurveyMechanism(MechanismDefaults):
    """Sends a client's vector of a survey with its share of the noise, modulo a power of two.

    An update is a vector made by `update` from a client's records: only these are within the
    distance that the guarantee assumes, so vectors without the survey's digest are refused.

    Args:
        survey: the terms, or their text as in an offer.

    Guarantees:
        Those of `Survey`, against a server that sees the sum of at least `cohort` clients (one,
        under `local` trust). The party that sets the terms cannot make a client that encoded its
        records by other terms send more than either survey allows: the vector is refused.

    Raises:
        ValueError, TypeError: it is not a survey, or a survey of central trust.

    Example:
        >>> from randquant.statistics import Counts, survey
        >>> queries = {"sex": Counts(["f", "m"])}
        >>> terms = survey(queries, 1.0, 1e-6, "aggregate", clients=50, records=50)
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
        text = survey if isinstance(survey, str) else survey_text(survey)
        # Parsed and written again: equal surveys have equal texts, and so equal digests.
        object.__setattr__(self, "survey", survey_text(survey_from(text)))
        if self.trust == "central":
            raise ValueError(
                "Expected a survey of aggregate or local trust, got central: a trusted server asks "
                "rq.statistics itself."
            )
        validate.whole("a survey's bits", self.terms.bits, low=2, high=32)
        # No integer of a record exceeds the distance of two records. Up to this bound whole numbers
        # are exact in float32; beyond, rounding would move neighbouring sums farther apart than the
        # certified distance (theory/statistics.md, Proposition 1).
        if (largest := self.terms.largest) > 2 * MAX_VECTOR_VALUE:
            raise ValueError(
                f"Expected a survey with vectors up to {2 * MAX_VECTOR_VALUE}, exact in float32, "
                f"got up to {largest:.6g}: lower its amplitudes, or its records of a client."
            )

    @property
    def terms(self) -> Survey:
        return survey_from(self.survey)

    @property
    def _digest(self) -> np.ndarray:
        digest = hashlib.sha256(self.survey.encode()).digest()
        return np.frombuffer(digest, "<u2").astype(np.float32)

    @property
    def trust(self) -> Trust:
        return self.terms.trust

    @property
    def cohort(self) -> int:
        return self.terms.cohort

    @property
    def helper_noise(self) -> bool:
        return self.terms.noise != "clients"

    @property
    def server_noise(self) -> bool:
        return self.terms.noise == "parties"

    @property
    def dimension(self) -> int:
        return self.terms.dimension + DIGEST_NUMBERS

    @property
    def coding(self) -> wire.Format:
        # Remainders modulo a power of two that no sum exceeds.
        return wire.Format.from_facts(1 << self.terms.bits, "survey", self.survey)

    def size(self, dimension: int) -> int:
        # The digest at the end of a vector is checked by the client itself and is not sent.
        return validate.whole("dimension", dimension, low=DIGEST_NUMBERS + 1) - DIGEST_NUMBERS

    def sum_bits(self, dimension: int, clients: int) -> int:
        # The survey's modulus is chosen for its number of records, whatever the clients.
        return self.terms.bits

    def payload_bytes(self, dimension: int) -> int:
        return wire.coded(self.coding, self.size(dimension))

    def update(self, records: Any, key: Key) -> np.ndarray:
        """Encode a client's records without noise: (dimension,) float32, for `encode`.

        A record with a value that a query cannot read counts as missing in that query, with a
        warning: the server chooses the queries, and a client that then did not answer would tell
        it about the value.

        Args:
            records: a mapping of values, or of arrays, or a table, as `statistics` takes them. For
                unit='client' one of them is drawn at random; no records count as a missing one.
            key: of the rounding and of that draw.

        Raises:
            ValueError, TypeError: a column is missing, or there are more records than the survey
                allows a client.
        """
        terms, columns = self.terms, read_columns(records, "a client")
        if terms.unit == "client":
            columns = one_of_each(columns, key.fold_in("record"))
        count = len(next(iter(columns.values())))
        if count > terms.most:
            raise ValueError(
                f"Expected at most {terms.most} records of a client in this survey, got {count}."
            )
        return np.append(terms.vector(columns, key, lenient=True), self._digest).astype(np.float32)

    def encode_vector(self, vector: np.ndarray, key: Key) -> bytes:
        """Check the digest, add a share of the noise if clients do, and pack the remainders."""
        if vector.size != self.dimension:
            raise ValueError(
                f"Expected a vector of this survey, {self.dimension} numbers as its update() makes "
                f"them, got {vector.size}."
            )
        # Errors show no numbers of the vector: these are a client's records without noise, and
        # engines may send errors to the server.
        if not np.array_equal(vector[-DIGEST_NUMBERS:], self._digest):
            raise ValueError(
                "Expected a vector of this survey, as its update() makes it, got a vector that "
                "does not end with the digest of its terms: encode records by this offer's terms."
            )
        values = vector[:-DIGEST_NUMBERS]
        whole = values.astype(np.int64)
        if not np.array_equal(whole, values):
            raise ValueError("Expected whole numbers, as a survey's update() makes them.")
        # A key that is used twice would send two vectors with the same noise: their difference
        # would show the difference of the records.
        key.claim()
        if not self.helper_noise:
            whole += self.terms.share(key)
        codes = whole & ((1 << self.terms.bits) - 1)
        return wire.pack(self.coding, codes.astype(np.uint32), -DIGEST_NUMBERS)

    def mean_vector(self, payloads: Sequence[bytes], dimension: int, key: Key | None) -> np.ndarray:
        totals = np.zeros(self.size(dimension), np.int64)
        for_each_payload(
            payloads, lambda payload: wire.add(self.coding, payload, totals, -DIGEST_NUMBERS)
        )
        if self.helper_noise:
            if key is None:
                raise TypeError(
                    "Expected a key, got key=None: this survey's noise is not its clients', so "
                    "give mean(payloads, key=rq.Key.generate())."
                )
            for party in range(self.terms.shares(len(payloads))):
                totals += self.party_noise(dimension, key.fold_in("party", party))
        return self.decode(totals, len(payloads), dimension)

    def party_variance(self, dimension: int) -> float:
        """Return the parameter of the noise that each party adds to each integer."""
        return self.terms.law.variance

    def party_noise(self, dimension: int, key: Key) -> np.ndarray:
        """Draw one party's noise on a sum: (size,) int64, with a key used for nothing else."""
        key.claim()  # the same noise on two sums would show their difference
        return self.terms.share(key)

    def decode(
        self, totals: np.ndarray, clients: int, dimension: int, bits: int | None = None
    ) -> np.ndarray:
        """Return the mean vector of a sum of remainders, with zeros in place of the digest."""
        check_cohort_size(clients, self.cohort)
        # The sum lies between -half and half: its remainder determines it.
        half = 1 << (self.terms.bits - 1)
        centred = ((totals + half) & (2 * half - 1)) - half
        return np.append(centred / clients, np.zeros(DIGEST_NUMBERS)).astype(np.float32)

    def release(
        self, dimension: int, rounds: int, neighboring: Neighboring = "replace_one"
    ) -> Release:
        # The distance covers `zero_out` neighbours as well, see `Survey.released`.
        return self.terms.released(rounds, neighboring, "client")

    def example_release(
        self, dimension: int, rounds: int, neighboring: Neighboring, examples: int
    ) -> Release:
        # A sum is not divided by a number of examples, so that one record's distance is the same.
        return self.terms.released(rounds, neighboring, "example")

    def table(self, mean: np.ndarray, clients: int, records: int) -> Table:
        """Compute the answers from the mean of clients' vectors.

        Args:
            mean: (dimension,), from `mean` or from an engine.
            clients: number of clients in the mean.
            records: number of their records together, which is public.
        """
        terms = self.terms
        clients = validate.whole(
            "clients", clients, low=terms.cohort,
            why="a round that failed, or has fewer than its noise counts on, is no table",
        )  # fmt: skip
        records = validate.whole("records", records, low=0)
        totals = np.asarray(mean, np.float64)[:-DIGEST_NUMBERS] * clients
        answers = terms.read(totals, records, clients)
        return Table(answers, records, clients, terms.guarantee, terms)

    def certified(self, dimension: int) -> dict[str, Any]:
        return self.terms.certified(dimension)

    def record(self) -> dict[str, Any]:
        return {"mechanism": "survey", "survey": self.survey}
