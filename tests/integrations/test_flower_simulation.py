"""`randquant.train` on Flower's simulation engine: the same bits, promises and errors as without.

Most tests have a grid in this process, with a copy of the clients from their pickle, as a process
of Ray has. Those with Ray's own processes are slow.
"""

import contextlib
import dataclasses
import functools
import json
import operator
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from flower_grid import InProcessGrid
from flwr.clientapp import ClientApp
from interrupted import Interrupted, stop_after
from torch import nn

import randquant as rq
from randquant.aggregation import AdditiveMechanism, LocalGaussian
from randquant.channels import Key
from randquant.integrations import flower
from randquant.integrations.flower import simulation
from randquant.training import RoundCollector, RunStore
from randquant.training.algorithm import ENGINE

pytestmark = pytest.mark.filterwarnings("ignore:.*:UserWarning")

POPULATION, FEATURES, WORKERS = 50, 4, 2
COHORT, ROUNDS = 45, 2
DRAW = torch.Generator().manual_seed(0)
DATA = [
    (x[: 3 + number % 4], (x[: 3 + number % 4, 0] > 0).long())
    for number, x in enumerate(torch.randn(POPULATION, 6, FEATURES, generator=DRAW))
]
TEST = DATA[0]
PUBLIC = torch.randn(33, FEATURES, generator=DRAW)
NOISY = LocalGaussian(1.0, 4.0)


class PolledGrid(InProcessGrid):
    """Nodes of this process, whose replies wait until they are asked for."""

    def __init__(self, clients):
        super().__init__(simulation.client_app(lambda: clients), range(7, 7 + 2 * WORKERS))
        self.waiting, self.asked = [], 0

    def push_messages(self, messages):
        threads, messages = torch.get_num_threads(), list(messages)
        self.asked += len(messages)
        self.waiting += reversed(self.send_and_receive(messages))
        torch.set_num_threads(threads)  # theirs, if they were processes
        return [message.metadata.message_id for message in messages]

    def pull_messages(self, message_ids):
        reply = self.waiting.pop(0)  # one at a time, and not in order
        assert reply.metadata.reply_to_message_id in message_ids
        return [reply]


@contextlib.contextmanager
def on_grid():
    """Let calls of `train` compute on such grids; yields how many messages each was sent."""
    asked = []

    @contextlib.contextmanager
    def engine(clients):
        grid = PolledGrid(pickle.loads(pickle.dumps(clients)))
        yield simulation.GridEngine(grid, WORKERS, lambda: None)
        asked.append(grid.asked)

    token = ENGINE.set(engine)
    try:
        yield asked
    finally:
        ENGINE.reset(token)


def linear():
    torch.manual_seed(1)
    return nn.Linear(FEATURES, 2)


def normed():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(FEATURES, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2))


def dropping():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(FEATURES, 5), nn.Dropout(0.3), nn.Linear(5, 2))


def trained(model=linear, clients=DATA, **settings):
    usual = {
        "mechanism": NOISY, "rounds": ROUNDS, "cohort": COHORT, "test": TEST, "seed": 5,
        "progress": False,
    }  # fmt: skip
    return rq.train(model(), clients, **{**usual, **settings})


def outcome(run):
    """All that a run states and gives but for wall times: model, metrics of rounds, account."""

    def timeless(record):
        fields = dataclasses.asdict(record)
        return {name: each for name, each in fields.items() if not name.startswith("seconds")}

    weights = {name: each.numpy().tobytes() for name, each in run.model.state_dict().items()}
    return weights, list(map(timeless, run.record.metrics)), timeless(run.record.summary)


SETTINGS = {
    "vectorised": {},
    "calibrated": {"mechanism": None, "epsilon": 8.0},
    "batches, one by one": {"local": rq.Local(epochs=2, batch=2, together=False)},
    "dropout together": {"model": dropping},
    "dropout, one by one": {"model": dropping, "local": rq.Local(together=False)},
    "running statistics of the server's threads": {
        "model": normed, "local": rq.Local(buffers="server", public=PUBLIC, threads=2),
    },
    "hidden cohorts": {
        "trust": "model", "cohort": 5, "privacy": rq.Privacy(sampling="poisson"),
    },
    "a single client": {"cohort": 1},
    "examples": {"privacy": rq.Privacy(unit="example"), "local": rq.Local(batch=3)},
    "numbers and weights": {
        "privacy": rq.Privacy(
            numbers=("accuracy", "num-examples:0:9"), weighted_by="num-examples"
        ),
    },
    "a subset of coordinates": {
        "mechanism": None, "epsilon": 8.0, "privacy": rq.Privacy(coordinates=6),
    },
    "noise of integers": {
        "mechanism": AdditiveMechanism("skellam", 1.0, 4.0, COHORT, bits=16),
    },
    "standardised, with its twin": {
        "epsilon": 20.0, "local": rq.Local(standardize=rq.Standardize(-3.0, 3.0)),
        "server": rq.Server(baseline=True),
    },
    "a function": {"clients": functools.partial(operator.getitem, DATA), "population": POPULATION},
}  # fmt: skip


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_an_engine_changes_no_bit(settings):
    expected = outcome(trained(**settings))
    with on_grid() as asked:
        assert outcome(trained(**settings)) == expected
    # A single client is computed here, as nothing is won by sending it.
    assert [bool(count) for count in asked] == [settings.get("cohort") != 1] * len(asked)


