"""The server's side of one secure sum: it relays messages, adds vectors and removes masks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from randquant.channels import wire
from randquant.secure_sums.secagg import crypto
from randquant.secure_sums.secagg.client import KEY, SEED, Dealing, fits
from randquant.secure_sums.secagg.crypto import (
    CONFIRMATION_BYTES,
    KEY_BYTES,
    NUMBER_BYTES,
    SCALAR_BYTES,
    SEALED_BYTES,
    Advert,
    check_inbox,
    context,
    exactly_bytes,
    pair_context,
    sealing_key,
)
from randquant.secure_sums.terms import ProtocolError, Terms, add_masks, mask_dtype

# The last step of a secure sum: from what clients reveal to the masks to remove.


@dataclass(frozen=True, slots=True)
class Unmasking:
    """All that the server knows of a closed sum, from which it computes the masks to remove.

    Attributes:
        terms, adverts: the sum's terms, and its clients' public keys.
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
        """Return signs and secrets of all masks to add to the sum.

        Raises:
            ProtocolError: a mask's secret cannot be computed from what was revealed.
        """
        for client in sorted(revealed):
            self._read(client, revealed[client])
        masks = []
        # In the sum are the self-masks of survivors, and the pairwise masks between a survivor and
        # a dropout. Those between two survivors have cancelled; a dropout's vector is not in it.
        for client in sorted(self.dealt):
            secret = self._secret(client)
            masks += self._self_mask(client, secret) if client in self.survivors else (
                self._pairwise_masks(client, secret)
            )  # fmt: skip
        return masks

    def _read(self, client: int, answer: Mapping[int, bytes]) -> None:
        # A malformed part refuses its client and is left out: enough other neighbours may answer.
        for dealer in self.terms.client_neighbours(client):
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
                self._refuse(client, dealer, str(error))

    def _self_mask(self, client: int, seed: int | None) -> list[tuple[int, bytes]]:
        if seed is None:
            raise self._too_few(client)
        return [(-1, crypto.self_masking_key(seed, context(self.terms, client, client)))]

    def _pairwise_masks(self, client: int, private: int | None) -> Iterator[tuple[int, bytes]]:
        """Yield the pairwise masks that survivors have in common with a client that dropped out.

        They follow from its key if enough shares came: then no neighbour need be trusted. Otherwise
        each neighbour's revealed secret is used; a dishonest one spoils the sum, as it could by its
        vector.
        """
        multiply = None if private is None else crypto.masking_private(private)
        for n in self.terms.client_neighbours(client):
            if n not in self.survivors:
                continue
            if multiply is not None:
                pair = pair_context(self.terms, {m: self.adverts[m] for m in (client, n)})
                secret = crypto.masking_key(multiply, self.adverts[n].masking, pair)
            elif len(secret := self._masks.get(client, {}).get(n, b"")) != KEY_BYTES:
                raise self._too_few(client)
            # The opposite of the sign with which the survivor added it (`Client.mask`).
            yield (-1 if n < client else +1), secret

    def _secret(self, client: int) -> int | None:
        """Return a survivor's seed, or a dropout's key; None if too few valid shares came.

        All shares are combined first, and the result is compared with the public key: an invalid
        share changes it. Only if it differs is each share checked, which takes longer.
        """
        is_survivor = client in self.survivors
        public = self.adverts[client].seed if is_survivor else self.adverts[client].masking
        shares = self._shares.get(client, {})
        if (secret := self._combined(client, shares, public)) is None:
            kind = SEED if is_survivor else KEY
            for n, share in list(shares.items()):
                proof = self.dealt[client].proof(self.terms.share_place(client, n))
                if not fits(self.terms, client, n, kind, share, proof):
                    del shares[n]
                    self._refuse(
                        n, client,
                        "Expected the share that matches its commitment, got a share that does "
                        "not.",
                    )  # fmt: skip
            secret = self._combined(client, shares, public)
        return secret

    def _combined(self, client: int, shares: Mapping[int, int], public: bytes) -> int | None:
        # None if shares are too few or wrong. The comparison with the public key is what makes a
        # wrong sum impossible, whatever dealers and holders do (theory/shares.md, Proposition 1).
        holders = enumerate(self.terms.share_holders(client), start=1)
        places = {place: shares[n] for place, n in holders if n in shares}
        self._places.update(places)
        secret = crypto.combine(places, self._places)
        return secret if secret and crypto.base(secret) == public else None

    def _refuse(self, client: int, dealer: int, error: str) -> None:
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
            are not signed is excluded at once. Without it, one such client makes all clients that
            have a directory refuse the sum.
    """

    def __init__(self, terms: Terms, directory: Mapping[int, bytes] | None = None) -> None:
        self.terms, self._directory = terms, directory
        self.refused: dict[int, str] = {}  # by client whose message was not used, the reason
        self._adverts: dict[int, Advert] = {}
        self._dealt: dict[int, Dealing] = {}  # by client that shared
        # Kept until the sum is closed, when an accused dealer's vector is subtracted again.
        self._uploads: dict[int, bytes] = {}
        self._accused: dict[int, frozenset[int]] = {}  # by accuser: senders of invalid shares
        self._survivors: frozenset[int] = frozenset()
        self._closed = False
        self._views: dict[frozenset[int], bytes] = {}  # a single one if all are neighbours
        self._total = np.zeros(terms.dimension, dtype=mask_dtype(terms.bits))

    def introduce(self, adverts: Mapping[int, bytes]) -> dict[int, dict[int, bytes]]:
        """Return the keys of each client's neighbours; exclude clients with too few neighbours."""

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
        """Return for each client the shares that its neighbours sealed for it, with commitments.

        A client whose commitments do not belong to the two secrets that it advertised is excluded
        here, before anything is masked: no other client's mask depends on it.
        """
        terms = self.terms
        # Drawn after all have dealt: a dealer that knew the word could deal values that pass it.
        word = crypto.random_word(terms.neighbours + 1, terms.threshold)
        dealt = self._known(
            sealed, self._adverts, lambda client, inbox: self._dealing(client, inbox, word)
        )
        self._dealt = {client: dealt[client] for client in self._connected(dealt)}
        inboxes: dict[int, dict[int, bytes]] = {client: {} for client in self._dealt}
        for dealer, dealing in self._dealt.items():
            for place, holder in enumerate(terms.share_holders(dealer), start=1):
                if holder in inboxes and holder != dealer:
                    inboxes[holder][dealer] = dealing.proof(place) + sealed[dealer][holder]
        return inboxes

    def add(self, client: int, payload: bytes) -> None:
        """Add one masked vector; ProtocolError if it is malformed, a repetition, or too late."""
        if self._closed or client not in self._dealt or client in self._uploads:
            problem = (
                "the sum is closed" if self._closed
                else "it shared nothing" if client not in self._dealt
                else "its vector is in the sum"
            )  # fmt: skip
            raise ProtocolError(
                "Expected one masked vector of each client that shared, before the sum is closed; "
                f"got a vector of client {client}, but {problem}."
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
            for client in (excluded := self._wrong_dealers()):
                self._total -= self._read(client, self._uploads[client])[0]
            self._survivors = frozenset(self._uploads) - excluded
        return self._survivors

    def relay(
        self, confirmations: Mapping[int, Mapping[int, bytes]]
    ) -> dict[int, dict[int, bytes]]:
        """Return for each survivor that confirmed the confirmations of its neighbours."""

        def read(client: int, inbox: Mapping[int, bytes]) -> Mapping[int, bytes]:
            check_inbox(inbox, self._holders(client), CONFIRMATION_BYTES)
            return inbox

        valid = self._known(confirmations, self._survivors, read)
        return {
            client: {
                n: valid[n][client]
                for n in self.terms.client_neighbours(client)
                if n in valid and client in valid[n]
            }
            for client in valid
        }

    def unmask(
        self, revealed: Mapping[int, Mapping[int, bytes]], largest: int | None = None
    ) -> np.ndarray:
        """Compute the sum of the survivors' vectors modulo 2**bits.

        Args:
            revealed: from each client that answered, its message for each of its neighbours.
            largest: the largest entry of an honest vector: a total above the number of survivors
                times this is refused.

        Returns:
            (d,) uint8, uint16 or uint32.

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
        valid = self._known(revealed, self._survivors, self._checked_reveal)
        unmasking = Unmasking(terms, self._adverts, self._dealt, self._survivors, self.refused)
        total = self._total.copy()  # so that the same sum can be unmasked again
        for sign, secret in unmasking.masks(valid):
            add_masks(total, [secret], sign)
        total &= total.dtype.type((1 << terms.bits) - 1)
        # Finds some invalid vectors, never all: a client may still send any vector within bounds.
        if largest is not None and int(total.max()) > (most := len(self._survivors) * largest):
            raise ProtocolError(
                f"Expected totals of {most} at most, got {int(total.max())}: some client sent an "
                "invalid vector; the whole sum is discarded."
            )
        return total

    def _dealing(self, client: int, inbox: Mapping[int, bytes], word: list[int]) -> Dealing:
        # Raises ProtocolError unless a client's commitments and sealed shares are valid.
        terms, present = self.terms, self._present(client)
        if not isinstance(inbox, Mapping):
            raise ProtocolError(f"Expected shares by neighbour, got {type(inbox).__name__}.")
        if inbox.keys() != {client, *present}:
            raise ProtocolError(
                f"Expected commitments and shares for all {len(present)} neighbours, got "
                f"{len(inbox)} messages, which are not for these."
            )
        for n in present:
            if (size := len(exactly_bytes(inbox[n]))) != SEALED_BYTES:
                raise ProtocolError(
                    f"Expected two sealed shares for each neighbour in {SEALED_BYTES} bytes, got "
                    f"{size} for client {n}."
                )
        dealing = Dealing.from_bytes(inbox[client], terms.neighbours + 1)
        relayed = self._view(frozenset((client, *present)))
        if dealing.view != relayed:
            raise ProtocolError(
                "Expected this client to have seen the keys that the server relayed, its own "
                f"included, with digest {relayed.hex()[:16]}..., got {dealing.view.hex()[:16]}...: "
                "some were changed in transit."
            )
        dealing.check(terms, client, self._adverts[client], word)
        return dealing

    def _checked_reveal(self, client: int, answer: Mapping[int, bytes]) -> Mapping[int, bytes]:
        one, both = KEY_BYTES, KEY_BYTES + SCALAR_BYTES  # a share of a seed is as long as a key
        check_inbox(answer, self._holders(client), one, both)
        return answer

    def _read(self, client: int, payload: bytes) -> tuple[np.ndarray, frozenset[int]]:
        # A masked vector and the clients that its sender accuses. The length is checked before
        # anything is parsed, so that a hostile client cannot make the server read megabytes.
        form, dimension = crypto.masked_format(self.terms, client), self.terms.dimension
        size = wire.HEADER_BYTES + -(-dimension * self.terms.bits // 8)
        if len(payload) > size + NUMBER_BYTES * self.terms.neighbours:
            raise ProtocolError(f"Expected a masked vector in {size} bytes, got {len(payload)}.")
        accused = crypto.read_accusation(payload[size:])
        strangers = accused.difference(self._holders(client))
        if strangers:
            raise ProtocolError(
                f"Expected a client to accuse neighbours only, got {sorted(strangers)[:9]}."
            )
        vector = wire.unpack(form, payload[:size], dimension)
        return vector.astype(self._total.dtype), accused

    def _wrong_dealers(self) -> frozenset[int]:
        # Clients in the sum that too many neighbours accuse. If there are `most_accusers` hostile
        # clients or fewer, their accusations alone exclude no client, and each client that stays
        # has dealt valid shares to enough honest neighbours. In a sum of two or three clients one
        # accusation cannot be believed.
        most, excluded = self.terms.most_accusers, set()
        for client in self._uploads:
            accusers = sum(client in accused for accused in self._accused.values())
            if accusers > most > 0:
                excluded.add(client)
                self.refused[client] = (
                    "Expected shares that unseal and match their commitments, but "
                    f"{accusers} neighbours say otherwise: it is excluded."
                )
        return frozenset(excluded)

    def _view(self, clients: frozenset[int]) -> bytes:
        if clients not in self._views:
            adverts = {n: self._adverts[n] for n in clients}
            self._views[clients] = crypto.view_digest(self.terms, adverts)
        return self._views[clients]

    def _present(self, client: int) -> list[int]:
        return [n for n in self.terms.client_neighbours(client) if n in self._adverts]

    def _holders(self, client: int) -> list[int]:
        # The neighbours that shared with a client, of those that hold its shares.
        return [n for n in self.terms.client_neighbours(client) if n in self._dealt]

    def _known(
        self,
        received: Mapping[int, Any],
        allowed: Collection[int],
        read: Callable[[int, Any], Read],
    ) -> dict[int, Read]:
        """Apply `read` to the messages of clients that may send one at this step.

        If it raises a ProtocolError, the client is refused, and the others go on.
        """
        results = {}
        for client, message in received.items():
            try:
                if client not in allowed:
                    raise ProtocolError("Expected no message of this client at this step.")
                results[client] = read(client, message)
            except ProtocolError as error:
                self.refused[client] = str(error)
        return results

    def _connected(self, present: Collection[int]) -> frozenset[int]:
        """Return the largest set of clients each of which has `threshold` neighbours in it.

        A client with fewer holders could not be unmasked, and its vector would cost the whole sum.
        Excluding one may leave a neighbour with too few, so it is repeated.
        """
        remaining = set(present)
        removed, missing = set(self.terms.clients) - remaining, Counter[int]()
        while removed:
            for client in removed:
                missing.update(self.terms.client_neighbours(client))
            most = self.terms.neighbours - self.terms.threshold
            removed = {client for client in remaining if missing[client] > most}
            remaining -= removed
        if len(remaining) < self.terms.least:
            raise ProtocolError(
                f"Expected {self.terms.least} clients or more that can reach "
                f"{self.terms.threshold} of their neighbours, got {len(remaining)}: too many have "
                "left."
            )
        return frozenset(remaining)


def _usable(advert: Advert) -> Advert:
    # Checked here, so that an invalid key excludes its owner, and not each neighbour that reads it.
    sealing_key(X25519PrivateKey.generate(), advert.sealing, b"")
    crypto.read_point(advert.masking)
    crypto.read_point(advert.seed)
    return advert
