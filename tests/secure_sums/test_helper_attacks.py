"""What a hostile server, helper or client may try in a sum with a helper, each a test."""

import hashlib
import os
import shutil

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from helper_sums import (
    IDENTITY,
    PINNED,
    begun,
    changed,
    codes_of,
    collected,
    exact,
    helper_in,
    messages_of,
    seeds_in,
    seeds_of,
    terms_of,
)
from sum_rounds import signers

from randquant.secure_sums import (
    Helper,
    HelperLimits,
    HelperRequest,
    HelperTerms,
    OpeningKey,
    ProtocolError,
    SealedSeed,
    add_masks,
    mask_dtype,
    masked_message,
    write_answer,
)
from randquant.secure_sums import write_request as asked
from randquant.secure_sums.helper import collector
from randquant.secure_sums.helper import request as requests
from randquant.secure_sums.helper.message import HelperKey, _signed_bytes
from randquant.secure_sums.helper.request import write_listed


@pytest.fixture
def helper(tmp_path):
    return helper_in(tmp_path / "helper")


def begun_beside_a_copy(tmp_path, **options):
    """A helper that has answered for three of four clients since its folder was copied."""
    helper = helper_in(tmp_path / "helper", **options)
    shutil.copytree(tmp_path / "helper", tmp_path / "copy")
    terms, seeds = seeds_in(helper, range(4))
    helper.answer(asked(terms, {c: seeds[c] for c in range(3)}))
    return helper, terms, seeds


# --- the server -----------------------------------------------------------------------------------


@pytest.mark.parametrize("second", [{0, 1, 2}, {0, 1, 2, 3, 4}, {1, 2, 3, 4}, {5, 6, 7}])
@pytest.mark.parametrize("kept", [False, True])
def test_two_sets_of_clients_of_one_session(tmp_path, second, kept):
    """Their difference would be one client's codes. Nor after a restart of a kept helper."""
    helper = helper_in(tmp_path, kept=kept)
    terms, seeds = seeds_in(helper, range(8))
    first = asked(terms, {c: seeds[c] for c in range(4)})
    answer = helper.answer(first)
    again = helper_in(tmp_path, kept=True) if kept else helper
    for one in (helper, again):
        with pytest.raises(ProtocolError, match="Expected one set of clients in a session"):
            one.answer(asked(terms, {c: seeds[c] for c in second}))
        assert one.answer(first) == answer
    assert helper.sums == dict.fromkeys(range(4), 1)


def test_the_same_clients_with_one_seed_that_first_does_not_open(helper):
    """The set of clients in the sum would be another: it is the request's bytes that count."""
    terms, seeds = seeds_in(helper, range(4))
    bad = seeds | {3: SealedSeed(bytes(len(seeds[3].sealed)))}
    answer = helper.answer(asked(terms, bad))
    assert requests.read_answer(terms, answer[4:36], seeds, answer)[0] == {3: 1}
    with pytest.raises(ProtocolError, match="Expected one set of clients in a session"):
        helper.answer(asked(terms, seeds))
    assert helper.answer(asked(terms, bad)) == answer


def test_two_sets_asked_at_the_same_time_from_two_helpers_in_one_folder(tmp_path):
    """Whoever is second on the disk is refused, although neither knew of the other's set."""
    first, second = (helper_in(tmp_path, kept=True) for _ in range(2))
    terms, seeds = seeds_in(first, range(4))
    record = first._journal.record

    def overtaken(*arguments):
        second.answer(asked(terms, {c: seeds[c] for c in range(3)}))
        return record(*arguments)

    first._journal.record = overtaken
    with pytest.raises(ProtocolError, match="Expected one set of clients in a session"):
        first.answer(asked(terms, seeds))


