"""A client's side of one secure sum."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import hmac
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from randquant._internal import validate
from randquant.channels import wire
from randquant.secure_sums import masks
from randquant.secure_sums.secagg import crypto
from randquant.secure_sums.secagg.crypto import COMMITMENT_BYTES, ORDER, SCALAR_BYTES
from randquant.secure_sums.secagg.messages import (
    PART_BYTES,
    SEALED_BYTES,
    Advert,
    accusation,
    confirmation,
    context,
    exactly_bytes,
    masked_format,
    pair_context,
    survivors_digest,
    view_digest,
)
from randquant.secure_sums.secagg.terms import TWO_THIRDS, ProtocolError, Terms, part_of

# What a client deals: shares of its two secrets, and the public proof that they are of these.

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
        challenge = crypto.read_scalar(self.challenge)
        blinds = [
            crypto.total((crypto.base(value), crypto.times(ORDER - challenge, public)))
            for value, public in zip(values[:2], _publics(advert), strict=True)
        ]
        bound = challenge == _challenge(terms, dealer, advert, blinds, self.commitments)
        if not bound or not all(crypto.low_degree(values[kind::2], word) for kind in (SEED, KEY)):
            raise ProtocolError("Expected shares of one secret, got others.")


def deal(
    terms: Terms, dealer: int, advert: Advert, secrets: tuple[int, int], view: bytes
) -> tuple[Dealing, dict[int, bytes]]:
    """Share a seed and a key.

    Returns:
        What the server sees, and by holder the two shares that only this holder may see, 64 bytes.
    """
    holders = terms.holders_of(dealer)
    blinds = (crypto.random_scalar(), crypto.random_scalar())
    shares, blinding = (
        [crypto.split(secret, terms.threshold, len(holders)) for secret in pair]
        for pair in (secrets, blinds)
    )
    commitments = b"".join(
        crypto.commitment(_context(terms, dealer, n, kind), shares[kind][i], blinding[kind][i])
        for i, n in enumerate(holders)
        for kind in (SEED, KEY)
    )
    points = [crypto.base(blind) for blind in blinds]
    challenge = _challenge(terms, dealer, advert, points, commitments)
    blinded = [
        [
            (blind + challenge * share) % ORDER
            for share, blind in zip((secret, *all_shares), (first, *others), strict=True)
        ]
        for secret, all_shares, first, others in zip(secrets, shares, blinds, blinding, strict=True)
    ]
    dealing = Dealing(
        view, crypto.scalar_bytes(challenge), commitments,
        b"".join(crypto.scalar_bytes(v) for both in zip(*blinded, strict=True) for v in both),
    )  # fmt: skip
    return dealing, {
        n: crypto.scalar_bytes(seed) + crypto.scalar_bytes(key)
        for n, seed, key in zip(holders, *shares, strict=True)
    }


def fits(terms: Terms, dealer: int, holder: int, kind: int, share: int, proof: bytes) -> bool:
    """Whether this is the share of the seed, or of the key, that a dealer committed to.

    Args:
        proof: from `Dealing.proof`, at the holder's place.
    """
    committed = SCALAR_BYTES + COMMITMENT_BYTES * kind
    valued = SCALAR_BYTES + _COMMITTED + SCALAR_BYTES * kind
    return crypto.fits(
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


STAGES = ("advertise", "share", "mask", "confirm", "reveal", "done")


class Client:
    """One client in one sum: `advertise`, `share`, `mask`, `confirm`, `reveal`, each once.

    Every object draws fresh secrets, which leave it only as shares. For a neighbour it reveals
    either a share of the seed or the neighbour's pairwise masks, never both. An object serves one
    sum; any error ends it.

    Args:
        terms: the public terms; `terms.clients` contains `number`.
        number: this client's number.
        identity: signs this client's keys, if the deployment has identities.
        directory: each client's public identity, 32 bytes of Ed25519: keys without its signature
            are refused. Without a directory, a server that invents clients or acts as a man in
            the middle goes unnoticed.
        threshold: the smallest `terms.threshold` that this client accepts, as a share of its
            neighbours: below two thirds, fewer of them can collude with a malicious server to
            learn a client's vector.

    Raises:
        ProtocolError: a message violates the protocol; nothing is revealed.
    """

    def __init__(
        self,
        terms: Terms,
        number: int,
        identity: Ed25519PrivateKey | None = None,
        directory: Mapping[int, bytes] | None = None,
        threshold: float = TWO_THIRDS,
    ) -> None:
        if number not in terms.clients:
            raise ValueError(f"Expected one of the sum's clients, got {number}.")
        wanted = part_of(terms.neighbours, validate.real("threshold", threshold, above=0, high=1))
        if terms.threshold < wanted:
            raise ProtocolError(
                f"Expected a threshold of {wanted} of {terms.neighbours} neighbours or more, got "
                f"{terms.threshold}: this client's own setting may allow it, the server may not."
            )
        self.terms, self.number = terms, number
        self._identity, self._directory = identity, directory
        self._stage = STAGES[0]
        self._sealing = X25519PrivateKey.generate()
        self._masking, self._seed = crypto.random_scalar(), crypto.random_scalar()
        self._keys: dict[int, bytes] = {}  # by neighbour, for sealing and confirming
        self._masks: dict[int, bytes] = {}  # by neighbour, the secret of the pairwise mask
        # By neighbour: a share of its seed and one of its key, 32 bytes each; b"" if invalid.
        self._shares: dict[int, bytes] = {}
        self._survivors: frozenset[int] = frozenset()

    def to_bytes(self) -> bytes:
        """The client's whole state between two steps: as secret as its codes.

        If each step runs in its own process, save the state after every step and continue from
        the saved state only: a client that takes a step twice is no longer protected.
        """
        state = {
            "terms": self.terms.digest.hex(),
            "directory": self._directory is not None,
            "stage": self._stage,
            "number": self.number,
            "sealing": self._sealing.private_bytes_raw().hex(),
            "masking": crypto.scalar_bytes(self._masking).hex(),
            "seed": crypto.scalar_bytes(self._seed).hex(),
            "survivors": sorted(self._survivors),
            **{name: _to_hex(getattr(self, f"_{name}")) for name in ("keys", "masks", "shares")},
        }
        return json.dumps(state).encode()

    @classmethod
    def from_bytes(
        cls,
        terms: Terms,
        saved: bytes,
        identity: Ed25519PrivateKey | None = None,
        directory: Mapping[int, bytes] | None = None,
    ) -> Client:
        """Invert `to_bytes`; ValueError for other terms, or if only one had a directory."""
        state = json.loads(saved)
        if bytes.fromhex(state["terms"]) != terms.digest:
            raise ValueError("Expected the terms of the sum that was saved, got others.")
        if state["directory"] != (directory is not None):
            raise ValueError("Expected a directory exactly where the saved client had one.")
        # These are the terms that the client accepted when it was created.
        agreed = terms.threshold / terms.neighbours
        client = cls(terms, state["number"], identity, directory, agreed)
        client._stage = state["stage"]
        client._sealing = X25519PrivateKey.from_private_bytes(bytes.fromhex(state["sealing"]))
        client._masking, client._seed = (
            crypto.read_scalar(bytes.fromhex(state[name])) for name in ("masking", "seed")
        )
        client._keys, client._masks, client._shares = (
            {int(n): bytes.fromhex(text) for n, text in state[name].items()}
            for name in ("keys", "masks", "shares")
        )
        client._survivors = frozenset(state["survivors"])
        return client

    def advertise(self) -> bytes:
        """This client's fresh public keys, for its neighbours."""
        with self._step("advertise"):
            return self._advert().to_bytes()

    def share(self, adverts: Mapping[int, bytes]) -> dict[int, bytes]:
        """Split this client's seed and masking key, and seal a share of each for each neighbour.

        Args:
            adverts: of the neighbours that are still present.

        Returns:
            Sealed shares by neighbour, and under its own number the commitments to all shares.
        """
        with self._step("share"):
            terms = self.terms
            self._enough(adverts, terms.neighbours_of(self.number), "public keys")
            seen = {n: Advert.from_bytes(advert) for n, advert in adverts.items()}
            own, masking = self._advert(), crypto.masking_private(self._masking)
            for n, advert in seen.items():
                advert.check_signed(terms, n, self._directory)
                # Bound to both adverts: if the two clients saw different ones, nothing unseals.
                pair = pair_context(terms, {self.number: own, n: advert})
                self._keys[n] = crypto.sealing_key(self._sealing, advert.sealing, pair)
                point = crypto.read_point(advert.masking)
                self._masks[n] = crypto.masking_key(masking, point, pair)
            view = view_digest(terms, {self.number: own, **seen})
            dealing, shares = deal(terms, self.number, own, (self._seed, self._masking), view)
            sealed = {
                n: crypto.seal(self._keys[n], shares[n], context(terms, self.number, n))
                for n in seen
            }
            return {self.number: dealing.to_bytes(), **sealed}

    @property
    def accused(self) -> frozenset[int]:
        """Neighbours whose shares do not unseal or do not match; known after `mask`."""
        return frozenset(n for n, share in self._shares.items() if not share)

    def mask(self, vector: np.ndarray, sealed: Mapping[int, bytes]) -> bytes:
        """Mask a vector: the sum of all clients' payloads is the sum of their vectors.

        Args:
            vector: (d,) unsigned integers, such that the sum over all clients is below 2**bits.
            sealed: commitments and sealed shares from the neighbours that are still present. The
                client shares a mask with each of them; the payload lists those with invalid
                shares.
        """
        with self._step("mask"):
            terms = self.terms
            if vector.shape != (terms.dimension,) or vector.dtype.kind != "u":
                raise ValueError(
                    f"Expected a vector ({terms.dimension},) of unsigned integers, got shape "
                    f"{vector.shape}, {vector.dtype}."
                )
            if int(vector.max()) >> terms.bits:
                raise ValueError(
                    f"Expected entries below 2**{terms.bits}, got {int(vector.max())}."
                )
            self._shares = self._open(sealed)
            total = vector.astype(masks.dtype(terms.bits))
            own = context(terms, self.number, self.number)
            masks.add(total, crypto.self_masking_key(self._seed, own), +1)
            for n in self._shares:
                masks.add(total, self._masks[n], +1 if self.number < n else -1)
            code = total & total.dtype.type((1 << terms.bits) - 1)
            form = masked_format(terms, self.number)
            packed = wire.pack(form, code.astype(np.uint8 if terms.bits <= 8 else np.uint32))
            return packed + accusation(self.accused)

    def look_at(self, sealed: Mapping[int, bytes]) -> None:
        """Check these sealed shares as `mask` would, before there is a vector."""
        self._open(sealed)

    def confirm(self, survivors: Collection[int]) -> dict[int, bytes]:
        """Authenticate the set of survivors to each neighbour, under their common key.

        Args:
            survivors: the clients whose masked vectors the server has, this one among them.
        """
        with self._step("confirm"):
            most = len(self.terms.clients)
            announced = frozenset(survivors if len(survivors) <= most else ())
            if not announced <= set(self.terms.clients) or self.number not in announced:
                raise ProtocolError("Expected this client among the sum's, got other survivors.")
            if len(announced) < self.terms.least:
                raise ProtocolError(
                    f"Expected {self.terms.least} clients or more in the sum, got "
                    f"{len(announced)}: its privacy relies on them."
                )
            neighbours = announced.intersection(self.terms.neighbours_of(self.number))
            strangers = neighbours - set(self._shares)
            if strangers:  # they share no mask with this client, whose vector would show
                raise ProtocolError(
                    f"Expected survivors that shared with this client, got {sorted(strangers)}."
                )
            self._survivors = announced
            digest = survivors_digest(self.terms, announced)
            return {n: confirmation(self._keys[n], self.number, digest) for n in self._shares}

    def reveal(self, confirmations: Mapping[int, bytes]) -> dict[int, bytes]:
        """Reveal, for each neighbour, what removes its masks from the sum.

        For a survivor this is a share of its seed. For a client that dropped out it is the secret
        of the pairwise mask, and a share of its key. Both kinds are never revealed for one client.

        Args:
            confirmations: from surviving neighbours; `threshold` of them must confirm the same
                survivors, so that no other set can be unmasked besides this one. Invalid ones do
                not count.
        """
        with self._step("reveal"):
            if len(confirmations) > len(self._shares):
                raise ProtocolError("Expected confirmations of neighbours only, got others.")
            digest = survivors_digest(self.terms, self._survivors)
            agreed = sum(
                hmac.compare_digest(exactly_bytes(tag), confirmation(self._keys[n], n, digest))
                for n, tag in confirmations.items()
                if n in self._shares and n in self._survivors
            )
            if agreed < self.terms.threshold:
                raise ProtocolError(
                    f"Expected {self.terms.threshold} neighbours to confirm the survivors, got "
                    f"{agreed}."
                )
            survived = {
                n: s[:SCALAR_BYTES] for n, s in self._shares.items() if n in self._survivors
            }
            return {n: share for n, share in survived.items() if share} | {
                n: self._masks[n] + share[SCALAR_BYTES:]
                for n, share in self._shares.items()
                if n not in survived
            }

    def _advert(self) -> Advert:
        """The public keys of its secrets: always the same, since Ed25519 is deterministic."""
        sealing = self._sealing.public_key().public_bytes_raw()
        advert = Advert(sealing, crypto.base(self._masking), crypto.base(self._seed))
        if self._identity is not None:
            signature = self._identity.sign(advert.signed(self.terms, self.number))
            advert = dataclasses.replace(advert, signature=signature)
        return advert

    def _open(self, sealed: Mapping[int, bytes]) -> dict[int, bytes]:
        """By neighbour: two shares of 32 bytes each, or b"" if they are invalid."""
        self._enough(sealed, tuple(self._keys), "sealed shares")
        shares, wrong = {}, {}
        for n, message in sealed.items():
            try:
                shares[n] = self._open_one(n, exactly_bytes(message))
            except ProtocolError as error:
                shares[n], wrong[n] = b"", str(error)
        if len(shares) - len(wrong) < self.terms.threshold:
            raise ProtocolError(
                f"Expected valid shares from {self.terms.threshold} neighbours, got "
                f"{len(shares) - len(wrong)}; those from clients {sorted(wrong)[:9]} do not unseal "
                "or do not match their commitments: these clients, or the server that relays, are "
                "at fault."
            )
        return shares

    def _open_one(self, n: int, message: bytes) -> bytes:
        if len(message) != PROOF_BYTES + SEALED_BYTES:
            raise ProtocolError("Expected two sealed shares and their proof, got something else.")
        proof, sealed = message[:PROOF_BYTES], message[PROOF_BYTES:]
        shares = crypto.unseal(self._keys[n], sealed, context(self.terms, n, self.number))
        for kind, share in ((SEED, shares[:SCALAR_BYTES]), (KEY, shares[SCALAR_BYTES:])):
            if not fits(self.terms, n, self.number, kind, crypto.read_scalar(share), proof):
                raise ProtocolError("Expected shares that match their commitments, got others.")
        return shares

    @contextlib.contextmanager
    def _step(self, stage: str) -> Iterator[None]:
        """Allow every step once, in order, and none after an error."""
        wanted, self._stage = self._stage, "done"
        if stage != wanted:
            raise ProtocolError(f"Expected step {wanted!r} of the protocol, got {stage!r}.")
        yield
        self._stage = STAGES[STAGES.index(stage) + 1]

    def _enough(self, senders: Mapping[int, bytes], allowed: Collection[int], what: str) -> None:
        if not senders.keys() <= frozenset(allowed):  # compares the lengths first
            raise ProtocolError(f"Expected {what} of neighbours only, got others.")
        if len(senders) < self.terms.threshold:
            raise ProtocolError(
                f"Expected {what} of {self.terms.threshold} neighbours or more, got {len(senders)}."
            )


def _to_hex(parts: Mapping[int, bytes]) -> dict[str, str]:
    return {str(number): part.hex() for number, part in parts.items()}
