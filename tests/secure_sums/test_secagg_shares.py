"""Shares of a secure sum: secret, checkable, and quick, against slow arithmetic in fractions."""

import dataclasses
import itertools
import math
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from streams import recorded
from sum_rounds import Round, terms_of

from randquant.secure_sums import KEY, ORDER, SEED, Client, Dealing, ProtocolError
from randquant.secure_sums.secagg import client as dealing
from randquant.secure_sums.secagg import crypto, server


def interpolated(values, x):
    """Lagrange's formula in fractions, then modulo the order: the value at x, by place."""
    result = Fraction(0)
    for place, value in values.items():
        others = (other for other in values if other != place)
        weight = math.prod((Fraction(x - y, place - y) for y in others), start=Fraction(1))
        result += weight * value
    return result.numerator * pow(result.denominator, -1, ORDER) % ORDER


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_any_threshold_shares_and_no_fewer_give_the_secret(data):
    places = data.draw(st.integers(2, 14))
    threshold = data.draw(st.integers(1, places))
    secret = data.draw(st.sampled_from([1, ORDER - 1, 2**251 + 7]))
    shares = dict(enumerate(crypto.split(secret, threshold, places), start=1))
    size = data.draw(st.integers(threshold, places))
    chosen = {x: shares[x] for x in data.draw(st.permutations(range(1, places + 1)))[:size]}
    more = data.draw(st.sets(st.integers(0, places)))
    assert crypto.combine(chosen, {0, *chosen, *more}) == interpolated(chosen, 0) == secret
    if threshold > 1:
        fewer = dict(itertools.islice(shares.items(), threshold - 1))
        assert crypto.combine(fewer, {0, *fewer}) == interpolated(fewer, 0) != secret
        again = crypto.split(secret, threshold, places)
        assert len({*again, *shares.values()}) == 2 * places


@pytest.mark.parametrize(("count", "last"), [(1, 1), (1, 6), (2, 2), (3, 9), (7, 8), (20, 61)])
def test_values_beyond_the_given_ones_are_of_the_same_polynomial(count, last):
    values = [crypto.random_scalar() for _ in range(count)]
    found = crypto._continued(values, last)
    assert found[:count] == values
    for x in range(count, last + 1):
        assert found[x] == interpolated(dict(enumerate(values)), x)


def test_a_slot_of_a_long_product_holds_the_largest_sum():
    assert 2**20 * (ORDER - 1) ** 2 < 10**crypto._PRODUCT_DIGITS


# --- what the server checks ---------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_values_of_a_higher_degree_do_not_pass(data):
    places = data.draw(st.integers(2, 12))
    threshold = data.draw(st.integers(1, places))
    word = crypto.random_word(places, threshold)
    values = [5, *crypto.split(5, threshold, places)]
    assert crypto.low_degree(values, word)
    changed = list(values)
    changed[data.draw(st.integers(0, places))] += 1
    assert not crypto.low_degree(changed, word)
    if threshold < places:
        assert not crypto.low_degree([5, *crypto.split(5, threshold + 1, places)], word)


def test_the_check_is_not_foreseen():
    """With a word that a dealer knows it deals what passes, and is no secret's."""
    word, other = crypto.random_word(4, 2), crypto.random_word(4, 2)
    values = [5, 7, 11, 13]
    values.append(-sum(w * v for w, v in zip(word, values, strict=False)) * pow(word[4], -1, ORDER))
    assert crypto.low_degree(values, word)
    assert not crypto.low_degree(values, other)


def test_up_to_138_neighbours_no_set_of_shares_passes():
    """Proposition 1 (a): C(n, t) / q is below 2**-128."""
    ways = [math.comb(n, terms_of(n + 1).threshold) for n in range(1, 139)]
    assert max(ways) << 128 < ORDER
    assert math.comb(141, 94) << 128 > ORDER


def dealt(terms=None, dealer=0):
    """(terms, advert, secrets, dealing, shares by holder) of one client."""
    terms = terms or terms_of(7)
    client = Client(terms, dealer)
    secrets = client._seed, client._masking
    found, shares = dealing.deal(terms, dealer, client._advert(), secrets, bytes(32))
    return terms, client._advert(), secrets, found, shares


