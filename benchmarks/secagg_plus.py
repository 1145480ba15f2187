"""Flower's own SecAgg+, for `secagg.py load`: its workflow and its mod, whole, in one process.

`SecAggPlusWorkflow` sends its messages through a grid that hands each one to `secaggplus_mod` with
the client's own context, and returns the reply: no network, no training, and copies of messages
are not counted. A client's seconds are those of its calls of the mod; the server's are all others
of the workflow. Both are of the processor, of one core. Updates are vectors of floats with 22 bits,
as Flower's defaults have them; all others are neighbours, and two thirds of them must answer. A
client whose mod raises is lost in that step, and counted: the mod of every client raises when it is
asked for its share of somebody who was lost between advertising a key and sharing it.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.common import (
    Code,
    FitIns,
    FitRes,
    Status,
    ndarrays_to_parameters,
    parameters_to_ndarrays,
)
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.compat.common import recorddict_compat as compat
from flwr.server.compat.legacy_context import LegacyContext
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD, Key
from flwr.supercore.task_identity import TaskIdentity

TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1  # for messages

WEIGHT = 100
"""Examples of every client; a tenth of Flower's default of `max_weight`."""


class Clients:
    """The grid and its clients, each of which is lost at each message with a probability."""

    def __init__(self, updates: np.ndarray, loss: float, draw: np.random.Generator) -> None:
        self.updates, self.loss, self.draw = updates, loss, draw
        self.contexts = {n: Context(1, n, {}, RecordDict(), {}) for n in range(len(updates))}
        self.spent: list[list[float]] = []
        self.carried, self.raised = 0.0, 0
        self.answered: list[set[int]] = []

    def send_and_receive(self, messages: Iterable[Message], **_: Any) -> list[Message]:
        replies, seconds = [], []
        for message in messages:
            if self.draw.random() < self.loss:
                continue
            before, node = time.process_time(), message.metadata.dst_node_id
            request = message_from_proto(message_to_proto(message))  # the mod changes it
            start = time.process_time()
            try:
                reply = secaggplus_mod(request, self.contexts[node], self._trained)
            except Exception:  # Flower's runtime would answer with an error in the client's name
                self.raised += 1
                continue
            finally:
                seconds.append(time.process_time() - start)
            replies.append(reply)
            self.carried += time.process_time() - before - seconds[-1]
        self.spent.append(seconds)
        self.answered.append({reply.metadata.src_node_id for reply in replies})
        return replies

    def _trained(self, message: Message, context: Context) -> Message:
        parameters = ndarrays_to_parameters([self.updates[context.node_id]])
        result = FitRes(Status(Code.OK, ""), parameters, WEIGHT, {})
        return Message(compat.fitres_to_recorddict(result, False), reply_to=message)


class Everyone:
    """A strategy that asks all clients, and keeps what it is given."""

    aggregate: np.ndarray | None = None

    def configure_fit(self, number: int, parameters: Any, manager: Any) -> list[Any]:
        nodes = range(manager.num_available())
        return [(SimpleNamespace(node_id=n), FitIns(parameters, {})) for n in nodes]

    def aggregate_fit(self, number: int, results: Any, failures: Any) -> tuple[Any, dict]:
        (self.aggregate,) = parameters_to_ndarrays(results[0][1].parameters)
        return None, {}


def loaded_plus(clients: int, dimension: int, loss: float) -> dict[str, Any]:
    """One sum of Flower's SecAgg+: seconds of each side, and whether it ended with a sum."""
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    draw = np.random.default_rng(clients)
    updates = draw.uniform(-1, 1, (clients, dimension)).astype(np.float32)
    grid, strategy = Clients(updates, loss, draw), Everyone()
    state = RecordDict({
        MAIN_CONFIGS_RECORD: ConfigRecord({Key.CURRENT_ROUND: 1}),
        MAIN_PARAMS_RECORD: ArrayRecord([np.zeros(dimension, np.float32)]),
    })  # fmt: skip
    manager: Any = SimpleNamespace(num_available=lambda: clients)
    context = LegacyContext(Context(1, 0, {}, state, {}), None, strategy, manager)  # type: ignore[arg-type]
    start = time.process_time()
    SecAggPlusWorkflow(num_shares=1.0, reconstruction_threshold=2 / 3)(grid, context)  # type: ignore[arg-type]
    whole, found = time.process_time() - start - grid.carried, strategy.aggregate
    each = [statistics.median(step) for step in grid.spent]
    uploaded = sorted(grid.answered[2]) if len(grid.answered) > 2 else []
    error = None if found is None else float(np.abs(found - updates[uploaded].mean(axis=0)).max())
    return {
        "clients": clients, "neighbours": clients - 1, "code_bits": 22, "loss": loss,
        "sum": found is not None, "steps": len(grid.answered), "in_sum": len(uploaded),
        "raised": grid.raised,
        "largest_error": error,
        "client_seconds": sum(each), "server_seconds": whole - sum(map(sum, grid.spent)),
        "client_steps": each,
    }  # fmt: skip
