"""Hostile messages on Flower: real ones of every step, damaged as bytes and as records.

A client must answer, or refuse in one of our own sentences without being charged; nothing raises.
"""

from __future__ import annotations

import ast
import functools
import io
import math
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
from damage import damaged, damaged_json
from flower_grid import WITHOUT_FILE, answers_of
from flower_rounds import fedavg, grid_of, noisy
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as MessageProto

import randquant as rq
from randquant import integrations, rounds
from randquant.integrations import HEAD, INBOX, QuantizedStrategy, QuantizeMod, flower
from randquant.integrations.flower.messages import PAYLOAD
from randquant.rounds import NO_UPDATE, REFUSED_MESSAGE, UNUSABLE_FILES
from randquant.secure_sums import secagg

NODE = 1
MOD = QuantizeMod(epsilon=math.inf)
VALUES: list[Any] = [
    True, 0, -1, 2**62, 0.5, math.inf, math.nan, "", "x", "\ud7ff", "9" * 5000, b"", b"\xff" * 96,
    [], [1, 2], [0.5], ["x"], ["-1", "1e3", "٣"], [b"", b"x"], [True], "upload", "reveal",
]  # fmt: skip
JSONS = ["[" * 100_000, "{}", "null", '{"clients": 3}', "1e999", '{"a":' * 50_000, "9" * 5000]
DAMAGED = 0.25
"""Share of inputs that are damaged as bytes."""


def _npy(header: str, data: bytes = bytes(40), version: int = 1, size: int | None = None) -> bytes:
    """A file of numpy.save with any header."""
    text = header.encode("latin1")
    width = 2 if version == 1 else 4
    length = (len(text) if size is None else size) % 256**width
    return b"\x93NUMPY" + bytes([version, 0]) + length.to_bytes(width, "little") + text + data


def _zipped() -> bytes:
    file = io.BytesIO()
    np.savez(file, w=np.zeros(5))
    return file.getvalue()


def _shape(shape: str, descr: str = "'<f4'") -> str:
    return f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n"


FILES_OF_ARRAYS = [
    b"", b"\x93NUMPY", b"\x93NUMPY\x01", b"PK\x03\x04", b"PK\x05\x06" + bytes(18), _zipped(),
    b"\x80\x04N.", b"cos\nsystem\n", bytes(64), _npy(_shape("(5,)"), b""), _npy(_shape("(-5,)")),
    _npy(_shape("(1099511627776,)")), _npy(_shape("(4294967296, 4294967296)")), _npy("(" * 9000),
    _npy(_shape("(0, 9223372036854775807)")), _npy(_shape("(5,)", "'|O'"), b"\x80\x04N."),
    _npy(_shape("(5,)", "'<V4'")), _npy(_shape("(5,)", "[('a', '<f4')]")), _npy("not a dict"),
    _npy(_shape("(5,)"), version=9), _npy(_shape("(5,)"), size=2**16 - 1), _npy("{}" * 4000),
    _npy(_shape("(5,)"), version=2, size=2**32 - 1), _npy(_shape("(" + "1," * 40 + ")")),
    _npy(_shape("(5,)", "'<c8'")), _npy(_shape("(5,)", "'<U9'")), _npy(_shape("(5,)", "'<M8[s]'")),
    _npy(_shape("(5,)", "'<f3'")), _npy(_shape("(5,)", "'<f16'")), _npy(_shape("('5',)")),
    _npy(_shape("(2.5,)")), _npy(_shape("(5)"), bytes(20)), _npy(_shape("(05,)"), bytes(20)),
    _npy(_shape("(5,)"), bytes(20)).replace(b"Y\x01\x00", b"Y\x01\x07"), b"\x93NUMPY\x02\x00",
    _npy(_shape("(5,)"), bytes(20)).replace(b"<f4", b"<f\xb2"),
    _npy(_shape("(True,)")), _npy(_shape("(5,)").strip().ljust(9990) + "\n", bytes(20)),
    _npy(_shape("(9999999999999999999999,)")),
]  # fmt: skip


