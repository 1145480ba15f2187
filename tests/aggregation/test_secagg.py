"""Secure sums: exact whatever the dropouts, uniform to the server, refused where it cheats."""

import os
import re
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from secure_sums import STEPS, Round, terms_of, vectors_of

from randquant.aggregation import masks
from randquant.aggregation.secagg.client import Client
from randquant.aggregation.secagg.messages import masked_format
from randquant.aggregation.secagg.terms import NEIGHBOURS, ProtocolError, Terms
from randquant.channels import wire
from randquant.channels.keys import Key

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs" / "secure-aggregation.md").read_text()


def test_the_examples_of_the_page_print_what_they_say(capsys):
    blocks = re.findall(r"```(?:python|text)\n(.*?)```", PAGE, flags=re.DOTALL)
    assert len(blocks) == 4
    for code, shown in zip(blocks[::2], blocks[1::2], strict=True):
        exec(compile(code, "docs/secure-aggregation.md", "exec"), {})
        assert capsys.readouterr().out == shown


def test_the_figures_of_the_page_are_those_of_terms():
    most = {count: terms_of(count).most_accusers for count in range(2, 41)}
    assert (most[2], most[3], most[40]) == (0, 0, 7)
    assert {most[count] for count in range(4, 10)} == {1}
    assert most[10] == 2
    forty = terms_of(40)
    assert (2 * forty.threshold - forty.neighbours, forty.neighbours) == (13, 39)
    ten = terms_of(60, neighbours=NEIGHBOURS)
    assert 2 * ten.threshold - ten.neighbours == 4


def without(gone):
    """What clients send who leave before a step: nothing from there on."""
    return lambda step, client, message: None if client in gone.get(step, ()) else message


@st.composite
def sums(draw):
    """Terms, and who leaves before each of the five steps: never more than the threshold bears."""
    count = draw(st.integers(3, 16))
    levels = draw(st.integers(2, 256))
    neighbours = draw(st.sampled_from([4, 6, 10, 100]))
    terms = terms_of(
        count,
        dimension=draw(st.integers(1, 40)),
        bits=(count * (levels - 1)).bit_length(),
        neighbours=neighbours,
    )
    order = draw(st.permutations(range(count)))
    most = min(count - 2, terms.neighbours - terms.threshold)
    cuts = sorted(draw(st.lists(st.integers(0, most), min_size=5, max_size=5)))
    gone = [frozenset(order[a:b]) for a, b in zip([0, *cuts[:4]], cuts, strict=True)]
    return terms, levels, dict(zip(STEPS, gone, strict=True))


@settings(max_examples=40, deadline=None)
@given(sums(), st.integers(0, 2**32))
def test_the_sum_is_that_of_the_survivors_bit_for_bit(case, seed):
    terms, levels, gone = case
    played = Round(terms, vectors_of(terms, levels, seed), without(gone))
    assert played.exact()
    assert played.survivors == set(terms.clients).difference(*(gone[s] for s in STEPS[:3]))


def test_below_the_threshold_there_is_no_sum():
    terms = terms_of(8, neighbours=4)
    assert terms.threshold == 3
    with pytest.raises(ProtocolError, match="3 neighbours of client"):
        Round(terms, up=without({"reveal": terms.neighbours_of(0)[:2]})).total()
    with pytest.raises(ProtocolError, match="Expected 7 clients"):
        Round(terms_of(8, least=7), up=without({"advertise": {0, 1}})).total()


# --- what the server sees of one client ---------------------------------------------------------

RUNS, ERROR = 60, 1e-9  # each test below raises a false alarm with a chance of about ERROR


def seen(stripped=False, make=Client):
    """(RUNS, 200) masked zeros of client 0 in fresh sums of three, as the server sees them.

    Stripped of the masks with others: it learns these where the client's vector comes too late.
    """
    rows = []
    for _ in range(RUNS):
        terms = terms_of(3, dimension=200, bits=8)
        played = Round(terms, make={0: make})
        payload = played.clients[0].mask(np.zeros(200, dtype=np.uint8), played.shared()[0])
        vector = wire.unpack(masked_format(terms, 0), payload, 200)
        for secret in played.clients[0]._masks.values() if stripped else ():
            masks.add(vector, secret, -1)
        rows.append(vector)
    return np.array(rows)


def uniform(rows):
    """Whether values are uniform over 8 bits, and differences between runs too."""
    chances = []
    for values in (rows, np.diff(rows, axis=0), np.diff(rows, axis=1)):
        counts = np.bincount(values.astype(np.uint8).ravel(), minlength=256)
        chances.append(stats.chisquare(counts).pvalue)
    return min(chances) > ERROR / 3


def test_a_masked_vector_is_uniform():
    assert uniform(seen())


