"""What a lying server can do where clients have fewer neighbours than others: kept as an attack."""

import numpy as np
from secure_sums import Round, terms_of, vectors_of

from randquant.aggregation import masks
from randquant.aggregation.secagg import crypto, messages, sharing
from randquant.aggregation.secagg.group import SCALAR_BYTES, read_scalar
from randquant.aggregation.secagg.terms import _ring
from randquant.channels import wire

# Places on the ring, the victim's is 0, its neighbours' 1 to 5 and 16 to 20. Found by an integer
# program with the fewest colluders among the victim's neighbours for three sets of survivors.
COLLUDERS = (1, *range(6, 16), 20)
TOLD = (  # who is told so, and who it is told survives, beside the colluders
    ((0, 2, 18, 19), (0, 2, 17, 18, 19)),
    ((3, 4, 5), (0, 3, 4, 5)),
    ((16, 17), (16, 17)),
)


class Lied:
    """A sum of 21 clients with 10 neighbours each, by a server that tells of three of them."""

    def __init__(self):
        self.terms = terms_of(21, neighbours=10, dimension=8)
        ring, _ = _ring(self.terms)
        self.victim, self.friends = ring[0], {ring[place] for place in COLLUDERS}
        self.vectors = vectors_of(self.terms)
        played = Round(self.terms, self.vectors)
        self.clients = played.clients
        self.payloads = {
            c: self.clients[c].mask(self.vectors[c], inbox) for c, inbox in played.shared().items()
        }
        self.told = {
            ring[place]: {ring[s] for s in survivors} | self.friends
            for places, survivors in TOLD
            for place in places
        }
        self.shares = {c: {} for c in self.terms.clients}  # by dealer: of its seed, of its key
        self.words = {}
        for c in self.friends:
            for n, share in self.clients[c]._shares.items():
                self.shares[n][c] = share[:SCALAR_BYTES], share[SCALAR_BYTES:]
        self._reveal()

    def _reveal(self):
        tags = {c: self.clients[c].confirm(told) for c, told in self.told.items()}
        for c in self.told.keys() - {self.victim}:
            digest = messages.survivors_digest(self.terms, self.told[c])
            near = self.terms.neighbours_of(c)
            inbox = {n: tags[n][c] for n in near if n in tags} | {
                n: messages.confirmation(self.clients[n]._keys[c], n, digest)
                for n in self.friends.intersection(near)
            }
            for n, shown in self.clients[c].reveal(inbox).items():
                if n in self.told[c]:
                    self.shares[n][c] = shown, None
                else:
                    self.words[c, n], share = shown[:SCALAR_BYTES], shown[SCALAR_BYTES:]
                    self.shares[n][c] = None, share

    def secret(self, client, of_key):
        found = {c: both[of_key] for c, both in self.shares[client].items() if both[of_key]}
        assert len(found) >= self.terms.threshold
        places = {self.terms.place_of(client, c): read_scalar(s) for c, s in found.items()}
        return sharing.combine(places, {0, *places})

    def mask(self, n):
        """Of the victim with a neighbour, as the server and its friends know it."""
        if n in self.friends:
            return self.clients[n]._masks[self.victim]
        if (n, self.victim) in self.words:
            return self.words[n, self.victim]
        seen = {
            c: messages.Advert.from_bytes(self.clients[c]._advert().to_bytes())
            for c in (n, self.victim)
        }
        pair = messages.pair_context(self.terms, seen)
        key = crypto.masking_private(self.secret(n, True))
        return crypto.masking_key(key, seen[self.victim].masking, pair)


def test_two_of_ten_neighbours_and_ten_of_theirs_get_a_clients_codes():
    lied = Lied()
    near = lied.terms.neighbours_of(lied.victim)
    assert (len(lied.friends), len(lied.friends.intersection(near)), len(near)) == (12, 2, 10)
    form = messages.masked_format(lied.terms, lied.victim)
    codes = wire.unpack(form, lied.payloads[lied.victim], 8).astype(np.uint16)
    own = messages.context(lied.terms, lied.victim, lied.victim)
    masks.add(codes, crypto.self_masking_key(lied.secret(lied.victim, False), own), -1)
    for n in near:
        masks.add(codes, lied.mask(n), -1 if lied.victim < n else +1)
    assert np.array_equal(codes & 1023, lied.vectors[lied.victim])
