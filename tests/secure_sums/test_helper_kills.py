"""A helper whose process is killed at any of its writes, a hundred times.

Some kills are within SQLite, at any instruction of its virtual machine; some come at a write beyond
a size that the system allows a file, in the middle of what is written; some when all is written
and nothing is answered yet.
"""

import contextlib
import os
import random
import resource
import signal
import sqlite3

import pytest
from helper_sums import begun, codes_of, collected, exact, helper_in, messages_of, terms_of
from slow import slow

from randquant.secure_sums import ProtocolError
from randquant.secure_sums.helper import helper as helper_module

CLIENTS, LEAST = 7, 3


def killing(after):
    """`sqlite3.connect`, whose connections kill the process after so many instructions in all."""
    connect, left = sqlite3.connect, [after]

    def step():
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return 0

    def connected(*arguments, **options):
        database = connect(*arguments, **options)
        database.set_progress_handler(step, 1)
        return database

    return connected, left


def in_child(work):
    """What work() returns in a process of its own, in bytes; None if the process is killed."""
    read, write = os.pipe()
    process = os.fork()
    if not process:
        code = 1
        with contextlib.suppress(BaseException):
            os.close(read)
            found = work()
            with open(write, "wb") as pipe:
                pipe.write(found)
            code = 0
        os._exit(code)
    os.close(write)
    with open(read, "rb") as pipe:
        found = pipe.read()
    _, status = os.waitpid(process, 0)
    return found if os.waitstatus_to_exitcode(status) == 0 else None


def killed_now(*arguments):
    os.kill(os.getpid(), signal.SIGKILL)


def answering(folder, request, after=None, largest=None, late=False):
    """The answer of a helper in another process, which is killed on the way."""

    def work():
        if after is not None:
            sqlite3.connect, _ = killing(after)
        if largest is not None:
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))
        if late:
            helper_module.add_masks = killed_now
        return helper_in(folder, kept=True).answer(request)

    return in_child(work)


def instructions(folder, request):
    """How many instructions SQLite takes for one answer."""

    def work():
        most = 10**9
        sqlite3.connect, left = killing(most)
        helper_in(folder, kept=True).answer(request)
        return str(most - left[0]).encode()

    return int(in_child(work))


@pytest.mark.parametrize("trials", [24, *slow(100)])
def test_a_hundred_kills(trials, tmp_path):
    draw = random.Random(5)
    folder = tmp_path / "helper"
    helper = helper_in(folder, kept=True)
    terms = terms_of(helper, least=LEAST)
    whole = collected(terms, messages_of(terms, codes_of(terms, range(CLIENTS))))
    most = instructions(folder, whole.request())
    counted = dict.fromkeys(range(CLIENTS), 1)
    killed = recorded = 0
    for trial in range(trials):
        terms, codes, messages = begun(helper, range(CLIENTS), least=LEAST)
        sent = draw.sample(range(CLIENTS), draw.randint(LEAST, CLIENTS))  # others are killed
        server = collected(terms, {c: messages[c] for c in sent})
        other = collected(terms, {c: m for c, m in messages.items() if c != sent[0]})
        size = (folder / "helper.sqlite").stat().st_size
        fault = [
            {"after": draw.randrange(int(1.05 * most))},
            {"largest": draw.randrange(size + 1000)},
            {"late": True},
        ][trial % 3]
        answer = answering(folder, server.request(), **fault)
        killed += answer is None
        helper = helper_in(folder, kept=True)
        grown = {c for c in range(CLIENTS) if helper.sums.get(c, 0) > counted[c]}
        assert grown in (set(), set(sent)), "a session is half on the disk"
        assert answer is None or grown, "an account understates"
        recorded += answer is None and bool(grown)
        if grown or draw.random() < 0.5:
            first, second = server, other
        else:
            first, second = other, server  # nothing was answered: the server may ask for another
        found = helper.answer(first.request())
        assert answer in (None, found), "another answer"
        for one in (helper, helper_in(folder, kept=True)):
            with pytest.raises(ProtocolError, match="Expected one set of clients in a session"):
                one.answer(second.request())
        assert exact(first, found, codes)
        for client in first.clients:
            counted[client] += 1
        assert helper.sums == counted, "an account is wrong"
    assert killed >= trials // 2
    assert recorded == trials // 3