def test_a_session_again_after_a_restart_from_an_old_copy(tmp_path):
    """The key of the session is gone with the process: no copy of the disk brings it back."""
    _, terms, seeds = begun_beside_a_copy(tmp_path)
    for restored in ("helper", "copy"):
        restarted = helper_in(tmp_path / restored)
        with pytest.raises(ProtocolError, match=r"with this helper's key, .*got one with"):
            restarted.answer(asked(terms, seeds))
        # Also if it is told that the key is its own: the seeds do not open.
        forged = changed(terms, key=restarted.key)
        with pytest.raises(ProtocolError, match=r"2 clients or more that are valid"):
            restarted.answer(asked(forged, seeds))


def test_an_old_copy_under_a_helper_that_runs(tmp_path):
    """What it has answered is in its memory, too."""
    helper, terms, seeds = begun_beside_a_copy(tmp_path)
    shutil.rmtree(tmp_path / "helper")
    shutil.copytree(tmp_path / "copy", tmp_path / "helper")
    with pytest.raises(ProtocolError, match="Expected one set of clients in a session"):
        helper.answer(asked(terms, seeds))


def test_a_helper_whose_folder_another_has_taken_over_answers_nothing(tmp_path):
    """The second has deleted the sessions of the first, which must not answer them again."""
    first = helper_in(tmp_path)
    terms, seeds = seeds_in(first, range(4))
    first.answer(asked(terms, {c: seeds[c] for c in range(3)}))
    helper_in(tmp_path)
    fresh = seeds_in(first, range(4))
    for each in (fresh, (terms, {c: seeds[c] for c in range(3)})):
        with pytest.raises(ProtocolError, match="the one that started last in its folder"):
            first.answer(asked(*each))


def test_the_stated_limit_of_a_kept_key_is_an_old_copy_until_it_starts_afresh(tmp_path):
    """docs/theory/helper-sums.md says so: no file can know that it is an old one."""
    helper, terms, seeds = begun_beside_a_copy(tmp_path, kept=True)
    shutil.copytree(tmp_path / "copy", tmp_path / "second")
    helper_in(tmp_path / "copy", kept=True).answer(asked(terms, seeds))  # the limit
    helper_in(tmp_path / "second")
    renewed = helper_in(tmp_path / "second", kept=True)
    assert renewed.key != helper.key
    with pytest.raises(ProtocolError, match=r"with this helper's key, .*got one with"):
        renewed.answer(asked(terms, seeds))


@pytest.mark.parametrize("suite", ["X25519", "MLKEM768_X25519"])
def test_a_seal_of_another_round_or_client(tmp_path, suite):
    """It does not open, so that no client is in a sum that it did not answer, or in two places."""
    helper = helper_in(tmp_path, suite=suite)
    terms, seeds = seeds_in(helper, range(4))
    others = [
        changed(terms, session=os.urandom(8)), changed(terms, bits=11), changed(terms, cohort=30),
        changed(terms, dimension=4), changed(terms, dimension=6), changed(terms, least=3),
        changed(terms, offer=os.urandom(32)),
    ]  # fmt: skip
    for other in others:
        with pytest.raises(ProtocolError, match=f"Expected seeds of {other.least} clients or more"):
            helper.answer(asked(other, seeds))
    moved = {c + 10: seed for c, seed in seeds.items()}
    with pytest.raises(ProtocolError, match=r"that are valid .*, got 0"):
        helper.answer(asked(terms, moved))
    with pytest.raises(ProtocolError, match=r"that are valid .*, got 1"):
        helper.answer(asked(terms, {0: seeds[0], 1: seeds[0], 2: seeds[0]}))
    assert not helper.sums
    assert helper.answer(asked(terms, seeds))  # nothing was taken by what was refused


def test_a_cohort_below_least(helper):
    """Padded with seeds that do not open, and in terms that ask for fewer than the helper does."""
    terms, seeds = seeds_in(helper, range(3), least=4)
    junk = {c: SealedSeed(os.urandom(80)) for c in range(10, 17)}
    for each in (seeds, seeds | junk, junk):
        with pytest.raises(ProtocolError, match="Expected seeds of 4 clients or more"):
            helper.answer(asked(terms, each))
    assert not helper.sums


