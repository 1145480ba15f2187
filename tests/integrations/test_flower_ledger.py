"""A client's own account: nothing free makes it forget, no damage is believed, no kill loses it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import signal
import struct
import time

import numpy as np
import pytest
from flower_grid import InProcessGrid, client_app, ledger_of, over_the_wire
from flower_rounds import (
    ANYTHING,
    ask,
    exact,
    fedavg,
    mover,
    noisy,
    run,
)
from flwr.app import Array, ArrayRecord, Context, RecordDict
from flwr.serverapp.strategy import FedAdam

from randquant._internal.serialization import write_atomic
from randquant.aggregation.secagg.terms import ProtocolError, Terms
from randquant.integrations import ledger as ledgers
from randquant.integrations.accountant import RoundEvent
from randquant.integrations.flower import state
from randquant.integrations.flower.strategy import QuantizedStrategy
from randquant.integrations.foreign import DamagedFile
from randquant.integrations.ledger import OWN, SPENT, STEP_BYTES
from randquant.integrations.member import FILES, told
from randquant.integrations.offer import Offer
from randquant.integrations.protocol import terms_text

OFFER = Offer(noisy("local"), 5)
KINDS = ("share", "upload", "confirm", "reveal")


def a_context(path=None, node=1):
    return Context(
        1, node, {} if path is None else {"randquant-ledger": str(path)}, RecordDict(), {}
    )


def a_ledger(context):
    return ledger_of(context)


def answered(context):
    """What a client's account has, after a look: (answers, steps)."""
    ledger = a_ledger(context)
    with ledger.held():
        return ledger.accountant.answers(OWN), list(ledger._taken)


def answer(context, session=None, step="upload", count=1):
    """Count an answer, and take a step."""
    ledger = a_ledger(context)
    with ledger.held():
        if session is not None:
            ledger.take(session, step)
        ledger.accountant.compose(RoundEvent(OFFER, frozenset({OWN})), count)
        ledger.save()


def filled(path):
    """An account of 74 answers to two offers, and some steps; its bytes."""
    context = a_context(path)
    answer(context, count=74)
    ledger = a_ledger(context)
    with ledger.held():
        for step in KINDS:
            ledger.take(b"one", step)
            ledger.take(b"two", step)
        ledger.accountant.compose(RoundEvent(Offer(noisy(), 650), frozenset({OWN})), 14)
        ledger.save()
    return path.read_bytes()


# What is remembered


def test_adverts_are_free_and_make_nobody_forget(tmp_path):
    """A second process with a client's old state repeats an upload under the same masks."""
    path = tmp_path / "account"
    grid = InProcessGrid(client_app(ANYTHING, mover), range(1, 4))
    grid.contexts[1].node_config["randquant-ledger"] = str(path)
    old = {}

    def fault(step, node, reply):
        if node == 1:
            old[step] = RecordDict(dict(grid.contexts[1].state))
        return [reply]

    grid.fault = fault
    run(QuantizedStrategy(fedavg(), exact()), grid)
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
    context = a_context(tmp_path / "account")
    sizes = []
    for number in range(100):
        ledger = a_ledger(context)
        with ledger.held():
            ledger.take(b"session %d" % number, KINDS[number % 4])
            ledger.save()
        sizes.append((tmp_path / "account").stat().st_size)
    assert set(np.diff(sizes)) == {STEP_BYTES}
    ledger = a_ledger(context)
    with ledger.held():
        for number in range(100):
            with pytest.raises(ProtocolError, match="each step of a round once"):
                ledger.take(b"session %d" % number, KINDS[number % 4])
            ledger.take(b"session %d" % number, KINDS[(number + 1) % 4])


def a_symbolic_link(path, account):
    path.symlink_to(account)


def a_broken_link(path, account):
    path.symlink_to(account.with_name("nothing"))


def a_hard_link(path, account):
    path.hardlink_to(account)


def a_pipe(path, account):
    os.mkfifo(path)


def a_folder(path, account):
    path.mkdir()


@pytest.mark.parametrize(
    ("plant", "reason"),
    [
        (a_symbolic_link, "a symbolic link"), (a_broken_link, "a symbolic link"),
        (a_hard_link, "2 hard links"), (a_pipe, "a pipe or a device"), (a_folder, "a folder"),
    ],
)  # fmt: skip
def test_an_account_is_a_file_with_one_name_or_is_refused(plant, reason, tmp_path):
    """Two names would become two accounts when one of them is replaced; a pipe is waited for."""
    account, path = tmp_path / "account", tmp_path / "other"
    answer(a_context(account), b"one")
    plant(path, account)
    with pytest.raises(OSError, match=rf"Expected {path} to be a .*, got .*{reason}") as error:
        answer(a_context(path), b"two")
    assert told(error.value)[0] == FILES
    if plant is a_hard_link:
        path.unlink()
    assert answered(a_context(account))[0] == 1


