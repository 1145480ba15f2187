"""The server's side of one secure sum: it relays, adds up, and takes masks off."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from randquant import wire
from randquant.secagg import masks
from randquant.secagg.crypto import SECRET_BYTES, agree, combine
from randquant.secagg.messages import Advert, commitment, context, exactly_bytes, masked_format
from randquant.secagg.terms import ProtocolError, Terms

MOST_TRIES = 150
"""Sets of shares that are tried where some of them are wrong: of 10, all of 7."""


class Server:
    """One secure sum: what comes from clients in, what goes to each of them out.

    After each step those who did not answer are left out, and those who answered something that
    the protocol does not allow; `refused` says who the latter are. Where too few are left,
    ProtocolError. The transport must tell which client a message is from.

    Args:
        terms: what all agreed on.
    """

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.refused: dict[int, str] = {}  # clients whose message was not used, and why
        self._adverts: dict[int, Advert] = {}
        self._sharing: frozenset[int] = frozenset()
        self._survivors: frozenset[int] = frozenset()
        self._closed = False
        self._total = np.zeros(terms.dimension, dtype=masks.dtype(terms.bits))

    def introduce(self, adverts: Mapping[int, bytes]) -> dict[int, dict[int, bytes]]:
        """For each client the keys of its neighbours. Those with too few of them are left out."""
        found = {}
        for client, message in self._known(adverts, self.terms.clients, bytes).items():
            try:
                advert = Advert.from_bytes(message)
                for key in (advert.sealing, advert.masking):
                    agree(X25519PrivateKey.generate(), key)  # refuses keys that are of no use
                found[client] = advert
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
            if set(messages) != wanted:
                self.refused[client] = "Expected shares for all neighbours, got others."
            elif not all(isinstance(message, bytes) for message in messages.values()):
                self.refused[client] = "Expected shares in bytes, got something else."
            else:
                whole[client] = messages
        self._sharing = self._connected(whole)
        return {
            client: {
                n: whole[n][client] for n in self.terms.neighbours_of(client) if n in self._sharing
            }
            for client in self._sharing
        }

    def add(self, client: int, payload: bytes) -> None:
        """Add one masked vector; ProtocolError where it is none, came before, or comes too late."""
        if self._closed or client not in self._sharing or client in self._survivors:
            raise ProtocolError(
                "Expected one masked vector of each client that shared, before the sum is closed; "
                f"got another of {client}."
            )
        form = masked_format(self.terms, client)
        try:
            vector = wire.unpack(form, exactly_bytes(payload), self.terms.dimension)
        except ValueError as error:
            self.refused[client] = str(error)
            raise ProtocolError(f"Client {client}: {error}") from None
        self.refused.pop(client, None)
        self._total += vector.astype(self._total.dtype)
        self._survivors |= {client}

    def close(self) -> frozenset[int]:
        """Take no more vectors: the clients that are in the sum, to tell every one of them."""
        self._closed = True
        return self._survivors

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
        if not self._closed or len(self._survivors) < terms.least:
            raise ProtocolError(
                f"Expected a closed sum of {terms.least} vectors or more, got "
                f"{len(self._survivors)}."
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
            if n in revealed and _is_share(revealed[n].get(client))
        }
        threshold = self.terms.threshold
        if len(shares) < threshold:
            raise ProtocolError(
                f"Expected {threshold} neighbours of client {client} to answer, got {len(shares)}: "
                "too many left to take its mask off; run the round again."
            )
        for chosen in _choices(sorted(shares), threshold):
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

    def _known(
        self, messages: Mapping[int, Any], allowed: Collection[int], kind: type = Mapping
    ) -> dict[int, Any]:
        """The messages of those who may send one now, and one of this kind."""
        found = {}
        for client, message in messages.items():
            if client not in allowed:
                self.refused[client] = "Expected no message of this client at this step."
            elif not isinstance(message, kind):
                self.refused[client] = f"Expected another message, got {type(message).__name__}."
            else:
                found[client] = message
        return found

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
                f"Expected {self.terms.least} clients or more that can reach "
                f"{self.terms.threshold} of their neighbours, got {len(left)}: too many have left."
            )
        return frozenset(left)

    def _relay(self, messages: Mapping[int, bytes]) -> dict[int, dict[int, bytes]]:
        return {
            client: {n: messages[n] for n in self.terms.neighbours_of(client) if n in messages}
            for client in messages
        }


def _is_share(share: object) -> bool:
    return isinstance(share, bytes) and len(share) == SECRET_BYTES


def _choices(places: Sequence[int], threshold: int) -> Iterator[tuple[int, ...]]:
    """Sets of shares to try: all, or where there are too many, the first and some at random."""
    if math.comb(len(places), threshold) <= MOST_TRIES:
        yield from itertools.combinations(places, threshold)
        return
    yield tuple(places[:threshold])
    for _ in range(MOST_TRIES):
        yield tuple(random.sample(places, threshold))