def checked(terms, dealer, advert, found):
    word = crypto.random_word(terms.neighbours + 1, terms.threshold)
    found.check(terms, dealer, advert, word)


@pytest.mark.parametrize(("count", "neighbours"), [(2, 1), (3, 2), (7, 6), (20, 6)])
def test_what_is_dealt_passes_and_fits(count, neighbours):
    terms, advert, secrets, found, shares = dealt(terms_of(count, neighbours=neighbours), 1)
    again = Dealing.from_bytes(found.to_bytes(), neighbours + 1)
    assert again == found
    checked(terms, 1, advert, again)
    for kind in (SEED, KEY):
        scalars = {
            terms.share_place(1, n): crypto.read_scalar(both[32 * kind : 32 * kind + 32])
            for n, both in shares.items()
        }
        assert sorted(scalars) == list(range(1, neighbours + 2))
        assert crypto.combine(scalars, {0, *scalars}) == secrets[kind]
        for holder in terms.client_neighbours(1):
            place = terms.share_place(1, holder)
            proof = again.proof(place)
            assert dealing.fits(terms, 1, holder, kind, scalars[place], proof)
            assert not dealing.fits(terms, 1, holder, kind, scalars[place] + 1, proof)
            assert not dealing.fits(terms, 1, holder, 1 - kind, scalars[place], proof)
            assert not dealing.fits(terms, holder, 1, kind, scalars[place], proof)


def test_a_dealing_that_is_changed_anywhere_is_refused():
    """Challenge, every commitment, every value; and other keys, terms or another dealer."""
    terms, advert, _, found, _ = dealt()
    checked(terms, 0, advert, found)
    message = found.to_bytes()
    for at in (*range(33, len(message), 16), len(message) - 2):
        changed = message[:at] + bytes([message[at] ^ 1]) + message[at + 1 :]
        with pytest.raises(ProtocolError, match="Expected"):
            checked(terms, 0, advert, Dealing.from_bytes(changed, 7))
    others = [dataclasses.replace(advert, **{key: crypto.base(7)}) for key in ("seed", "masking")]
    for wrong in ((terms_of(7), 0, advert), (terms, 1, advert), *((terms, 0, a) for a in others)):
        with pytest.raises(ProtocolError, match="shares of one secret"):
            checked(*wrong, found)


def test_the_challenge_depends_on_both_keys():
    terms, advert, _, found, _ = dealt()
    others = [dataclasses.replace(advert, **{key: crypto.base(7)}) for key in ("seed", "masking")]
    facts = [crypto.base(5), crypto.base(6)], found.commitments
    assert len({dealing._challenge(terms, 0, each, *facts) for each in (advert, *others)}) == 3


def test_a_commitment_is_to_a_share_and_to_its_blind():
    """Their sum alone would let a dealer choose the share once it knows the challenge."""
    made = {crypto.commitment(b"c", *each) for each in ((5, 7), (6, 6), (7, 5), (5, 8), (6, 7))}
    assert len(made | {crypto.commitment(b"d", 5, 7)}) == 6
    assert {len(each) for each in made} == {16}


@pytest.mark.parametrize("value", [0, ORDER, 2**256 - 1])
@pytest.mark.parametrize("place", [0, 3])
def test_values_are_numbers_in_one_spelling(value, place):
    terms, advert, _, found, _ = dealt()
    at = 64 * place
    values = found.values[:at] + value.to_bytes(32, "little") + found.values[at + 32 :]
    with pytest.raises(ProtocolError, match="numbers modulo the group's order"):
        checked(terms, 0, advert, dataclasses.replace(found, values=values))


# --- what the public part hides -----------------------------------------------------------------


def scalars_of(found, kind):
    values = found.values
    return [
        int.from_bytes(values[at : at + 32], "little") for at in range(32 * kind, len(values), 64)
    ]


def test_all_shares_of_a_seed_say_nothing_of_the_key():
    """Each secret has a blind of its own: the other's is known once its shares are."""
    _, _, (seed, key), found, _ = dealt()
    challenge = int.from_bytes(found.challenge, "little")
    blind = (scalars_of(found, SEED)[0] - challenge * seed) % ORDER
    other = (scalars_of(found, KEY)[0] - challenge * key) % ORDER
    assert blind != other


