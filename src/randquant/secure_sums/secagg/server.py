"""The server's side of one secure sum: it relays messages, adds vectors and removes masks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from randquant.channels import wire
from randquant.secure_sums import masks
from randquant.secure_sums.secagg import crypto, messages
from randquant.secure_sums.secagg.client import KEY, SEED, Dealing, fits
from randquant.secure_sums.secagg.crypto import KEY_BYTES, SCALAR_BYTES, sealing_key
from randquant.secure_sums.secagg.messages import (
    CONFIRMATION_BYTES,
    NUMBER_BYTES,
    SEALED_BYTES,
    Advert,
    check_inbox,
    context,
    exactly_bytes,
    pair_context,
)
from randquant.secure_sums.secagg.terms import ProtocolError, Terms

# The last step of a secure sum: from what clients reveal to the masks to remove.


@dataclass(frozen=True, slots=True)
class Unmasking:
    """The server's knowledge of a closed sum.

    Attributes:
        terms, adverts: of the sum.
        dealt: commitments of the clients that shared.
        survivors: clients whose vectors are in the sum.
        refused: clients that reveal something invalid are added here, with the reason.
    """

    terms: Terms
    adverts: Mapping[int, Advert]
    dealt: Mapping[int, Dealing]
    survivors: Collection[int]
    refused: MutableMapping[int, str]
    _shares: dict[int, dict[int, int]] = field(default_factory=dict)  # by dealer and neighbour
    _masks: dict[int, dict[int, bytes]] = field(default_factory=dict)  # the same, of dropouts
    _places: set[int] = field(default_factory=lambda: {0})  # of 0 and of shares combined so far

    def masks(self, revealed: Mapping[int, Mapping[int, bytes]]) -> list[tuple[int, bytes]]:
        """Signs and secrets of all masks to add to the sum; ProtocolError if one is unknown."""
        for client in sorted(revealed):
            self._read(client, revealed[client])
        masks = []
        for client in sorted(self.dealt):
            secret = self._secret(client)
            masks += self._own(client, secret) if client in self.survivors else (
                self._shared(client, secret)
            )  # fmt: skip
        return masks

    def _read(self, client: int, answer: Mapping[int, bytes]) -> None:
        """Read what one client reveals for its neighbours; malformed parts do not count."""
        for dealer in self.terms.neighbours_of(client):
            if dealer not in answer:
                continue
            try:
                message = exactly_bytes(answer[dealer])
                if dealer not in self.survivors:
                    self._masks.setdefault(dealer, {})[client] = message[:KEY_BYTES]
                    message = message[KEY_BYTES:]
                if message or dealer in self.survivors:
                    share = crypto.read_scalar(message)
                    self._shares.setdefault(dealer, {})[client] = share
            except ProtocolError as error:
                self._name(client, dealer, str(error))

    def _own(self, client: int, seed: int | None) -> list[tuple[int, bytes]]:
        """A survivor's self-mask, from its seed."""
        if seed is None:
            raise self._too_few(client)
        return [(-1, crypto.self_masking_key(seed, context(self.terms, client, client)))]

    def _shared(self, client: int, private: int | None) -> Iterator[tuple[int, bytes]]:
        """The pairwise masks that survivors share with a client that dropped out.

        From its key if enough shares came: then no neighbour need be trusted. Otherwise from each
        neighbour's own secret; a dishonest one spoils the sum, as it could by its vector.
        """
        key = None if private is None else crypto.masking_private(private)
        for n in self.terms.neighbours_of(client):
            if n not in self.survivors:
                continue
            if key is not None:
                pair = pair_context(self.terms, {m: self.adverts[m] for m in (client, n)})
                secret = crypto.masking_key(key, self.adverts[n].masking, pair)
            elif len(secret := self._masks.get(client, {}).get(n, b"")) != KEY_BYTES:
                raise self._too_few(client)
            yield (-1 if n < client else +1), secret

    def _secret(self, client: int) -> int | None:
        """A survivor's seed, or a dropout's key; None if too few valid shares came.

        All shares are combined first, since an invalid one changes the secret. Only if the result
        is not the advertised secret, each share is checked.
        """
        of_seed = client in self.survivors
        public = self.adverts[client].seed if of_seed else self.adverts[client].masking
        shares = self._shares.get(client, {})
        if (secret := self._combined(client, shares, public)) is None:
            kind, place_of = SEED if of_seed else KEY, self.terms.place_of
            for n, share in list(shares.items()):
                proof = self.dealt[client].proof(place_of(client, n))
                if not fits(self.terms, client, n, kind, share, proof):
                    del shares[n]
                    self._name(
                        n, client, "Expected the share that matches its commitment, got another."
                    )
            secret = self._combined(client, shares, public)
        return secret

    def _combined(self, client: int, shares: Mapping[int, int], public: bytes) -> int | None:
        """The secret of a public key; None if shares are too few, or of another."""
        holders = enumerate(self.terms.holders_of(client), start=1)
        places = {place: shares[n] for place, n in holders if n in shares}
        self._places.update(places)
        secret = crypto.combine(places, self._places)
        return secret if secret and crypto.base(secret) == public else None

    def _name(self, client: int, dealer: int, error: str) -> None:
        self.refused[client] = f"Its share of client {dealer}: {error}"

    def _too_few(self, client: int) -> ProtocolError:
        return ProtocolError(
            f"Expected {self.terms.threshold} neighbours of client {client} to reveal valid "
            f"shares of its secret, got {len(self._shares.get(client, {}))} shares: too many "
            "dropped out or were refused to remove its mask; run the round again."
        )


