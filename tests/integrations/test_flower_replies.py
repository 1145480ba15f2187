"""Flower: what the server makes of bad replies."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from flower_rounds import EXACT, STEPS, exact, grid_of, mean_of, model, one_round, rounds_of
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.common.serde import message_to_proto

import randquant as rq
from randquant.aggregation import ChannelMechanism
from randquant.channels import wire
from randquant.integrations import HEAD, INBOX
from randquant.integrations.flower import messages as wire_messages
from randquant.integrations.flower.messages import PAYLOAD
from randquant.rounds import Offer, RoundMessage, RoundsFailed, read_inbox, upload_format
from randquant.secure_sums import MAX_CLIENTS, MAX_NEIGHBOURS, ProtocolError


def tampered(reply, change):
    content = reply.content
    record = wire_messages.payload_record(change(content[PAYLOAD]["codes"].data))
    reply.content = RecordDict({HEAD: content[HEAD], PAYLOAD: record})
    return reply


def flipped(data):
    return data[:40] + bytes([data[40] ^ 1]) + data[41:]


def without_client_2(trust, change, nodes=(2,), among=range(1, 6)):
    """What some clients upload is changed, and the mean is that of the others."""

    def fault(step, node, reply):
        return change(reply) if step == "upload" and node in nodes else [reply]

    found, _, _ = one_round(exact(trust), among, fault=fault)
    np.testing.assert_allclose(found, mean_of(set(among) - set(nodes)), atol=1e-6)


def repacked(channel=EXACT, size=5, session=None, client=2):
    """Codes of something else, well packed."""

    def change(data):
        offer = Offer(ChannelMechanism(channel), size)
        form = upload_format(offer.mechanism, session or b"another", client)
        return wire.pack(form, np.zeros(size, dtype=np.uint8))

    return change


OTHER = rq.stochastic_rounding(clip=2.0, levels=3, margin=0.0)


BAD_PAYLOADS = {
    "truncated": lambda data: data[:-1],
    "empty": lambda data: b"",
    "longer": lambda data: data + b"\0",
    "bit-flipped": flipped,
    "another round": repacked(),
    "another channel": repacked(OTHER),
    "another dimension": repacked(size=6),
    "plain codes": lambda data: wire.pack(EXACT, np.zeros(5, dtype=np.uint8)),
}


@pytest.mark.parametrize("trust", ["local", "aggregate"])
@pytest.mark.parametrize("change", BAD_PAYLOADS.values(), ids=BAD_PAYLOADS)
def test_a_bad_payload_is_dropped_and_reported(trust, change):
    without_client_2(trust, lambda reply: [tampered(reply, change)])


def test_codes_out_of_range_are_dropped():
    """Three levels take two bits: the fourth code means nothing."""

    def change(reply):
        form = upload_format(exact("local"), reply.content[HEAD]["session"], 2)
        body = np.full(2, 0xFF, dtype=np.uint8)
        return [tampered(reply, lambda data: wire.frame(form, 5, body))]

    without_client_2("local", change)


@pytest.mark.parametrize("trust", ["local", "aggregate"])
@pytest.mark.parametrize(
    "content",
    [
        lambda c: {},
        lambda c: {"arrays": model()},
        lambda c: {HEAD: c[HEAD]},
        lambda c: {PAYLOAD: c[PAYLOAD]},
        lambda c: {HEAD: c[HEAD], PAYLOAD: model()},
        lambda c: {HEAD: ConfigRecord({"step": "reveal", "session": c[HEAD]["session"]}),
                   PAYLOAD: c[PAYLOAD]},
        lambda c: {HEAD: ConfigRecord({"step": "upload", "session": b"old"}), PAYLOAD: c[PAYLOAD]},
        lambda c: {HEAD: ConfigRecord({"step": 5, "session": 6.0}), PAYLOAD: c[PAYLOAD]},
    ],
)  # fmt: skip
def test_a_reply_of_another_kind_is_dropped(trust, content):
    def change(reply):
        reply.content = RecordDict(content(reply.content))
        return [reply]

    without_client_2(trust, change)


@pytest.mark.parametrize("trust", ["local", "aggregate"])
def test_a_duplicate_counts_once_and_a_replay_not_at_all(trust):
    old = {}

    def fault(step, node, reply):
        if step != "upload":
            return [reply]
        if node == 2 and 2 in old:
            return [old[2]]  # that of the round before
        if node == 2:
            old[2] = reply
        return [reply, reply] if node == 3 else [reply]

    found, _, strategy = one_round(exact(trust), fault=fault, rounds=2)
    np.testing.assert_allclose(found, mean_of(range(1, 6)) + mean_of([1, 3, 4, 5]), atol=1e-6)
    assert [row.dropped for row in strategy.history] == [0, 1]


@pytest.mark.parametrize("trust", ["local", "aggregate"])
def test_a_reply_in_anothers_name_is_dropped(trust):
    def named(source):
        def change(reply):
            reply.metadata.__dict__["_src_node_id"] = source(reply.metadata.src_node_id)
            return [reply]

        return change

    without_client_2(trust, named(lambda node: 99))
    without_client_2(trust, named(lambda node: 3 - node), (1, 2), range(1, 9))


def test_failures_are_counted_in_a_row():
    def fault(step, node, reply):
        bad = step == "upload" and rounds_of(grid) in (1, 3)
        return [] if bad else [reply]

    grid = grid_of(fault=fault)
    _, _, strategy = one_round(exact(), grid=grid, patience=2, rounds=4)
    assert [bool(row.failed) for row in strategy.history] == [True, False, True, False]
    assert strategy.history[1].dropped == 0


def test_too_few_for_the_guarantee_fail_the_round_and_keep_the_model(caplog):
    found, _, strategy = one_round(
        exact(cohort=5),
        fault=lambda step, node, reply: [] if step == "upload" and node == 2 else [reply],
    )
    assert not found.any()
    assert strategy.accountant.answers(1) == 1  # codes may have been sent all the same


@pytest.mark.parametrize("trust", ["local", "aggregate"])
def test_all_clients_gone_is_a_clear_error_and_the_model_is_kept(trust, tmp_path):
    options = {"folder": tmp_path, "patience": 3}
    with pytest.raises(RoundsFailed, match="3 failures in a row, the last: Expected"):
        one_round(exact(trust), fault=lambda *_: [], rounds=9, **options)
    found, _, _ = one_round(exact(trust), rounds=3, **options)
    left = 1 if trust == "local" else 3  # the third is tried again; no codes were asked for
    np.testing.assert_allclose(found, left * mean_of(range(1, 6)), atol=1e-6)


def test_a_step_that_diverges_is_not_taken():
    arrays = ArrayRecord({"w": Array(np.full(3, 65504, dtype=np.float16))})  # the largest
    far = ChannelMechanism(rq.stochastic_rounding(clip=64.0, levels=2, margin=0.0), "aggregate", 2)
    train = lambda node, name, array: array.astype(np.float32) + 64  # noqa: E731
    with pytest.raises(RoundsFailed, match="training has diverged"):
        one_round(far, [1, 2], train=train, arrays=arrays, patience=1)


DEEP = {"codes": Array("uint8", (1,) * 100_000, wire_messages.STYPE, b"x")}
LARGE = {
    "messages": {INBOX: ConfigRecord({str(n): b"" for n in range(20_000)})},
    "a long message": {INBOX: ConfigRecord({"1": bytes(10**6)})},
    "dimensions": {PAYLOAD: ArrayRecord(DEEP)},
    "texts beside": {"more": ConfigRecord({"text": ["x" * 1000] * 1000})},
    "empty words": {HEAD: ConfigRecord({"survivors": [""] * 500_000})},
    "empty records": {f"{n}": ConfigRecord({}) for n in range(20_000)},
}


@pytest.fixture(scope="module")
def _played():
    """What a first round imports is no memory that a reply takes."""
    one_round(exact())


@pytest.mark.usefixtures("_played")
@pytest.mark.parametrize(
    ("trust", "step", "change"),
    [
        *(("local", "upload", change) for change in LARGE),
        *(("aggregate", *each) for each in zip(STEPS, LARGE, strict=False)),
    ],
)
def test_a_reply_that_is_too_large_is_refused_by_name_before_it_is_read(
    trust, step, change, caplog, monkeypatch
):
    """Nothing is made of it, which the sizes of what is serialised and the memory show."""
    sizes = []

    def counting(message):
        proto = message_to_proto(message)
        sizes.append(proto.ByteSize())
        return proto

    def fault(at, node, reply):
        if (at, node) != (step, 2):
            return [reply]
        for name, large in LARGE[change].items():
            fields = {**reply.content[name], **large} if name == HEAD else None
            reply.content[name] = large if fields is None else ConfigRecord(fields)
        tracemalloc.start()
        return [reply]

    monkeypatch.setattr(wire_messages, "message_to_proto", counting)
    try:
        found, _, _ = one_round(exact(trust), fault=fault)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    in_it = range(1, 6) if step in ("confirm", "reveal") else [1, 3, 4, 5]
    np.testing.assert_allclose(found, mean_of(in_it), atol=1e-6)
    assert max(sizes) < 10_000
    assert peak < 2_000_000
    told = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    [said] = [line for line in told if "reply" in line]
    assert f"reply of client 2 to {step!r} dropped: Expected a reply of" in said


def test_a_client_counts_what_a_server_sends_before_it_reads_it():
    def content(count):
        return {str(n): b"x" for n in range(count)}

    assert len(read_inbox(content(MAX_NEIGHBOURS + 1))) == MAX_NEIGHBOURS + 1
    with pytest.raises(ProtocolError, match=r"Expected 4097 messages at most, got 4098\."):
        read_inbox(content(MAX_NEIGHBOURS + 2))
    head = {"step": "confirm", "session": b"s", "survivors": ["1"] * (MAX_CLIENTS + 1)}
    with pytest.raises(ProtocolError, match="survivors, got"):
        RoundMessage.read(head)