@pytest.mark.parametrize(
    ("limits", "cohort", "sentence"),
    [
        (HelperLimits(coordinates=4), 20, "Expected 4 coordinates at most"),
        (HelperLimits(clients=3), 20, "Expected 3 clients at most in this sum, got 4"),
        (HelperLimits(least=3), 20, "sums of 3 clients or more, as this helper demands"),
        (None, 3, "Expected 3 clients at most in this sum, got 4"),  # that the modulus is for
    ],
)
def test_a_request_beyond_the_helpers_own_limits_or_the_terms(tmp_path, limits, cohort, sentence):
    helper = helper_in(tmp_path, limits)
    terms, seeds = seeds_in(helper, range(4), cohort=cohort)
    with pytest.raises(ProtocolError, match=sentence):
        helper.answer(asked(terms, seeds))


def test_more_clients_than_the_modulus_is_for(helper):
    terms, _, messages = begun(helper, range(4), cohort=3)
    server = collected(terms, {c: messages[c] for c in range(3)})
    with pytest.raises(ProtocolError, match="Client 3: Expected 3 clients at most"):
        server.add(3, messages[3])


def test_duplicates_and_clients_out_of_order(helper, monkeypatch):
    terms, seeds = seeds_in(helper, range(4))

    class Repeated(dict):
        def __iter__(self):
            return iter(self.order)

        def __len__(self):
            return len(self.order)

    monkeypatch.setattr(requests, "sorted", list, raising=False)
    for order in ([0, 1, 1, 2], [0, 2, 1, 3]):
        repeated = Repeated(seeds)
        repeated.order = order
        with pytest.raises(ProtocolError, match="each client once, in ascending order"):
            helper.answer(asked(terms, repeated))


def test_the_servers_own_key_in_place_of_the_helpers():
    own = Ed25519PrivateKey.generate()
    codes = np.zeros(5, np.uint8)
    for suite in ("X25519", "MLKEM768_X25519"):
        key = OpeningKey.generate(suite, own).key
        forged = type(key)(suite, key.public, OpeningKey.generate(suite, IDENTITY).key.signature)
        for each in (key, forged, type(key)(suite, key.public, bytes(64))):
            terms = HelperTerms(b"s", each, 10, 2, 5, 8)
            with pytest.raises(ProtocolError, match="key signed by the helper that this client"):
                masked_message(terms, 0, codes, PINNED)
            with pytest.raises(ProtocolError, match="key signed by the helper"):
                masked_message(terms, 0, codes, b"no key")


def test_an_identity_for_which_anybody_can_sign_vouches_for_no_key():
    """The neutral point: its signature of zeros is valid for whatever key the server draws."""
    neutral = (1).to_bytes(32, "little")
    own = OpeningKey.generate("X25519", IDENTITY).key
    key = type(own)("X25519", own.public, neutral + bytes(32))
    with pytest.raises(ProtocolError, match="key signed by the helper that this client"):
        masked_message(HelperTerms(b"s", key, 10, 2, 5, 8), 0, np.zeros(5, np.uint8), neutral)


def test_a_key_of_a_weak_point_is_not_sealed_to():
    """Also a signed one: its shared secret would be known to everybody."""
    key = HelperKey("X25519", bytes(32), IDENTITY.sign(_signed_bytes("X25519", bytes(32))))
    with pytest.raises(ProtocolError, match="got an invalid one"):
        masked_message(HelperTerms(b"s", key, 10, 2, 5, 8), 0, np.zeros(5, np.uint8), PINNED)


