"""Hostile clients, a lying server, damaged messages: the right sum, or a refusal that is fair."""

import dataclasses
import math
import re
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sum_rounds import STEPS, Round, at, signers, terms_of, wanted
from vdaf_reports import flipped

from randquant.secure_sums import (
    ORDER,
    SEALED_BYTES,
    Advert,
    Client,
    Dealing,
    ProtocolError,
    SumServer,
    accusation,
    confirmation,
    seal,
    survivors_digest,
)
from randquant.secure_sums.secagg import crypto
from randquant.secure_sums.secagg.crypto import context

GENERATOR = bytes([0x58, *[0x66] * 31])  # of RFC 8032


# --- the group ---------------------------------------------------------------------------------


def small_points():
    """The eight points whose order divides 8, less the identity: on the curve, not in the group."""
    order_8 = "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"
    return [bytes(32), bytes.fromhex("ec" + "ff" * 30 + "7f"), bytes.fromhex(order_8)]


@pytest.mark.parametrize(
    "point",
    [
        *small_points(),
        crypto.IDENTITY,
        b"",
        GENERATOR[:-1],
        GENERATOR + b"\0",
        bytes([2, *bytes(31)]),  # not on the curve
        b"\xff" * 32,
        bytes([*b"\xee" + b"\xff" * 30, 0x7F]),  # 1 in another spelling
        None,  # of the curve, but outside the group: the generator and a small point
    ],
)
def test_points_outside_the_group_are_refused(point):
    from nacl import bindings

    if point is None:
        point = bindings.crypto_core_ed25519_add(GENERATOR, small_points()[1])
    with pytest.raises(ProtocolError):
        crypto.read_point(point)
    with pytest.raises(ProtocolError):
        crypto.times(5, point)
    terms, good = terms_of(4), Client(terms_of(4), 0).advertise()
    for where in (32, 64):
        server, clients = SumServer(terms), {c: Client(terms, c).advertise() for c in range(4)}
        clients[3] = good[:where] + point + good[where + 32 :]
        server.introduce(clients)
        assert set(server.refused) == {3}
    shown = {c: clients[c] for c in (1, 2)}  # by a server that does not look
    (asked := Client(terms, 0)).advertise()
    with pytest.raises(ProtocolError, match="public key"):
        asked.share(shown | {3: good[:32] + point + good[64:]})


def test_scalars_have_one_spelling():
    numbers = [n.to_bytes(32, "little") for n in (0, ORDER, ORDER + 1, 2**256 - 1)]
    for wrong in (*numbers, b"", bytes([1]), bytes([1, *bytes(32)])):
        with pytest.raises(ProtocolError, match="number modulo"):
            crypto.read_scalar(wrong)
    assert crypto.read_scalar(crypto.scalar_bytes(ORDER - 1)) == ORDER - 1
    with pytest.raises(ProtocolError):
        crypto.times(ORDER, GENERATOR)


# --- the threshold is the client's word ---------------------------------------------------------


