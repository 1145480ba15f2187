"""The server's side of one secure sum: it relays, adds up, and takes masks off."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from randquant import wire
from randquant.secagg import masks
from randquant.secagg.crypto import SECRET_BYTES, agree, combine
from randquant.secagg.messages import Advert, commitment, context, masked_format
from randquant.secagg.terms import ProtocolError, Terms

MOST_TRIES = 150
"""Sets of shares that are tried where some of them are wrong: all 7 of 10."""


class Server:
    """One secure sum: what comes from clients in, what goes to each of them out.

    After each step those who did not answer, or not what the protocol allows, are left out; the
    caller tells who they are from `refused`. Where too few are left, ProtocolError.

    Args:
        terms: what all agreed on.
    """

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.refused: dict[int, str] = {}  # clients whose message was not used, and why
        self._adverts: dict[int, Advert] = {}
        self._sharing: frozenset[int] = frozenset()
        self._survivors: frozenset[int] = frozenset()
        self._total = np.zeros(terms.dimension, dtype=masks.dtype(terms.bits))

    @property
    def survivors(self) -> frozenset[int]:
        """The clients whose vectors are in the sum."""
        return self._survivors

    def introduce(self, adverts: Mapping[int, bytes]) -> dict[int, dict[int, bytes]]:
        """For each client the keys of its neighbours. Those with too few of them are left out."""
        found = {}
        for client, message in self._known(adverts, self.terms.clients).items():
            try:
                found[client] = Advert.from_bytes(message)
            except ProtocolError as error:
                self.refused[client] = str(error)
        self._adverts = {c: found[c] for c in self._connected(found)}
        return self._relay({c: found[c].to_bytes() for c in self._adverts})

    def forward(self, sealed: Mapping[int, Mapping[int, bytes]]) -> dict[int, dict[int, bytes]]:
        """For each client the shares that its neighbours sealed for it."""
        known = self._known(sealed, self._adverts)
        whole = {}
        for client, messages in known.items():
            wanted = set(self.terms.neighbours_of(client)) & set(self._adverts)
            if set(messages) == wanted:
                whole[client] = messages
            else:
                self.refused[client] = "Expected shares for all neighbours, got others."
        self._sharing = self._connected(whole)
        return {
            client: {
                n: whole[n][client] for n in self.terms.neighbours_of(client) if n in self._sharing
            }
            for client in self._sharing
        }

    def add(self, client: int, payload: bytes) -> None:
        """Add one masked vector; ProtocolError where it is none, or came before."""
        if client not in self._sharing or client in self._survivors:
            raise ProtocolError(
                f"Expected one masked vector of each client that shared, got another of {client}."
            )
        try:
            vector = wire.unpack(masked_format(self.terms), payload, self.terms.dimension)
        except ValueError as error:
            self.refused[client] = str(error)
            raise ProtocolError(f"Client {client}: {error}") from None
        self._total += vector.astype(self._total.dtype)
        self._survivors |= {client}

    def relay(
        self, confirmations: Mapping[int, Mapping[int, bytes]]
    ) -> dict[int, dict[int, bytes]]:
        """For each survivor that confirmed, the confirmations of its neighbours."""
        known = self._known(confirmations, self._survivors)
        return {
            client: {
                n: known[n][client]
                for n in self.terms.neighbours_of(client)
                if n in known and client in known[n]
            }
            for client in known
        }

    def unmask(self, revealed: Mapping[int, Mapping[int, bytes]]) -> np.ndarray:
        """The sum of the survivors' vectors modulo 2**bits, (d,) uint8, uint16 or uint32.

        Args:
            revealed: of each client that answered, one share for each of its neighbours.

        Raises:
            ProtocolError: too few are left to take some mask off: there is no sum, of anyone.
        """
        terms = self.terms
        if len(self._survivors) < terms.least:
            raise ProtocolError(
                f"Expected {terms.least} masked vectors or more, got {len(self._survivors)}."
            )
        known = self._known(revealed, self._survivors)
        secrets = {c: self._secret(c, known) for c in sorted(self._sharing)}  # before any mask
        total = self._total.copy()
        for client, secret in secrets.items():
            if client in self._survivors:
                masks.add(total, secret, -1)
                continue
            private = X25519PrivateKey.from_private_bytes(secret)
            for n in set(terms.neighbours_of(client)) & self._survivors:
                pair = context(terms, *sorted((client, n)))
                shared = agree(private, self._adverts[n].masking, b"mask", pair)
                masks.add(total, shared, -1 if n < client else +1)
        total &= total.dtype.type((1 << terms.bits) - 1)
        return total

    def _secret(self, client: int, revealed: Mapping[int, Mapping[int, bytes]]) -> bytes:
        """A survivor's seed, or the key of one that left after it had shared."""
        shares = {
            place: revealed[n][client]
            for place, n in enumerate(self.terms.neighbours_of(client), start=1)
            if n in revealed and len(revealed[n].get(client, b"")) == SECRET_BYTES
        }
        threshold = self.terms.threshold
        if len(shares) < threshold:
            raise ProtocolError(
                f"Expected {threshold} neighbours of client {client} to answer, got {len(shares)}: "
                "too many left to take its mask off; run the round again."
            )
        for chosen in itertools.islice(itertools.combinations(shares, threshold), MOST_TRIES):
            secret = combine({place: shares[place] for place in chosen})
            if self._fits(client, secret):
                return secret
        raise ProtocolError(
            f"Expected shares that fit what client {client} committed to, got wrong ones: some "
            "client does not keep to the protocol; run the round again without it."
        )

    def _fits(self, client: int, secret: bytes) -> bool:
        """Whether it is the seed, or the private key, that a client showed the other side of."""
        advert = self._adverts[client]
        if client in self._survivors:
            return commitment(secret) == advert.commitment
        private = X25519PrivateKey.from_private_bytes(secret)
        return private.public_key().public_bytes_raw() == advert.masking

    def _known(self, messages: Mapping[int, object], allowed: Collection[int]) -> dict:
        for client in set(messages) - set(allowed):
            self.refused[client] = "Expected no message of this client at this step."
        return {client: message for client, message in messages.items() if client in allowed}

    def _connected(self, found: Collection[int]) -> frozenset[int]:
        """Those with `threshold` neighbours left, among themselves; ProtocolError if too few."""
        left = set(found)
        while alone := {
            c
            for c in left
            if len(left.intersection(self.terms.neighbours_of(c))) < self.terms.threshold
        }:
            left -= alone
        if len(left) < self.terms.least:
            raise ProtocolError(
                f"Expected {self.terms.least} clients or more, got {len(left)} left."
            )
        return frozenset(left)

    def _relay(self, messages: Mapping[int, bytes]) -> dict[int, dict[int, bytes]]:
        return {
            client: {n: messages[n] for n in self.terms.neighbours_of(client) if n in messages}
            for client in messages
        }
