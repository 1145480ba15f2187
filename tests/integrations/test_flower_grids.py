"""How the strategy waits for replies over a network."""

import itertools
import subprocess
import sys
from pathlib import Path

import pytest
from flower_grid import InProcessGrid, client_app
from flower_rounds import ANYTHING, exact, fedavg, mean_of, model, mover, noisy
from flwr.app import RecordDict
from flwr.common.serde import context_to_proto, message_to_proto

from randquant.integrations.among_clients import AmongClients
from randquant.integrations.flower import grids
from randquant.integrations.flower.grids import PollingGrid
from randquant.integrations.flower.messages import HEAD
from randquant.integrations.flower.strategy import QuantizedStrategy


class HttpGrid(InProcessGrid):
    """Replies come `late` seconds after their requests, each once; a request may be lost."""

    def __init__(self, *arguments, clock, late=0.0, **options):
        super().__init__(*arguments, **options)
        self.clock, self.late, self.waiting, self.looks = clock, late, {}, []

    def push_messages(self, messages):
        messages = list(messages)
        numbers = []
        for message in messages:
            replies = list(super().send_and_receive([message]))
            numbers.append(number := message.metadata.message_id)
            for reply in replies:
                reply.metadata.__dict__["_reply_to_message_id"] = number
                self.waiting[number] = (self.clock.now + self.late, reply)
        return numbers

    def pull_messages(self, message_ids):
        self.looks.append(self.clock.now)
        ready = [n for n in message_ids if self.waiting.get(n, (1e9,))[0] <= self.clock.now]
        return [self.waiting.pop(number)[1] for number in ready]

    def send_and_receive(self, messages, *, timeout=None):
        raise AssertionError("this grid waits three seconds between looks")


class Clock:
    """A clock that only sleeping moves."""

    now = 0.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        assert seconds > 0
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    own = Clock()
    monkeypatch.setattr(grids, "time", own)
    return own


def test_replies_are_met_soon_after_they_come(clock):
    grid = HttpGrid(client_app(ANYTHING, mover), range(1, 5), clock=clock, late=4.0)
    strategy = QuantizedStrategy(fedavg(), exact(cohort=3))
    moved = strategy.start(grid, model(), 1).arrays["w"].numpy() - model()["w"].numpy()
    assert moved == pytest.approx(mean_of([1, 2, 3, 4]), abs=1e-4)
    assert 5 * 4.0 <= clock.now <= 5 * 4.0 * 1.035  # five messages, each met within 3 %
    assert len(grid.looks) < 5 * 50


def test_a_lost_reply_is_waited_for_no_longer_than_told(clock):
    grid = HttpGrid(client_app(ANYTHING, mover), [1, 2], fault=lambda *_: [], clock=clock)
    polling = PollingGrid.over(grid)
    messages = [grid.create_message(RecordDict(), "train", node, "1") for node in (1, 2)]
    assert polling.send_and_receive(messages, timeout=30.0) == []
    assert 30.0 <= clock.now <= 33.0
    gaps = [later - now for now, later in itertools.pairwise(grid.looks)]
    assert max(gaps) <= 3.0 + 1e-9


def test_other_grids_are_left_as_they_are():
    grid = InProcessGrid(client_app(ANYTHING), [1])
    assert PollingGrid.over(grid) is grid


AFTER = """
import sys
from pathlib import Path
from flwr.common.serde import message_from_proto, context_from_proto
from flwr.proto.message_pb2 import Context, Message
from flwr.supercore.task_identity import TaskIdentity
TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
before = set(sys.modules)
from randquant.flower import QuantizeMod
for line in sys.stdin:
    message, context, account = (bytes.fromhex(word) for word in line.split(","))
    message = message_from_proto(Message.FromString(message))
    context = context_from_proto(Context.FromString(context))
    Path(context.node_config["randquant-ledger"]).write_bytes(account)
    reply = QuantizeMod(epsilon=float("inf"))(message, context, None)
    assert reply.has_content(), reply.error
    print(message.content["randquant"]["step"])
print(*sorted(set(sys.modules) - before))
"""


def test_a_message_that_neither_trains_nor_offers_needs_little_of_this_package(tmp_path):
    """In a process of its own, as on Flower: nothing that certifies, accounts, encodes or plans."""
    kept = []

    def mod(message, context, call_next):
        if context.node_id == 1 and message.content[HEAD]["step"] in ("confirm", "reveal"):
            parts = [message_to_proto(message), context_to_proto(context)]
            account = Path(str(context.node_config["randquant-ledger"])).read_bytes()
            kept.append(
                ",".join(p.hex() for p in [*(p.SerializeToString() for p in parts), account])
            )
        return ANYTHING(message, context, call_next)

    grid = InProcessGrid(client_app(mod, mover), range(1, 4))
    for node, context in grid.contexts.items():
        context.node_config["randquant-ledger"] = str(tmp_path / f"account{node}")
    strategy = QuantizedStrategy(fedavg(), noisy(), sums=AmongClients(handshake="ahead"))
    strategy.start(grid, model(), 2)
    done = subprocess.run(
        [sys.executable, "-c", AFTER], input="\n".join(kept), capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    *steps, last = done.stdout.splitlines()
    assert steps == ["confirm", "reveal"] * 2  # with the next sum's shares
    names = last.split()
    packages = {name.split(".")[0] for name in names}
    assert not packages & {"torch", "numba", "llvmlite", "scipy", "pandas", "rich", "sklearn"}
    inside = {".".join(name.split(".")[:3]) for name in names if name.startswith("randquant.")}
    assert not {name for name in inside if name.split(".")[1] in FAR}
    assert not inside & {"randquant.privacy.accounting", "randquant.privacy.certificates"}
    assert "randquant.integrations.flower.strategy" not in names
    assert len([name for name in names if name.startswith("randquant")]) < 60


FAR = ("mechanisms", "planning", "audit", "training", "cli")