@pytest.mark.parametrize("what", ["weights", "key"])
def test_the_comparison_notices_what_an_engine_could_change(what, monkeypatch):
    expected, uploads = outcome(trained()), RoundCollector.uploads

    def otherwise(self, groups, work):
        if what == "weights":  # by their last bit
            work = work._replace(weights=np.nextafter(work.weights, np.float32(9)))
        if what == "key":
            work = work._replace(secret=bytes(32))
        return uploads(self, groups, work)

    monkeypatch.setattr(RoundCollector, "uploads", otherwise)
    with on_grid():
        assert outcome(trained()) != expected


@pytest.mark.parametrize("first_on_engine", [False, True])
def test_a_run_goes_on_with_or_without_an_engine(tmp_path, first_on_engine):
    """Its rounds after the checkpoint are repeated, and refused if one bit of a mean differs."""
    server = rq.Server(checkpoint_every=2)
    settings = {"folder": tmp_path / "run", "rounds": 5, "seed": None}
    begin, go_on = on_grid, contextlib.nullcontext
    if not first_on_engine:
        begin, go_on = go_on, begin
    stopping = dataclasses.replace(server, on_round=stop_after(3))
    with begin(), pytest.raises(Interrupted):
        trained(server=stopping, **settings)
    before = RunStore(tmp_path / "run").sent_rounds()
    assert before.round == 3
    with go_on():
        run = trained(server=server, **settings)
    assert [each.round for each in run.record.metrics] == [1, 2, 3, 4, 5]


def test_what_a_round_costs_is_on_disk_before_a_message_leaves(tmp_path, monkeypatch):
    seen, push = [], PolledGrid.push_messages

    def pushed(self, messages):
        seen.append(RunStore(tmp_path / "run").sent_rounds().round)
        return push(self, messages)

    monkeypatch.setattr(PolledGrid, "push_messages", pushed)
    with on_grid():
        trained(folder=tmp_path / "run")
    assert seen == [1, 2]


class Broken(Exception):
    """Of two arguments: a pickle of it cannot be read."""

    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (ValueError("Expected much."), ValueError, "Round 1: Client 7: Expected much."),
        (KeyError("age"), KeyError, "age"),
        (None, RuntimeError, "Broken: one and two"),
    ],
)
def test_an_error_of_a_client_is_the_same_as_without_an_engine(error, kind, text):
    with on_grid(), pytest.raises(kind, match=text) as caught:
        trained(
            clients=functools.partial(_failing, error), population=POPULATION, cohort=POPULATION
        )
    notes = "".join(getattr(caught.value, "__notes__", []))
    assert "The run was stopped; what was sent is on record" in notes
    assert kind is not KeyError or "Client 7." in notes


def _failing(error, number):
    if number == 7:
        raise error or Broken("one", "two")
    return DATA[number]


def test_a_process_that_does_not_answer_ends_the_run(monkeypatch):
    def dead(load):
        app = ClientApp()

        @app.train()
        def compute(message, context):
            raise OSError("it was killed")

        return app

    monkeypatch.setattr(simulation, "client_app", dead)
    said = "Expected every process of Flower's simulation engine to answer, got .*it was killed"
    with on_grid(), pytest.raises(RuntimeError, match=said):
        trained()


def test_copies_have_no_test_data_and_no_key(monkeypatch):
    """They go to other processes, and perhaps to other machines."""
    copies, dumped = [], pickle.dumps
    with on_grid():
        monkeypatch.setattr(pickle, "dumps", lambda each: copies.append(each) or dumped(each))
        trained(test=TEST)
    clients = pickle.loads(dumped(copies[0]))
    assert isinstance(clients, RoundCollector)
    assert clients.pool is clients.engine is None
    assert clients.learner.problem.test is None
    assert copies[0].learner.problem.test is not None
    assert not any(isinstance(each, Key) for each in vars(clients.learner).values())


