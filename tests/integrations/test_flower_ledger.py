"""A client's own account: nothing free makes it forget, no damage is believed, no kill loses it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import multiprocessing
import os
import sqlite3

import numpy as np
import pytest
from flower_grid import answers_of, context_of, counted, ledger_of, over_the_wire
from flower_rounds import ask, exact, grid_of, noisy, one_round
from flwr.app import RecordDict

from randquant._internal import files
from randquant.rounds import (
    ACCOUNT_RECORD,
    THIS_CLIENT,
    UNUSABLE_FILES,
    DamagedFile,
    Offer,
    RoundEvent,
    ServerStore,
    refusal_reason,
    terms_text,
)
from randquant.secure_sums import ProtocolError, Terms

OFFER = Offer(noisy("local"), 5)
KINDS = ("share", "upload", "confirm", "reveal")


def answer(context, session=None, step="upload", count=1):
    """Count an answer, and take a step."""
    with ledger_of(context).locked() as ledger:
        if session is not None:
            ledger.take(session, step)
        ledger.accountant.compose(RoundEvent(OFFER, frozenset({THIS_CLIENT})), count)
        ledger.save()


def filled(path):
    """An account of 74 answers to two offers, and some steps; its bytes."""
    answer(context_of(path), count=74)
    with ledger_of(context_of(path)).locked() as ledger:
        for step in KINDS:
            ledger.take(b"one", step)
            ledger.take(b"two", step)
        ledger.accountant.compose(RoundEvent(Offer(noisy(), 650), frozenset({THIS_CLIENT})), 14)
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
        terms = terms_text(Terms(session, (1, 2, 3), 5, offer.sum_bits(3), 2, 2))
        fields = {"offer": offer.to_text(), "terms": terms}
        assert ask(grid, 1, "advertise", session, **fields).has_content()
    assert path.stat().st_size == size
    context = grid.contexts[1]
    context.state = RecordDict({**old["share"], ACCOUNT_RECORD: context.state[ACCOUNT_RECORD]})
    reply = grid.app(over_the_wire(request), context)
    assert reply.error.reason == "Expected each step of a round once, got 'upload' again."


def test_a_step_costs_some_twenty_bytes_and_is_kept_for_ever(tmp_path):
    context = context_of(tmp_path / "account")
    sizes = []
    for count in (100, 4000):
        with ledger_of(context).locked() as ledger:
            for number in range(ledger.steps, count):
                ledger.take(b"session %d" % number, KINDS[number % 4])
            ledger.save()
        sizes.append((tmp_path / "account").stat().st_size)
    assert 16 < (sizes[1] - sizes[0]) / 3900 < 32
    with ledger_of(context).locked() as ledger:
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
    assert refusal_reason(error.value)[0] == UNUSABLE_FILES
    if "hard" in reason:
        path.unlink()
    assert counted(account)[0] == 1


def test_only_its_user_reads_an_account_and_a_servers_state_which_is_no_link(tmp_path):
    before = os.umask(0)
    try:
        answer(context_of(tmp_path / "account"))
        ServerStore(tmp_path / "state").create({}, {}, 0, {"w": np.zeros(3)})
    finally:
        os.umask(before)
    for name in ("account", "state"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
    (tmp_path / "link").symlink_to(tmp_path / "state")
    with pytest.raises(OSError, match="got a symbolic link"):
        ServerStore(tmp_path / "link").read()


def test_what_is_not_saved_is_not_counted(tmp_path):
    path = tmp_path / "account"
    answer(context_of(path))
    with contextlib.suppress(KeyError), ledger_of(context_of(path)).locked() as ledger:
        ledger.take(b"s", "upload")
        ledger.accountant.compose(RoundEvent(OFFER, frozenset({THIS_CLIENT})))
        raise KeyError
    assert counted(path) == (1, 0)


# Damage


def sql(path, statement, *values):
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        return database.execute(statement, values).fetchall()


def with_account(path, change):
    """Change the account, with right checksums."""
    [[content]] = sql(path, "SELECT content FROM account")
    record = json.loads(content)
    account = record["account"]
    change(account)
    del account["checksum"], record["checksum"]
    text = json.dumps(account, sort_keys=True).encode()
    account["checksum"] = hashlib.sha256(text).hexdigest()
    steps = b"".join(sorted(step for (step,) in sql(path, "SELECT step FROM steps")))
    sealed = files.seal(record, hashlib.sha256(steps).hexdigest())
    sql(path, "UPDATE account SET content = ?", json.dumps(sealed))


def refused(path, match="Expected this client's account, but"):
    with pytest.raises(DamagedFile, match=match):
        counted(path)


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM steps WHERE step IN (SELECT step FROM steps LIMIT 1)",
        "DELETE FROM steps",
        "INSERT INTO steps VALUES (randomblob(16))",
        "UPDATE steps SET step = randomblob(16) WHERE step IN (SELECT step FROM steps LIMIT 1)",
        "UPDATE steps SET step = CAST(step || 'x' AS BLOB)",
        "UPDATE steps SET step = 7 WHERE step IN (SELECT step FROM steps LIMIT 1)",
        "DELETE FROM account",
        "UPDATE account SET content = NULL",
        "UPDATE account SET content = 7",
        "UPDATE account SET content = replace(content, '74', '73')",
        "UPDATE account SET content = replace(content, '\"written\": 2', '\"written\": 3')",
        "UPDATE account SET only = 1",
    ],
)
def test_a_change_of_an_account_or_of_its_steps_is_noticed(statement, tmp_path):
    path = tmp_path / "account"
    filled(path)
    assert counted(path)[1] == 8
    sql(path, statement)
    refused(path)


def test_a_file_that_was_cut_off_is_refused(tmp_path):
    """An empty one too: a new account would forget what the client has answered."""
    path = tmp_path / "account"
    good = filled(path)
    for cut in range(0, len(good), 509):
        path.write_bytes(good[:cut])
        with pytest.raises((DamagedFile, OSError)):
            counted(path)


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
    filled(path)
    with_account(path, lambda record: None)
    assert counted(path)[0] == 74 + 14
    with_account(path, change)
    refused(path)


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


@pytest.mark.parametrize("begun", [True, False])
def test_an_account_stays_where_a_run_began_it(begun, tmp_path):
    """In another place it would begin at nothing, and take the same step again."""
    context, config = context_of(tmp_path / "account" if begun else None), context_of
    answer(context, b"one")
    context.node_config = config(None if begun else tmp_path / "account").node_config
    with pytest.raises(DamagedFile, match="change randquant-ledger between two runs"):
        answer(context, b"one")
    assert not (tmp_path / "account").exists() or begun


def test_an_account_is_saved_only_while_it_is_held(tmp_path):
    ledger = ledger_of(context_of(tmp_path / "account"))
    with pytest.raises(RuntimeError, match="while it is held"):
        ledger.save()


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


def test_an_account_that_is_nested_is_refused(tmp_path):
    path = tmp_path / "account"
    filled(path)
    sql(path, "UPDATE account SET content = ?", "[" * 100_000)
    refused(path)


# What takes long is done while nobody waits


def test_a_check_holds_no_lock_and_is_repeated_if_others_have_answered(tmp_path):
    path, seen = tmp_path / "account", []

    def check(accountant):
        seen.append(accountant.answers(THIS_CLIENT))
        if len(seen) < 3:  # which would wait for ever if the account were locked
            answer(context_of(path))

    with ledger_of(context_of(path)).checked(check) as ledger:
        assert seen == [0, 1, 2]
        assert ledger.accountant.answers(THIS_CLIENT) == 2
        ledger.take(b"s", "upload")
        ledger.accountant.compose(RoundEvent(OFFER, frozenset({THIS_CLIENT})))
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
    monkeypatch.setattr(files, "LOCK_TIMEOUT_SECONDS", 0.1)
    context = context_of(tmp_path / "account")
    with ledger_of(context).locked(), pytest.raises(OSError, match="locked") as error:
        answer(context)
    assert refusal_reason(error.value)[0] == UNUSABLE_FILES