@pytest.mark.parametrize("kind", [SEED, KEY])
def test_one_share_too_few_and_all_that_is_public_do_not_give_the_blind(kind):
    """Blinds of a lower degree would follow from threshold - 1 shares, and the secret with them."""
    terms, _, secrets, found, shares = dealt()
    challenge = int.from_bytes(found.challenge, "little")
    values = scalars_of(found, kind)
    blinds = {
        terms.share_place(0, n): (
            values[terms.share_place(0, n)]
            - challenge * crypto.read_scalar(both[32 * kind : 32 * kind + 32])
        )
        % ORDER
        for n, both in shares.items()
    }
    known = dict(itertools.islice(blinds.items(), terms.threshold - 1))
    blind = (values[0] - challenge * secrets[kind]) % ORDER
    assert crypto.combine(blinds, {0, *blinds}) == blind
    assert crypto.combine(known, {0, *known}) != blind
    assert len(set(blinds.values())) == len(blinds)


# --- a dealer and holders that work together -----------------------------------------------------


class Accomplice(Client):
    """Holds a share of client 0 that is committed to, and not of its polynomial; and shows it."""

    def reveal(self, confirmations):
        shown = super().reveal(confirmations)
        return {**shown, 0: crypto.scalar_bytes(Partner.wrong)}

    def _open_one(self, n, message):
        try:
            return super()._open_one(n, message)
        except ProtocolError:
            return crypto.scalar_bytes(Partner.wrong) * 2  # and does not accuse its partner


class Partner(Client):
    """Commits to another share for its accomplice; the values that it publishes are right."""

    wrong, accomplice = 4711, 3

    def share(self, adverts):
        real, spoiled = crypto.commitment, dealing._context(self.terms, 0, 3, SEED)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                crypto,
                "commitment",
                lambda about, share, blind: real(
                    about, self.wrong if about == spoiled else share, blind
                ),
            )
            return super().share(adverts)


def test_a_share_that_was_committed_to_and_is_wrong_is_found_out():
    """A dealer and a holder who have agreed on it: the holder is named, and the sum is exact."""
    played = Round(terms_of(8), make={0: Partner, 3: Accomplice})
    assert played.exact()
    assert played.survivors == set(range(8))
    assert set(played.server.refused) == {3}
    assert "share of client 0" in played.server.refused[3]


def test_a_wrong_share_never_gives_a_wrong_sum(monkeypatch):
    """Even if it passed for right: the secret is compared with its public key."""
    monkeypatch.setattr(server, "fits", lambda *facts: True)
    played = Round(terms_of(8), make={0: Partner, 3: Accomplice})
    with pytest.raises(ProtocolError, match="run the round again"):
        played.total()


def test_a_wrong_commitment_is_seen_by_its_holder():
    played = Round(terms_of(8), make={0: Partner})
    assert played.exact()
    assert played.clients[3].accused == {0}
    assert not played.server.refused


def test_a_commitment_is_to_one_share_of_one_secret(monkeypatch):
    """Equal shares of a seed and of a key, dealt by two clients: all commitments differ."""
    monkeypatch.setattr(crypto, "random_scalar", lambda: 5)
    terms, found = terms_of(5), []
    for dealer in (0, 1):
        advert = dealing.Advert(b"s" * 32, crypto.base(7), crypto.base(7))
        dealt, shares = dealing.deal(terms, dealer, advert, (7, 7), bytes(32))
        assert all(both[:32] == both[32:] for both in shares.values())
        size = crypto.COMMITMENT_BYTES
        found += [
            dealt.commitments[at : at + size] for at in range(0, len(dealt.commitments), size)
        ]
    assert len(found) == len(set(found)) == 2 * 2 * 5


def test_masks_of_a_sum_are_of_pairs_and_clients_and_of_no_other_sum():
    """A secret of each pair, which both read, and one of each client; anew in the next sum."""
    sums = []
    for _ in range(2):
        with recorded() as reads:
            played = Round(terms_of(5))
            assert len(played.closed()) == 5
        count = Counter(read.secret for read in reads)
        assert sorted(count.values()) == [1] * 5 + [2] * 10
        sums.append(set(count))
    assert not sums[0] & sums[1]