def test_clients_that_the_server_has_invented_where_there_is_a_directory(tmp_path):
    """Without one they pass, as in any secure sum: docs/theory/helper-sums.md."""
    identities, directory = signers(range(4))
    helper = helper_in(tmp_path / "a", directory=directory)
    terms = terms_of(helper)
    seeds = seeds_of(terms, messages_of(terms, codes_of(terms, range(4)), identities))
    own = {c: Ed25519PrivateKey.generate() for c in range(1, 9)}
    invented = seeds_of(terms, messages_of(terms, codes_of(terms, range(1, 9)), own))
    for others in (
        invented,  # numbers of clients that exist, and others
        {c: SealedSeed(invented[c].sealed, seeds[1].signature) for c in (1, 2, 3)},
        {c: SealedSeed(seeds[c].sealed) for c in (1, 2, 3)},  # without their signatures
    ):
        with pytest.raises(ProtocolError, match=r"Expected seeds of 2 clients or more .* got 1"):
            helper.answer(asked(terms, {**others, 0: seeds[0]}))
    answer = helper.answer(request := asked(terms, seeds | {7: invented[7]}))
    digest = HelperRequest.from_bytes(request).digest
    left_out, _ = requests.read_answer(terms, digest, seeds | invented, answer)
    assert left_out == {7: requests.UNSIGNED}
    open_to_all = helper_in(tmp_path / "b")
    terms = terms_of(open_to_all)
    sybils = seeds_of(terms, messages_of(terms, codes_of(terms, range(5, 9))))
    assert open_to_all.answer(asked(terms, sybils))  # the stated limit


def test_a_server_with_the_directory_refuses_at_once_who_did_not_sign(tmp_path):
    identities, directory = signers(range(4))
    helper = helper_in(tmp_path, directory=directory)
    terms = terms_of(helper)
    codes = codes_of(terms, range(4))
    messages = messages_of(terms, codes, {c: identities[c] for c in range(3)} | {3: IDENTITY})
    server = collected(terms, {c: messages[c] for c in range(3)}, directory)
    with pytest.raises(ProtocolError, match="Client 3: Expected a seed signed by this client"):
        server.add(3, messages[3])
    assert exact(server, helper.answer(server.request()), codes)


def test_a_client_taken_from_the_directory_between_two_requests_changes_no_answer(tmp_path):
    """Else the two answers would differ by its mask."""
    identities, directory = signers(range(4))
    helper = helper_in(tmp_path, directory=directory)
    terms = terms_of(helper)
    server = collected(terms, messages_of(terms, codes_of(terms, range(4)), identities))
    answer = helper.answer(server.request())
    del directory[2]
    assert helper.answer(server.request()) == answer


# --- the helper -----------------------------------------------------------------------------------


def answered(terms, server, helper, left_out=(), shift=0):
    """An answer that says what a hostile helper likes."""
    request = HelperRequest.from_bytes(server.request())
    seeds = helper._open_seeds(request, terms.digest, request.seeds.keys() - set(left_out))
    total = np.zeros(terms.dimension, mask_dtype(terms.bits))
    add_masks(total, seeds.values(), +1)
    return write_answer(request, dict.fromkeys(left_out, 1), total + total.dtype.type(shift))


def test_a_wrong_sum_is_noticed_when_it_is_impossible_and_is_what_one_client_can_do(helper):
    """A helper that shifts every total does what a client that sends a shifted vector does."""
    terms = terms_of(helper, dimension=3, bits=5)
    codes = {c: np.full(3, 1, np.uint32) for c in range(5)}
    server = collected(terms, messages_of(terms, codes))
    assert server.unmask(answered(terms, server, helper), largest=2).tolist() == [5] * 3
    for shift, noticed in ((1, False), (27, False), (31, False), (26, True), (6, True)):
        wrong = answered(terms, server, helper, shift=shift)
        if noticed:
            with pytest.raises(ProtocolError, match="helper's answer is wrong, or some client"):
                server.unmask(wrong, largest=2)
            continue
        total = server.unmask(wrong, largest=2)
        assert total.tolist() == [(5 - shift) % 32] * 3
        shifted = codes | {4: (codes[4] - shift) % 32}
        by_client = collected(terms, messages_of(terms, shifted))
        again = by_client.unmask(answered(terms, by_client, helper), largest=2)
        assert np.array_equal(again, total)


