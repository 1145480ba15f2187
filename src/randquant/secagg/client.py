"""A client's side of one secure sum."""

from __future__ import annotations

import contextlib
import dataclasses
import hmac
import json
import os
from collections.abc import Collection, Iterator, Mapping

import numpy as np
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from randquant import wire
from randquant.secagg import masks
from randquant.secagg.crypto import SECRET_BYTES, agree, seal, split, unseal
from randquant.secagg.messages import (
    Advert,
    commitment,
    confirmation,
    context,
    exactly_bytes,
    masked_format,
    survivors_digest,
)
from randquant.secagg.terms import ProtocolError, Terms

STAGES = ("advertise", "share", "mask", "confirm", "reveal", "done")


class Client:
    """One client in one sum: `advertise`, `share`, `mask`, `confirm`, `reveal`, in order, once.

    Its keys are made anew for every object, and leave it only as shares of a seed or of a key,
    never both of one neighbour. An object serves one sum; an error ends its part in it.

    Args:
        terms: what all agreed on; `terms.clients` contains `number`.
        number: this client's.
        identity: signs this client's keys, where the deployment has identities.
        directory: each client's public identity, 32 bytes of Ed25519: keys that it did not sign
            are refused. Without it nobody notices a server that makes up clients, or stands
            between them.

    Raises:
        ProtocolError: what came is not what the protocol allows; nothing is revealed.
    """

    def __init__(
        self,
        terms: Terms,
        number: int,
        identity: Ed25519PrivateKey | None = None,
        directory: Mapping[int, bytes] | None = None,
    ) -> None:
        if number not in terms.clients:
            raise ValueError(f"Expected one of the sum's clients, got {number}.")
        self.terms, self.number = terms, number
        self._identity, self._directory = identity, directory
        self._stage = STAGES[0]
        self._sealing, self._masking = X25519PrivateKey.generate(), X25519PrivateKey.generate()
        self._seed = os.urandom(SECRET_BYTES)
        self._keys: dict[int, bytes] = {}  # with each neighbour, to seal and to confirm
        self._masks: dict[int, bytes] = {}  # with each neighbour, the secret of their mask
        self._shares: dict[int, bytes] = {}  # of neighbours' seeds and keys, both, 32 bytes each
        self._survivors: frozenset[int] = frozenset()

    def to_bytes(self) -> bytes:
        """Everything that this client must remember between steps: as secret as its codes.

        Where each step is a process of its own, save it after the step and go on from the saved
        one only: a client that takes a step twice is no longer protected.
        """
        state = {
            "terms": self.terms.digest.hex(),
            "directory": self._directory is not None,
            "stage": self._stage,
            "number": self.number,
            "sealing": self._sealing.private_bytes_raw().hex(),
            "masking": self._masking.private_bytes_raw().hex(),
            "seed": self._seed.hex(),
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
        """Undo `to_bytes`; ValueError unless for the same terms, and a directory if it had one."""
        state = json.loads(saved)
        if bytes.fromhex(state["terms"]) != terms.digest:
            raise ValueError("Expected the terms of the sum that was saved, got others.")
        if state["directory"] != (directory is not None):
            raise ValueError("Expected a directory exactly where the saved client had one.")
        client = cls(terms, state["number"], identity, directory)
        client._stage, client._seed = state["stage"], bytes.fromhex(state["seed"])
        client._sealing, client._masking = (
            X25519PrivateKey.from_private_bytes(bytes.fromhex(state[name]))
            for name in ("sealing", "masking")
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
            sealing, masking = (
                key.public_key().public_bytes_raw() for key in (self._sealing, self._masking)
            )
            advert = Advert(sealing, masking, commitment(self._seed))
            if self._identity is not None:
                signature = self._identity.sign(advert.signed(self.terms, self.number))
                advert = dataclasses.replace(advert, signature=signature)
            return advert.to_bytes()

    def share(self, adverts: Mapping[int, bytes]) -> dict[int, bytes]:
        """Split what takes this client's masks off, and seal one share for each neighbour.

        Args:
            adverts: of the neighbours who are still there.
        """
        with self._step("share"):
            neighbours = self.terms.neighbours_of(self.number)
            found = {n: Advert.from_bytes(advert) for n, advert in adverts.items()}
            self._enough(found, neighbours, "public keys")
            for n, advert in found.items():
                self._check_signature(n, advert)
                pair = context(self.terms, *sorted((self.number, n)))
                self._keys[n] = agree(self._sealing, advert.sealing, b"seal", pair)
                self._masks[n] = agree(self._masking, advert.masking, b"mask", pair)
            count, threshold = len(neighbours), self.terms.threshold
            seeds = split(self._seed, threshold, count)
            private = split(self._masking.private_bytes_raw(), threshold, count)
            return {
                n: seal(
                    self._keys[n],
                    seeds[place] + private[place],
                    context(self.terms, self.number, n),
                )
                for place, n in enumerate(neighbours)
                if n in found
            }

    def mask(self, vector: np.ndarray, sealed: Mapping[int, bytes]) -> bytes:
        """Hide a vector: the payload whose sum with the others' is the sum of vectors.

        Args:
            vector: (d,) unsigned integers below 2**bits, so few that the sum of all stays below.
            sealed: shares from the neighbours who are still there.
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
            masks.add(total, self._seed, +1)
            for n in self._shares:
                masks.add(total, self._masks[n], +1 if self.number < n else -1)
            code = total & total.dtype.type((1 << terms.bits) - 1)
            form = masked_format(terms, self.number)
            return wire.pack(form, code.astype(np.uint8 if terms.bits <= 8 else np.uint32))

    def look_at(self, sealed: Mapping[int, bytes]) -> None:
        """Raise as `mask` would for these sealed shares, before there is a vector."""
        self._open(sealed)

    def confirm(self, survivors: Collection[int]) -> dict[int, bytes]:
        """Say to each neighbour, under a key of the two, who this client was told is in the sum.

        Args:
            survivors: the clients whose masked vectors the server has, this one among them.
        """
        with self._step("confirm"):
            found = frozenset(survivors)
            if not found <= set(self.terms.clients) or self.number not in found:
                raise ProtocolError("Expected this client among the sum's, got other survivors.")
            if len(found) < self.terms.least:
                raise ProtocolError(
                    f"Expected {self.terms.least} clients or more in the sum, got {len(found)}: "
                    "its privacy counts on them."
                )
            strangers = found.intersection(self.terms.neighbours_of(self.number)) - set(
                self._shares
            )
            if strangers:  # their vectors are not masked with this one's: it would stand out
                raise ProtocolError(
                    f"Expected survivors that shared with this client, got {sorted(strangers)}."
                )
            self._survivors = found
            digest = survivors_digest(self.terms, found)
            return {n: confirmation(self._keys[n], self.number, digest) for n in self._shares}

    def reveal(self, confirmations: Mapping[int, bytes]) -> dict[int, bytes]:
        """One share of each neighbour: of its seed if it survived, of its key if not, never both.

        Args:
            confirmations: from neighbours who survived; `threshold` of them must have been told the
                same survivors, so that no other set can be unmasked beside this one. Those that do
                not fit are not counted.
        """
        with self._step("reveal"):
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
            return {
                n: share[:SECRET_BYTES] if n in self._survivors else share[SECRET_BYTES:]
                for n, share in self._shares.items()
            }

    def _open(self, sealed: Mapping[int, bytes]) -> dict[int, bytes]:
        """The shares of neighbours, two of 32 bytes each."""
        self._enough(sealed, tuple(self._keys), "sealed shares")
        shares = {}
        for n, message in sealed.items():
            try:
                share = unseal(
                    self._keys[n], exactly_bytes(message), context(self.terms, n, self.number)
                )
            except ProtocolError as error:
                raise ProtocolError(f"Client {n}: {error}") from None
            if len(share) != 2 * SECRET_BYTES:
                raise ProtocolError(f"Client {n}: Expected two shares of 32 bytes, got others.")
            shares[n] = share
        return shares

    @contextlib.contextmanager
    def _step(self, stage: str) -> Iterator[None]:
        """Every step once, in order; after an error none."""
        wanted, self._stage = self._stage, "done"
        if stage != wanted:
            raise ProtocolError(f"Expected step {wanted!r} of the protocol, got {stage!r}.")
        yield
        self._stage = STAGES[STAGES.index(stage) + 1]

    def _enough(self, found: Collection[int], allowed: Collection[int], what: str) -> None:
        if not set(found) <= set(allowed):
            raise ProtocolError(f"Expected {what} of neighbours only, got others.")
        if len(found) < self.terms.threshold:
            raise ProtocolError(
                f"Expected {what} of {self.terms.threshold} neighbours or more, got {len(found)}."
            )

    def _check_signature(self, number: int, advert: Advert) -> None:
        if self._directory is None:
            return
        try:
            public = Ed25519PublicKey.from_public_bytes(self._directory[number])
            public.verify(advert.signature, advert.signed(self.terms, number))
        except (KeyError, ValueError, InvalidSignature):
            raise ProtocolError(f"Expected keys signed by client {number}, got others.") from None


def _to_hex(parts: Mapping[int, bytes]) -> dict[str, str]:
    return {str(number): part.hex() for number, part in parts.items()}
