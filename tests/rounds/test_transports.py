"""The same clients with the same keys: in process, on Flower and on NVFlare a round is the same.

Each transport runs rounds of the same updates. Codes, hence sums and means, must agree in every
bit, models as far as a model that is a vector and one that is an array can, and accounts too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flower_grid import InProcessGrid, client_app
from flower_rounds import fedavg, run
from flwr.app import Array, ArrayRecord
from mechanisms_built import built
from nvflare_job import SITES, Server, result
from torch import nn

from randquant.aggregation import HelperNoise, Number
from randquant.channels import Key
from randquant.flower import Offer, QuantizedStrategy, QuantizeMod, WithHelper
from randquant.integrations import QuantizeFilter, site_number
from randquant.local_training import Evaluation, Local
from randquant.planning import Privacy
from randquant.rounds import RELATIVE_LOSS, Member, ServerRun
from randquant.rounds import member as rounds_member
from randquant.secure_sums import Helper
from randquant.training import RunInputs, Task, TrainConfig, distributed_sgd, make_problem, prepare

CLIENTS, ROUNDS, DIMENSION, KEY = 3, 3, 14, Key.from_seed(5)
NUMBERS = Number("accuracy"), Number("num-examples", 0, 40)


def _sends_codes(mechanism):
    with contextlib.suppress(TypeError):
        return bool(Offer(mechanism, 8))
    return False


MECHANISMS = {name: each for name, each in built(cohort=CLIENTS).items() if _sends_codes(each)}


def update_of(client, round):
    """An update that is another in each round, of a client 0, 1 or 2."""
    return np.random.default_rng([client, round]).normal(0, 0.3, DIMENSION).astype(np.float32)


def parted(vector):
    """A model or an update as arrays."""
    return {"weight": vector[:12].reshape(3, 4), "bias": vector[12:]}


def joined(arrays):
    return np.concatenate([arrays["weight"].ravel(), arrays["bias"]])


def privacy_of(numbers):
    return Privacy(numbers=NUMBERS, weighted_by="num-examples") if numbers else Privacy()


def share_of(client, round):
    """A client's loss, as a share of a guess's."""
    return (0.05, 0.3, 0.9)[(client + round) % 3]


def metrics_of(client, round):
    return {"accuracy": 0.2 + 0.3 * client, "num-examples": 10.0 * (client + 1),
            RELATIVE_LOSS: share_of(client, round)}  # fmt: skip


class Simulated:
    """A learner of scripted updates, which the server's step subtracts: its model is minus ours."""

    on_gpu = one_thread = False

    def __init__(self, start, exact):
        self.weights, self.round, self.exact = -start, 0, exact
        self.dimension = len(start)
        names = [str(client) for client in range(CLIENTS)]
        self.problem = SimpleNamespace(clients=SimpleNamespace(names=names), uniform_loss=1.0)

    def size(self, client):
        return 10 * (client + 1)

    def parameters(self):
        return self.weights

    def load(self, parameters):
        self.weights, self.round = parameters.copy(), self.round + 1

    def groups(self, cohort, workers):
        return [cohort]

    def updates(self, clients, key):
        rows = [update_of(each, self.round) for each in clients]
        if not self.exact:  # as a device computes it: what has been added to the weights
            rows = [(row - self.weights) + self.weights for row in rows]
        return np.array(rows), np.array([share_of(each, self.round) for each in clients])

    def evaluate(self, client):
        return Evaluation(metrics_of(client, self.round)["accuracy"], None)


def silent(variance, count, key):
    return np.zeros(count, np.int64)


class Seen:
    """What a transport's rounds were: each round's mechanism, mean and model, and the account."""

    def __init__(self):
        self.mechanisms, self.means, self.models, self.spent = [], [], [], None
        self.numbers = []


class Recorded:
    """A mechanism whose means are recorded; the round's, whatever its public seed."""

    def __init__(self, mechanisms, means):
        self._mechanisms, self._means = iter(mechanisms), means

    def in_round(self, seed):
        inner, means = next(self._mechanisms), self._means

        class Round:
            def __getattr__(self, name):
                return getattr(inner, name)

            def mean(self, payloads, dimension, key):
                means.append(inner.mean(payloads, dimension, key))
                return means[-1]

        return Round()


