"""A helper as a service: what one server sends, however hostile, leaves others their answers."""

import contextlib
import hashlib
import logging
import math
import threading
import time

import grpc
import pytest
from helper_sums import IDENTITY, helper_in, seeds_in
from tls import keep, parties

import randquant as rq
from randquant.aggregation import AdditiveMechanism
from randquant.rounds import (
    MAX_CALLS,
    MAX_CALLS_PER_CALLER,
    DamagedFile,
    Offer,
    RemoteHelper,
    ServiceLimits,
    configured_helper,
    service,
)
from randquant.secure_sums import ProtocolError, write_request


class Slow:
    """A helper whose answers to requests that begin with "slow" take as long as they may."""

    def __init__(self, helper):
        self.key, self.running = helper.key, 0

    def answer(self, request, check=lambda: None):
        if request.startswith(b"broken"):
            raise OSError("/home/operator/journal is full")
        self.running += 1
        try:
            while request.startswith(b"slow"):
                time.sleep(0.01)
                check()
        finally:
            self.running -= 1
        return request


@pytest.fixture
def slow(tmp_path):
    return Slow(helper_in(tmp_path / "helper"))


@pytest.fixture
def serving(tmp_path, slow):
    """Serve with some limits; how two servers with certificates of their own reach it."""
    running = []

    def serve(address="localhost:0", **limits):
        own, *servers = parties(tmp_path / "tls", "helper", "hostile", "honest")
        server, port = service(slow, address, own, ServiceLimits(**limits))
        server.start()
        running.append(server)
        at = f"{address.split(':')[0]}:{port}"
        return [lambda timeout, tls=tls: RemoteHelper(at, tls, timeout) for tls in servers]

    yield serve
    for server in running:
        server.stop(grace=None).wait()


def until(reached):
    deadline = time.monotonic() + 10
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_who_calls_often_has_its_own_share_of_the_workers_only(serving, slow):
    hostile, honest = serving(workers=4)
    answer = hostile(30)._channel.unary_unary("/randquant.Helper/Answer")
    sent = [answer.future(b"slow", timeout=30, wait_for_ready=True) for _ in range(7)]
    until(
        lambda: sum(call.done() for call in sent) == 7 - MAX_CALLS_PER_CALLER and slow.running == 2
    )
    assert all("of one TLS certificate" in call.details() for call in sent if call.done())
    assert honest(5).key == hostile(5).key == slow.key
    assert honest(5).answer(b"quick") == b"quick"
    assert slow.running == 2  # of four workers
    for call in sent:
        call.cancel()
    until(lambda: not slow.running)
    assert hostile(5).answer(b"quick") == b"quick"