def test_only_its_user_reads_an_account_and_a_servers_state(tmp_path):
    before = os.umask(0)
    try:
        answer(a_context(tmp_path / "account"))
        model = ArrayRecord({"w": Array(np.zeros(2))})
        state.save(tmp_path / "state", {}, model, FedAdam(), {})
    finally:
        os.umask(before)
    for name in ("account", "state"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600


def test_a_servers_state_behind_a_link_is_refused(tmp_path):
    model = ArrayRecord({"w": Array(np.zeros(2))})
    state.save(tmp_path / "state", {}, model, FedAdam(), {})
    (tmp_path / "link").symlink_to(tmp_path / "state")
    with pytest.raises(ValueError, match="got a symbolic link"):
        state.load(tmp_path / "link", FedAdam())


def test_what_is_not_saved_is_not_counted(tmp_path):
    context = a_context(tmp_path / "account")
    answer(context)
    ledger = a_ledger(context)
    with contextlib.suppress(KeyError), ledger.held():
        ledger.take(b"s", "upload")
        ledger.accountant.compose(RoundEvent(OFFER, frozenset({OWN})))
        raise KeyError
    assert answered(context) == (1, [])


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
        answered(a_context(path))


def test_no_changed_byte_or_digit_is_believed(tmp_path):
    path, rng = tmp_path / "account", random.Random(1)
    good = filled(path)
    digits = [place for place, byte in enumerate(good) if chr(byte).isdigit()]
    for place in rng.sample(range(len(good)), 200):
        refused(
            path, good[:place] + bytes([good[place] ^ rng.randrange(1, 256)]) + good[place + 1 :]
        )
    for place in rng.sample(digits, 200):
        other = rng.choice(sorted(set(b"0123456789") - {good[place]}))
        refused(path, good[:place] + bytes([other]) + good[place + 1 :])


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
    assert len(answered(a_context(path))[1]) == 8


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
    assert answered(a_context(path))[0] == 74 + 14
    refused(path, with_account(good, change))


@pytest.mark.parametrize("lost", ["older", "gone"])
def test_an_account_older_than_this_run_has_seen_is_refused(lost, tmp_path):
    path = tmp_path / "account"
    context = a_context(path)
    answer(context)
    old = path.read_bytes()
    answer(context)
    assert answered(context)[0] == 2
    path.write_bytes(old) if lost == "older" else path.unlink()
    with pytest.raises(DamagedFile, match="newest account, got an older one"):
        answered(context)
    assert answered(a_context(path))[0] == (lost == "older")  # another run cannot know


# Kills, power cuts and several processes


def child(work):
    """Run in a process of its own; (its id, what it writes)."""
    read, write = os.pipe()
    process = os.fork()
    if not process:
        os.close(read)
        try:
            work(write)
        finally:
            os._exit(0)
    os.close(write)
    return process, read


def everything(read):
    with open(read, "rb") as pipe:
        return pipe.read()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_killed_client_has_counted_what_it_has_sent(tmp_path):
    """SIGKILL at any time: what was reported is there, and at most one more."""
    path, rng, told = tmp_path / "account", random.Random(4), 0

    def work(write):
        number = len(answered(a_context(path))[1])
        while True:
            answer(a_context(path), b"%d" % number)
            os.write(write, struct.pack("<q", number))
            number += 1

    for _ in range(12):
        process, read = child(work)
        told += len(os.read(read, 8)) // 8  # it has begun
        time.sleep(rng.uniform(0, 0.02))
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        told += len(everything(read)) // 8
        answers, steps = answered(a_context(path))
        assert answers == len(steps)
        assert told <= answers <= told + 1
        told = answers
        ledger = a_ledger(a_context(path))
        with ledger.held():
            for number in range(answers):
                with pytest.raises(ProtocolError):
                    ledger.take(b"%d" % number, "upload")
    assert told >= 12


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_processes_of_one_client_take_each_step_once_and_count_every_answer(tmp_path):
    path = tmp_path / "account"

    def work(write):
        for number in range(20):
            with contextlib.suppress(ProtocolError):
                answer(a_context(path), b"%d" % number)
                os.write(write, bytes([number]))

    found = [child(work) for _ in range(4)]
    taken = b"".join(everything(read) for _, read in found)
    for process, _ in found:
        os.waitpid(process, 0)
    assert sorted(taken) == list(range(20))
    assert answered(a_context(path))[0] == 20


def test_file_and_name_are_on_the_disk_before_anything_is_sent(tmp_path, monkeypatch):
    """The file before its name, the name before the return: a power cut finds one or the other."""
    done, fsync, replace = [], os.fsync, os.replace

    def synced(number):
        done.append(os.readlink(f"/proc/self/fd/{number}"))
        fsync(number)

    def renamed(old, new):
        done.append((str(old), str(new)))
        replace(old, new)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    wanted = lambda path: [f"{path}.partial", (f"{path}.partial", str(path)), str(tmp_path)]  # noqa: E731
    write_atomic(tmp_path / "a", b"x")
    assert done == wanted(tmp_path / "a")
    done.clear()
    answer(a_context(tmp_path / "b"))
    assert done == wanted(tmp_path / "b")
    done.clear()
    model = ArrayRecord({"w": Array(np.zeros(2))})
    state.save(tmp_path / "c", {}, model, FedAdam(), {})
    assert done == [str(tmp_path.parent), *wanted(tmp_path / "c")]


def test_an_account_is_written_before_training(tmp_path):
    path, seen = tmp_path / "account", []

    def train(node, name, array):
        seen.append(answered(a_context(path))[0])
        return array

    grid = InProcessGrid(client_app(ANYTHING, train), [1])
    grid.contexts[1].node_config["randquant-ledger"] = str(path)
    assert ask(grid, 1, "upload", offer=OFFER.to_text()).has_content()
    assert seen == [1]


def test_an_account_has_the_bytes_that_its_format_says(tmp_path):
    """Magic, checksum, how often it was written, the account's length, itself, and its steps."""
    path = tmp_path / "account"
    good = filled(path)
    number, text, steps = parts(good)
    assert good[:8] == b"RQSPENT2"
    assert good[8:40] == hashlib.sha256(good[40:]).digest()
    assert (int.from_bytes(number, "little"), len(text)) == (
        2,
        int.from_bytes(good[48:56], "little"),
    )
    taken = [repr((session, step)).encode() for step in KINDS for session in (b"one", b"two")]
    assert steps == b"".join(hashlib.sha256(name).digest()[:16] for name in taken)


def test_an_account_that_says_another_length_or_is_nested_is_refused(tmp_path):
    path = tmp_path / "account"
    number, text, steps = parts(filled(path))
    for length in (len(text) + 2**56, len(text) + 256, len(text) - 1, 0):
        body = number + length.to_bytes(8, "little") + text + steps
        refused(path, b"RQSPENT2" + hashlib.sha256(body).digest() + body)
    refused(path, with_checksum(b"RQSPENT2", number, b"[" * 100_000, steps))


# What takes long is done while nobody waits


def test_a_check_holds_no_lock_and_is_repeated_if_others_have_answered(tmp_path):
    context, seen = a_context(tmp_path / "account"), []

    def check(accountant):
        seen.append(accountant.answers(OWN))
        if len(seen) < 3:  # which would wait for ever if the account were locked
            answer(a_context(tmp_path / "account"))

    ledger = a_ledger(context)
    with ledger.checked(check):
        assert seen == [0, 1, 2]
        assert ledger.accountant.answers(OWN) == 2
        ledger.take(b"s", "upload")
        ledger.accountant.compose(RoundEvent(OFFER, frozenset({OWN})))
        ledger.save()
    assert answered(a_context(tmp_path / "account"))[0] == 3


def test_a_check_is_given_up_if_others_never_rest(tmp_path):
    path = tmp_path / "account"
    with (
        pytest.raises(BlockingIOError, match="changed it 20 times: send it fewer requests"),
        a_ledger(a_context(path)).checked(lambda accountant: answer(a_context(path))),
    ):
        raise AssertionError("it was held")
    assert answered(a_context(path))[0] == 20


def test_an_account_is_not_waited_for_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(ledgers, "PATIENCE", 0.1)
    path = tmp_path / "account"
    with a_ledger(a_context(path)).held(), pytest.raises(BlockingIOError) as error:
        answer(a_context(path))
    assert told(error.value)[0] == FILES