@pytest.fixture
def deployed(monkeypatch):
    """Clients of an engine draw by `KEY`, their number and the round; and what is seen of it."""
    seen, calls = Seen(), {}
    encode, step = Member.encode, ServerRun.step
    clients = {**{node: node for node in range(CLIENTS)},
               **{site_number(site): place for place, site in enumerate(SITES)}}  # fmt: skip

    def encoded(self, agreed, *args, **options):
        client = clients[self.number]
        calls[client] = round = calls.get(client, 0) + 1
        if len(seen.mechanisms) < round:
            seen.mechanisms.append(agreed.mechanism)
        key = KEY.fold_in(round).fold_in("client", client)
        monkeypatch.setattr(rounds_member, "Key", SimpleNamespace(generate=lambda: key))
        return encode(self, agreed, *args, **options)

    def stepped(self, taken, *args):
        seen.means.append(taken.mean())
        return step(self, taken, *args)

    # Of a helper and a server too: all transports have the same sums of codes then.
    monkeypatch.setattr(
        HelperNoise, "party_noise", lambda self, size, key: silent(1.0, self.size(size), key)
    )
    monkeypatch.setattr(Member, "encode", encoded)
    monkeypatch.setattr(ServerRun, "step", stepped)
    return seen


def on_flower(seen, mechanism, folder, *, untuned, numbers, helped=False):
    """Rounds on Flower's messages."""
    rounds = dict.fromkeys(range(CLIENTS), 0)

    def train(node, name, array):
        if name == "weight":
            rounds[node] += 1
        return array + parted(update_of(node, rounds[node]))[name]

    identity, sums = Ed25519PrivateKey.generate(), {}
    if helped:
        sums = {"sums": WithHelper(Helper(folder, identity, draw_noise=silent))}
    pinned = identity.public_key().public_bytes_raw().hex() if helped else None
    mod = QuantizeMod(epsilon=math.inf, helper=pinned)
    app = client_app(mod, train, lambda node: metrics_of(node, rounds[node]))
    strategy = QuantizedStrategy(
        None if untuned else fedavg(), mechanism, privacy=privacy_of(numbers), **sums
    )

    def evaluated(number, arrays):
        if number:
            seen.models.append(joined({name: each.numpy() for name, each in arrays.items()}))

    start = {name: Array(each) for name, each in parted(np.zeros(DIMENSION, np.float32)).items()}
    grid = InProcessGrid(app, range(CLIENTS))
    result = run(strategy, grid, ArrayRecord(start), ROUNDS, evaluate_fn=evaluated)
    seen.spent = strategy.accountant.get_privacy_spent()
    for each in result.train_metrics_clientapp.values():
        names = {name for own in NUMBERS for name in (own.name, f"{own.name}_deviation")}
        seen.numbers.append({name: each[name] for name in names & set(each)})


def on_nvflare(seen, mechanism, folder, *, untuned, helped=False):
    """Rounds on NVFlare's messages, whose clients send differences."""
    rounds = dict.fromkeys(SITES, 0)

    def train(site, task):
        rounds[site] += 1
        share = {RELATIVE_LOSS: share_of(SITES.index(site), rounds[site])}
        update = update_of(SITES.index(site), rounds[site])
        return result(parted(update), meta={"initial_metrics": share})

    identity, options = Ed25519PrivateKey.generate(), {}
    if helped:
        options = {"sums": WithHelper(Helper(folder / "helper", identity, draw_noise=silent))}
    pinned = identity.public_key().public_bytes_raw().hex() if helped else None
    server = Server(
        folder, train, mechanism=mechanism, rounds=ROUNDS, min_clients=CLIENTS,
        learning_rate="auto" if untuned else 1.0, **options,
    )  # fmt: skip
    server.filters = {
        site: QuantizeFilter(1e9, str(folder / "sites"), helper=pinned, clip_norm=1.0)
        for site in SITES
    }
    server.run()
    assert len(server.saved) == ROUNDS, server.log
    for saved in server.saved:
        seen.models.append(joined(saved))
    seen.spent = server.controller._run.accountant.get_privacy_spent()


class Network(nn.Module):
    """Of two classes, with the arrays of NVFlare's job."""

    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.zeros(3, 4)), nn.Parameter(torch.zeros(2))

    def forward(self, x):
        return (x @ self.weight.T)[:, :2] + self.bias


def prepared(mechanism, *, untuned, numbers):
    """What `train` makes of this mechanism."""
    data = torch.randn(4, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 1, 0])
    config = TrainConfig(
        Task(CLIENTS), "own", mechanism.record(), cohort=CLIENTS, rounds=ROUNDS,
        trust=mechanism.trust, local=Local(learning_rate="auto" if untuned else 0.1),
        privacy=dataclasses.replace(privacy_of(numbers), clip_norm=mechanism.clip_norm),
    )  # fmt: skip
    problem = make_problem(Network(), [data] * CLIENTS)
    setup = prepare(config, KEY, RunInputs(problem, mechanism))
    preparation = setup.preparation
    if untuned and mechanism.trust == "local":
        # A device counts on itself alone, and a simulation on the cohort (theory/untuned.md).
        offer = Offer(mechanism, setup.dimension, scaled=True)
        assert preparation.noise < offer.preparation.noise
        preparation = dataclasses.replace(preparation, noise=offer.preparation.noise)
    return setup, preparation


