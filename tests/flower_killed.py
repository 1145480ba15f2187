"""A ClientApp whose messages are each answered by a process of its own, which SIGKILL may end.

As on a SuperNode: the reply leaves the process first, then the client's state is stored. A process
that is killed before has sent nothing, and one that is killed in between has sent its reply and
lost its state; what it has written to its account stays in both cases.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import time
from collections import Counter

from flwr.app import Context, Message
from flwr.common.serde import (
    message_from_proto,
    message_to_proto,
    recorddict_from_proto,
    recorddict_to_proto,
)
from flwr.proto.message_pb2 import Message as WireMessage
from flwr.proto.recorddict_pb2 import RecordDict as WireRecords

HANGS = 600
"""Seconds after which a process that neither answers nor ends is a failure of the test."""


class Killed(RuntimeError):
    """The process of a message was killed before its reply left it."""


class Processes:
    """Answers messages in processes of their own, some of which are killed at any time.

    Args:
        app: the ClientApp.
        rng: decides which are killed, and when.
        share: of messages whose process is killed.
        seen: counts `killed without reply` and `killed with reply`.
    """

    def __init__(self, app, rng, share: float, seen: Counter[str]) -> None:
        self.app, self.rng, self.share, self.seen = app, rng, share, seen
        self.usual = 0.05  # seconds that a message takes, about

    def __call__(self, message: Message, context: Context) -> Message:
        """The reply; the context's state is that of after it, if the process lived so long."""
        read, write = os.pipe()
        started = time.monotonic()
        child = os.fork()
        if not child:
            with contextlib.suppress(BaseException):
                os.close(read)
                self._answer(message, context, write)
            os._exit(0)
        os.close(write)
        doomed = self.rng.random() < self.share
        between = doomed and self.rng.random() < 0.3  # once the reply has left the process
        early = doomed and not between
        at = started + (self.rng.uniform(0, 1.2 * self.usual) if early else HANGS)
        with open(read, "rb", buffering=0) as pipe:
            reply = _part(pipe, at)
            state = None if reply is None or between else _part(pipe, at)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        if state is not None:
            self.usual = 0.8 * self.usual + 0.2 * (time.monotonic() - started)
            context.state = recorddict_from_proto(WireRecords.FromString(state))
        else:
            assert doomed, "a process ended without an answer"
            self.seen[f"killed {'without' if reply is None else 'with'} reply"] += 1
        if reply is None:
            raise Killed("the process was killed")
        kind, content = pickle.loads(reply)
        if kind == "error":
            raise RuntimeError(content)
        return message_from_proto(WireMessage.FromString(content))

    def _answer(self, message: Message, context: Context, pipe: int) -> None:
        try:
            proto = message_to_proto(self.app(message, context))
            answer = "reply", proto.SerializeToString()
        except Exception as error:
            answer = "error", str(error)
        state = recorddict_to_proto(context.state).SerializeToString()
        for part in (pickle.dumps(answer), state):
            data = memoryview(len(part).to_bytes(8, "big") + part)
            while data:
                data = data[os.write(pipe, data) :]


def _part(pipe, until: float) -> bytes | None:
    """The next part that a process has written whole; None if it is not there in time."""
    head = _bytes(pipe, 8, until)
    return None if head is None else _bytes(pipe, int.from_bytes(head, "big"), until)


def _bytes(pipe, size: int, until: float) -> bytes | None:
    found = b""
    while len(found) < size:
        ready, _, _ = select.select([pipe], [], [], max(until - time.monotonic(), 0))
        new = pipe.read(size - len(found)) if ready else b""
        if not new:
            return None
        found += new
    return found