def test_it_stays_uniform_without_the_masks_with_others():
    assert uniform(seen(stripped=True))


def test_a_missing_self_mask_is_caught(monkeypatch):
    class Faulty(Client):
        def mask(self, vector, sealed):
            added, pairs = masks.add, set(self._masks.values())
            with monkeypatch.context() as patch:
                patch.setattr(
                    masks,
                    "add",
                    lambda t, secret, sign: secret not in pairs or added(t, secret, sign),
                )
                return super().mask(vector, sealed)

    assert uniform(seen(make=Faulty))
    assert not uniform(seen(stripped=True, make=Faulty))


def test_a_mask_that_is_used_twice_is_caught(monkeypatch):
    monkeypatch.setattr(masks, "Key", lambda _: Key.from_seed(0))
    assert not uniform(seen(stripped=True))


def secrets_are_whole(secrets):
    """Whether each of 252 bits takes both values: a false alarm has a chance of 2^(9 - clients)."""
    whole = b"".join(secret.to_bytes(32, "big") for secret in secrets)
    bits = np.unpackbits(np.frombuffer(whole, dtype=np.uint8).reshape(-1, 32), axis=1)[:, 4:]
    return bool((bits.min(axis=0) == 0).all() and (bits.max(axis=0) == 1).all())


def test_secrets_have_all_their_bits():
    terms = terms_of(60)
    clients = [Client(terms, c) for c in terms.clients]
    assert secrets_are_whole([client._seed for client in clients])
    assert secrets_are_whole([client._masking for client in clients])
    assert len({client._seed for client in clients} | {c._masking for c in clients}) == 120


def test_secrets_of_32_bits_are_caught(monkeypatch):
    real = os.urandom
    monkeypatch.setattr(os, "urandom", lambda n: real(4) + bytes(n - 4))
    terms = terms_of(60)
    assert not secrets_are_whole([Client(terms, c)._seed for c in terms.clients])


# --- a server or a client that cheats -----------------------------------------------------------


def test_no_client_gives_both_shares_of_a_neighbour():
    played = Round(terms_of(6))
    survivors = played.closed()
    relayed = played.server.relay({c: k.confirm(survivors) for c, k in played.clients.items()})
    client = played.clients[0]
    assert {len(share) for share in client.reveal(relayed[0]).values()} == {32}
    with pytest.raises(ProtocolError, match="got 'reveal'"):
        client.reveal(relayed[0])
    with pytest.raises(ProtocolError, match="got 'confirm'"):
        client.confirm(survivors - {1})


def test_survivors_who_share_no_mask_with_a_client_are_refused():
    """Else a server keeps some apart, and learns the sum of the rest: fewer than `least`."""
    apart = {0: {6, 7}, 6: {0}, 7: {0}}

    def down(step, client, inbox):
        hidden = apart.get(client, ()) if step == "mask" else ()
        return {n: message for n, message in inbox.items() if n not in hidden}

    played = Round(terms_of(8, least=8), down=down)
    played.closed()
    for c, client in played.clients.items():
        if c not in apart:
            client.confirm(range(8))
            continue
        with pytest.raises(ProtocolError, match="shared with this client"):
            client.confirm(range(8))


def test_a_saved_client_goes_on_in_its_own_sum_only():
    terms, other = terms_of(4), terms_of(4)
    client = Client(terms, 0, directory={c: bytes(32) for c in range(4)})
    with pytest.raises(ValueError, match="terms of the sum"):
        Client.from_bytes(other, client.to_bytes(), directory={})
    with pytest.raises(ValueError, match="directory"):
        Client.from_bytes(terms, client.to_bytes())


def test_a_vector_is_of_one_client_and_in_time():
    played = Round(terms_of(5))
    server = played.server
    payloads = {
        c: played.clients[c].mask(np.zeros(5, np.uint8), m) for c, m in played.shared().items()
    }
    with pytest.raises(ProtocolError, match="channel"):
        server.add(1, payloads[2])
    for c in range(4):
        server.add(c, payloads[c])
    assert server.close() == {0, 1, 2, 3}
    with pytest.raises(ProtocolError, match="before the sum is closed"):
        server.add(4, payloads[4])


def test_too_few_confirmations_or_survivors_reveal_nothing():
    for wrong, word in (
        ({0, 1, 2, 3}, "5 clients or more"),
        ({0, 1, 3, 4, 5}, "this client among"),
        ({0, 1, 2, 3, 99}, "Expected"),
    ):
        played = Round(terms_of(6, least=5))
        played.closed()
        with pytest.raises(ProtocolError, match=word):
            played.clients[2].confirm(wrong)
    tags = {c: played.clients[c].confirm(range(6)) for c in (0, 3, 4, 5)}
    with pytest.raises(ProtocolError, match="4 neighbours to confirm"):
        played.clients[0].reveal(played.server.relay(tags)[0])


