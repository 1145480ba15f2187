"""A Grid within one process: real messages, as bytes, to real ClientApps, with faults on demand."""

from __future__ import annotations

import contextlib
import uuid

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.serverapp import Grid

from randquant.integrations import HEAD, ClientState
from randquant.rounds import THIS_CLIENT, AnswerLedger, RunAccountant

with contextlib.suppress(ImportError):  # older versions do without
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1


def over_the_wire(message: Message) -> Message:
    return message_from_proto(message_to_proto(message))


WITHOUT_FILE = {"randquant-ledger": "none"}
"""Setting of a node whose account is in its state."""


class InProcessGrid(Grid):
    """`nodes` clients of one app. `fault(step, node, reply)` gives the replies that arrive."""

    def __init__(self, app: ClientApp, nodes, fault=None):
        self.app, self.fault = app, fault
        self.contexts = {n: Context(1, n, {**WITHOUT_FILE}, RecordDict(), {}) for n in nodes}
        self.seen = []  # (step, node, request, reply)
        self.offline = set()

    def get_node_ids(self):
        return [n for n in self.contexts if n not in self.offline]

    def send_and_receive(self, messages, *, timeout=None):
        arrived = []
        for message in messages:
            node = message.metadata.dst_node_id
            message.metadata.__dict__["_message_id"] = uuid.uuid4().hex
            request = over_the_wire(message)
            step = request.content[HEAD]["step"] if HEAD in request.content else ""
            if node in self.offline:
                continue
            try:
                reply = over_the_wire(self.app(over_the_wire(message), self.contexts[node]))
            except Exception as error:  # as Flower does; the state is kept as the call has left it
                failed = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, str(error))
                reply = over_the_wire(Message(failed, reply_to=message))
            self.seen.append((step, node, request, over_the_wire(reply)))
            arrived += [reply] if self.fault is None else self.fault(step, node, reply)
        return arrived

    def set_run(self, run):
        raise NotImplementedError

    @property
    def run(self):
        raise NotImplementedError

    def create_message(self, content, message_type, dst_node_id, group_id, ttl=None):
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def push_messages(self, messages):
        raise NotImplementedError

    def pull_messages(self, message_ids):
        raise NotImplementedError


def context_of(path=None, node=1):
    """A client's context, whose account is a file, or in its state."""
    config = {"randquant-ledger": "none" if path is None else str(path)}
    return Context(1, node, config, RecordDict(), {})


def ledger_of(context, delta=1e-5):
    """A client's own account, as its mod opens it."""
    path = context.node_config.get("randquant-ledger", "none")
    path = None if path == "none" else path
    return AnswerLedger(RunAccountant(delta), path, ClientState(context))


def answers_of(context):
    """How many answers a client has counted."""
    with ledger_of(context).locked() as ledger:
        return ledger.accountant.answers(THIS_CLIENT)


def counted(path):
    """(answers, steps) of the account in a file."""
    with ledger_of(context_of(path)).locked() as ledger:
        return ledger.accountant.answers(THIS_CLIENT), ledger.steps


def spent(path, delta=1e-5):
    """(answers, epsilon) of the account in a file."""
    with ledger_of(context_of(path), delta).locked() as ledger:
        return ledger.accountant.answers(THIS_CLIENT), ledger.accountant.get_epsilon(delta)


def client_app(mod, train=None, metrics=lambda node: {"num-examples": 10 * node}, **measured):
    """An app whose clients move every float array by `train(node, name, array)`."""
    app = ClientApp()

    @app.train(mods=[mod])
    def _train(message, context):
        assert set(message.content) == {"arrays", "config"}, "the mod leaves something behind"
        arrays = {
            name: train(context.node_id, name, array.numpy())
            for name, array in message.content["arrays"].items()
        }
        record = ArrayRecord({n: Array(np.asarray(a)) for n, a in arrays.items()})
        told = MetricRecord({"loss": 1.0, **metrics(context.node_id), **measured})
        return Message(RecordDict({"arrays": record, "metrics": told}), reply_to=message)

    return app
