"""A client's own account: nothing free makes it forget, no damage is believed, no kill loses it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import multiprocessing
import os

import numpy as np
import pytest
from flower_grid import answers_of, context_of, counted, ledger_of, over_the_wire
from flower_rounds import ask, exact, grid_of, model, noisy, one_round
from flwr.app import RecordDict
from flwr.serverapp.strategy import FedAdam

from randquant.integrations.flower import state
from randquant.rounds import (
    FILES,
    OWN,
    SPENT,
    STEP_BYTES,
    DamagedFile,
    Offer,
    RoundEvent,
    terms_text,
    told,
)
from randquant.rounds import ledger as ledgers
from randquant.secure_sums import ProtocolError, Terms

OFFER = Offer(noisy("local"), 5)
KINDS = ("share", "upload", "confirm", "reveal")


def answer(context, session=None, step="upload", count=1):
    """Count an answer, and take a step."""
    with ledger_of(context).held() as ledger:
        if session is not None:
            ledger.take(session, step)
        ledger.accountant.compose(RoundEvent(OFFER, frozenset({OWN})), count)
        ledger.save()


def filled(path):
    """An account of 74 answers to two offers, and some steps; its bytes."""
    answer(context_of(path), count=74)
    with ledger_of(context_of(path)).held() as ledger:
        for step in KINDS:
            ledger.take(b"one", step)
            ledger.take(b"two", step)
        ledger.accountant.compose(RoundEvent(Offer(noisy(), 650), frozenset({OWN})), 14)
        ledger.save()
    return path.read_bytes()


# What is remembered


def test_adverts_are_free_and_make_nobody_forget(tmp_path):
    """A second process with a client's old state repeats an upload under the same masks."""
    path, old = tmp_path / "account", {}

    def fault(step, node, reply):
        if node == 1:
            old[step] = RecordDict(dict(grid.contexts[1].state))
        return [reply]

    grid = grid_of(nodes=range(1, 4), fault=fault)
    grid.contexts[1].node_config["randquant-ledger"] = str(path)
    one_round(exact(), grid=grid)
    [request] = [r for step, node, r, _ in grid.seen if (step, node) == ("upload", 1)]
    size = path.stat().st_size
    offer = Offer(exact(), 5)
    for number in range(110):
        session = b"free %d" % number
        terms = terms_text(Terms(session, (1, 2, 3), 5, offer.bits(3), 2, 2))
        fields = {"offer": offer.to_text(), "terms": terms}
        assert ask(grid, 1, "advertise", session, **fields).has_content()
    assert path.stat().st_size == size
    context = grid.contexts[1]
    context.state = RecordDict({**old["share"], SPENT: context.state[SPENT]})
    reply = grid.app(over_the_wire(request), context)
    assert reply.error.reason == "Expected each step of a round once, got 'upload' again."


def test_a_step_costs_sixteen_bytes_and_is_kept_for_ever(tmp_path):
    context = context_of(tmp_path / "account")
    sizes = []
    for number in range(100):
        with ledger_of(context).held() as ledger:
            ledger.take(b"session %d" % number, KINDS[number % 4])
            ledger.save()
        sizes.append((tmp_path / "account").stat().st_size)
    assert set(np.diff(sizes)) == {STEP_BYTES}
    with ledger_of(context).held() as ledger:
        for number in range(100):
            with pytest.raises(ProtocolError, match="each step of a round once"):
                ledger.take(b"session %d" % number, KINDS[number % 4])
            ledger.take(b"session %d" % number, KINDS[(number + 1) % 4])


@pytest.mark.parametrize(
    ("plant", "reason"),
    [
        (lambda path, account: path.symlink_to(account), "a symbolic link"),
        (lambda path, account: path.symlink_to(account.with_name("none")), "a symbolic link"),
        (lambda path, account: path.hardlink_to(account), "2 hard links"),
        (lambda path, account: os.mkfifo(path), "a pipe or a device"),
        (lambda path, account: path.mkdir(), "a folder"),
    ],
)
def test_an_account_is_a_file_with_one_name_or_is_refused(plant, reason, tmp_path):
    """Two names would become two accounts when one of them is replaced; a pipe is waited for."""
    account, path = tmp_path / "account", tmp_path / "other"
    answer(context_of(account), b"one")
    plant(path, account)
    with pytest.raises(OSError, match=rf"Expected {path} to be a .*, got .*{reason}") as error:
        answer(context_of(path), b"two")
    assert told(error.value)[0] == FILES
    if "hard" in reason:
        path.unlink()
    assert counted(account)[0] == 1