Read = TypeVar("Read")


class SumServer:
    """One secure sum: each step takes the clients' messages and returns those to each client.

    Each step excludes clients that did not answer and clients that violated the protocol;
    `refused` lists the latter. If too few are left, a step raises ProtocolError. The transport
    must tell which client a message is from.

    Args:
        terms: the public terms.
        directory: each client's public identity, the same as the clients have: a client whose keys
            are not signed is excluded at once. Without it, clients with a directory refuse the sum.
    """

    def __init__(self, terms: Terms, directory: Mapping[int, bytes] | None = None) -> None:
        self.terms, self._directory = terms, directory
        self.refused: dict[int, str] = {}  # clients whose message was not used, and why
        self._adverts: dict[int, Advert] = {}
        self._dealt: dict[int, Dealing] = {}  # of those who shared
        self._uploads: dict[int, bytes] = {}
        self._accused: dict[int, frozenset[int]] = {}  # by accuser: senders of invalid shares
        self._survivors: frozenset[int] = frozenset()
        self._closed = False
        self._views: dict[frozenset[int], bytes] = {}  # one for all where all are neighbours
        self._total = np.zeros(terms.dimension, dtype=masks.dtype(terms.bits))

    def introduce(self, adverts: Mapping[int, bytes]) -> dict[int, dict[int, bytes]]:
        """The keys of each client's neighbours; clients with too few neighbours are excluded."""

        def read(client: int, message: bytes) -> Advert:
            advert = _usable(Advert.from_bytes(message))
            advert.check_signed(self.terms, client, self._directory)
            return advert

        usable = self._known(adverts, self.terms.clients, read)
        self._adverts = {c: usable[c] for c in self._connected(usable)}
        return {
            client: {n: self._adverts[n].to_bytes() for n in self._present(client)}
            for client in self._adverts
        }

    def forward(self, sealed: Mapping[int, Mapping[int, bytes]]) -> dict[int, dict[int, bytes]]:
        """For each client the shares that its neighbours sealed for it, with their commitments.

        A client whose commitments do not belong to the two secrets that it advertised is excluded
        here, before anything is masked.
        """
        terms = self.terms
        word = crypto.random_word(terms.neighbours + 1, terms.threshold)  # after all have dealt
        dealt = self._known(
            sealed, self._adverts, lambda client, inbox: self._dealing(client, inbox, word)
        )
        self._dealt = {client: dealt[client] for client in self._connected(dealt)}
        inboxes: dict[int, dict[int, bytes]] = {client: {} for client in self._dealt}
        for dealer, dealing in self._dealt.items():
            for place, holder in enumerate(terms.holders_of(dealer), start=1):
                if holder in inboxes and holder != dealer:
                    inboxes[holder][dealer] = dealing.proof(place) + sealed[dealer][holder]
        return inboxes

    def add(self, client: int, payload: bytes) -> None:
        """Add one masked vector; ProtocolError if it is malformed, a repetition, or too late."""
        if self._closed or client not in self._dealt or client in self._uploads:
            raise ProtocolError(
                "Expected one masked vector of each client that shared, before the sum is closed; "
                f"got another of {client}."
            )
        try:
            vector, accused = self._read(client, exactly_bytes(payload))
        except ValueError as error:
            self.refused[client] = str(error)
            raise ProtocolError(f"Client {client}: {error}") from None
        self.refused.pop(client, None)
        self._total += vector
        self._uploads[client], self._accused[client] = payload, accused

    def close(self) -> frozenset[int]:
        """Accept no more vectors, and return the survivors, to be announced to all of them.

        Clients accused of invalid shares by more than `terms.most_accusers` neighbours are
        excluded.
        """
        if not self._closed:
            self._closed = True
            for client in (wrong := self._wrong_dealers()):
                self._total -= self._read(client, self._uploads[client])[0]
            self._survivors = frozenset(self._uploads) - wrong
        return self._survivors

    def relay(
        self, confirmations: Mapping[int, Mapping[int, bytes]]
    ) -> dict[int, dict[int, bytes]]:
        """For each survivor that confirmed, the confirmations of its neighbours."""

        def read(client: int, inbox: Mapping[int, bytes]) -> Mapping[int, bytes]:
            check_inbox(inbox, self._holders(client), CONFIRMATION_BYTES)
            return inbox

        known = self._known(confirmations, self._survivors, read)
        return {
            client: {
                n: known[n][client]
                for n in self.terms.neighbours_of(client)
                if n in known and client in known[n]
            }
            for client in known
        }

    def unmask(
        self, revealed: Mapping[int, Mapping[int, bytes]], largest: int | None = None
    ) -> np.ndarray:
        """The sum of the survivors' vectors modulo 2**bits, (d,) uint8, uint16 or uint32.

        Args:
            revealed: by client that answered, what it reveals for each of its neighbours.
            largest: the largest entry of an honest vector: a total beyond that of survivors with
                such entries is refused.

        Raises:
            ProtocolError: too few are left to remove some mask, or a total is impossible: the
                whole sum is lost.
        """
        terms = self.terms
        if not self._closed or len(self._survivors) < terms.least:
            raise ProtocolError(
                f"Expected a closed sum of {terms.least} vectors or more, got "
                f"{len(self._survivors)}."
            )
        known = self._known(revealed, self._survivors, self._revealed)
        unmasking = Unmasking(terms, self._adverts, self._dealt, self._survivors, self.refused)
        total = self._total.copy()
        for sign, secret in unmasking.masks(known):
            masks.add(total, secret, sign)
        total &= total.dtype.type((1 << terms.bits) - 1)
        if largest is not None and int(total.max()) > (most := len(self._survivors) * largest):
            raise ProtocolError(
                f"Expected totals of {most} at most, got {int(total.max())}: some client sent an "
                "invalid vector; the whole sum is discarded."
            )
        return total

    def _dealing(self, client: int, inbox: Mapping[int, bytes], word: list[int]) -> Dealing:
        """A client's commitments; ProtocolError unless they and its sealed shares are valid."""
        terms, present = self.terms, self._present(client)
        if not isinstance(inbox, Mapping) or inbox.keys() != {client, *present}:
            raise ProtocolError("Expected shares for all neighbours, got others.")
        if any(len(exactly_bytes(inbox[n])) != SEALED_BYTES for n in present):
            raise ProtocolError("Expected two sealed shares for each neighbour, got others.")
        dealing = Dealing.from_bytes(inbox[client], terms.neighbours + 1)
        if dealing.view != self._view(frozenset((client, *present))):
            raise ProtocolError(
                "Expected this client to have seen the keys that the server relayed, its own "
                "included, got others: some were changed in transit."
            )
        dealing.check(terms, client, self._adverts[client], word)
        return dealing

    def _revealed(self, client: int, answer: Mapping[int, bytes]) -> Mapping[int, bytes]:
        """What a client reveals; ProtocolError if it is of others, or of another length."""
        one, both = KEY_BYTES, KEY_BYTES + SCALAR_BYTES  # a share of a seed is as long as a key
        check_inbox(answer, self._holders(client), one, both)
        return answer

    def _read(self, client: int, payload: bytes) -> tuple[np.ndarray, frozenset[int]]:
        """A masked vector and the clients that its sender accuses; ValueError if malformed."""
        form, dimension = messages.masked_format(self.terms, client), self.terms.dimension
        size = wire.HEADER_BYTES + -(-dimension * self.terms.bits // 8)
        if len(payload) > size + NUMBER_BYTES * self.terms.neighbours:
            raise ProtocolError(f"Expected a masked vector in {size} bytes, got {len(payload)}.")
        accused = messages.read_accusation(payload[size:])
        if not accused <= set(self.terms.neighbours_of(client)).intersection(self._dealt):
            raise ProtocolError("Expected a client to accuse neighbours only, got others.")
        vector = wire.unpack(form, payload[:size], dimension)
        return vector.astype(self._total.dtype), accused

    def _wrong_dealers(self) -> frozenset[int]:
        """Clients in the sum that too many neighbours accuse, also noted in `refused`."""
        most, wrong = self.terms.most_accusers, set()
        for client in self._uploads:
            accusers = sum(client in accused for accused in self._accused.values())
            if accusers > most > 0:  # with 0, a single accuser cannot be believed
                wrong.add(client)
                self.refused[client] = (
                    "Expected shares that unseal and match their commitments, but "
                    f"{accusers} neighbours say otherwise: it is excluded."
                )
        return frozenset(wrong)

    def _view(self, clients: frozenset[int]) -> bytes:
        if clients not in self._views:
            adverts = {n: self._adverts[n] for n in clients}
            self._views[clients] = messages.view_digest(self.terms, adverts)
        return self._views[clients]

    def _present(self, client: int) -> list[int]:
        return [n for n in self.terms.neighbours_of(client) if n in self._adverts]

    def _holders(self, client: int) -> list[int]:
        """The neighbours that shared with a client."""
        return [n for n in self.terms.neighbours_of(client) if n in self._dealt]

    def _known(
        self,
        received: Mapping[int, Any],
        allowed: Collection[int],
        read: Callable[[int, Any], Read],
    ) -> dict[int, Read]:
        """What `read` makes of the messages of clients that may send one at this step.

        If it raises a ProtocolError, the client is refused, and the others go on.
        """
        known = {}
        for client, message in received.items():
            try:
                if client not in allowed:
                    raise ProtocolError("Expected no message of this client at this step.")
                known[client] = read(client, message)
            except ProtocolError as error:
                self.refused[client] = str(error)
        return known

    def _connected(self, present: Collection[int]) -> frozenset[int]:
        """The largest set of clients with `threshold` neighbours in it; ProtocolError if small."""
        left = set(present)
        gone, lacking = set(self.terms.clients) - left, Counter[int]()
        while gone:
            for client in gone:
                lacking.update(self.terms.neighbours_of(client))
            most = self.terms.neighbours - self.terms.threshold
            gone = {client for client in left if lacking[client] > most}
            left -= gone
        if len(left) < self.terms.least:
            raise ProtocolError(
                f"Expected {self.terms.least} clients or more that can reach "
                f"{self.terms.threshold} of their neighbours, got {len(left)}: too many have left."
            )
        return frozenset(left)


def _usable(advert: Advert) -> Advert:
    """The advert; ProtocolError if a key in it is invalid."""
    sealing_key(X25519PrivateKey.generate(), advert.sealing, b"")
    crypto.read_point(advert.masking)
    crypto.read_point(advert.seed)
    return advert
