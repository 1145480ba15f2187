"""A server that keeps a sum's messages in a file: killed at any moment, none is lost.

Processes are killed for real, at random moments, while several threads add messages.
"""

import os
import random
import signal
import threading
import time

import numpy as np
import pytest
from helper_sums import begun, changed, codes_of, exact, helper_in, messages_of, terms_of
from proven_sums import VERIFY_KEY, proven_messages, proven_terms
from slow import slow

from randquant.secure_sums import HelperSum, ProtocolError
from randquant.secure_sums.helper import collector
from randquant.secure_sums.helper.collector import MaskedVectors

# Records that go through the system's cache, and records that go past it.
SMALL, LARGE = 50, 60_000


def added(server, messages, order, threads=4):
    """Add messages from several threads, as connections would; each client twice."""

    def connection(part):
        for client in part:
            for _ in range(2):
                try:
                    server.add(client, messages[client])
                except ProtocolError:
                    assert client in server.clients, server.refused

    parts = [order[start::threads] for start in range(threads)]
    workers = [threading.Thread(target=connection, args=(part,)) for part in parts]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


@pytest.mark.parametrize("dimension", [SMALL, LARGE])
def test_several_threads_add_each_message_once(dimension, tmp_path):
    helper = helper_in(tmp_path / "helper")
    for file in (None, tmp_path / "sum"):
        terms, codes, messages = begun(helper, range(16), dimension=dimension, bits=17)
        server = HelperSum(terms, file=file)
        added(server, messages, list(messages))
        assert server.clients == set(messages)
        assert exact(server, helper.answer(server.request()), codes)


def child_adds(terms, messages, order, file, verify_key):
    """A process that adds messages, and writes each client's number to a pipe when it is added."""
    read, write = os.pipe()
    process = os.fork()
    if process:
        os.close(write)
        return process, read
    try:
        server = HelperSum(terms, None, verify_key, file)
        for client in order:
            if client not in server.clients:
                server.add(client, memoryview(bytearray(messages[client])))
                os.write(write, bytes([client]))
        os.write(write, b"\xff")
        time.sleep(60)
    finally:
        os._exit(1)


@pytest.mark.parametrize("kind", ["small", "large", "proven"])
@pytest.mark.parametrize("trials", [6, *slow(60)])
def test_a_killed_server_goes_on(kind, trials, tmp_path):
    """What was acknowledged is in the sum once, however often the server is killed."""
    draw, helper = random.Random(kind), helper_in(tmp_path / "helper")
    clients = range(40)
    if kind == "proven":
        terms = proven_terms(helper, dimension=20, cohort=40)
        codes = codes_of(terms, clients, 2)
        messages, verify_key = proven_messages(terms, codes), VERIFY_KEY
    else:
        terms = terms_of(helper, dimension=SMALL if kind == "small" else LARGE, cohort=40)
        codes = codes_of(terms, clients)
        messages, verify_key = messages_of(terms, codes), b""
    for trial in range(trials):
        file, acknowledged, order = tmp_path / f"sum {trial}", set(), list(clients)
        draw.shuffle(order)
        for _ in range(4):
            process, read = child_adds(terms, messages, order, file, verify_key)
            stop = draw.randrange(20)
            with open(read, "rb", buffering=0) as pipe:
                while number := pipe.read(1):
                    acknowledged.add(number[0])
                    if stop == 0 or number == b"\xff":
                        break
                    stop -= 1
                time.sleep(draw.random() * 0.002)
                os.kill(process, signal.SIGKILL)
                os.waitpid(process, 0)
                acknowledged |= set(pipe.read())
            acknowledged -= {255}
        server = HelperSum(terms, None, verify_key, file)
        assert acknowledged <= server.clients
        assert len(server.clients - acknowledged) <= 4, "one a kill may have been on its way"
        assert len(acknowledged) > 3
        for client in set(clients) - server.clients:
            server.add(client, messages[client])
        # The helper answers one request of a sum: all trials end with the same.
        assert exact(server, helper.answer(server.request()), codes)
        assert server.clients == set(clients)


