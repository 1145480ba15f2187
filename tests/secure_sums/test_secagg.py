"""Secure sums: exact whatever the dropouts, refused where somebody cheats."""

import re
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st
from sum_rounds import STEPS, Round, signers, terms_of, vectors_of, wanted

from randquant.secure_sums import ORDER, Client, ProtocolError
from randquant.secure_sums.secagg import crypto

TESTS = Path(__file__).parents[1]
PAGES = [TESTS.parent / "docs" / f"secure-{name}.md" for name in ("aggregation", "sum-costs")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_example_of_a_page_prints_what_it_says(page, capsys):
    code, shown = re.findall(r"```(?:python|text)\n(.*?)```", page.read_text(), flags=re.DOTALL)
    exec(compile(code, page.name, "exec"), {})
    assert capsys.readouterr().out == shown


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


def test_a_sum_can_be_unmasked_again():
    played = Round(terms_of(5), up=without({"mask": {4}}))
    answers = played.revealed()
    for _ in range(2):
        found = played.server.unmask(answers)
        assert np.array_equal(found, wanted(played.vectors, range(4)))


def test_below_the_threshold_there_is_no_sum():
    terms = terms_of(8, neighbours=4)
    assert terms.threshold == 3
    with pytest.raises(ProtocolError, match="3 neighbours of client"):
        Round(terms, up=without({"reveal": terms.client_neighbours(0)[:2]})).total()
    with pytest.raises(ProtocolError, match="Expected 7 clients"):
        Round(terms_of(8, least=7), up=without({"advertise": {0, 1}})).total()


def test_each_secret_of_a_client_is_a_scalar_of_its_own(monkeypatch):
    """How these are drawn: `test_every_scalar_but_zero_may_be_drawn`."""
    drawn = [ORDER - 1, 2**251 + 7, 5, 12345]
    monkeypatch.setattr(crypto, "random_scalar", iter(drawn).__next__)
    clients = [Client(terms_of(4), c) for c in range(2)]
    assert sorted(s for c in clients for s in (c._seed, c._masking)) == sorted(drawn)


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


def test_a_vector_is_of_one_client_once_whole_and_in_time():
    played = Round(terms_of(6))
    clients, server = played.clients, played.server
    adverts = {c: k.advertise() for c, k in clients.items()}
    at = server.introduce({**adverts, 5: b"short", 77: adverts[3]})
    assert set(server.refused) == {5, 77}
    shared = server.forward({c: clients[c].share(keys) for c, keys in at.items()})
    payloads = {c: clients[c].mask(played.vectors[c], m) for c, m in shared.items()}
    damaged = payloads[4][:-1] + bytes([payloads[4][-1] ^ 1])
    for payload in (damaged, payloads[4][:-1], payloads[4] + b"x", b"", payloads[2]):
        with pytest.raises(ProtocolError, match="Client 4"):
            server.add(4, payload)
    with pytest.raises(ProtocolError, match="Client 3"):
        server.add(3, damaged)
    for c in range(4):
        server.add(c, payloads[c])
    assert set(server.refused) == {4, 5, 77}  # and not 3, whose second message was whole
    for c in (3, 5):
        with pytest.raises(ProtocolError, match=f"a vector of client {c}, but it"):
            server.add(c, payloads[3])
    assert server.close() == {0, 1, 2, 3}
    with pytest.raises(ProtocolError, match="before the sum is closed"):
        server.add(4, payloads[4])


def test_too_few_confirmations_or_survivors_reveal_nothing():
    for wrong, word in (
        ({0, 1, 2, 3}, "5 clients or more"),
        ([0, 1, 2, 3, 3], "5 clients or more"),  # one of them twice
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
    identities, directory = signers(range(4))
    terms = terms_of(4)

    def adverts(sign=identities):
        made = {c: Client(terms, c, sign[c], directory) for c in terms.clients}
        shown = {c: k.advertise() for c, k in made.items()}
        return made, {n: shown[n] for n in terms.client_neighbours(0)}

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
    for known in (directory, {}):
        (first := Client(terms, 0, directory=known)).advertise()
        with pytest.raises(ProtocolError, match="signed by client 1"):
            first.share(shown)


def test_sealed_shares_are_of_this_sum_and_this_pair():
    played = Round(terms_of(8))
    messages, client = played.shared(), played.clients[0]
    swapped = {**messages[0], 1: messages[0][2], 2: messages[1][2]}
    payload = client.mask(np.zeros(5, dtype=np.uint8), swapped)
    assert client.accused == {1, 2}
    played.server.add(0, payload)
    assert played.server._accused[0] == {1, 2}


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
