"""Messages that no honest side sends: refused in one sentence of ours, uncharged, in memory."""

from __future__ import annotations

import itertools
import json
import logging
import math
import random
import threading
import tracemalloc
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import fuzz_flower
import numpy as np
import pytest
from flower_grid import WITHOUT_FILE, answers_of, context_of, counted, over_the_wire
from flower_rounds import all_refuse, exact, fedavg, grid_of, mean_of, model, noisy, one_round
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.common import log
from flwr.common.serde import message_from_proto, message_to_proto
from fuzz_flower import FILES_OF_ARRAYS, MOD, NODE, sentences, train

from randquant.aggregation import VectorMechanism
from randquant.channels import Channel
from randquant.integrations import HEAD, QuantizedStrategy
from randquant.integrations.flower import messages
from randquant.integrations.flower.messages import PAYLOAD
from randquant.privacy.accounting import releases
from randquant.privacy.certificates import coordinate
from randquant.rounds import (
    MAX_SESSION_BYTES,
    MAX_TEXT_CHARACTERS,
    NO_LEDGER,
    REFUSED_MESSAGE,
    UNUSABLE_FILES,
    Intake,
    Layout,
    Offer,
    RoundMessage,
    accountant,
)

OFFER = Offer(noisy("local"), 5)


@pytest.fixture(autouse=True)
def _quiet(caplog):
    caplog.set_level(logging.WARNING, logger="flwr")


def an_upload(**changes):
    """An honest upload of local trust, with other fields in its head."""
    head = {"step": "upload", "session": b"s", "offer": OFFER.to_text(), **changes}
    record = ConfigRecord({name: value for name, value in head.items() if value is not None})
    content = RecordDict({HEAD: record, "arrays": model(), "config": ConfigRecord({})})
    return Message(content, dst_node_id=NODE, message_type="train")


def answer_to(message, mod=MOD):
    """(why it is refused, or "" where it is not; what the client was charged; peak of memory)."""
    context = Context(1, NODE, {**WITHOUT_FILE}, RecordDict({}), {})
    tracemalloc.start()
    try:
        reply = mod(message, context, train)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    return str(reply.error.reason) if reply.has_error() else "", answers_of(context), peak


def is_refused(message, reason=""):
    found, charged, peak = answer_to(message)
    assert sentences().fullmatch(found), found
    assert reason in found
    assert charged == 0
    return peak


def test_an_honest_message_is_answered_and_charged():
    assert answer_to(an_upload())[:2] == ("", 1)


# Arrays


@pytest.mark.parametrize("data", FILES_OF_ARRAYS, ids=range(len(FILES_OF_ARRAYS)))
def test_arrays_that_are_none_are_refused(data):
    message = an_upload()
    message.content["arrays"] = ArrayRecord({"w": Array("float32", (5,), "numpy.ndarray", data)})
    assert is_refused(message, REFUSED_MESSAGE) < 2_000_000


@pytest.mark.parametrize(
    "value",
    [
        np.zeros((2, 3), np.float32), np.array(7), np.zeros(0), np.array([True, False]),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)), np.zeros((0, 5), ">f4"),
        np.arange(3, dtype=np.uint64), np.ones((1, 1, 1), np.float16), np.arange(4, dtype=np.int8),
        np.arange(24.0).reshape(2, 3, 4), np.arange(300_000.0), np.array(1.5),
    ],
    ids=lambda value: f"{value.dtype.str}{value.shape}",
)  # fmt: skip
def test_every_array_of_numbers_is_read_as_numpy_reads_it(value):
    array = Array(value)
    found = messages.read_array(array)
    assert (found.dtype, found.shape) == (value.dtype, value.shape)
    np.testing.assert_array_equal(found, array.numpy())
    assert not found.flags.writeable


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"stype": "torch"}, "of type 'numpy.ndarray'"),
        ({"dtype": "float64"}, "dtype and shape that the message states"),
        ({"shape": (3, 2)}, "dtype and shape that the message states"),
        ({"data": b"more"}, "as many bytes"),
    ],
)
def test_an_array_is_what_the_message_says_of_it(change, match):
    array = Array(np.zeros((2, 3), np.float32))
    more = change.pop("data", b"")
    fields = {"dtype": array.dtype, "shape": array.shape, "stype": array.stype, **change}
    with pytest.raises(ValueError, match=match):
        messages.read_array(Array(**fields, data=array.data + more))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_model_that_is_not_finite_is_refused_before_it_is_charged(value):
    message = an_upload()
    message.content["arrays"] = ArrayRecord({"w": Array(np.full(5, value, dtype=np.float32))})
    is_refused(message, "Expected finite numbers in the model, got NaN or infinity.")


