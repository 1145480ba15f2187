"""What a client deals: shares of its two secrets, and the public proof that they are of these."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from randquant.secure_sums.secagg import group, sharing
from randquant.secure_sums.secagg.group import ORDER, SCALAR_BYTES
from randquant.secure_sums.secagg.messages import PART_BYTES, Advert, context, exactly_bytes
from randquant.secure_sums.secagg.sharing import COMMITMENT_BYTES
from randquant.secure_sums.secagg.terms import ProtocolError, Terms

SEED, KEY = 0, 1
"""The two secrets, in the order of all messages."""

_COMMITTED, _VALUED = 2 * COMMITMENT_BYTES, 2 * SCALAR_BYTES  # bytes of one place, both secrets
PROOF_BYTES = SCALAR_BYTES + _COMMITTED + _VALUED
"""Length of what one holder sees of a dealing."""


@dataclass(frozen=True, slots=True)
class Dealing:
    """A client's public message when it deals its shares (theory/shares.md, Proposition 1).

    Attributes:
        view: digest of the adverts that it has seen, its own included, 32 bytes.
        challenge: a scalar that the commitments determine, 32 bytes.
        commitments: to the shares of its seed and of its key, 32 bytes for each place from 1 on.
        values: of the two blinded polynomials, 64 bytes for each place from 0 on.
    """

    view: bytes
    challenge: bytes
    commitments: bytes
    values: bytes

    def to_bytes(self) -> bytes:
        """128 bytes, then 96 for each place: of the neighbours, and of the client itself."""
        return self.view + self.challenge + self.commitments + self.values

    @classmethod
    def from_bytes(cls, message: bytes, places: int) -> Dealing:
        """Invert `to_bytes`; ProtocolError for another length."""
        message = exactly_bytes(message)
        fixed, committed = PART_BYTES + SCALAR_BYTES, _COMMITTED * places
        wanted = fixed + committed + _VALUED * (places + 1)
        if len(message) != wanted:
            raise ProtocolError(f"Expected commitments in {wanted} bytes, got {len(message)}.")
        middle = fixed + committed
        return cls(
            message[:PART_BYTES], message[PART_BYTES:fixed], message[fixed:middle], message[middle:]
        )

    def proof(self, place: int) -> bytes:
        """What `fits` needs to know of the shares at one place."""
        return (
            self.challenge
            + self.commitments[_COMMITTED * (place - 1) : _COMMITTED * place]
            + self.values[_VALUED * place : _VALUED * (place + 1)]
        )

    def check(self, terms: Terms, dealer: int, advert: Advert, word: Sequence[int]) -> None:
        """Raise ProtocolError unless the shares are of the two advertised secrets.

        Args:
            terms, dealer, advert: whose dealing this is, and its valid public keys.
            word: from `sharing.random_word`, drawn after the dealing was sent.
        """
        read = range(0, len(self.values), SCALAR_BYTES)
        values = [int.from_bytes(self.values[at : at + SCALAR_BYTES], "little") for at in read]
        if not 0 < min(values) <= max(values) < ORDER:
            raise ProtocolError("Expected numbers modulo the group's order, got others.")
        challenge = group.read_scalar(self.challenge)
        blinds = [
            group.total((group.base(value), group.times(ORDER - challenge, public)))
            for value, public in zip(values[:2], _publics(advert), strict=True)
        ]
        bound = challenge == _challenge(terms, dealer, advert, blinds, self.commitments)
        if not bound or not all(sharing.low_degree(values[kind::2], word) for kind in (SEED, KEY)):
            raise ProtocolError("Expected shares of one secret, got others.")


def deal(
    terms: Terms, dealer: int, advert: Advert, secrets: tuple[int, int], view: bytes
) -> tuple[Dealing, dict[int, bytes]]:
    """Share a seed and a key.

    Returns:
        What the server sees, and by holder the two shares that only this holder may see, 64 bytes.
    """
    holders = terms.holders_of(dealer)
    blinds = (group.random_scalar(), group.random_scalar())
    shares, blinding = (
        [sharing.split(secret, terms.threshold, len(holders)) for secret in pair]
        for pair in (secrets, blinds)
    )
    commitments = b"".join(
        sharing.commitment(_context(terms, dealer, n, kind), shares[kind][i], blinding[kind][i])
        for i, n in enumerate(holders)
        for kind in (SEED, KEY)
    )
    points = [group.base(blind) for blind in blinds]
    challenge = _challenge(terms, dealer, advert, points, commitments)
    blinded = [
        [
            (blind + challenge * share) % ORDER
            for share, blind in zip((secret, *all_shares), (first, *others), strict=True)
        ]
        for secret, all_shares, first, others in zip(secrets, shares, blinds, blinding, strict=True)
    ]
    dealing = Dealing(
        view, group.scalar_bytes(challenge), commitments,
        b"".join(group.scalar_bytes(v) for both in zip(*blinded, strict=True) for v in both),
    )  # fmt: skip
    return dealing, {
        n: group.scalar_bytes(seed) + group.scalar_bytes(key)
        for n, seed, key in zip(holders, *shares, strict=True)
    }


def fits(terms: Terms, dealer: int, holder: int, kind: int, share: int, proof: bytes) -> bool:
    """Whether this is the share of the seed, or of the key, that a dealer committed to.

    Args:
        proof: from `Dealing.proof`, at the holder's place.
    """
    committed = SCALAR_BYTES + COMMITMENT_BYTES * kind
    valued = SCALAR_BYTES + _COMMITTED + SCALAR_BYTES * kind
    return sharing.fits(
        proof[committed : committed + COMMITMENT_BYTES],
        _context(terms, dealer, holder, kind),
        share,
        int.from_bytes(proof[:SCALAR_BYTES], "little"),
        int.from_bytes(proof[valued : valued + SCALAR_BYTES], "little"),
    )


def _challenge(
    terms: Terms, dealer: int, advert: Advert, blinds: Sequence[bytes], commitments: bytes
) -> int:
    about = context(terms, dealer, dealer) + b"".join((*_publics(advert), *blinds))
    digest = hashlib.sha512(b"challenge" + about + commitments).digest()
    return int.from_bytes(digest, "little") % (ORDER - 1) + 1


def _publics(advert: Advert) -> tuple[bytes, bytes]:
    return advert.seed, advert.masking


def _context(terms: Terms, dealer: int, holder: int, kind: int) -> bytes:
    return context(terms, dealer, holder) + bytes([kind])
