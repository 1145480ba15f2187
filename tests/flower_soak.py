"""Many rounds with faults at random: python tests/flower_soak.py [ROUNDS [SEED]]

Clients on the in-process grid are killed and come back without their state, or in the middle of a
message, before their reply leaves them or after: their account is on the disk, and their state is
that of before. Replies are lost, damaged, or another one's; the server is killed and started again.
After every round: the model has moved by the exact mean of the clients in the sum, or not at all;
every answer is counted by its client and by the server; no step was answered twice; and clients
keep a part in one sum, and in the next one.
"""

from __future__ import annotations

import logging
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
from flower_grid import InProcessGrid, answers_of, client_app, context_of, over_the_wire
from flower_rounds import ANYTHING, STEPS, exact, fedavg, mean_of, model, mover
from flwr.app import RecordDict

from randquant.integrations import HEAD, INBOX, QuantizedStrategy
from randquant.integrations.flower.messages import NEXT_HEAD, NEXT_INBOX, PAYLOAD
from randquant.rounds import (
    ACCOUNT_RECORD,
    MEMBERSHIP_RECORD,
    NEXT_RECORD,
    SecureSum,
)

CLIENTS, COHORT = range(1, 13), 5
LOST, HOSTILE, CRASHED, KILLED, RESTARTED = 0.01, 0.01, 0.01, 0.02, 0.05
"""Probabilities: of a reply, a reply, a message, a client and a round, the server and a round."""


class Faults:
    """What goes wrong with replies, and what has."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.old, self.seen = rng, [], Counter()

    def __call__(self, step, node, reply):
        """The replies that arrive in the place of one."""
        if reply.has_error():
            self.seen["refused"] += 1
            return [reply]
        self.old = [*self.old[-50:], over_the_wire(reply)]
        drawn = self.rng.random()
        if drawn < LOST:
            self.seen["lost"] += 1
            return []
        if drawn < LOST + HOSTILE:
            kind = self.rng.choice(["damaged", "replayed", "twice", "empty"])
            self.seen[kind] += 1
            return self._hostile(kind, reply)
        return [reply]

    def crashing(self, message, context, call_next):
        """The mod, in a process that may be killed before Flower has stored the client's state."""
        before = dict(context.state)
        reply = ANYTHING(message, context, call_next)
        if self.rng.random() < CRASHED:
            context.state = RecordDict(before)
            if self.rng.random() < 0.3:  # once the reply has left it
                self.seen["crashed after its reply"] += 1
                return reply
            self.seen["crashed"] += 1
            raise RuntimeError("the process was killed")
        return reply

    def _hostile(self, kind, reply):
        if kind == "replayed":
            old = self.rng.choice(self.old)
            reply.content = old.content
            return [reply]
        if kind == "twice":
            return [reply, over_the_wire(reply)]
        if kind == "empty":
            reply.content = RecordDict({HEAD: reply.content[HEAD]})
            return [reply]
        for record in (reply.content.get(INBOX, {}), reply.content.get(NEXT_INBOX, {})):
            for other in list(record):
                record[other] = self._flipped(bytes(record[other]))
        if PAYLOAD in reply.content:
            array = reply.content[PAYLOAD]["codes"]
            array.data = self._flipped(array.data)
        return [reply]

    def _flipped(self, data):
        if not data:
            return data
        at = self.rng.randrange(len(data))
        return data[:at] + bytes([data[at] ^ 1 << self.rng.randrange(8)]) + data[at + 1 :]


def soak(rounds: int, seed: int, folder: Path) -> Counter[str]:
    """Run, check, and count what happened."""
    rng, uploaded, answered = random.Random(seed), Counter(), set()
    faults = Faults(rng)
    grid = InProcessGrid(client_app(faults.crashing, mover), CLIENTS, faults)
    for node in CLIENTS:
        grid.contexts[node] = context_of(folder / f"account{node}", node)
    done, current, mean = 0, model(), SecureSum.mean
    survivors: list[frozenset[int]] = []

    def noted(self):
        survivors.append(frozenset(self._server.close()))
        return mean(self)

    SecureSum.mean = noted
    try:
        while done < rounds:
            stretch = 1
            while done + stretch < rounds and rng.random() >= RESTARTED:
                stretch += 1
            strategy = QuantizedStrategy(
                fedavg(), exact(cohort=COHORT), folder=folder / "server", patience=rounds
            )
            before = {"model": current, "begun": False}

            def check(number, arrays, before=before, strategy=strategy):
                if not before["begun"]:  # a server that starts again goes on after its last step
                    before["begun"] = True
                    np.testing.assert_array_equal(arrays["w"].numpy(), before["model"]["w"].numpy())
                    return
                for step, node, request, reply in grid.seen:
                    if reply.has_content():
                        _note_answer(answered, node, request.content[HEAD])
                        if NEXT_HEAD in reply.content:
                            _note_answer(answered, node, request.content[NEXT_HEAD])
                        uploaded[node] += step == "upload"
                grid.seen.clear()
                moved = arrays["w"].numpy() - before["model"]["w"].numpy()
                good = not np.array_equal(moved, 0 * moved)
                faults.seen["rounds"] += good
                faults.seen["failed"] += not good
                if good:
                    wanted = mean_of(sorted(survivors[-1]))
                    np.testing.assert_allclose(moved, wanted, atol=1e-4)
                    assert len(survivors[-1]) >= COHORT
                for node in CLIENTS:
                    context = grid.contexts[node]
                    kept = {MEMBERSHIP_RECORD, NEXT_RECORD, ACCOUNT_RECORD}
                    assert set(context.state) <= kept
                    counted = answers_of(context)
                    assert uploaded[node] <= counted <= strategy.accountant.answers(node)
                before.update(model=arrays)
                _kill(rng, grid, folder, faults.seen)

            result = strategy.start(grid, model(), done + stretch, evaluate_fn=check)
            done, current = done + stretch, result.arrays
            faults.seen["servers"] += 1
    finally:
        SecureSum.mean = mean
    return faults.seen


def _kill(rng, grid, folder, seen):
    """Some clients are killed, and lose their state; those that were come back."""
    grid.offline.clear()
    for node in CLIENTS:
        if rng.random() < KILLED:
            seen["killed"] += 1
            grid.contexts[node] = context_of(folder / f"account{node}", node)
            grid.offline |= {node} if rng.random() < 0.5 else set()


def _note_answer(answered, node, request):
    """No step of a sum is answered twice."""
    if (step := request["step"]) in STEPS[1:]:
        key = node, bytes(request["session"]), step
        assert key not in answered, f"answered twice: {key}"
        answered.add(key)


if __name__ == "__main__":
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    count, start = (int(sys.argv[i]) if len(sys.argv) > i else d for i, d in ((1, 200), (2, 0)))
    with tempfile.TemporaryDirectory() as place:
        print(dict(soak(count, start, Path(place))))