def test_a_counter_may_be_anything():
    message = an_upload()
    message.content["arrays"]["n"] = Array(np.array(2**62))
    assert answer_to(message)[:2] == ("", 1)


# Heads


@pytest.mark.parametrize(
    "changes",
    [
        {"step": None}, {"step": 5}, {"step": "x" * 10**6}, {"step": "uploaded"}, {"step": b"x"},
        {"session": None}, {"session": b""}, {"session": "s"},
        {"session": bytes(MAX_SESSION_BYTES + 1)}, {"offer": 5}, {"offer": [1.5]}, {"offer": b"{}"},
        {"offer": "[" * 10**6}, {"offer": "9" * 5000}, {"offer": "x" * (MAX_TEXT_CHARACTERS + 1)},
        {"offer": '{"a":' * 10**5}, {"offer": "null"},
        {"terms": 5}, {"survivors": 5}, {"survivors": [1]}, {"survivors": ["-1"]},
        {"survivors": ["٣"]}, {"survivors": ["9" * 21]}, {"step": "share"}, {"step": "advertise"},
        {"step": "confirm"}, {"step": "reveal"},
    ],
    ids=lambda changes: str(changes)[:40],
)  # fmt: skip
def test_heads_that_are_none_are_refused(changes):
    message = an_upload(**changes)
    size = len(message_to_proto(message).SerializeToString())
    assert is_refused(message) < 4_000_000 + 100 * size


@pytest.mark.parametrize(
    "change",
    [
        {"dimension": 2**40}, {"dimension": 2**31}, {"dimension": 6}, {"dimension": 1.5},
        {"dimension": True}, {"parts": ["w", "more"]}, {"parts": ["more"]}, {"parts": "w"},
        {"parts": [5]}, {"parts": None}, {"buffers": []}, {"buffers": "keep"}, {"buffers": None},
        {"clip_norm": 1e308}, {"clip_norm": -1},
        {"clip_norm": "1"}, {"cohort": 10**30}, {"trust": "central"},
        {"rotation_seed": -1}, {"format": "randquant offer, version 9"}, {"more": 1},
        {"channel": None}, {"channel": {}}, {"dimension": 10**400},
    ],
    ids=str,
)  # fmt: skip
def test_offers_that_do_not_fit_are_refused(change):
    text = json.dumps({**json.loads(OFFER.to_text()), **change})
    assert is_refused(an_upload(offer=text)) < 4_000_000


@pytest.mark.parametrize("record", [MetricRecord({"step": 1}), model(), ArrayRecord({}), None])
@pytest.mark.parametrize("key", [HEAD, "arrays"])
def test_records_of_another_type_are_refused(record, key):
    message = an_upload()
    if record is None or (key == "arrays" and isinstance(record, ArrayRecord) and record):
        del message.content[key]
    else:
        message.content[key] = record
    is_refused(message)


def test_an_error_is_no_request():
    request = an_upload()
    is_refused(Message(Error(code=1, reason="x"), reply_to=request))


@pytest.mark.parametrize("error", [MemoryError, KeyError, ZeroDivisionError, RecursionError])
def test_whatever_goes_wrong_before_the_charge_is_one_sentence(error, monkeypatch):
    def fails(*_args):
        raise error("patient 17")

    monkeypatch.setattr(Layout, "from_model", fails)
    is_refused(an_upload(), REFUSED_MESSAGE)