def test_a_helper_that_leaves_out_all_but_one(helper):
    """The server demands `least` itself: it never has the sum of one."""
    terms, codes, messages = begun(helper, range(6), least=3)
    server = collected(terms, messages)
    with pytest.raises(ProtocolError, match="messages of 3 clients or more, got 1"):
        server.unmask(answered(terms, server, helper, left_out=range(5)))
    assert exact(server, answered(terms, server, helper, left_out=range(3)), codes)
    assert server.clients == {3, 4, 5}


def test_an_answer_whose_list_is_not_that_of_its_sum(helper):
    """Another client, another reason, one more or none: with these masks the sum would be wrong."""
    terms, codes, messages = begun(helper, range(5))
    server = collected(terms, messages)
    answer = answered(terms, server, helper, left_out=[4])
    head, listed, total = answer[:36], write_listed({4: 1}), answer[49:]
    assert answer == head + (1).to_bytes(4, "big") + listed + total
    for wrong in ({3: 1}, {4: 2}, {3: 1, 4: 1}, {}):
        entries = len(wrong).to_bytes(4, "big") + write_listed(wrong)
        with pytest.raises(ProtocolError, match=r"checksum|channel"):
            server.unmask(head + entries + total)
    assert server.refused == {}
    assert exact(server, answer, codes)


def test_an_answer_of_another_session_or_none(helper):
    terms = [terms_of(helper) for _ in range(2)]
    servers = [collected(each, messages_of(each, codes_of(each, range(4)))) for each in terms]
    answers = [helper.answer(server.request()) for server in servers]
    for wrong, sentence in (
        (answers[1], "answer to this request, .*got one to"),
        (b"", "Expected a helper's answer"), (None, "Expected a helper's answer"),
        (answers[0][:-1], "Expected an answer of"), (answers[0] + b"x", "Expected an answer of"),
        (answers[0][:40], "Expected an answer of"),
        (answers[0][:-1] + bytes([answers[0][-1] ^ 1]), "checksum|spare bits"),
        (write_answer(HelperRequest.from_bytes(servers[0].request()), {9: 1}, np.zeros(5, "u2")),
         "only clients of the sum to be left out"),
    ):  # fmt: skip
        with pytest.raises(ProtocolError, match=sentence):
            servers[0].unmask(wrong)
    with pytest.raises(ProtocolError, match="the helper to be asked first"):
        collected(terms[0], {}).unmask(answers[0])
    servers[0].unmask(answers[0])


# --- clients --------------------------------------------------------------------------------------


def sealed(key, seed):
    """A message whose seed is sealed to a key, under the right context."""

    def change(terms, message):
        context = b"randquant helper seed\0" + terms.digest + (2).to_bytes(8, "big")
        return message[:4] + (key or terms.key).seal(seed, context)[:80] + message[84:]

    return change


UNOPENED = {
    "a wrong key": sealed(OpeningKey.generate("X25519", IDENTITY).key, bytes(32)),
    "a seed of another length": sealed(None, bytes(33)),
    "no seal": lambda terms, message: message[:4] + bytes(80) + message[84:],
    "a damaged seal": lambda terms, message: message[:20] + bytes([message[20] ^ 1]) + message[21:],
}


@pytest.mark.parametrize("uncached", [1, 2**26])
@pytest.mark.parametrize("fault", UNOPENED)
def test_a_seal_that_does_not_open_is_left_out_alone_and_the_sum_is_exact(
    helper, fault, uncached, monkeypatch
):
    monkeypatch.setattr(collector, "LEAST_UNCACHED_BYTES", uncached)
    terms, codes, messages = begun(helper, range(6), dimension=1000, bits=12)
    server = collected(terms, messages | {2: UNOPENED[fault](terms, messages[2])})
    answer = helper.answer(server.request())
    assert exact(server, answer, codes)
    assert exact(server, answer, codes)  # also twice
    assert server.clients == {0, 1, 3, 4, 5}
    assert server.refused == {
        2: "Expected a seed that the helper can open, sealed to its key for this client and sum."
    }
    assert helper.answer(server.request()) == answer
    assert helper.sums == dict.fromkeys([0, 1, 3, 4, 5], 1)


