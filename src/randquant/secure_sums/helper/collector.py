"""The server's side: it adds masked vectors as they come, and asks the helper for their masks."""

from __future__ import annotations

import hashlib
import tempfile
import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np

from randquant._internal import validate
from randquant.secure_sums import masks
from randquant.secure_sums.helper.message import MAX_CLIENT_NUMBER, HelperTerms, SealedSeed
from randquant.secure_sums.helper.request import (
    LEFT_OUT,
    MaskedVectors,
    ProvenVectors,
    read_answer,
    write_request,
)
from randquant.secure_sums.secagg.terms import ProtocolError

MAX_MEMORY_BYTES = 2**26
"""Bytes of a sum's masked vectors that are kept in memory; more are written to a temporary file.
With twice as many a server needs twice the memory for each of its sums; with half, sums of half the
size wait for the disk."""


class HelperSum:
    """One sum on the server: `add` each client's message, send `request`, `unmask` the answer.

    The transport must tell which client a message is from. Masked vectors are kept until the end,
    in a temporary file if they are large, since the vector of a client that the helper leaves out
    must be subtracted again.

    Args:
        terms: the public terms.
        directory: each client's public identity, as the helper has them: a client that did not sign
            its seed is then refused at once.
        verify_key: 32 random bytes, where the terms have its `proven.verify_key_commitment`:
        clients then
            send a `proven_message`. No client may know it.

    Attributes:
        refused: clients whose message is not in the sum, and why.

    Example:
        See `Helper`.
    """

    def __init__(
        self,
        terms: HelperTerms,
        directory: Mapping[int, bytes] | None = None,
        verify_key: bytes = b"",
    ) -> None:
        validate.kind("terms", terms, HelperTerms)
        self.terms, self._directory, self._verify_key = terms, directory, verify_key
        self.refused: dict[int, str] = {}
        self._digest = terms.digest
        self._seeds: dict[int, SealedSeed] = {}
        self._places: dict[int, int] = {}  # of each client's masked vector, in the file
        self._vectors = tempfile.SpooledTemporaryFile(max_size=MAX_MEMORY_BYTES)  # noqa: SIM115
        weakref.finalize(self, self._vectors.close)
        vectors_class = ProvenVectors if terms.largest else MaskedVectors
        self._running_sum = vectors_class(terms, self._digest, verify_key)
        self._request, self._clients = b"", frozenset[int]()

    @property
    def clients(self) -> frozenset[int]:
        # After `unmask` without those that the helper has left out.
        return self._clients or frozenset(self._seeds)

    def add(self, client: int, message: bytes) -> None:
        """Add one client's message.

        Raises:
            ProtocolError: it is malformed, a repetition, too late or not signed. The sum goes on
                without it.
        """
        client = validate.whole("client", client)
        if not 0 <= client <= MAX_CLIENT_NUMBER:
            raise ProtocolError(f"Expected a client's number below 2**64, got {client}.")
        # A second message would be a second seed in the request: one client would count as two.
        if client in self._seeds or self._request:
            problem = "is here" if client in self._seeds else "comes after the request"
            raise ProtocolError(
                "Expected one message of each client, before the helper is asked; got a message "
                f"of client {client}, whose message {problem} already."
            )
        try:
            # More clients than the terms say could make a sum wrap around.
            if len(self._seeds) == self.terms.cohort:
                raise ProtocolError(
                    f"Expected {self.terms.cohort} clients at most, got client {client} as well."
                )
            seed = self._keep_and_add(client, message)
        except ProtocolError as error:
            self.refused[client] = str(error)
            raise ProtocolError(f"Client {client}: {error}") from None
        # A client whose first message was damaged may send it again.
        self.refused.pop(client, None)
        self._places[client] = len(self._seeds)
        self._seeds[client] = seed

    def request(self, offer: str = "") -> bytes:
        """Accept no more messages, and return the request to the helper.

        A second call returns the same bytes: the helper answers one request in a session, and the
        same request again by the same answer.

        Args:
            offer: the text that clients have answered, for a helper that counts epsilon: its
                SHA-256 is `terms.offer`.

        Raises:
            ProtocolError: fewer clients than `terms.least`.
        """
        if not self._request:
            self._check_least(len(self._seeds))
            self._request = write_request(self.terms, self._seeds, offer, self._verify_key)
        return self._request

    def unmask(self, answer: bytes, largest: int | None = None) -> np.ndarray:
        """Compute the sum of the clients' codes modulo 2**bits.

        Args:
            answer: the helper's.
            largest: the largest code of an honest client: a total above the number of clients times
                this is refused.

        Returns:
            (d,) uint8, uint16 or uint32.

        Raises:
            ProtocolError: the answer belongs to another request, is damaged or leaves too few
                clients, or a total is impossible. A wrong sum of masks is noticed only by an
                impossible total.
        """
        if not self._request:
            raise ProtocolError("Expected the helper to be asked first.")
        digest = hashlib.sha256(self._request).digest()
        left_out, masks_sum = read_answer(self.terms, digest, self._seeds, answer)
        count = len(self._seeds) - len(left_out)
        # The helper checks this too, but the server need not trust it (theory/helper-sums.md,
        # Proposition 3).
        self._check_least(count)
        vectors = ((client, self._vector(client)) for client in left_out)
        total = self._running_sum.without(vectors, masks_sum)
        if self.terms.largest:
            largest = self.terms.largest
        # A damaged sum of masks gives random totals, most of them impossible in a wide modulus. A
        # small error on purpose is not noticed (helper-sums.md, Proposition 3).
        if largest is not None and int(total.max()) > (most := count * largest):
            raise ProtocolError(
                f"Expected totals of {most} at most, got {int(total.max())}: the helper's answer "
                "is wrong, or some client sent an invalid vector; the whole sum is discarded."
            )
        self.refused |= {client: LEFT_OUT[why] for client, why in left_out.items()}
        self._clients = frozenset(self._seeds.keys() - left_out.keys())
        kind = masks.dtype(self.terms.bits)
        return total.astype(kind) & kind.type((1 << self.terms.bits) - 1)

    def _keep_and_add(self, client: int, message: Any) -> SealedSeed:
        seed, packed = self._running_sum.read(message)
        if self._directory is not None and not seed.is_signed(
            self._digest, client, self._directory
        ):
            raise ProtocolError(
                f"Expected a seed signed by this client, {client}, got "
                f"{'a signature that is not its' if seed.signature else 'no signature'}."
            )
        # Kept before it is added: what is in the sum can always be subtracted again. If the disk is
        # full, or the vector is refused, the next client's is written to the same place.
        self._vectors.seek(len(self._seeds) * len(packed))
        self._vectors.write(packed)
        self._running_sum.add(client, packed)
        return seed

    def _vector(self, client: int) -> bytes:
        self._vectors.seek(self._places[client] * self._running_sum.size)
        return self._vectors.read(self._running_sum.size)

    def _check_least(self, count: int) -> None:
        if count < self.terms.least:
            raise ProtocolError(
                f"Expected messages of {self.terms.least} clients or more, got {count}: the "
                "guarantee needs that many."
            )