@functools.cache
def sentences() -> re.Pattern[str]:
    """Everything that a client may say, read off the code: our sentences, with short facts."""
    patterns = [re.escape(text) for text in (UNUSABLE_FILES, NO_UPDATE, REFUSED_MESSAGE)]
    for path in [
        file
        for room in (integrations, rounds, flower, secagg)
        for file in Path(room.__path__[0]).glob("*.py")
    ]:
        for node in ast.walk(ast.parse(path.read_text())):
            raised = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "ProtocolError"
            if raised and isinstance(node.args[0], ast.Constant | ast.JoinedStr):
                patterns.append(_pattern(node.args[0]))
    patterns = [pattern for pattern in patterns if pattern.startswith(("Expected", "This"))]
    return re.compile(rf"(Client \d{{1,20}}: )?({'|'.join(patterns)})")


def _pattern(text: ast.expr) -> str:
    if isinstance(text, ast.Constant):
        return re.escape(str(text.value))
    assert isinstance(text, ast.JoinedStr)
    fact = r"[\w.+'\[\], -]{1,60}"
    return "".join(_pattern(v) if isinstance(v, ast.Constant) else fact for v in text.values)


@functools.cache
def requests() -> list[tuple[bytes, RecordDict]]:
    """What a client is asked in a round of either trust, and its state before."""
    found = []
    for trust in ("local", "aggregate"):
        grid = grid_of(MOD, range(1, 4), train=lambda n, name, a: a + np.float32(0.1))
        app = grid.app

        def spying(message: Message, context: Context, app=app) -> Message:
            if context.node_id == NODE:
                data = message_to_proto(message).SerializeToString()
                found.append((data, RecordDict(dict(context.state))))
            return app(message, context)

        grid.app = spying  # type: ignore[assignment]
        local = rq.Local(buffers="server")
        QuantizedStrategy(fedavg(), noisy(trust), local=local).start(grid, a_model(), 1)
    assert len(found) == 1 + 5
    return found


def a_model() -> ArrayRecord:
    """Two layers, a counter and running statistics."""
    return ArrayRecord(
        {
            "w": Array(np.zeros((2, 2), dtype=np.float32)),
            "b": Array(np.zeros(1)),
            "norm.running_var": Array(np.ones(2, dtype=np.float32)),
            "norm.num_batches_tracked": Array(np.array(0)),
        }
    )


def seeds() -> list[bytes]:
    """A byte that says which request, and its bytes."""
    return [bytes([place]) + data for place, (data, _) in enumerate(requests())]


def damage(rng: random.Random, data: bytes) -> bytes:
    """Bytes of its content, or some of its records and values."""
    message = MessageProto.FromString(data[1:])
    if rng.random() < DAMAGED:
        whole = message.content.SerializeToString()
        found = MessageProto()
        found.metadata.CopyFrom(message.metadata)
        bare = found.SerializeToString()
        content = damaged(rng, whole)
        size, field = len(content), bytearray()
        while size >= 128:
            field.append(size % 128 + 128)
            size //= 128
        # Field 2 of a message is its content; lengths are right, what is inside may not be.
        return data[:1] + bare + b"\x12" + bytes([*field, size]) + content
    records = message_from_proto(message).content
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        _change(rng, records)
    changed = message_from_proto(message)
    changed.content = records
    return data[:1] + message_to_proto(changed).SerializeToString()


