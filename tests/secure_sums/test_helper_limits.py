"""What a helper's limits cost others: one server's request must not stop another's."""

import hashlib
import sqlite3
import time
from collections import Counter

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

from randquant.secure_sums import (
    HelperJournal,
    HelperLimits,
    ProtocolError,
    SealedSeed,
    write_listed,
)
from randquant.secure_sums import write_request as asked

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


@pytest.mark.parametrize("kept", [False, True])
def test_a_journal_that_others_may_read_or_that_has_another_name_is_refused(tmp_path, kept):
    helper_in(tmp_path, kept=kept)
    path = tmp_path / "helper.sqlite"
    for mode in (0o644, 0o640, 0o602):
        path.chmod(mode)
        with pytest.raises(OSError, match=f"for its owner alone, got mode {mode:o}"):
            helper_in(tmp_path, kept=kept)
    path.chmod(0o600)
    (tmp_path / "other").hardlink_to(path)
    with pytest.raises(OSError, match="got 2 hard links"):
        helper_in(tmp_path, kept=kept)
    (tmp_path / "other").unlink()
    helper_in(tmp_path, kept=kept)


def test_no_row_that_was_replaced_or_deleted_is_left_in_the_file(tmp_path):
    """Keys of both lengths, and sessions of earlier keys."""
    gone = []
    for suite in ("X25519", "MLKEM768_X25519", "X25519"):
        helper = helper_in(tmp_path, suite=suite, kept=True)
        gone.append(helper._opening.secret)
        for _ in range(3):
            terms, seeds = seeds_in(helper, range(4))
            request = asked(terms, seeds)
            helper.answer(request)
            gone.append(hashlib.sha256(request).digest())
        stored = (tmp_path / "helper.sqlite").read_bytes()
        assert all(each in stored for each in gone[-4:])
    helper_in(tmp_path)
    stored = b"".join(each.read_bytes() for each in tmp_path.iterdir())
    assert not any(each in stored for each in gone)


def test_what_is_answered_is_on_the_disk_by_the_database_s_own_word(tmp_path):
    with helper_in(tmp_path)._journal._database.transaction() as database:
        for name, value in (("synchronous", 3), ("fullfsync", 1), ("secure_delete", 1)):
            assert database.execute(f"PRAGMA {name}").fetchone() == (value,)


def test_sums_of_offers_that_were_not_kept_all_count_and_a_text_that_comes_later_is_kept(tmp_path):
    """A helper that counts epsilon from now on: what it answered before has no text."""
    asked_of = []

    def answer(helper, text):
        digest = hashlib.sha256(text.encode()).digest()
        terms, seeds = seeds_in(helper, range(3), offer=digest)
        helper.answer(asked(terms, seeds, text))

    before = helper_in(tmp_path, kept=True)
    for text in ("[1]", "[2]"):
        answer(before, text)
    helper = limited(tmp_path, lambda terms, sums, check: asked_of.append(dict(sums)) or True)
    for text in ("[3]", "[1]", "[4]"):
        answer(helper, text)
    assert asked_of == [
        {"": 2, "[3]": 1},
        {"": 1, "[1]": 2, "[3]": 1},
        {"": 1, "[1]": 2, "[3]": 1, "[4]": 1},
    ]


def test_accounts_of_many_clients_with_long_offers_are_read_at_once(tmp_path):
    journal, clients = HelperJournal(tmp_path), range(1000)
    journal.begin(b"key")
    texts = {bytes([n]): str(n) * 2**20 for n in range(4)}  # the longest that a request may bring
    for digest, text in texts.items():
        accounts = journal.accounts(clients)
        journal.record(b"key", digest, digest, (digest, text), clients, b"", accounts)
    began = time.monotonic()
    accounts = journal.accounts(clients)
    assert time.monotonic() - began < 2  # far less; many seconds if each client's text is read
    assert accounts.texts == texts
    assert accounts.sums == {client: Counter(texts.keys()) for client in clients}