def test_keys_must_be_of_different_neighbours_and_signed():
    identities = {c: Ed25519PrivateKey.generate() for c in range(4)}
    directory = {c: key.public_key().public_bytes_raw() for c, key in identities.items()}
    terms = terms_of(4)

    def adverts(sign=identities):
        made = {c: Client(terms, c, sign[c], directory) for c in terms.clients}
        shown = {c: k.advertise() for c, k in made.items()}
        return made, {n: shown[n] for n in terms.neighbours_of(0)}

    made, shown = adverts()
    assert set(made[0].share(shown)) == {0, 1, 2, 3}
    for change in (
        lambda a: {**a, 1: a[2]},  # another client's keys
        lambda a: {**a, 1: a[1][:96]},  # unsigned
        lambda a: {**a, 1: bytes([a[1][0] ^ 1]) + a[1][1:]},
        lambda a: {**a, 1: a[1][:50]},
        lambda a: {**a, 9: a[1]},
        lambda a: {1: a[1]},
    ):
        made, shown = adverts()
        with pytest.raises(ProtocolError):
            made[0].share(change(shown))
        with pytest.raises(ProtocolError, match="got 'mask'"):  # it takes no further part
            made[0].mask(np.zeros(5, dtype=np.uint8), {})
    made, shown = adverts({**identities, 1: Ed25519PrivateKey.generate()})
    with pytest.raises(ProtocolError, match="signed by client 1"):
        made[0].share(shown)


def test_sealed_shares_are_of_this_sum_and_this_pair():
    played = Round(terms_of(8))
    messages, client = played.shared(), played.clients[0]
    swapped = {**messages[0], 1: messages[0][2], 2: messages[1][2]}
    payload = client.mask(np.zeros(5, dtype=np.uint8), swapped)
    assert client.accused == {1, 2}
    played.server.add(0, payload)
    assert played.server._accused[0] == {1, 2}


def test_what_is_wrong_is_left_out_or_fails_loudly():
    terms = terms_of(10)
    played = Round(terms)
    clients, server = played.clients, played.server
    adverts = {c: k.advertise() for c, k in clients.items()}
    at = server.introduce({**adverts, 9: b"short", 77: adverts[3]})
    assert set(server.refused) == {9, 77}
    sealed = {c: clients[c].share(a) for c, a in at.items()}
    sealed[8].pop(0)
    messages = server.forward(sealed)
    assert "all neighbours" in server.refused[8]
    assert set(messages) == set(range(8))
    payloads = {c: clients[c].mask(played.vectors[c], m) for c, m in messages.items()}
    damaged = payloads[7][:-1] + bytes([payloads[7][-1] ^ 1])
    for payload in (damaged, payloads[7][:-1], payloads[7] + b"x", b""):
        with pytest.raises(ProtocolError, match="Client 7"):
            server.add(7, payload)
    for c in range(7):
        server.add(c, payloads[c])
    for c in (3, 9):
        with pytest.raises(ProtocolError, match=f"another of {c}"):
            server.add(c, payloads[3])


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({"clients": (1,)}, "two clients"),
        ({"clients": (1, 2, 2)}, "none twice"),
        ({"clients": (1, 2, -1)}, "client"),
        ({"bits": 33}, "bits"),
        ({"dimension": 0}, "dimension"),
        ({"least": 9}, "least"),
        ({"neighbours": 5}, "even"),
        ({"neighbours": 4, "threshold": 2}, "threshold"),
        ({"neighbours": 6, "threshold": 3}, "threshold"),
        ({"neighbours": 7, "threshold": 3}, "threshold"),
        ({"neighbours": 10, "clients": tuple(range(20)), "threshold": 6}, "threshold"),
        ({"session": "text"}, "session"),
    ],
)
def test_terms_are_checked(change, wanted):
    facts = {"session": b"s", "clients": tuple(range(8)), "dimension": 4, "bits": 8, "least": 3}
    with pytest.raises((ValueError, TypeError), match=wanted):
        Terms(**{**facts, **change})


def test_vectors_are_checked():
    terms = terms_of(4, bits=4)
    for vector in (np.zeros(4, np.uint8), np.zeros(5), np.full(5, 16, np.uint8)):
        played = Round(terms)
        with pytest.raises(ValueError, match="Expected"):
            played.clients[0].mask(vector, played.shared()[0])
    with pytest.raises(ValueError, match="clients"):
        Client(terms, 17)


def test_other_terms_do_not_fit():
    one, other = terms_of(4), terms_of(4)
    assert one.digest != other.digest
    played = Round(one, make={0: lambda terms, number: Client(other, number)})
    assert set(played.shared()) == {1, 2, 3}
    assert set(played.server.refused) == {0}