MALFORMED = {
    "truncated": (lambda m: m[:-1], "truncated"),
    "empty": (lambda m: b"", "truncated"),
    "too long": (lambda m: m + b"x", "too long"),
    "huge": (lambda m: m + bytes(10**6), "too long"),
    "text": (lambda m: "x" * len(m), "a message in bytes"),
    "nothing": (lambda m: None, "a message in bytes"),
    "of another kind": (lambda m: b"RQH0" + m[4:], "starts with b'RQH1'"),
    "damaged": (lambda m: m[:-2] + bytes([m[-2] ^ 1]) + m[-1:], "checksum"),
}


@pytest.mark.parametrize("fault", MALFORMED)
@pytest.mark.parametrize("again", [False, True])
def test_a_malformed_message_is_refused_in_a_sentence_until_a_right_one_comes(helper, fault, again):
    terms, codes, messages = begun(helper, range(5))
    server = collected(terms, {c: messages[c] for c in (0, 1)})
    change, sentence = MALFORMED[fault]
    with pytest.raises(ProtocolError, match=rf"^Client 2: Expected .*{sentence}"):
        server.add(2, change(messages[2]))
    assert set(server.refused) == {2}
    for c in (3, 2, 4) if again else (3, 4):
        server.add(c, messages[c])
    assert exact(server, helper.answer(server.request()), codes)
    assert server.clients == {0, 1, 3, 4} | ({2} if again else set())
    assert bool(server.refused) != again


def test_a_message_twice_of_another_client_or_too_late(helper):
    terms, codes, messages = begun(helper, range(4))
    server = collected(terms, {c: messages[c] for c in range(3)})
    again = masked_message(terms, 1, codes[1].astype(np.uint8), PINNED)
    for message in (messages[1], again):
        with pytest.raises(ProtocolError, match="Expected one message of each client"):
            server.add(1, message)
    for client in (-1, 2**64):
        with pytest.raises(ProtocolError, match="Expected a client's number"):
            server.add(client, messages[3])
    with pytest.raises(ProtocolError, match="Client 9: Expected a payload of channel"):
        server.add(9, messages[3])
    server.request()
    with pytest.raises(ProtocolError, match="before the helper is asked"):
        server.add(3, messages[3])
    assert exact(server, helper.answer(server.request()), codes)
    assert server.clients == {0, 1, 2}


def test_a_disk_that_is_full_loses_one_message_and_no_sum(helper):
    """The vector of a message that could not be kept is not in the sum."""
    terms, codes, messages = begun(helper, range(4))
    server = collected(terms, {0: messages[0]})
    store = server._file._store

    def full(offset, size):
        store(offset, 20)
        raise OSError(28, "No space left on device")

    server._file._store = full
    with pytest.raises(OSError, match="No space left"):
        server.add(1, messages[1])
    server._file._store = store
    server.add(2, UNOPENED["no seal"](terms, messages[2]))
    server.add(1, messages[1])
    server.add(3, messages[3])
    assert exact(server, helper.answer(server.request()), codes)
    assert server.clients == {0, 1, 3}


def test_a_helpers_error_in_an_operators_limit_records_nothing(tmp_path):
    def broken(terms, sums, check):
        raise RuntimeError("no")

    offer = "an offer"
    helper = Helper(tmp_path, IDENTITY, HelperLimits(affords=broken), suite="X25519")
    terms = terms_of(helper, offer=hashlib.sha256(offer.encode()).digest())
    server = collected(terms, messages_of(terms, codes_of(terms, range(3))))
    with pytest.raises(RuntimeError, match="no"):
        helper.answer(server.request(offer))
    assert not helper.sums
