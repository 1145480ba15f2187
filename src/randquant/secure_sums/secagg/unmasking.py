"""The last step of a secure sum: from what clients reveal to the masks to remove."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field

from randquant.secure_sums.secagg import crypto, group, sharing
from randquant.secure_sums.secagg.crypto import KEY_BYTES
from randquant.secure_sums.secagg.dealing import KEY, SEED, Dealing, fits
from randquant.secure_sums.secagg.messages import (
    Advert,
    context,
    exactly_bytes,
    pair_context,
)
from randquant.secure_sums.secagg.terms import ProtocolError, Terms


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
                    share = group.read_scalar(message)
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
        secret = sharing.combine(places, self._places)
        return secret if secret and group.base(secret) == public else None

    def _name(self, client: int, dealer: int, error: str) -> None:
        self.refused[client] = f"Its share of client {dealer}: {error}"

    def _too_few(self, client: int) -> ProtocolError:
        return ProtocolError(
            f"Expected {self.terms.threshold} neighbours of client {client} to reveal valid "
            f"shares of its secret, got {len(self._shares.get(client, {}))} shares: too many "
            "dropped out or were refused to remove its mask; run the round again."
        )