def test_a_key_that_protects_data_does_not_leave_its_process():
    with pytest.raises(ValueError, match="from a seed or from bytes, got a generated one"):
        Key.generate().fold_in("updates", 3).secret_bytes()
    key = Key.from_seed(3).fold_in(1)
    assert (Key(key.secret_bytes()).words(4) == key.words(4)).all()


def test_an_engine_has_a_process():
    with pytest.raises(ValueError, match="Expected processes >= 1"), flower.engine(processes=0):
        pass


def test_an_engine_ends_with_its_block():
    with pytest.raises(Interrupted), on_grid() as asked:
        raise Interrupted
    trained()
    assert asked == []


# With Ray's processes.

SCRIPT = Path(__file__).parents[1] / "simulated.py"
STARTS = 500
"""Seconds until the first round of a run has ended, at most: each process imports torch."""


@contextlib.contextmanager
def script(folder, *how):
    command = [sys.executable, str(SCRIPT), str(folder), *how]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(
        command, env={**os.environ, "SIMULATED": str(folder)}, **pipes
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def finished(folder, *how):
    with script(folder, *how) as process:
        out, said = process.communicate(timeout=STARTS)
    assert process.returncode == 0, said
    return json.loads(out.splitlines()[-1])


def stated(result):
    return {name: result[name] for name in ("model", "epsilon", "accuracy", "losses")}


@pytest.fixture(scope="module")
def without_engine(tmp_path_factory):
    pytest.importorskip("ray")
    return finished(tmp_path_factory.mktemp("plain") / "it")


@pytest.mark.slow
def test_processes_of_ray_compute_the_same_bits_and_read_the_clients(tmp_path, without_engine):
    result = finished(tmp_path / "it", "flower")
    assert stated(result) == stated(without_engine)
    assert result["processes"] == 2
    assert result["read here"] == [0]  # its example, and the test data
    assert len(without_engine["read here"]) > 30


@pytest.mark.slow
def test_a_process_of_ray_that_dies_ends_the_run_which_then_goes_on(tmp_path, without_engine):
    with script(tmp_path / "it", "flower", "die") as process:
        out, said = process.communicate(timeout=STARTS)
    assert process.returncode == 1
    assert "RuntimeError: Expected every process of Flower's simulation engine to answer" in said
    assert "what was sent is on record" in said
    assert "round 1" not in out
    assert stated(finished(tmp_path / "it")) == stated(without_engine)


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_a_run_on_ray_that_is_stopped_goes_on_without(sent, tmp_path, without_engine):
    with script(tmp_path / "it", "flower", "wait") as process:
        assert process.stdout.readline() == "round 1\n"
        process.send_signal(sent)
        _, said = process.communicate(timeout=STARTS)
    assert process.returncode != 0
    if sent == signal.SIGINT:
        assert "KeyboardInterrupt: The run was stopped; what was sent is on record" in said
    assert stated(finished(tmp_path / "it")) == stated(without_engine)
    deadline = time.monotonic() + 60
    while left := _processes_of(tmp_path / "it"):
        assert time.monotonic() < deadline, left
        time.sleep(1)


OWN = """
import torch
from beside import twice

class Own(torch.nn.Linear):
    def forward(self, x):
        return twice(super().forward(x))

def model():
    return Own(4, 2)

def loss(output, targets):
    return torch.nn.functional.cross_entropy(output, targets)

x = torch.randn(50, 6, 4, generator=torch.Generator().manual_seed(0))
clients = [(part, (part[:, 0] > 0).long()) for part in x]
"""


@pytest.mark.slow
def test_a_command_s_file_and_what_it_imports_reach_the_processes(tmp_path):
    """Its classes and functions are sent, and files beside it are found."""
    pytest.importorskip("ray")
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "beside.py").write_text("def twice(x):\n    return 2 * x\n")
    said = []
    for how in ([], ["--engine", "flower", "--processes", "2"]):
        words = ["own.py", "--epsilon", "8", "--rounds", "2", "--seed", "1", "--quiet", "--json"]
        done = subprocess.run(
            [sys.executable, "-m", "randquant", "train", *words, *how],
            cwd=tmp_path, capture_output=True, text=True, check=False, timeout=STARTS,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        said.append({
            name: each for name, each in json.loads(done.stdout).items()
            if name not in ("run", "report", "seconds")
        })  # fmt: skip
    assert said[0] == said[1]
    stored = [RunStore(tmp_path / "runs" / f"own-{number}").state("latest") for number in (1, 2)]
    assert stored[0] == stored[1]


def _processes_of(folder):
    """Processes that run with a script's folder in their environment, as Ray's of it do."""
    found = []
    for each in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # of another user, or over by now
            if f"SIMULATED={folder}".encode() in each.read_bytes().split(b"\0"):
                found.append((each.parent / "comm").read_text())
    return found
