"""What a helper's limits cost others: one server's request must not stop another's."""

import hashlib
import sqlite3

import pytest
from helper_sums import (
    begun,
    changed,
    codes_of,
    collected,
    exact,
    helper_in,
    messages_of,
    seeds_in,
    seeds_of,
)

from randquant.secure_sums.helper import HelperLimits
from randquant.secure_sums.helper.message import SealedSeed
from randquant.secure_sums.helper.request import write_listed
from randquant.secure_sums.helper.request import write_request as asked
from randquant.secure_sums.secagg.terms import ProtocolError

OFFER = '{"offer": 1}'
DIGEST = hashlib.sha256(OFFER.encode()).digest()


def limited(folder, affords, **options):
    return helper_in(folder, HelperLimits(affords=affords), kept=True, **options)


def test_while_a_limit_is_computed_others_are_answered(tmp_path):
    """A hostile offer may take a minute: the journal is not held for it."""
    other = helper_in(tmp_path, kept=True)
    terms, codes, messages = begun(other, range(3))
    server = collected(terms, messages)

    def affords(terms, sums, check):
        assert exact(server, other.answer(server.request()), codes)
        return True

    helper = limited(tmp_path, affords)
    terms, seeds = seeds_in(helper, range(4), offer=DIGEST)
    helper.answer(asked(terms, seeds, OFFER))
    assert helper.sums == {0: 2, 1: 2, 2: 2, 3: 1}


def test_a_limit_that_others_have_used_up_meanwhile_is_computed_again(tmp_path):
    """As many sums as the limit allows, though each was decided before the other was counted."""
    computed = []

    def affords(terms, sums, check):
        computed.append(sums[OFFER])
        if len(computed) == 1:
            second.answer(asked(later, others, OFFER))
        return sums[OFFER] <= 1

    helper, second = (limited(tmp_path, affords) for _ in range(2))
    terms, seeds = seeds_in(helper, range(4), offer=DIGEST)
    later = changed(terms, session=b"2")
    others = seeds_of(later, messages_of(later, codes_of(later, range(3))))
    with pytest.raises(ProtocolError, match="within the helper's limits, got 1"):
        helper.answer(asked(terms, seeds, OFFER))
    assert helper.sums == dict.fromkeys(range(3), 1)
    assert sorted(computed) == [1, 1, 1, 2]


def test_seeds_are_counted_before_a_limit_is_computed(tmp_path):
    def affords(terms, sums, check):
        raise AssertionError

    helper = limited(tmp_path, affords)
    terms, seeds = seeds_in(helper, range(4), offer=DIGEST, least=3)
    junk = {c: SealedSeed(bytes(80)) for c in (2, 3)}
    with pytest.raises(ProtocolError, match=r"Expected seeds of 3 clients or more .* got 2"):
        helper.answer(asked(terms, seeds | junk, OFFER))


class Gone(ProtocolError):
    pass


@pytest.mark.parametrize("steps", [0, 1, 4, 5, 6, 9])
def test_an_answer_that_nobody_waits_for_ends(tmp_path, steps):
    """At whatever step; the same request gets its answer later, counted once."""
    helper = limited(tmp_path, lambda terms, sums, check: True)
    terms, seeds = seeds_in(helper, range(4), offer=DIGEST)
    left = [steps]

    def check():
        left[0] -= 1
        if left[0] < 0:
            raise Gone

    with pytest.raises(Gone):
        helper.answer(asked(terms, seeds, OFFER), check)
    assert helper.answer(asked(terms, seeds, OFFER))
    assert helper.sums == dict.fromkeys(range(4), 1)


def test_a_request_reads_the_offers_of_its_own_clients_only(tmp_path):
    helper = limited(tmp_path, lambda terms, sums, check: True)
    for text, clients in (("[1]", range(3)), ("[2]", range(5, 8)), ("[3]", range(7, 9))):
        terms, seeds = seeds_in(helper, clients, offer=hashlib.sha256(text.encode()).digest())
        helper.answer(asked(terms, seeds, text))
    accounts = helper._journal.accounts([5, 7, 20])
    assert sorted(accounts.texts.values()) == ["[2]", "[3]"]
    assert {c: sum(n.values()) for c, n in accounts.sums.items()} == {5: 1, 7: 2, 20: 0}


@pytest.mark.parametrize("edit", ["left_out", "request", "gone"])
def test_memory_is_believed_before_an_edited_journal(tmp_path, edit):
    """Another list, or set, for a session that this process has answered: its difference tells."""
    helper = helper_in(tmp_path)
    terms, seeds = seeds_in(helper, range(4))
    first, second = asked(terms, seeds), asked(terms, {c: seeds[c] for c in range(3)})
    answer = helper.answer(first)
    with sqlite3.connect(tmp_path / "helper.sqlite") as database:
        if edit == "left_out":
            database.execute("UPDATE sessions SET left_out = ?", [write_listed({3: 2})])
        elif edit == "request":
            digest = hashlib.sha256(second).digest()
            database.execute("UPDATE sessions SET request = ?", [digest])
        else:
            database.execute("DELETE FROM sessions")
    database.close()
    for request in (second, first) if edit != "gone" else [second]:
        with pytest.raises(ProtocolError, match="Expected one set of clients in a session"):
            helper.answer(request)
    if edit == "gone":
        assert helper.answer(first) == answer