def _change(rng: random.Random, records: RecordDict) -> None:
    key = rng.choice(list(records) or [HEAD])
    record = records.get(key)
    match rng.randrange(10):
        case 0:
            records.pop(key, None)
        case 1:
            records[rng.choice([HEAD, INBOX, PAYLOAD, "arrays", "", "x" * 300])] = _record(rng)
        case 2 | 3 if isinstance(record, ConfigRecord) and record:
            record[rng.choice(list(record))] = rng.choice(VALUES)
        case 4 if isinstance(record, ConfigRecord) and record:
            del record[rng.choice(list(record))]
        case 5 if isinstance(record, ConfigRecord):
            record[rng.choice(["", "step", "session", "1", "-1", "2" * 21, "٣"])] = rng.choice(
                VALUES
            )
        case _ if HEAD in records and "offer" in (head := records[HEAD]) and rng.random() < 0.5:
            name = rng.choice([name for name in ("offer", "terms") if name in head])
            text = _damaged_text(rng, str(head[name]).encode(errors="replace"))
            bad = rng.random() < 0.1
            head[name] = rng.choice(JSONS) if bad else text.decode("utf-8", "replace")
        case _:
            _change_array(rng, records)


def _damaged_text(rng: random.Random, text: bytes) -> bytes:
    try:
        return damaged_json(rng, text)
    except (ValueError, RecursionError):  # it was damaged before
        return damaged(rng, text)


def _change_array(rng: random.Random, records: RecordDict) -> None:
    found = [record for record in records.values() if isinstance(record, ArrayRecord) and record]
    if not found:
        return
    record = rng.choice(found)
    name = rng.choice(list(record))
    array = record[name]
    match rng.randrange(8):
        case 0:
            array.data = rng.choice(FILES_OF_ARRAYS)
        case 1:
            array.data = damaged(rng, array.data)
        case 2:
            array.shape = rng.choice([(), (0,), (5,), (2**31 - 1,), (-1,), (2, 2, 1)])
        case 3:
            array.dtype = rng.choice(["", "object", "float32", "float64", "int64", "x" * 99])
        case 4:
            array.stype = rng.choice(["", "numpy.ndarray", "torch", "randquant.payload.v1"])
        case 5:
            value = rng.choice([math.nan, math.inf, 1e39, 1 + 1j, True])
            record[name] = Array(np.full(rng.choice([(), (1,), (2, 2)]), value))
        case 6:
            record[rng.choice(["", "w", "more", "a.running_mean", "x" * 300])] = record[name]
        case _:
            del record[name]


def _record(rng: random.Random) -> ArrayRecord | ConfigRecord | MetricRecord:
    return rng.choice([
        ConfigRecord({}), ConfigRecord({"step": "upload", "session": b"s"}), MetricRecord({"x": 1}),
        ArrayRecord({}), a_model(),
    ])  # fmt: skip


def train(message: Message, context: Context) -> Message:
    """A train function that takes what comes."""
    [model] = message.content.array_records.values()
    moved = {
        name: Array(np.asarray(a + a.dtype.type(1)) if a.dtype.kind == "f" else a)
        for name, a in ((name, array.numpy()) for name, array in model.items())
    }
    return Message(RecordDict({"arrays": ArrayRecord(moved)}), reply_to=message)


def read(data: bytes, _folder: Path) -> None:
    """Give it to a client that is where it was when the message came.

    Raises:
        ValueError: it was refused.
    """
    state = requests()[data[0]][1]
    try:
        message = message_from_proto(MessageProto.FromString(data[1:]))
        upload = message.content.get(HEAD, {}).get("step") == "upload"
    except Exception as error:  # Flower's own, before any of ours
        raise ValueError("Expected a message of Flower's.") from error
    context = Context(1, NODE, {**WITHOUT_FILE}, RecordDict(dict(state)), {})
    before = answers_of(context)
    try:
        reply = MOD(message, context, train)
    except BaseException as error:
        raise AssertionError("raised out of the mod") from error
    if not reply.has_error():
        assert set(reply.content) <= {HEAD, PAYLOAD, INBOX}, "something else leaves a client"
        assert answers_of(context) == before + upload, "an answer was not counted, or more than one"
        return
    reason = str(reply.error.reason)
    assert sentences().fullmatch(reason), f"not one of our sentences: {reason!r}"
    assert answers_of(context) == before, f"charged for a refusal: {reason!r}"
    raise ValueError(f"Expected another message: {reason}")