def in_process(deployed, mechanism, *, exact, **settings):
    """The same rounds simulated, with the seeds that the other's clients have drawn."""
    seen = Seen()
    setup, preparation = prepared(mechanism, **settings)
    learner = Simulated(np.zeros(DIMENSION, np.float32), exact)
    with ThreadPoolExecutor(1) as pool:
        algorithm = distributed_sgd(
            learner, Recorded(deployed.mechanisms, seen.means), population=CLIENTS,
            server=setup.server, pool=pool, workers=1, preparation=preparation,
        )  # fmt: skip
        state = algorithm.init()
        for _ in range(ROUNDS):
            state, cost = algorithm.apply(state, list(range(CLIENTS)), KEY)
            seen.models.append(-state.parameters)
            seen.numbers.append(cost.numbers or {})
    seen.spent = setup.schedule.guarantee(ROUNDS, ROUNDS)
    return seen


def check_same(deployed, simulated):
    assert len(deployed.means) == ROUNDS
    for one, other in zip(deployed.means, simulated.means, strict=True):
        assert np.array_equal(one, other)
        assert one.any()
    for one, other in zip(deployed.models, simulated.models, strict=True):
        # An engine adds a step to its arrays, which rounds once more.
        assert np.abs(one - other).max() <= ROUNDS * np.spacing(np.abs(other).max())
    assert deployed.spent == simulated.spent


def settings_of(transport, mechanism):
    """(untuned, numbers) that a mechanism allows on a transport."""
    allowed = [(False, False)]
    if mechanism.clip_norm is not None:
        allowed.append((True, False))
        if transport != "nvflare":  # it has no numbers with updates
            allowed.append((True, True))
    return allowed


def cases(transports):
    """Each mechanism on each transport that sums it, with one of the settings that it allows.

    Neighbours in the list have other settings, and so has a mechanism on the next transport: how a
    step is taken does not know which codes were summed, so not every pair of them is needed. The
    first cases, which are not slow, are of all transports.
    """
    lists = []
    for start, (transport, trust) in enumerate(transports):
        lists.append(own := [])
        for name, mechanism in MECHANISMS.items():
            if mechanism.trust != trust or (
                mechanism.helper_noise and transport == "among clients"
            ):
                continue
            allowed = settings_of(transport, mechanism)
            own.append((transport, name, *allowed[(start + len(own)) % len(allowed)]))
    rows = itertools.zip_longest(*lists)
    return [case for row in rows for case in row if case is not None]


ON_FLOWER = [("plain", "local"), ("among clients", "aggregate"), ("helper", "aggregate")]
ON_NVFLARE = [("nvflare", "local"), ("nvflare", "aggregate")]


@pytest.mark.parametrize("transports", [ON_FLOWER, ON_NVFLARE])
def test_every_setting_is_tried_on_every_transport(transports):
    chosen = cases(transports)
    for transport, trust in transports:
        own = {name: each for name, each in MECHANISMS.items() if each.trust == trust}
        wanted = {each for mechanism in own.values() for each in settings_of(transport, mechanism)}
        found = [case for case in chosen if case[0] == transport and case[1] in own]
        assert {case[2:] for case in found} == wanted
        absent = own.keys() - {case[1] for case in found}
        assert all(transport == "among clients" and own[each].helper_noise for each in absent)


@pytest.mark.slow(after=9)
@pytest.mark.parametrize(("sums", "name", "untuned", "numbers"), cases(ON_FLOWER))
def test_a_round_on_flower_is_the_round_in_process(
    sums, name, untuned, numbers, deployed, tmp_path
):
    mechanism, options = MECHANISMS[name], {"untuned": untuned, "numbers": numbers}
    on_flower(deployed, mechanism, tmp_path, helped=sums == "helper", **options)
    simulated = in_process(deployed, mechanism, exact=False, **options)
    check_same(deployed, simulated)
    for one, other in zip(deployed.numbers, simulated.numbers, strict=True):
        assert one == pytest.approx(other)


@pytest.mark.slow(after=6)
@pytest.mark.parametrize(("sums", "name", "untuned", "numbers"), cases(ON_NVFLARE))
def test_a_round_on_nvflare_is_the_round_in_process(
    sums, name, untuned, numbers, deployed, tmp_path
):
    mechanism = MECHANISMS[name]
    on_nvflare(
        deployed, mechanism, tmp_path, untuned=untuned, helped=mechanism.trust == "aggregate"
    )
    simulated = in_process(deployed, mechanism, exact=True, untuned=untuned, numbers=numbers)
    check_same(deployed, simulated)
