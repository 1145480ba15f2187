"""How the strategy waits for replies over a network."""

import itertools

import pytest
from flower_grid import InProcessGrid, client_app
from flower_rounds import ANYTHING, exact, fedavg, mean_of, model, mover
from flwr.app import RecordDict

from randquant.integrations import PollingGrid, QuantizedStrategy
from randquant.integrations.flower import messages as grids


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