@pytest.mark.parametrize("dimension", [SMALL, LARGE])
def test_what_is_damaged_or_cut_off_is_missing_and_never_wrong(dimension, tmp_path):
    helper, draw = helper_in(tmp_path / "helper"), random.Random(dimension)
    terms, codes, messages = begun(helper, range(5), dimension=dimension)
    file = tmp_path / "sum"
    server = HelperSum(terms, file=file)
    for client, message in messages.items():
        server.add(client, message)
    step = server._file._step
    del server
    whole = file.read_bytes()
    for trial in range(24):
        place, data = draw.randrange(5), bytearray(whole)
        if trial % 2:
            # Within what the record says: after it there are zeros.
            at = collector.PAGE_BYTES + place * step + draw.randrange(int(0.9 * step))
            data[at] ^= 1 << draw.randrange(8)
        else:
            cut = collector.PAGE_BYTES + place * step + draw.randrange(int(0.9 * step))
            data = data[:cut]
        file.write_bytes(data)
        server = HelperSum(terms, file=file)
        missing = {place} if trial % 2 else set(range(place, 5))
        assert server.clients == set(range(5)) - missing
        for client in missing:
            server.add(client, messages[client])
        sizes = file.stat().st_size
        assert sizes == len(whole), "the places of damaged messages are used again"
        terms_answered = server.request()
        del server
        # The helper answers one request of a sum: all trials end with the same.
        again = HelperSum(terms, file=file)
        assert again.request() == terms_answered
        assert exact(again, helper.answer(again.request()), codes)
        del again


def test_a_refused_message_does_not_keep_out_the_next_one_of_its_client(tmp_path, monkeypatch):
    helper, file = helper_in(tmp_path / "helper"), tmp_path / "sum"
    terms, codes, messages = begun(helper, range(4))
    server = HelperSum(terms, file=file)
    damaged = messages[2][:-1] + bytes([messages[2][-1] ^ 1])
    server.add(0, messages[0])
    with pytest.raises(ProtocolError, match="checksum"):
        server.add(2, damaged)
    # Another message has got the place of the refused one, and is killed before it is written.
    server._free_places.clear()
    server.add(2, messages[2])
    server.add(3, messages[3])
    del server
    add, slowly = MaskedVectors.add, [2]

    def add_slowly(self, client, packed):
        # The refused message is still being looked at when the next one's turn comes.
        if client in slowly:
            slowly.remove(client)
            time.sleep(0.5)
        add(self, client, packed)

    monkeypatch.setattr(MaskedVectors, "add", add_slowly)
    monkeypatch.setattr(collector, "cores", lambda: 2)
    server = HelperSum(terms, file=file)
    assert server.clients == {0, 2, 3}
    server.add(1, messages[1])
    assert exact(server, helper.answer(server.request()), codes)


def test_a_client_that_the_helper_leaves_out_is_subtracted_from_a_sum_that_goes_on(tmp_path):
    helper, file = helper_in(tmp_path / "helper"), tmp_path / "sum"
    terms, codes, messages = begun(helper, range(6), dimension=LARGE)
    messages[4] = messages[4][:10] + bytes(16) + messages[4][26:]  # a seal that does not open
    server = HelperSum(terms, file=file)
    for client, message in messages.items():
        server.add(client, memoryview(bytearray(message)))
    del server
    server = HelperSum(terms, file=file)
    assert exact(server, helper.answer(server.request()), codes)
    assert server.clients == {0, 1, 2, 3, 5}


def test_the_request_that_was_made_is_the_only_one(tmp_path):
    helper, file = helper_in(tmp_path / "helper"), tmp_path / "sum"
    terms, codes, messages = begun(helper, range(6))
    server = HelperSum(terms, file=file)
    for client in range(5):
        server.add(client, messages[client])
    request = server.request()
    del server
    server = HelperSum(terms, file=file)
    with pytest.raises(ProtocolError, match="comes after the request already"):
        server.add(5, messages[5])
    with pytest.raises(ProtocolError, match="the offer is another"):
        server.request("another offer")
    assert server.request() == request
    assert exact(server, helper.answer(request), codes)