def test_only_its_user_reads_an_account_and_a_servers_state_which_is_no_link(tmp_path):
    before = os.umask(0)
    try:
        answer(context_of(tmp_path / "account"))
        state.save(tmp_path / "state", {}, model(), FedAdam(), {})
    finally:
        os.umask(before)
    for name in ("account", "state"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
    (tmp_path / "link").symlink_to(tmp_path / "state")
    with pytest.raises(ValueError, match="got a symbolic link"):
        state.load(tmp_path / "link", FedAdam())


def test_what_is_not_saved_is_not_counted(tmp_path):
    path = tmp_path / "account"
    answer(context_of(path))
    with contextlib.suppress(KeyError), ledger_of(context_of(path)).held() as ledger:
        ledger.take(b"s", "upload")
        ledger.accountant.compose(RoundEvent(OFFER, frozenset({OWN})))
        raise KeyError
    assert counted(path) == (1, 0)


# Damage


def with_account(data, change):
    """The same file with another account, and right checksums."""
    body = data[40:]
    end = 16 + int.from_bytes(body[8:16], "little")
    record = json.loads(body[16:end])
    change(record)
    del record["checksum"]
    text = json.dumps(record, sort_keys=True).encode()
    record["checksum"] = hashlib.sha256(text).hexdigest()
    return with_checksum(data, body[:8], json.dumps(record).encode(), body[end:])


def with_checksum(data, number, text, steps):
    body = number + len(text).to_bytes(8, "little") + text + steps
    return data[:8] + hashlib.sha256(body).digest() + body


def parts(data):
    """(how often written, account, steps) of an account's bytes."""
    end = 56 + int.from_bytes(data[48:56], "little")
    return data[40:48], data[56:end], data[end:]


def refused(path, data, match="Expected this client's account, but"):
    path.write_bytes(data)
    with pytest.raises(DamagedFile, match=match):
        counted(path)


def test_a_step_that_is_deleted_doubled_or_moved_is_noticed(tmp_path):
    path = tmp_path / "account"
    good = filled(path)
    number, text, steps = parts(good)
    assert len(steps) == 8 * STEP_BYTES
    first, rest = steps[:STEP_BYTES], steps[STEP_BYTES:]
    for changed in (rest, rest[:-1], steps + first, rest + first, b"", steps + b"\0"):
        refused(path, good[: -len(steps)] + changed)
    for cut in range(0, len(good), 7):
        refused(path, good[:cut])
    refused(path, with_checksum(good, number, text, steps + first))  # twice, well summed up
    refused(path, with_checksum(good, number, text, steps[:-1]))
    path.write_bytes(with_checksum(good, number, text, steps))
    assert counted(path)[1] == 8


@pytest.mark.parametrize(
    "change",
    [
        lambda r: r["clients"].update({"7": {"0": 1}}),
        lambda r: r.update(clients={"7": r["clients"]["0"]}),
        lambda r: r["clients"]["0"].update({"0": -9}),
        lambda r: r.update(delta=1e-6),
        lambda r: r.update(clients=[]),
        lambda r: r.pop("clients"),
        lambda r: r.update(offers=[]),
    ],
    ids=["of two clients", "of another client", "a count below zero", "another delta", "a list",
         "none", "no offers"],
)  # fmt: skip
def test_an_account_of_something_else_is_refused(change, tmp_path):
    path = tmp_path / "account"
    good = filled(path)
    path.write_bytes(with_account(good, lambda record: None))
    assert counted(path)[0] == 74 + 14
    refused(path, with_account(good, change))


@pytest.mark.parametrize("lost", ["older", "gone"])
def test_an_account_older_than_this_run_has_seen_is_refused(lost, tmp_path):
    path = tmp_path / "account"
    context = context_of(path)
    answer(context)
    old = path.read_bytes()
    answer(context)
    assert answers_of(context) == 2
    path.write_bytes(old) if lost == "older" else path.unlink()
    with pytest.raises(DamagedFile, match="newest account, got an older one"):
        answers_of(context)
    assert counted(path)[0] == (lost == "older")  # another run cannot know


# Kills, power cuts and several processes


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_processes_of_one_client_take_each_step_once_and_count_every_answer(tmp_path):
    path, written = tmp_path / "account", tmp_path / "taken"

    def work():
        for number in range(20):
            with contextlib.suppress(ProtocolError), written.open("ab", buffering=0) as taken:
                answer(context_of(path), b"%d" % number)
                taken.write(bytes([number]))

    processes = [multiprocessing.get_context("fork").Process(target=work) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert sorted(written.read_bytes()) == list(range(20))
    assert counted(path)[0] == 20


def test_an_account_is_written_before_training(tmp_path):
    path, seen = tmp_path / "account", []

    def train(node, name, array):
        seen.append(counted(path)[0])
        return array

    grid = grid_of(nodes=[1], train=train, config={"randquant-ledger": str(path)})
    assert ask(grid, 1, "upload", offer=OFFER.to_text()).has_content()
    assert seen == [1]


def test_an_account_that_says_another_length_or_is_nested_is_refused(tmp_path):
    path = tmp_path / "account"
    number, text, steps = parts(filled(path))
    for length in (len(text) + 2**56, len(text) + 256, len(text) - 1, 0):
        body = number + length.to_bytes(8, "little") + text + steps
        refused(path, b"RQSPENT2" + hashlib.sha256(body).digest() + body)
    refused(path, with_checksum(b"RQSPENT2", number, b"[" * 100_000, steps))


# What takes long is done while nobody waits


def test_a_check_holds_no_lock_and_is_repeated_if_others_have_answered(tmp_path):
    path, seen = tmp_path / "account", []

    def check(accountant):
        seen.append(accountant.answers(OWN))
        if len(seen) < 3:  # which would wait for ever if the account were locked
            answer(context_of(path))

    with ledger_of(context_of(path)).checked(check) as ledger:
        assert seen == [0, 1, 2]
        assert ledger.accountant.answers(OWN) == 2
        ledger.take(b"s", "upload")
        ledger.accountant.compose(RoundEvent(OFFER, frozenset({OWN})))
        ledger.save()
    assert counted(path)[0] == 3


def test_a_check_is_given_up_if_others_never_rest(tmp_path):
    path = tmp_path / "account"
    with (
        pytest.raises(BlockingIOError, match="changed it 20 times: send it fewer requests"),
        ledger_of(context_of(path)).checked(lambda accountant: answer(context_of(path))),
    ):
        raise AssertionError("it was held")
    assert counted(path)[0] == 20


def test_an_account_is_not_waited_for_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(ledgers, "PATIENCE", 0.1)
    context = context_of(tmp_path / "account")
    with ledger_of(context).held(), pytest.raises(BlockingIOError) as error:
        answer(context)
    assert told(error.value)[0] == FILES