@pytest.mark.parametrize("method", ["Answer", "Key"])
def test_calls_whose_request_never_arrives_leave_others_theirs(serving, method):
    hostile, honest = serving(seconds=2)
    ended = threading.Event()

    def nothing():
        ended.wait(30)
        yield b"quick"

    stalled = []
    for _ in range(MAX_CALLS // 4):  # over several connections, as each has few calls
        call = hostile(30)._channel.stream_unary(f"/randquant.Helper/{method}")
        stalled += [call.future(nothing(), timeout=30, wait_for_ready=True) for _ in range(5)]
    refused = len(stalled) - (MAX_CALLS_PER_CALLER if method == "Answer" else 0)
    until(lambda: sum(call.done() for call in stalled) >= refused)
    assert honest(5).answer(b"quick") == b"quick"
    assert honest(5).key == hostile(5).key
    until(lambda: all(call.done() for call in stalled))
    assert hostile(5).answer(b"quick") == b"quick"
    ended.set()


def test_answers_that_are_not_read_count_for_their_caller_until_their_time_is_over(serving):
    hostile, honest = serving(seconds=2)
    longer = bytes(2**24)  # than what a connection takes from a helper before its caller reads
    ask = "/randquant.Helper/Answer"
    unread = [hostile(30)._channel.unary_stream(ask)(longer) for _ in range(MAX_CALLS_PER_CALLER)]
    for call in unread:
        call.initial_metadata()  # its answer has begun to arrive
    with pytest.raises(ProtocolError, match="of one TLS certificate"):
        hostile(5).answer(b"quick")
    assert honest(5).answer(b"quick") == b"quick"
    until(lambda: _is_answered(hostile))
    assert any(map(_is_cut_off, unread))  # the one whose place was free again
    slow_reader = honest(5)._channel.unary_stream(ask)(longer)
    time.sleep(0.5)
    assert list(slow_reader) == [longer]


def _is_cut_off(call):
    try:
        list(call)
    except grpc.RpcError:
        return True
    return False


def _is_answered(server):
    with contextlib.suppress(ProtocolError):
        return server(5).answer(b"quick") == b"quick"
    return False


def test_a_connection_without_calls_is_closed_and_made_again(serving, slow):
    _, honest = serving(seconds=1)
    helper, states = honest(5), []
    helper._channel.subscribe(states.append)
    assert helper.key == slow.key
    until(lambda: states[-1] is grpc.ChannelConnectivity.READY)
    until(lambda: states[-1] is grpc.ChannelConnectivity.IDLE)
    assert helper.answer(b"quick") == b"quick"


def test_a_call_that_is_given_up_ends(serving, slow):
    hostile, _ = serving()
    with pytest.raises(OSError, match="deadline_exceeded"):
        hostile(0.3)._call("/randquant.Helper/Answer", b"slow", 0.3)
    until(lambda: not slow.running)


def test_an_answer_takes_no_longer_than_the_operator_allows(serving):
    _, honest = serving(seconds=0.2)
    with pytest.raises(ProtocolError, match=r"a sum that takes 0\.2 s at most"):
        honest(10).answer(b"slow")


def test_a_request_is_no_longer_than_the_operator_allows(serving):
    _, honest = serving(request_bytes=2000)
    assert len(honest(10).answer(bytes(1900))) == 1900
    with pytest.raises(OSError, match="resource_exhausted"):
        honest(10).answer(bytes(2100))


def test_no_server_reads_what_the_helpers_files_are_called(serving, caplog):
    _, honest = serving()
    # A server of its own making reads all that arrives, and not only what RemoteHelper shows of it.
    answer = honest(10)._channel.unary_unary("/randquant.Helper/Answer")
    with caplog.at_level(logging.ERROR):
        call = answer.future(b"broken", timeout=5, wait_for_ready=True)
        assert call.code() == grpc.StatusCode.UNAVAILABLE
    told = f"{call.details()} {call.debug_error_string()} {call.trailing_metadata()}"
    assert "journal" not in told
    with pytest.raises(OSError, match="unavailable"):
        honest(10)._call("/randquant.Helper/Answer", b"broken", 5)
    assert "/home/operator/journal is full" in caplog.text


def test_a_helper_of_another_name_is_said_to_be_one(serving):
    _, honest = serving("127.0.0.2:0")  # its certificate is of 127.0.0.1
    with pytest.raises(
        OSError, match=r"certificate of this name, signed by the authority: .*127\.0\.0\.2"
    ):
        _ = honest(1).key


@pytest.mark.parametrize(
    "limits",
    [{"workers": 0}, {"workers": 17}, {"seconds": 0}, {"seconds": math.inf}, {"request_bytes": 5}],
)
def test_limits_out_of_bounds_are_refused(limits):
    with pytest.raises(ValueError, match="Expected"):
        ServiceLimits(**limits)


@pytest.fixture
def settings(tmp_path):
    key = tmp_path / "helper.key"
    keep(key, IDENTITY)
    return {"folder": tmp_path / "journal", "key": key}


@pytest.mark.parametrize(
    ("name", "enough", "too_little", "reason"),
    [
        ("clients", 4, 3, "Expected 3 clients at most"),
        ("coordinates", 5, 4, "Expected 4 coordinates at most"),
        ("masks", 20, 19, "of 19 at most, this helper's limit, got 4 times 5"),
        ("least", 2, 3, "sums of 3 clients or more"),
    ],
)
def test_each_number_of_an_operator_limits_a_request(name, enough, too_little, reason, settings):
    for value, refusal in ((enough, "Expected the offer whose digest"), (too_little, reason)):
        helper = configured_helper(**settings, **{name: value})
        terms, seeds = seeds_in(helper, range(4))
        with pytest.raises(ProtocolError, match=refusal):
            helper.answer(write_request(terms, seeds))


OFFER = Offer(AdditiveMechanism("skellam", 1.0, 4.0, 3), 5)


def epsilon_of(offer, delta=1e-5):
    return rq.account([offer.release(1, "replace_one", "aggregate")], delta, quick=True).epsilon


@pytest.mark.parametrize(
    ("change", "allowed"),
    [
        ({"epsilon": 1.01 * epsilon_of(OFFER)}, 1),
        ({"epsilon": 0.99 * epsilon_of(OFFER)}, 0),
        ({"epsilon": 1.01 * epsilon_of(OFFER, 1e-9), "delta": 1e-9}, 1),
        ({"epsilon": 0.99 * epsilon_of(OFFER, 1e-9), "delta": 1e-9}, 0),
        ({"epsilon": 0.9 * epsilon_of(OFFER), "examples": 10}, 1),
        ({"most_sums": 1}, 1),
    ],
)
def test_each_limit_of_an_operator_is_that_of_an_account(change, allowed, settings):
    """As whole sums: the first is answered or not, and a second one of most-sums never is."""
    helper = configured_helper(**settings, **change)
    digest = hashlib.sha256(OFFER.to_text().encode()).digest()
    answered = 0
    for _ in range(1 + ("most_sums" in change)):
        sizes = {"dimension": OFFER.size, "bits": OFFER.sum_bits(20), "least": 3}
        terms, seeds = seeds_in(helper, range(3), **sizes, offer=digest)
        with contextlib.suppress(ProtocolError):
            helper.answer(write_request(terms, seeds, OFFER.to_text()))
            answered += 1
    assert answered == allowed


PUBLIC = IDENTITY.public_key().public_bytes_raw().hex()


@pytest.mark.parametrize(
    "text",
    [
        f'{{"1": "{PUBLIC}", "1": "{"ab" * 32}"}}',
        f'{{"1": "{PUBLIC}", "01": "{"ab" * 32}"}}',
        f'{{"1": "{PUBLIC}", "2": "{PUBLIC}"}}',
        f'{{"1": "{PUBLIC[:-2]}"}}',
        f'{{"1": "{"00" * 32}"}}',
        f'{{"-1": "{PUBLIC}"}}',
        f'[["1", "{PUBLIC}"]]',
        "[]",
    ],
)
def test_a_directory_in_which_clients_are_not_one_each_is_refused(text, settings, tmp_path):
    file = tmp_path / "directory.json"
    own = {**settings, "directory": file}
    file.write_text(f'{{"1": "{PUBLIC}"}}')
    configured_helper(**own)
    file.write_text(text)
    with pytest.raises(DamagedFile, match="the directory of all clients, but"):
        configured_helper(**own)