def test_a_file_is_of_one_sum_one_process_and_one_user(tmp_path):
    helper, file = helper_in(tmp_path / "helper"), tmp_path / "sum"
    terms, _, messages = begun(helper, range(3))
    server = HelperSum(terms, file=file)
    server.add(1, messages[1])
    assert file.stat().st_mode & 0o777 == 0o600
    with pytest.raises(BlockingIOError, match="another process holds it"):
        HelperSum(terms, file=file)
    del server
    with pytest.raises(OSError, match="one file is of one sum"):
        HelperSum(changed(terms, least=3), file=file)
    with pytest.raises(TypeError, match="Expected file to be the path"):
        HelperSum(terms, file=7)  # type: ignore[arg-type]
    file.chmod(0o644)
    with pytest.raises(OSError, match="a file for its owner alone"):
        HelperSum(terms, file=file)
    file.chmod(0o600)
    (tmp_path / "another name").hardlink_to(file)
    for name in ("sum", "another name"):
        with pytest.raises(OSError, match="a file with one name, got 2 hard links"):
            HelperSum(terms, file=tmp_path / name)
    (tmp_path / "another name").unlink()
    assert HelperSum(terms, file=file).clients == {1}


def test_a_request_waits_for_messages_that_are_being_added(tmp_path, monkeypatch):
    helper = helper_in(tmp_path / "helper")
    terms, codes, messages = begun(helper, range(3), dimension=SMALL)
    server, entered, leave = HelperSum(terms), threading.Event(), threading.Event()
    write = server._file.write

    def slow_write(*arguments):
        entered.set()
        assert leave.wait(10)
        write(*arguments)

    server.add(0, messages[0])
    server.add(1, messages[1])
    monkeypatch.setattr(server._file, "write", slow_write)
    adding = threading.Thread(target=server.add, args=(2, messages[2]))
    adding.start()
    assert entered.wait(10)
    with pytest.raises(ProtocolError, match="whose message is here already"):
        server.add(2, messages[2])
    requests = []
    asking = threading.Thread(target=lambda: requests.append(server.request()))
    asking.start()
    asking.join(0.1)
    assert asking.is_alive()
    leave.set()
    adding.join(10)
    asking.join(10)
    assert server.clients == {0, 1, 2}
    assert exact(server, helper.answer(requests[0]), codes)


def test_a_full_disk_costs_the_message_and_not_the_sum(tmp_path, monkeypatch):
    helper = helper_in(tmp_path / "helper")
    terms, codes, messages = begun(helper, range(4), dimension=SMALL)
    server = HelperSum(terms, file=tmp_path / "sum")
    server.add(0, messages[0])

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(OSError, match="No space left"):
            server.add(1, messages[1])
    for client in (1, 2, 3):
        server.add(client, messages[client])
    assert (tmp_path / "sum").stat().st_size == collector.PAGE_BYTES + 4 * server._file._step
    assert exact(server, helper.answer(server.request()), codes)


def test_without_writes_at_a_position_the_file_is_the_same(tmp_path, monkeypatch):
    """As on Windows."""
    helper = helper_in(tmp_path / "helper")
    terms, codes, messages = begun(helper, range(6), dimension=SMALL)
    with monkeypatch.context() as patch:
        patch.delattr(os, "pwrite")
        patch.delattr(os, "preadv")
        server = HelperSum(terms, file=tmp_path / "sum")
        added(server, messages, list(messages))
        del server
        assert HelperSum(terms, file=tmp_path / "sum").clients == set(range(6))
    server = HelperSum(terms, file=tmp_path / "sum")
    assert np.array_equal(sorted(server.clients), range(6))
    assert exact(server, helper.answer(server.request()), codes)