def test_a_client_demands_two_thirds_unless_it_says_less():
    terms = terms_of(40, threshold=20)
    with pytest.raises(ProtocolError, match="threshold of 26 of 39 neighbours or more, got 20"):
        Client(terms, 0)
    with pytest.raises(ProtocolError, match="threshold of 21 of 39"):
        Client(terms, 0, threshold=0.52)
    allowed = Client(terms, 0, threshold=0.5)
    assert Client.from_bytes(terms, allowed.to_bytes()).number == 0
    for share in (0.0, 1.1, math.nan):
        with pytest.raises(ValueError, match="threshold"):
            Client(terms, 0, threshold=share)
    for count in range(2, 60):
        terms = terms_of(count)
        assert terms.threshold == -(-2 * (count - 1) // 3)
        assert 2 * terms.threshold - terms.neighbours > 0
        Client(terms, 0)


# --- what is relayed is bound -------------------------------------------------------------------


def another_advert(message, **changes):
    return dataclasses.replace(Advert.from_bytes(message), **changes).to_bytes()


@settings(max_examples=40, deadline=None)
@given(
    step=st.sampled_from(STEPS),
    way=st.sampled_from(["up", "down"]),
    client=st.integers(0, 5),
    other=st.integers(0, 5),
    bit=st.integers(0, 2**20),
    every=st.booleans(),
)
def test_a_flip_anywhere_leaves_the_sum_exact_and_blames_nobody_else(
    step, way, client, other, bit, every
):
    """Of one client's messages at one step, on either way: one bit of one, or of all of them."""

    def change(message):
        if isinstance(message, bytes):
            return flipped(message, bit // 8 % len(message), bit % 8)
        if isinstance(message, frozenset):
            return message ^ {other}
        return {n: change(m) if every or n == other else m for n, m in message.items()}

    terms = terms_of(6, dimension=3)
    played = Round(terms, **{way: at({(step, client): change})})
    played.largest = 3
    assert played.exact()
    assert set(played.server.refused) <= {client}


@pytest.mark.parametrize("part", ["sealing", "masking", "seed", "signature"])
def test_a_key_that_is_changed_on_the_way_is_seen_before_anything_is_masked(part):
    """One end's view is not what the server sent: it is left out, and the sum is exact."""

    terms = terms_of(5)
    other = bytes(64) if part == "signature" else getattr(Client(terms, 1)._advert(), part)
    change = {("share", 0): lambda inbox: {**inbox, 1: another_advert(inbox[1], **{part: other})}}
    played = Round(terms, down=at(change))
    assert played.exact()
    assert played.survivors == {1, 2, 3, 4}
    assert "keys that the server relayed" in played.server.refused[0]


def test_two_clients_that_saw_different_keys_cannot_open_each_others_shares():
    """Where the server itself lies, and goes on."""
    terms = terms_of(7)
    plain = Round(terms)
    keys = plain.server.introduce({c: k.advertise() for c, k in plain.clients.items()})
    keys[0][1] = another_advert(keys[0][1], masking=crypto.base(77))
    sealed = {c: plain.clients[c].share(inbox) for c, inbox in keys.items()}
    dealt = {c: Dealing.from_bytes(s[c], 7) for c, s in sealed.items()}
    for c in (0, 1):
        inbox = {
            n: dealt[n].proof(terms.share_place(n, c)) + sealed[n][c]
            for n in terms.client_neighbours(c)
        }
        plain.clients[c].look_at(inbox)
        shares = plain.clients[c]._open(inbox)
        assert [n for n, share in shares.items() if not share] == [1 - c]


def test_a_server_that_changes_many_keys_or_commitments_stops_a_client_before_it_masks():
    for where in (0, 40, 50, 70, 100, 140):  # challenge, commitments, values, sealed shares
        change = lambda inbox, where=where: {n: flipped(m, where, 0) for n, m in inbox.items()}  # noqa: E731
        played = Round(terms_of(5), down=at({("mask", 0): change}))
        assert played.exact()
        assert played.survivors == {1, 2, 3, 4}
        assert "do not unseal" in played.errors[0]
        assert not played.server.refused


def test_false_commitments_gain_a_server_nothing():
    """A client says only that a share is of no use; what it masks and reveals is the same."""
    change = {("mask", 0): lambda inbox: {**inbox, 1: inbox[1][:32] + bytes(32) + inbox[1][64:]}}
    played = Round(terms_of(7), down=at(change))
    shown = played.revealed()
    assert played.clients[0].accused == {1}
    assert set(shown[0]) == {2, 3, 4, 5, 6}
    assert {len(share) for share in shown[0].values()} == {32}
    assert np.array_equal(played.server.unmask(shown), wanted(played.vectors, range(7)))
    assert not played.server.refused


# --- hostile clients ----------------------------------------------------------------------------


def gone(message):
    """A client that leaves at a step."""


def wrong_shares(shares):
    return {n: crypto.scalar_bytes(crypto.random_scalar()) for n in shares}


def reveals(share):
    return {("reveal", 3): lambda shares: dict.fromkeys(shares, share)}


def accuses(tail):
    return {("share", 5): gone, ("mask", 2): lambda vector: vector + tail}


def deals(change):
    return {("share", 3): change}


ATTACKS = {
    "wrong shares of four": (
        20, {("reveal", liar): wrong_shares for liar in (2, 7, 11, 19)}, set(), {2, 7, 11, 19},
        "matches its commitment",
    ),
    "a wrong share of one client": (
        6, {("reveal", 2): lambda shares: {**shares, 4: crypto.scalar_bytes(1)}}, set(), {2},
        "share of client 4",
    ),
    "a wrong share of the key of one who left": (
        7,
        {("mask", 0): gone,
         ("reveal", 3): lambda shares: {**shares, 0: shares[0][:32] + crypto.scalar_bytes(9)}},
        {0}, {3}, "share of client 0",
    ),
    "a lie of the mask with one who left": (  # enough shares of its key are right
        6,
        {("mask", 0): gone,
         ("reveal", 3): lambda shares: {**shares, 0: bytes(32) + shares[0][32:]}},
        {0}, set(), "",
    ),
    "an accusation of a million bytes": (
        5, {("mask", 2): lambda vector: vector + bytes(10**6)}, {2}, {2},
        "Expected a masked vector in",
    ),
    "confirmations for some neighbours only": (
        6, {("confirm", 3): lambda tags: {1: tags[1]}}, set(), set(), "",
    ),
    **{
        f"a sealing key of no use, {key[0]}": (
            5, {("advertise", 3): lambda advert, key=key: key + advert[32:]}, {3}, {3}, "",
        )
        for key in (bytes(32), bytes([1, *bytes(31)]))
    },
    **{
        f"a malformed share, {at}": (6, reveals(share), set(), {3}, "")
        for at, share in enumerate(
            (b"", bytes(32), bytes(31), ORDER.to_bytes(32, "little"), b"\xff" * 32, bytes(64), None,
             7, "x")
        )
    },
    **{
        f"an accusation that is none, {at}": (7, accuses(tail), {2, 5}, {2}, "")
        for at, tail in enumerate(
            (b"x", bytes(7), accusation([9]), accusation([2]), accusation([0, 1])[::-1],
             accusation([1]) * 2, accusation([3, 1])[8:] + accusation([3, 1])[:8],
             bytes(8 * 10_000))
        )
    },
    **{
        f"a dealing that is none, {at}": (6, deals(change), {3}, {3}, "")
        for at, change in enumerate((
            lambda inbox: {n: m for n, m in inbox.items() if n != 3},  # no commitments
            lambda inbox: {n: m for n, m in inbox.items() if n != 1},
            lambda inbox: {**inbox, 99: bytes(SEALED_BYTES)},
            lambda inbox: {**inbox, 1: bytes(SEALED_BYTES - 1)},
            lambda inbox: {**inbox, 1: bytes(10**6)},
            lambda inbox: {**inbox, 1: None},
            lambda inbox: {**inbox, 3: None},
            lambda inbox: {**inbox, 3: inbox[3][:-1]},
            lambda inbox: {**inbox, 3: inbox[3] + bytes(64)},
            lambda inbox: {**inbox, 3: inbox[3][:32] + bytes(len(inbox[3]) - 32)},
            lambda inbox: {**inbox, 3: inbox[3][:32] + crypto.IDENTITY * (len(inbox[3]) // 32 - 1)},
            lambda inbox: {**inbox, 3: bytes(32) + inbox[3][32:]},
        ))
    },
}  # fmt: skip
"""Clients; what (step, client) sends; who is not in the sum, who is named, and with which words."""


@pytest.mark.parametrize(
    ("count", "changes", "left_out", "named", "words"), ATTACKS.values(), ids=ATTACKS
)
def test_the_sum_is_exact_and_who_attacked_is_named_alone(count, changes, left_out, named, words):
    played = Round(terms_of(count), up=at(changes))
    assert played.exact()
    assert played.survivors == set(range(count)) - left_out
    assert set(played.server.refused) == named
    assert all(words in reason for reason in played.server.refused.values())


@pytest.mark.parametrize("count", [8, 9])
def test_with_too_few_right_shares_the_liars_are_named_and_nobody_else(count):
    terms = terms_of(count)
    liars = set(range(count - terms.threshold + 1))

    played = Round(terms, up=at({("reveal", liar): wrong_shares for liar in liars}))
    with pytest.raises(ProtocolError, match="run the round again"):
        played.total()
    assert played.server.refused.keys() <= liars
    assert played.server.refused


REAL_SPLIT = crypto.split


def dealing(change, which):
    """A client that deals other shares than it should: of its seed, its key, or their blinds."""

    class Dealer(Client):
        def share(self, adverts):
            with pytest.MonkeyPatch.context() as patch:
                splits = iter([change if kind == which else REAL_SPLIT for kind in range(4)])
                patch.setattr(crypto, "split", lambda *facts: next(splits)(*facts))
                return super().share(adverts)

    return Dealer


def one_more(secret, threshold, places):
    first, *others = REAL_SPLIT(secret, threshold, places)
    return [first % (ORDER - 1) + 1, *others]


def another_secret(secret, threshold, places):
    return REAL_SPLIT(12345, threshold, places)


def a_higher_degree(secret, threshold, places):
    return REAL_SPLIT(secret, threshold + 1, places)


@pytest.mark.parametrize("which", range(4))
@pytest.mark.parametrize("change", [one_more, another_secret, a_higher_degree])
def test_who_deals_shares_of_no_one_secret_is_left_out_before_anything_is_masked(change, which):
    masked = []

    def look(inbox):
        masked.extend(inbox)
        return inbox

    down = at({("mask", client): look for client in range(7)})
    played = Round(terms_of(7), down=down, make={3: dealing(change, which)})
    assert played.exact()
    assert set(played.server.refused) == {3}
    assert "shares of one secret" in played.server.refused[3]
    assert played.survivors == set(masked) == {0, 1, 2, 4, 5, 6}
    assert not played.errors


class Sealer(Client):
    """Commits to the right shares, and seals others for some neighbours."""

    victims = frozenset()

    def share(self, adverts):
        found = super().share(adverts)
        for n in self.victims:
            key, about = self._keys[n], context(self.terms, self.number, n)
            found[n] = seal(key, crypto.scalar_bytes(5) + crypto.scalar_bytes(6), about)
        return found


def sealer(*victims):
    return type("Sealing", (Sealer,), {"victims": frozenset(victims)})


class Accuser(Client):
    """Of everyone."""

    def _open(self, sealed):
        return dict.fromkeys(super()._open(sealed), b"")


@pytest.mark.parametrize("count", [4, 5, 6, 7, 10])
def test_one_liar_about_shares_neither_stops_a_sum_nor_costs_another_client(count):
    """A dealer of wrong shares to as many as it likes, and an accuser of everyone."""
    terms = terms_of(count)
    most = terms.most_accusers
    for number in {0, 1, most, most + 1, terms.threshold, count - 1}:
        played = Round(terms, make={0: sealer(*range(1, number + 1)) if number else Accuser})
        assert played.exact(), number
        assert not played.errors
        left_out = {0} if number > most else set()
        assert played.survivors == set(range(count)) - left_out
        assert set(played.server.refused) == left_out


@pytest.mark.parametrize("each_other", [False, True])
def test_as_many_hostile_clients_as_stated_cost_no_honest_one_its_part(each_other):
    """Dealers who seal wrong shares for honest clients, and accuse them, and reveal nothing."""
    terms = terms_of(16)
    assert terms.most_accusers == 3
    hostile, honest = range(3), range(3, 16)

    class Hostile(Sealer):
        victims = frozenset(honest[:3])

        def _open(self, sealed):
            shares = super()._open(sealed)
            return {n: b"" if n in honest or each_other else s for n, s in shares.items()}

        def reveal(self, confirmations):
            return {}

    played = Round(terms, make=dict.fromkeys(hostile, Hostile))
    assert played.exact()
    assert played.survivors == set(honest if each_other else range(16))
    assert set(played.server.refused) == set(hostile if each_other else ())


def test_a_wrong_dealer_and_another_who_is_silent_in_the_end_can_stop_a_round():
    """What the page admits: and the dealer is named."""

    class Silent(Client):
        def reveal(self, confirmations):
            return {}

    played = Round(terms_of(10), make={0: sealer(*range(1, 6)), 9: Silent})
    with pytest.raises(ProtocolError, match="run the round again"):
        played.total()
    assert set(played.server.refused) == {0}


def test_who_is_left_out_is_not_in_the_sum_and_no_share_of_its_seed_is_shown():
    played = Round(terms_of(7), make={0: sealer(1, 2, 3)})
    shown = played.revealed()
    assert played.server.close() == set(range(1, 7))
    for c in range(1, 7):
        client = played.clients[c]
        secret = client._masks[0]
        assert shown[c][0] == secret + client._shares[0][32:]
        assert len(shown[c][0]) == (32 if c in (1, 2, 3) else 64)
        assert client._shares[0][:32] not in (shown[c][0][:32], shown[c][0][32:]) or c < 4
    assert np.array_equal(played.server.unmask(shown), wanted(played.vectors, range(1, 7)))


@pytest.mark.parametrize("step", STEPS[:3])
def test_an_impossible_total_is_one_of_those_who_are_in_the_sum(step):
    """Of six clients one leaves before it is in the sum: five codes up to 3 are 15 at most."""
    for code, possible in ((3, True), (4, False)):
        terms = terms_of(6, dimension=2, bits=6)
        vectors = {c: np.full(2, 3, dtype=np.uint8) for c in terms.clients}
        vectors[2][1] = code
        played = Round(terms, vectors, at({(step, 4): gone}))
        played.largest = 3
        if possible:
            assert played.total().tolist() == [15, 15]
        else:
            with pytest.raises(ProtocolError, match="totals of 15 at most, got 16"):
                played.total()
        assert played.server.close() == {0, 1, 2, 3, 5}


# --- steps, secrets, hostile sizes --------------------------------------------------------------


@pytest.mark.parametrize("step", STEPS[1:])
def test_a_step_that_failed_is_a_clients_last(step):
    """Also the same step again, with what would have been right; and from what it has saved."""

    def failing(self, *good):
        bad = (*good[:-1], {99: b""})
        with pytest.raises(ProtocolError):
            getattr(Client, step)(self, *bad)
        saved = Client.from_bytes(self.terms, self.to_bytes())
        for client in (self, saved):
            for name in STEPS:
                with pytest.raises(ProtocolError, match=f"Expected step 'done' .* got '{name}'"):
                    getattr(Client, name)(client, *calls.get(name, good))
        raise ProtocolError("gone")

    calls = {"advertise": (), "mask": (np.zeros(5, np.uint8), {})}
    calls |= {name: ({},) for name in ("share", "confirm", "reveal") if name != step}
    played = Round(terms_of(6), make={2: type("Failing", (Client,), {step: failing})})
    assert played.exact()
    assert played.errors == {2: "gone"}


def test_a_thousand_places_are_combined():
    """Weights for 1,000 dealers' places, of which some are missing."""
    known = set(range(1001)) - set(range(30, 200))
    for dealer in range(1, 31):
        shares = {x: x for x in known if x not in (0, dealer)}  # of p(x) = x: the secret is 0
        assert crypto.combine(shares, known) == 0
    split = dict(enumerate(crypto.split(5, 667, 1000), 1))
    some = {place: split[place] for place in range(300, 967)}
    assert crypto.combine(some, set(range(1001))) == 5


# --- what else a careless change would let through ----------------------------------------------


def test_only_those_in_the_sum_confirm_it():
    """Client 5 is not in it: its word does not make up for one that is missing."""
    played = Round(terms_of(6), up=at({("mask", 5): gone}))
    survivors = played.closed()
    assert survivors == {0, 1, 2, 3, 4}
    tags = {c: played.clients[c].confirm(survivors) for c in (0, 1, 2, 3)}
    held = played.clients[5]._keys[0]
    digest = survivors_digest(played.terms, survivors)
    stranger = confirmation(held, 5, digest)
    with pytest.raises(
        ProtocolError, match="Expected 4 neighbours to confirm the survivors, got 3"
    ):
        played.clients[0].reveal({1: tags[1][0], 2: tags[2][0], 3: tags[3][0], 5: stranger})


@pytest.mark.parametrize("count", [2, 3])
def test_where_nobody_may_lie_one_accusation_stops_the_sum_and_names_nobody(count):
    played = Round(terms_of(count), make={0: Accuser})
    with pytest.raises(ProtocolError, match="run the round again"):
        played.total()
    assert played.survivors == set(range(count))
    assert not played.server.refused


def test_the_server_unmasks_no_sum_of_too_few_or_that_is_open():
    played = Round(terms_of(5, least=4), up=at({("mask", 0): gone, ("mask", 1): gone}))
    assert played.closed() == {2, 3, 4}
    with pytest.raises(ProtocolError, match="closed sum of 4 vectors or more, got 3"):
        played.server.unmask({})
    played = Round(terms_of(5))
    played.shared()
    with pytest.raises(ProtocolError, match="closed sum"):
        played.server.unmask({})


class Endless(Mapping):
    """Says that it has a million entries, and shows none."""

    def __len__(self):
        return 10**6

    def __iter__(self):
        raise AssertionError("somebody looks at the entries")

    __getitem__ = __contains__ = __iter__


def of_neighbours(change):
    """The same fault in what is for client 1."""
    return lambda inbox: {**inbox, 1: change(inbox[1])}


HOSTILE = {
    "not a mapping": lambda inbox: [1, 2],
    "a million entries": lambda inbox: Endless(),
    "a stranger": lambda inbox: {**inbox, 99: bytes(32)},
    "text": of_neighbours(lambda tag: "x" * 32),
    "a number": of_neighbours(lambda tag: 7),
    "empty": of_neighbours(lambda tag: b""),
    "short": of_neighbours(lambda tag: tag[:-1]),
    "long": of_neighbours(lambda tag: tag + b"x"),
    "huge": of_neighbours(lambda tag: bytes(10**6)),
}


@pytest.mark.parametrize("step", ["share", "confirm", "reveal"])
@pytest.mark.parametrize("fault", HOSTILE)
def test_an_inbox_of_other_kinds_or_sizes_is_refused_by_name_and_the_others_go_on(step, fault):
    class Checked(SumServer):
        def relay(self, confirmations):
            relayed = super().relay(confirmations)
            sizes = {len(tag) for tags in relayed.values() for tag in tags.values()}
            assert sizes == {32}
            return relayed

    played = Round(terms_of(7), up=at({(step, 3): HOSTILE[fault]}))
    played.server = Checked(played.terms)
    assert played.exact()
    assert set(played.server.refused) == {3}
    assert "Expected" in played.server.refused[3]
    assert not played.errors


@pytest.mark.parametrize("step", STEPS[1:])
def test_a_client_counts_what_the_server_relays_before_it_looks_at_it(step):
    played = Round(terms_of(5), down=at({(step, 1): lambda inbox: Endless()}))
    assert played.exact()
    words = "got 1000000 survivors" if step == "confirm" else "neighbours"
    assert words in played.errors[1]


def test_a_clients_own_confirmations_sent_back_count_for_nothing():
    played = Round(terms_of(6))
    survivors = played.closed()
    tags = played.clients[0].confirm(survivors)
    with pytest.raises(ProtocolError, match="confirm the survivors, got 0"):
        played.clients[0].reveal(tags)


def test_digests_differ_for_any_survivors():
    terms = terms_of(6)
    sets = [{0, 1, 2}, {0, 1}, {1, 2}, {0, 2}, {3, 1, 2}, set(range(6)), set(range(1, 6))]
    digests = {survivors_digest(terms, each) for each in sets}
    assert len(digests | {survivors_digest(terms_of(6), sets[0])}) == len(sets) + 1


def test_an_advert_is_signed_whole_and_for_one_client_of_one_sum():
    terms, other = terms_of(4), terms_of(4)
    advert = Advert.from_bytes(Client(terms, 0).advertise())
    signed = {advert.signed(terms, 0), advert.signed(terms, 1), advert.signed(other, 0)}
    for name in ("sealing", "masking", "seed"):
        fields = {n: getattr(advert, n) for n in ("sealing", "masking", "seed")}
        signed.add(Advert(**{**fields, name: bytes(32)}).signed(terms, 0))
    assert len(signed) == 6


# --- identities -----------------------------------------------------------------------------------


@pytest.mark.parametrize("change", [lambda m: m[:96], lambda m: m[:-1] + bytes([m[-1] ^ 1])])
def test_a_client_without_a_signature_is_left_out_where_the_server_has_the_directory(change):
    identities, directory = signers(range(6))
    terms, words = terms_of(6), r"Expected keys signed by client 3, got (no|a) signature"
    for known in (directory, None):
        played = Round(terms, up=at({("advertise", 3): change}))
        played.clients = {c: Client(terms, c, identities[c], directory) for c in terms.clients}
        played.server = SumServer(terms, known)
        if known is not None:
            assert played.exact()
            assert played.survivors == {0, 1, 2, 4, 5}
            assert re.match(words, played.server.refused.pop(3))
            assert not played.server.refused
            continue
        with pytest.raises(ProtocolError, match="too many have left"):
            played.total()
        assert played.errors
        assert all(re.match(words, error) for error in played.errors.values())
