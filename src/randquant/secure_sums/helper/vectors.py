"""What the server has of each client's vector, and its running sum: masked, or a share of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from randquant._internal import validate
from randquant.channels import wire
from randquant.secure_sums.helper import proven
from randquant.secure_sums.helper.message import SealedSeed, masked_format, read_message
from randquant.secure_sums.helper.terms import HelperTerms
from randquant.secure_sums.secagg.terms import ProtocolError
from randquant.secure_sums.vdaf.prio3 import SEED_SIZE


class MaskedVectors:
    """Masked vectors modulo 2**bits.

    Args:
        terms: of the sum.
        digest: of the terms.
        verify_key: none.

    Attributes:
        size: bytes that are kept of a client's vector.
    """

    def __init__(self, terms: HelperTerms, digest: bytes, verify_key: bytes) -> None:
        self._terms, self._digest = terms, digest
        self.size = wire.masked(terms.dimension, terms.bits)
        self._total = np.zeros(terms.dimension, dtype=np.uint32)

    def read(self, message: Any) -> tuple[SealedSeed, bytes]:
        """A message's sealed seed, and what is kept of its vector; ProtocolError if malformed."""
        return read_message(self._terms, message)

    def add(self, client: int, kept: bytes) -> None:
        """Add a vector to the sum; ProtocolError if it is damaged."""
        try:
            wire.add(masked_format(self._terms.bits, self._digest, client), kept, self._total)
        except ValueError as error:
            raise ProtocolError(str(error)) from None

    def without(self, left_out: Iterable[tuple[int, bytes]], answered: np.ndarray) -> np.ndarray:
        """The sum of codes of all but some clients, given the sum of their masks."""
        total, bits = self._total.copy(), self._terms.bits
        for client, kept in left_out:
            form = masked_format(bits, self._digest, client)
            total -= wire.unpack(form, kept, self._terms.dimension)
        total = total.astype(answered.dtype) - answered
        return total & total.dtype.type((1 << bits) - 1)


class ProvenVectors:
    """The server's shares of vectors over Field64, each with a verifier share of its proof.

    Args:
        terms: of the sum.
        digest: of the terms.
        verify_key: of proofs, to which the terms are committed.

    Attributes:
        size: bytes that are kept of a client's vector.
    """

    def __init__(self, terms: HelperTerms, digest: bytes, verify_key: bytes) -> None:
        validate.whole("bytes of verify_key", len(verify_key), low=SEED_SIZE, high=SEED_SIZE)
        if proven.commitment_of(verify_key) != terms.commitment:
            raise ValueError("Expected the verification key of the terms, got another.")
        self._terms, self._digest, self._verify_key = terms, digest, verify_key
        self._prio3 = proven.prio3_of(terms)
        self.size = terms.dimension * self._prio3.field.ENCODED_SIZE
        self._total = self._prio3.agg_init()

    def read(self, message: Any) -> tuple[SealedSeed, bytes]:
        """A message's sealed seed with the server's verifier share, and its output share.

        Raises:
            ProtocolError: the message is malformed, or false already by the server's share.
        """
        seed, share = proven.read_proven(self._terms, message)
        out_share, verifier = proven.leader_verifier(
            self._terms, self._digest, self._verify_key, seed.bound, share
        )
        seed = SealedSeed(seed.sealed, seed.signature, seed.bound, verifier)
        return seed, bytes(self._prio3.field.encode_vec(out_share))

    def add(self, client: int, kept: bytes) -> None:
        """Add a share to the sum."""
        self._prio3.agg_update(self._total, self._prio3.field.decode_vec(kept))

    def without(self, left_out: Iterable[tuple[int, bytes]], answered: np.ndarray) -> np.ndarray:
        """The sum of codes of all but some clients, given the sum of the helper's shares."""
        field = self._prio3.field
        total = field.vec_add(self._total, answered)
        for _, kept in left_out:
            field.vec_sub(total, field.decode_vec(kept), total)
        return total