@pytest.mark.parametrize("text", ["", "[]", '{"1": 5}', '{"1": "xx"}', '{"x": ""}', '{"1": null}'])
@pytest.mark.parametrize("name", ["randquant-directory", "randquant-identity"])
def test_files_of_a_client_that_are_damaged_are_not_described(name, text, tmp_path):
    path = tmp_path / "file"
    path.write_text(text)
    if (name, text) == ("randquant-directory", "[]"):
        pytest.skip("a directory of nobody")
    files = {name: str(path), "randquant-ledger": str(tmp_path / "account")}
    all_refuse(UNUSABLE_FILES, exact(), grid_of(config=files))


def test_a_directory_without_a_file_for_the_account_is_refused(tmp_path, caplog):
    """Its client relies on answering each step once: copies of its state would answer twice."""
    (tmp_path / "directory").write_text("{}")
    grid = grid_of(config={"randquant-directory": str(tmp_path / "directory")})
    all_refuse(REFUSED_MESSAGE, exact(), grid)
    assert (
        "Expected a file, randquant-ledger, with randquant-directory, got the directory alone"
        in caplog.text
    )


def test_what_is_logged_of_a_hostile_message_is_short(caplog):
    is_refused(an_upload(offer='"' + "x" * 10**6))
    is_refused(an_upload(offer=json.dumps({"format": "x" * 10**6})))
    assert max(len(record.getMessage()) for record in caplog.records) < 1000


def test_a_planted_loader_of_numpys_is_caught(monkeypatch):
    """Two gigabytes for a message of some hundred bytes."""
    monkeypatch.setattr(messages, "read_array", lambda array: array.numpy())
    message = an_upload()
    data = fuzz_flower._npy(fuzz_flower._shape("(500000000,)"), bytes(20))
    message.content["arrays"] = ArrayRecord({"w": Array("float32", (5,), "numpy.ndarray", data)})
    assert is_refused(message) > 1_000_000_000


# Replies of clients


@pytest.mark.parametrize(
    ("trust", "steps", "count"),
    [
        ("local", ["upload"], 40), ("aggregate", ["upload", "confirm", "reveal"], 15),
        ("aggregate", ["advertise", "share"], 10),
    ],
)  # fmt: skip
def test_a_hostile_reply_does_not_stop_the_round(trust, steps, count):
    """The sum is that of the others or of all; an early step may cost others their part as well."""
    rng = random.Random(f"{trust} {steps}")
    late = [[1, 3, 4, 5], range(1, 6)]
    early = [part for n in range(2, 6) for part in itertools.combinations(range(1, 6), n)]
    means = [*map(mean_of, late)] if "upload" in steps else [np.zeros(5), *map(mean_of, early)]
    for _ in range(count):
        chosen = rng.choice(steps)

        def fault(step, node, reply, chosen=chosen):
            if (step, node) != (chosen, 2):
                return [reply]
            data = bytes([0]) + message_to_proto(over_the_wire(reply)).SerializeToString()
            changed = fuzz_flower.damage(rng, data)[1:]
            try:
                return [message_from_proto(fuzz_flower.MessageProto.FromString(changed))]
            except Exception:  # Flower's own, which would not have brought it
                return []

        found, _, _ = one_round(exact(trust), fault=fault)
        assert min(np.abs(found - mean).max() for mean in means) < 1e-6


@pytest.mark.parametrize("error", [KeyError, MemoryError, TypeError])
def test_any_error_of_a_reply_drops_that_reply_alone(error, monkeypatch, caplog):
    """Whatever a parser of ours may raise one day."""
    read = messages.read_payload

    def fragile(records):
        if set(records) != {HEAD, PAYLOAD}:
            raise error("x" * 10**6)
        return read(records)

    def fault(step, node, reply):
        if node == 2:
            reply.content = RecordDict({HEAD: reply.content[HEAD]})
        return [reply]

    monkeypatch.setattr(messages, "read_payload", fragile)
    found, _, _ = one_round(exact("local"), fault=fault)
    np.testing.assert_allclose(found, mean_of([1, 3, 4, 5]), atol=1e-6)
    assert max(len(record.getMessage()) for record in caplog.records) < 1000


