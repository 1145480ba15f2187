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
from randquant.secure_sums.secagg import crypto
from randquant.secure_sums.secagg.crypto import (
    COMMITMENT_BYTES,
    ORDER,
    PART_BYTES,
    SCALAR_BYTES,
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
from randquant.secure_sums.terms import (
    DEFAULT_THRESHOLD_SHARE,
    ProtocolError,
    Terms,
    add_masks,
    mask_dtype,
    share_of_neighbours,
)

# Dealing: a client's shares of its two secrets, and the public proof that they are shares of these.

SEED, KEY = 0, 1
"""The two secrets, in the order in which all messages have them."""

# Bytes at one place, for both secrets: two hashes, and two values of blinded polynomials.
_COMMITMENTS_BYTES, _VALUES_BYTES = 2 * COMMITMENT_BYTES, 2 * SCALAR_BYTES
PROOF_BYTES = SCALAR_BYTES + _COMMITMENTS_BYTES + _VALUES_BYTES
"""Length of the part of a dealing that one holder receives."""


@dataclass(frozen=True, slots=True)
class Dealing:
    """A client's public message when it deals its shares (theory/shares.md, Proposition 1).

    Attributes:
        view: digest of the adverts that it has seen, including its own, 32 bytes.
        challenge: a scalar that the commitments determine, 32 bytes.
        commitments: hashes of the shares of its seed and of its key, 32 bytes for each place,
            starting at place 1.
        values: the values of the two blinded polynomials, 64 bytes for each place, starting at
            place 0.
    """

    view: bytes
    challenge: bytes
    commitments: bytes
    values: bytes

    def to_bytes(self) -> bytes:
        # 128 bytes, then 96 for each place: each neighbour's, and the client's own.
        return self.view + self.challenge + self.commitments + self.values

    @classmethod
    def from_bytes(cls, message: bytes, places: int) -> Dealing:
        """Invert `to_bytes`; ProtocolError for another length."""
        message = exactly_bytes(message)
        head, commitments = PART_BYTES + SCALAR_BYTES, _COMMITMENTS_BYTES * places
        length = head + commitments + _VALUES_BYTES * (places + 1)
        if len(message) != length:
            raise ProtocolError(f"Expected commitments in {length} bytes, got {len(message)}.")
        middle = head + commitments
        return cls(
            message[:PART_BYTES], message[PART_BYTES:head], message[head:middle], message[middle:]
        )

    def proof(self, place: int) -> bytes:
        # Sent to the holder at this place alone: all that `fits` needs to check its two shares.
        return (
            self.challenge
            + self.commitments[_COMMITMENTS_BYTES * (place - 1) : _COMMITMENTS_BYTES * place]
            + self.values[_VALUES_BYTES * place : _VALUES_BYTES * (place + 1)]
        )

    def check(self, terms: Terms, dealer: int, advert: Advert, word: Sequence[int]) -> None:
        """Raise ProtocolError unless the shares are of the two advertised secrets.

        Args:
            terms, dealer, advert: the dealer's number and valid public keys in this sum.
            word: from `crypto.random_word`, drawn after the dealing was sent.
        """
        starts = range(0, len(self.values), SCALAR_BYTES)
        values = [
            int.from_bytes(self.values[start : start + SCALAR_BYTES], "little") for start in starts
        ]
        if not 0 < min(values) <= max(values) < ORDER:
            # An honest dealer has a zero with probability 2**-252 only. Values that are not reduced
            # would give one dealing several encodings.
            wrong = next(value for value in values if not 0 < value < ORDER)
            raise ProtocolError(
                f"Expected numbers modulo the group's order, above 0, got {wrong:#x}."
            )
        challenge = crypto.read_scalar(self.challenge)
        # h(0) B - challenge S is g(0) B if place 0 fits. Hashing it again must give the challenge:
        # a proof of knowledge of the secret (Schnorr), so that nobody can deal shares of another's.
        blinds = [
            crypto.total((crypto.base(value), crypto.times(ORDER - challenge, public)))
            for value, public in zip(values[:2], _publics(advert), strict=True)
        ]
        if challenge != _challenge(terms, dealer, advert, blinds, self.commitments):
            raise ProtocolError(
                "Expected shares of one secret, the advertised one, got a challenge that does not "
                "follow from the commitments and public keys."
            )
        # Otherwise any `threshold` holders might combine their shares to another secret.
        for name, kind in (("seed", SEED), ("masking key", KEY)):
            if not crypto.low_degree(values[kind::2], word):
                raise ProtocolError(
                    f"Expected shares of one secret, got values for the {name} that are on no "
                    f"polynomial of degree {terms.threshold - 1}."
                )


def deal(
    terms: Terms, dealer: int, advert: Advert, secrets: tuple[int, int], view: bytes
) -> tuple[Dealing, dict[int, bytes]]:
    """Share a seed and a key.

    Returns:
        The public message, and for each holder the two shares that only this holder may see, 64
        bytes.
    """
    holders = terms.share_holders(dealer)
    # One blinding polynomial for each secret. With a common one, the shares of a seed that are
    # revealed would reveal the key as well (theory/shares.md, Proposition 2).
    blinds = (crypto.random_scalar(), crypto.random_scalar())
    shares, blinding = (
        [crypto.split(secret, terms.threshold, len(holders)) for secret in pair]
        for pair in (secrets, blinds)
    )
    # Each hash is bound to dealer, holder and kind: no share passes for one at another place.
    commitments = b"".join(
        crypto.commitment(_context(terms, dealer, n, kind), shares[kind][i], blinding[kind][i])
        for i, n in enumerate(holders)
        for kind in (SEED, KEY)
    )
    points = [crypto.base(blind) for blind in blinds]
    # From all commitments: a dealer that knew it before could commit to wrong shares that fit it.
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
    """Return True if a share is the one that its dealer committed to.

    Args:
        terms, dealer, holder: of the sum; the share is the dealer's, for the holder.
        kind: SEED or KEY.
        share: a scalar.
        proof: from `Dealing.proof`, at the holder's place.
    """
    commitment_start = SCALAR_BYTES + COMMITMENT_BYTES * kind
    value_start = SCALAR_BYTES + _COMMITMENTS_BYTES + SCALAR_BYTES * kind
    return crypto.fits(
        proof[commitment_start : commitment_start + COMMITMENT_BYTES],
        _context(terms, dealer, holder, kind),
        share,
        int.from_bytes(proof[:SCALAR_BYTES], "little"),
        int.from_bytes(proof[value_start : value_start + SCALAR_BYTES], "little"),
    )


def _challenge(
    terms: Terms, dealer: int, advert: Advert, blinds: Sequence[bytes], commitments: bytes
) -> int:
    dealing_context = context(terms, dealer, dealer) + b"".join((*_publics(advert), *blinds))
    # 512 bits modulo an order of 253: the challenge is uniform up to 2**-258.
    digest = hashlib.sha512(b"challenge" + dealing_context + commitments).digest()
    return int.from_bytes(digest, "little") % (ORDER - 1) + 1


def _publics(advert: Advert) -> tuple[bytes, bytes]:
    return advert.seed, advert.masking


def _context(terms: Terms, dealer: int, holder: int, kind: int) -> bytes:
    return context(terms, dealer, holder) + bytes([kind])


STEPS = ("advertise", "share", "mask", "confirm", "reveal", "done")


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
            neighbours. Below two thirds, fewer colluding neighbours suffice for a malicious server
            to learn a client's vector.

    Raises:
        ProtocolError: a message violates the protocol; nothing is revealed.
    """

    def __init__(
        self,
        terms: Terms,
        number: int,
        identity: Ed25519PrivateKey | None = None,
        directory: Mapping[int, bytes] | None = None,
        threshold: float = DEFAULT_THRESHOLD_SHARE,
    ) -> None:
        # The client derives its neighbours from the terms itself: a server that chose them could
        # surround one client by colluders.
        if number not in terms.clients:
            raise ValueError(f"Expected one of the sum's clients, got {number}.")
        share = validate.real("threshold", threshold, above=0, high=1)
        least = share_of_neighbours(terms.neighbours, share)
        # The server writes the terms. Only this client's own setting may accept a threshold at
        # which two disjoint groups of neighbours could confirm two sets of survivors.
        if terms.threshold < least:
            raise ProtocolError(
                f"Expected a threshold of {least} of {terms.neighbours} neighbours or more, got "
                f"{terms.threshold}: this client's own setting may allow it, the server may not."
            )
        self.terms, self.number = terms, number
        self._identity, self._directory = identity, directory
        self._stage = STEPS[0]
        # Fresh for this sum: a secret that served two sums could have both its shares revealed
        # (theory/shares.md, Proposition 5).
        self._sealing = X25519PrivateKey.generate()
        self._masking, self._seed = crypto.random_scalar(), crypto.random_scalar()
        self._keys: dict[int, bytes] = {}  # by neighbour, for sealing and confirming
        self._masks: dict[int, bytes] = {}  # by neighbour, the secret of the pairwise mask
        # By neighbour: a share of its seed and one of its key, 32 bytes each; b"" if invalid.
        self._shares: dict[int, bytes] = {}
        self._survivors: frozenset[int] = frozenset()

    def to_bytes(self) -> bytes:
        """Save the client's whole state between two steps: it is as secret as its codes.

        If each step runs in its own process, save the state after every step and continue from
        the saved state only: a client that takes a step twice is no longer protected.
        """
        state = {
            "terms": self.terms.digest.hex(),
            # Recorded, since a later step without the directory would check no signatures.
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
            raise ValueError(
                "Expected the terms of the sum that was saved, with the digest "
                f"{state['terms'][:16]}..., got terms with the digest "
                f"{terms.digest.hex()[:16]}...."
            )
        if state["directory"] != (directory is not None):
            raise ValueError(
                "Expected a directory exactly where the saved client had one, got "
                f"{'none' if directory is None else 'one'} for a client saved "
                f"{'with' if state['directory'] else 'without'} one."
            )
        # By the digest, the client accepted these terms when it was created, hence their threshold.
        accepted_share = terms.threshold / terms.neighbours
        client = cls(terms, state["number"], identity, directory, accepted_share)
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
        with self._step("advertise"):
            return self._advert().to_bytes()

    def share(self, adverts: Mapping[int, bytes]) -> dict[int, bytes]:
        """Split this client's seed and masking key, and seal a share of each for each neighbour.

        Args:
            adverts: public keys of the neighbours that are still present.

        Returns:
            Sealed shares by neighbour, and under its own number the commitments to all shares.
        """
        with self._step("share"):
            terms = self.terms
            self._check_senders(adverts, terms.client_neighbours(self.number), "public keys")
            neighbours = {n: Advert.from_bytes(advert) for n, advert in adverts.items()}
            advert, multiply = self._advert(), crypto.masking_private(self._masking)
            for n, neighbour in neighbours.items():
                neighbour.check_signed(terms, n, self._directory)
                # Bound to both adverts: if the two clients saw different ones, nothing unseals.
                pair = pair_context(terms, {self.number: advert, n: neighbour})
                self._keys[n] = crypto.sealing_key(self._sealing, neighbour.sealing, pair)
                # theory/shares.md, Proposition 6 holds for points of the prime-order group only.
                point = crypto.read_point(neighbour.masking)
                self._masks[n] = crypto.masking_key(multiply, point, pair)
            # The server compares this with what it relayed: a key that was changed in transit
            # costs this client, and not the sum of the others.
            view = view_digest(terms, {self.number: advert, **neighbours})
            dealing, shares = deal(terms, self.number, advert, (self._seed, self._masking), view)
            sealed = {
                n: crypto.seal(self._keys[n], shares[n], context(terms, self.number, n))
                for n in neighbours
            }
            return {self.number: dealing.to_bytes(), **sealed}

    @property
    def accused(self) -> frozenset[int]:
        # The neighbours whose shares do not unseal or do not match: known after `mask`.
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
            # Before anything is masked: it raises if fewer than `threshold` shares are valid.
            self._shares = self._open(sealed)
            total = vector.astype(mask_dtype(terms.bits))
            # The self-mask protects a vector that arrives after the server has called its sender a
            # dropout, and so has had its pairwise masks revealed.
            self_context = context(terms, self.number, self.number)
            add_masks(total, [crypto.self_masking_key(self._seed, self_context)], +1)
            # Opposite signs at the two clients of a pair: their masks cancel in the sum. Those with
            # invalid shares are among them: a lie must not make the vector less masked.
            for n in self._shares:
                add_masks(total, [self._masks[n]], +1 if self.number < n else -1)
            masked = total & total.dtype.type((1 << terms.bits) - 1)
            form = masked_format(terms, self.number)
            packed = wire.pack(form, masked.astype(np.uint8 if terms.bits <= 8 else np.uint32))
            return packed + accusation(self.accused)

    def look_at(self, sealed: Mapping[int, bytes]) -> None:
        """Check these sealed shares as `mask` would, before there is a vector.

        A client calls it before it reads any data or charges its account for the round.
        """
        self._open(sealed)

    def confirm(self, survivors: Collection[int]) -> dict[int, bytes]:
        """Authenticate the set of survivors to each neighbour, under their common key.

        Args:
            survivors: the clients whose masked vectors the server has, this one among them.
        """
        with self._step("confirm"):
            clients = self.terms.clients
            # A hostile server may send a list of any length: one longer than the sum's is not read.
            announced = frozenset(survivors if len(survivors) <= len(clients) else ())
            strangers = announced.difference(clients)
            if strangers or self.number not in announced:
                missing = f"client {self.number} not among them"
                wrong = f"{len(strangers)} of no client in the sum" if strangers else missing
                raise ProtocolError(
                    f"Expected this client among the sum's, got {len(survivors)} survivors of "
                    f"{len(clients)} clients, {wrong}."
                )
            # The client itself enforces this: a server could otherwise learn the sum of a few.
            if len(announced) < self.terms.least:
                raise ProtocolError(
                    f"Expected {self.terms.least} clients or more in the sum, got "
                    f"{len(announced)}: its privacy relies on them."
                )
            neighbours = announced.intersection(self.terms.client_neighbours(self.number))
            # Neighbours that sent no shares have no mask in common with this client: in a sum with
            # enough of them, little would hide its vector.
            without_mask = neighbours - set(self._shares)
            if without_mask:
                raise ProtocolError(
                    f"Expected survivors that shared with this client, got {sorted(without_mask)}."
                )
            self._survivors = announced
            digest = survivors_digest(self.terms, announced)
            return {n: confirmation(self._keys[n], self.number, digest) for n in self._shares}

    def reveal(self, confirmations: Mapping[int, bytes]) -> dict[int, bytes]:
        """Reveal, for each neighbour, what removes its masks from the sum.

        For a survivor this is a share of its seed. For a client that dropped out it is the secret
        of the pairwise mask, and a share of its key. Never are both revealed for one client: with
        both masks removed, its vector would be in the clear.

        Args:
            confirmations: from surviving neighbours; `threshold` of them must confirm the same
                survivors, so that no other set can be unmasked besides this one. Invalid ones do
                not count.
        """
        with self._step("reveal"):
            if len(confirmations) > len(self._shares):
                raise ProtocolError(
                    f"Expected confirmations of {len(self._shares)} neighbours at most, got "
                    f"{len(confirmations)}."
                )
            digest = survivors_digest(self.terms, self._survivors)
            confirmed = sum(
                hmac.compare_digest(exactly_bytes(tag), confirmation(self._keys[n], n, digest))
                for n, tag in confirmations.items()
                if n in self._shares and n in self._survivors
            )
            if confirmed < self.terms.threshold:
                raise ProtocolError(
                    f"Expected {self.terms.threshold} neighbours to confirm the survivors, got "
                    f"{confirmed}."
                )
            # Of each neighbour one secret only, by one set of survivors that enough others have
            # confirmed: no server can get shares of both secrets by naming different sets.
            seed_shares = {
                n: s[:SCALAR_BYTES] for n, s in self._shares.items() if n in self._survivors
            }
            # An invalid share is b"": of a survivor nothing is then revealed, of a dropout the
            # pairwise secret alone, which suffices to remove this client's mask with it.
            return {n: share for n, share in seed_shares.items() if share} | {
                n: self._masks[n] + share[SCALAR_BYTES:]
                for n, share in self._shares.items()
                if n not in seed_shares
            }

    def _advert(self) -> Advert:
        # Made again when needed instead of kept: it is always the same, since Ed25519 signatures
        # are deterministic.
        sealing = self._sealing.public_key().public_bytes_raw()
        advert = Advert(sealing, crypto.base(self._masking), crypto.base(self._seed))
        if self._identity is not None:
            signature = self._identity.sign(advert.signed(self.terms, self.number))
            advert = dataclasses.replace(advert, signature=signature)
        return advert

    def _open(self, sealed: Mapping[int, bytes]) -> dict[int, bytes]:
        # By neighbour: two shares of 32 bytes each, or b"" if they are invalid.
        self._check_senders(sealed, tuple(self._keys), "sealed shares")
        shares, refusals = {}, {}
        for n, message in sealed.items():
            try:
                shares[n] = self._open_one(n, exactly_bytes(message))
            except ProtocolError as error:
                shares[n], refusals[n] = b"", str(error)
        # The client stops before it has masked anything: a server that changes messages gains
        # nothing by it.
        if len(shares) - len(refusals) < self.terms.threshold:
            raise ProtocolError(
                f"Expected valid shares from {self.terms.threshold} neighbours, got "
                f"{len(shares) - len(refusals)}; those from clients {sorted(refusals)[:9]} do not "
                "unseal or do not match their commitments: these clients, or the server that "
                "relays, are at fault."
            )
        return shares

    def _open_one(self, n: int, message: bytes) -> bytes:
        if len(message) != PROOF_BYTES + SEALED_BYTES:
            raise ProtocolError(
                f"Expected two sealed shares and their proof in {PROOF_BYTES + SEALED_BYTES} "
                f"bytes, got {len(message)}."
            )
        proof, sealed = message[:PROOF_BYTES], message[PROOF_BYTES:]
        shares = crypto.unseal(self._keys[n], sealed, context(self.terms, n, self.number))
        for name, kind, share in (
            ("seed", SEED, shares[:SCALAR_BYTES]),
            ("masking key", KEY, shares[SCALAR_BYTES:]),
        ):
            if not fits(self.terms, n, self.number, kind, crypto.read_scalar(share), proof):
                raise ProtocolError(
                    f"Expected shares that match their commitments, got a share of the {name} of "
                    f"client {n} that does not."
                )
        return shares

    @contextlib.contextmanager
    def _step(self, step: str) -> Iterator[None]:
        # Allows every step once, in order, and none after an error: the next step is set only if
        # the block ends without an exception.
        next_step, self._stage = self._stage, "done"
        if step != next_step:
            raise ProtocolError(f"Expected step {next_step!r} of the protocol, got {step!r}.")
        yield
        self._stage = STEPS[STEPS.index(step) + 1]

    def _check_senders(
        self, messages: Mapping[int, bytes], allowed: Collection[int], what: str
    ) -> None:
        # The comparison of keys begins with their number, and the message shows no more than that:
        # a hostile server may send millions of entries.
        if not messages.keys() <= frozenset(allowed):
            raise ProtocolError(
                f"Expected {what} of neighbours only, got {len(messages)}, not all of them of its "
                f"{len(allowed)} neighbours."
            )
        if len(messages) < self.terms.threshold:
            raise ProtocolError(
                f"Expected {what} of {self.terms.threshold} neighbours or more, got "
                f"{len(messages)}."
            )


def _to_hex(parts: Mapping[int, bytes]) -> dict[str, str]:
    return {str(number): part.hex() for number, part in parts.items()}
