"""What a server learns that tells clients of different survivors: kept as attacks."""

import numpy as np
import pytest
from sum_rounds import Round, terms_of, wanted

from randquant.channels import wire
from randquant.secure_sums import (
    SCALAR_BYTES,
    ProtocolError,
    add_masks,
    masking_key,
    masking_private,
    read_scalar,
    self_masking_key,
)
from randquant.secure_sums.secagg import crypto
from randquant.secure_sums.terms import _ring


class Lied:
    """A sum in which each client in `told` is told of its own survivors.

    Friends of the server confirm whatever it asks, and give it all that they have; unchecked,
    a client hears confirmations of what it was told from everybody.
    """

    def __init__(self, terms, told, friends=(), unchecked=False, **options):
        played = Round(terms, **options)
        self.terms, self.friends = terms, frozenset(friends)
        self.clients, self.vectors = played.clients, played.vectors
        self.payloads = {
            c: self.clients[c].mask(self.vectors[c], inbox) for c, inbox in played.shared().items()
        }
        self.shares = {c: ({}, {}) for c in terms.clients}  # by dealer: of its seed, of its key
        self.words = {}
        for c in self.friends:
            for n, share in self.clients[c]._shares.items():
                self.shares[n][0][c], self.shares[n][1][c] = (
                    share[:SCALAR_BYTES], share[SCALAR_BYTES:],
                )  # fmt: skip
        tags = {c: self.clients[c].confirm(survivors) for c, survivors in told.items()}
        for c, survivors in told.items():
            digest, near = crypto.survivors_digest(terms, survivors), terms.client_neighbours(c)
            relayed = {n: tags[n][c] for n in near if c in tags.get(n, ())}
            for n in (survivors if unchecked else self.friends).intersection(near):
                relayed[n] = crypto.confirmation(self.clients[n]._keys[c], n, digest)
            try:
                shown = self.clients[c].reveal(relayed)
            except ProtocolError:
                continue
            for n, secret in shown.items():
                if n in survivors:
                    self.shares[n][0][c] = secret
                else:
                    self.words[c, n] = secret[:SCALAR_BYTES]
                    self.shares[n][1][c] = secret[SCALAR_BYTES:]

    def secret(self, client, of_key):
        found = self.shares[client][of_key]
        if len(found) < self.terms.threshold:
            return None
        places = {self.terms.share_place(client, c): read_scalar(s) for c, s in found.items()}
        return crypto.combine(places, {0, *places})

    def mask(self, client, other):
        """Of a pair, if the server knows it."""
        if other in self.friends:
            return self.clients[other]._masks[client]
        seen = {
            c: crypto.Advert.from_bytes(self.clients[c]._advert().to_bytes())
            for c in (client, other)
        }
        pair = crypto.pair_context(self.terms, seen)
        for one, two in ((client, other), (other, client)):
            if (one, two) in self.words:
                return self.words[one, two]
            if (key := self.secret(one, True)) is not None:
                return masking_key(masking_private(key), seen[two].masking, pair)
        return None

    def learnt(self, group):
        """The sum of these clients' codes, or None."""
        total = np.zeros(self.terms.dimension, np.uint16)
        for c in group:
            form = crypto.masked_format(self.terms, c)
            total += wire.unpack(form, self.payloads[c], self.terms.dimension).astype(np.uint16)
            seed = self.secret(c, False)
            others = {n: self.mask(c, n) for n in set(self.terms.client_neighbours(c)) - set(group)}
            if None in (seed, *others.values()):
                return None
            own = crypto.context(self.terms, c, c)
            add_masks(total, [self_masking_key(seed, own)], -1)
            for n, mask in others.items():
                add_masks(total, [mask], -1 if c < n else +1)
        assert np.array_equal(total & 1023, wanted(self.vectors, group))
        return total & 1023


def split_view(colluders, threshold, share):
    """Half of twelve clients hear that client 0 is in the sum, the others that it is not."""
    terms = terms_of(12, dimension=8, threshold=threshold)
    friends, honest = range(12 - colluders, 12), range(1, 12 - colluders)
    everyone = frozenset(terms.clients)
    first = {0, *honest[: len(honest) // 2]}
    told = {c: everyone if c in first else everyone - {0} for c in (0, *honest)}
    return Lied(terms, told, friends, threshold=share).learnt([0])


def test_two_sets_of_survivors_get_a_clients_codes_only_below_two_thirds():
    """The attack works where clients allow it: that it fails otherwise says something."""
    assert split_view(2, threshold=6, share=0.5) is not None
    assert split_view(2, threshold=8, share=2 / 3) is None
    with pytest.raises(ProtocolError, match="threshold of 8 of 11"):
        split_view(2, threshold=6, share=2 / 3)


def test_two_thirds_bear_colluders_up_to_a_third():
    """With fewer than 2 * threshold - neighbours colluders not both sets can be confirmed."""
    terms = terms_of(12)
    assert 2 * terms.threshold - terms.neighbours == 5
    assert split_view(4, threshold=8, share=2 / 3) is None
    assert split_view(6, threshold=8, share=2 / 3) is not None


def test_without_confirmations_a_server_that_lies_needs_nobody_to_learn_a_sum_of_half():
    """Each is told of nine survivors, as `least` says, and shows one secret of each neighbour.

    Each client of six is told that three of the other six are lost, and each of those likewise.
    """
    terms = terms_of(12, least=9)
    first, second = range(6), range(6, 12)
    lost = {c: {6 + (c + k) % 6 for k in range(3)} for c in first}
    lost |= {c: {a for a in first if c not in lost[a]} for c in second}
    told = {c: frozenset(terms.clients) - lost[c] for c in terms.clients}
    assert Lied(terms, told, unchecked=True).learnt(first) is not None
    assert Lied(terms, told).learnt(first) is None


# Places on the ring, the victim's is 0, its neighbours' 1 to 5 and 16 to 20. Found by an integer
# program with the fewest colluders among the victim's neighbours for three sets of survivors.
COLLUDERS = (1, *range(6, 16), 20)
TOLD = (  # who is told so, and who it is told survives, beside the colluders
    ((0, 2, 18, 19), (0, 2, 17, 18, 19)),
    ((3, 4, 5), (0, 3, 4, 5)),
    ((16, 17), (16, 17)),
)


def test_two_of_ten_neighbours_and_ten_of_theirs_get_a_clients_codes():
    """What a lying server can do where clients have fewer neighbours than others."""
    terms = terms_of(21, neighbours=10, dimension=8)
    ring, _ = _ring(terms)
    victim, friends = ring[0], frozenset(ring[place] for place in COLLUDERS)
    near = terms.client_neighbours(victim)
    assert (len(friends), len(friends.intersection(near)), len(near)) == (12, 2, 10)
    told = {
        ring[place]: friends.union(ring[survivor] for survivor in survivors)
        for places, survivors in TOLD
        for place in places
    }
    assert Lied(terms, told, friends).learnt([victim]) is not None