FORGED = "refused\nWARNING: randquant: client 3: it lies\x1b[2K\r\u2028\u202e"


def test_what_others_write_cannot_pass_for_lines_of_ours(caplog):
    def at(node, error):
        found = Message(Error(0, error), reply_to=an_upload())
        found.metadata.__dict__["_src_node_id"] = node
        return found

    refused = {}
    replies = [at(node, FORGED) for node in (2, 9)]
    asked = {2: RoundMessage("upload", b"s")}
    arrived = messages.answers(replies, 2**20, Counter())
    Intake(refused, log).take("upload", asked, arrived, lambda *_: None)
    message = an_upload()
    message.content["arrays"]["\nWARNING: randquant: it lies"] = Array(np.zeros(1, dtype=int))
    caplog.set_level(logging.INFO, logger="flwr")
    assert answer_to(message)[0] == ""
    said = [record.getMessage() for record in caplog.records]
    assert len(set(said) - {NO_LEDGER}) == 4  # which a process logs once
    assert all(text.isprintable() for text in [*said, *refused.values()])


# Offers whose certificates take long


def a_heavy_offer():
    """300 inputs and 128 codes, in sums of 40: its account takes hours."""
    weights = np.full((300, 128), 2**55, dtype=np.int64)
    weights[:, 0] += 2**40 * np.arange(300)
    weights[:, -1] += 2**40 * np.arange(300)[::-1] - 299 * 2**40
    channel = Channel(np.linspace(-1, 1, 300), np.linspace(-1, 1, 128), weights, 2**62)
    return Offer(VectorMechanism(channel, 1.0, "aggregate", 40), 650)


def test_an_offer_that_takes_hours_is_refused_before_it_is_certified(monkeypatch):
    offer = a_heavy_offer()
    assert len(offer.to_text()) > 700_000
    for where, name in ((coordinate, "certify"), (releases, "kappa_sum")):
        monkeypatch.setattr(where, name, lambda *a, **b: pytest.fail("it is certified"))
    assert is_refused(an_upload(offer=offer.to_text()), "Expected an offer") < 50_000_000


def test_a_server_is_told_what_its_clients_would_refuse():
    weights = np.full((2, 256), 2**54, dtype=np.int64)
    weights[0, 0], weights[0, 1], weights[1, 1] = 2**54 + 7, 2**54 - 7, 2**54
    channel = Channel(np.array([-1.0, 1.0]), np.linspace(-1, 1, 256), weights, 2**62)
    with pytest.raises(ValueError, match="too long, with 2 inputs, 256 codes and 1000 clients"):
        QuantizedStrategy(fedavg(), VectorMechanism(channel, 1.0, "aggregate", 1000))


def test_an_offer_waits_for_no_certificate_of_another_server(tmp_path, monkeypatch):
    """Two servers and one account: the one offer is certified for as long as we like."""
    slow, path = Offer(exact("local"), 5), tmp_path / "account"
    begun, go_on, checked_with = threading.Event(), threading.Event(), []
    guarantee = accountant._guarantee

    def blocked(spent, *arguments):
        if slow in dict(spent) and not begun.is_set():
            begun.set()
            assert go_on.wait(60)
        checked_with.append({each for each, _ in spent})
        return guarantee(spent, *arguments)

    def served(offer, session):
        message = an_upload(offer=offer.to_text(), session=session)
        return MOD(message, context_of(path, NODE), train).has_content()

    monkeypatch.setattr(accountant, "_guarantee", blocked)
    with ThreadPoolExecutor() as pool:
        try:
            hostile = pool.submit(served, slow, b"hostile")
            assert begun.wait(60)
            assert pool.submit(served, OFFER, b"honest").result(20), (
                "the honest server's offer waits"
            )
        finally:
            go_on.set()
        assert hostile.result(60)
    assert checked_with[-1] == {slow, OFFER}  # what was checked is what is counted
    assert counted(path)[0] == 2
