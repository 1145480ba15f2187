import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import problems
import pytest
from around import Around

import randquant as rq
from randquant.aggregation import ChannelMechanism, ClippedSGD
from randquant.channels import Key, wire
from randquant.local_training import Learner, group_steps
from randquant.local_training import client as learner_module
from randquant.training import OptimizerStep, distributed_sgd, torch_optimizer

POPULATION = 30
IMAGES = ["softmax", "mlp", "mlp32", "wide", "cnn"]
CHANNEL = rq.rqm(clip=0.05, margin=0.05, levels=16, keep=0.42)


def make_learner(model: str) -> Learner:
    return Learner(problems.problem("digits", model, POPULATION, seed=3, skew=True))


@pytest.fixture
def pool():
    with ThreadPoolExecutor(2) as workers:
        yield workers


def server_of(learner, rate, name="SGD", **options):
    return OptimizerStep(torch_optimizer(name, rate, options), [(learner.dimension,)])


def algorithm(learner, mechanism, pool, workers=2):
    return distributed_sgd(
        learner,
        mechanism,
        population=POPULATION,
        server=server_of(learner, 0.7),
        pool=pool,
        workers=workers,
    )


def test_threads_compute_gradients_on_models_of_their_own(pool, monkeypatch):
    """A functional call swaps weights into its model while it runs: two at once must not share."""
    learner = make_learner("mlp")
    expected = learner.updates([0, 7])[0]
    both, seen = threading.Barrier(2, timeout=300), []

    def call(model, features, weights):
        seen.append(id(model))
        both.wait()  # both threads are inside
        return original(model, features, weights)

    original = group_steps.called
    monkeypatch.setattr(group_steps, "called", call)
    for gradients, _ in pool.map(learner.updates, [[0, 7]] * 2):
        assert np.array_equal(gradients, expected)
    assert len(set(seen)) == 2


@pytest.mark.parametrize("model", IMAGES)
def test_a_round_is_algorithm_1_of_the_paper(model, pool):
    learner = make_learner(model)
    run = algorithm(learner, ChannelMechanism(CHANNEL), pool)
    state, cohort, root = run.init(), [1, 4, 9, 16, 25], Key.from_seed(8)
    after, cost = run.apply(state, cohort, root)

    learner.load(state.parameters)
    total = np.zeros(learner.dimension)
    for client, gradient in zip(cohort, learner.updates(cohort)[0], strict=True):
        codes = rq.encode(CHANNEL, gradient, root.fold_in(1).fold_in("client", client))
        total += codes
    n, m = len(cohort), CHANNEL.levels
    mean = -0.1 + 2 * total * 0.1 / (n * (m - 1))  # line 10, with clip + margin = 0.1
    expected = state.parameters - 0.7 * mean
    assert np.abs(after.parameters - expected).max() < 1e-6
    assert after.round == 1
    assert after.participations[cohort].tolist() == [1] * 5
    assert after.participations.sum() == 5
    assert cost.bytes_up == 5 * (wire.HEADER_BYTES + wire.body_bytes(CHANNEL, learner.dimension))


def exact(encode=None):
    """A mechanism for the exact mean, and the keys that its clients and its server are given."""
    plain, clients, server = ClippedSGD(1e30), [], []

    def noted(update, key):
        clients.append(key.words(4).tobytes())
        return plain.encode(update, key)

    def mean(payloads, dimension, key):
        server.append(key.words(4).tobytes())
        return plain.mean(payloads, dimension, key)

    return Around(plain, encode or noted, mean), clients, server


def test_keys_of_a_round_are_those_of_its_number_and_its_clients(pool):
    """By name, so that a run that is resumed, or done elsewhere, draws the same."""
    (mechanism, clients, server), root = exact(), Key.from_seed(1)
    run = algorithm(make_learner("cnn"), mechanism, pool)  # of several groups
    state, cohort = run.init(), [9, 2, 5, 11, 3, 4]
    for _ in range(2):
        state, _ = run.apply(state, cohort, root)
    rounds = [root.fold_in(number) for number in (1, 2)]
    expected = {key.fold_in("client", c).words(4).tobytes() for key in rounds for c in cohort}
    assert set(clients) == expected
    assert len(clients) == 12
    assert server == [key.fold_in("server").words(4).tobytes() for key in rounds]


@pytest.mark.parametrize(
    ("name", "options"), [("SGD", {}), ("Adam", {}), ("SGD", {"momentum": 0.9})]
)
@pytest.mark.parametrize("model", ["softmax", "cnn"])
def test_rounds_are_steps_of_the_server_at_the_weights_so_far(pool, model, name, options):
    learner, other = (make_learner(model) for _ in range(2))
    server = server_of(learner, 0.1, name, **options)
    run = distributed_sgd(
        learner, exact()[0], population=POPULATION, server=server, pool=pool, workers=2
    )
    state, cohort = run.init(), [9, 2, 5, 11, 3]
    parameters, kept = other.parameters(), server.init()
    for number in (1, 2, 3):
        before, calls = state.parameters.copy(), state.participations.copy()
        after, cost = run.apply(state, cohort, Key.from_seed(1))
        assert np.array_equal(state.parameters, before)  # a state is a value
        assert np.array_equal(state.participations, calls)
        other.load(parameters)
        updates, losses = other.updates(cohort)
        mean = updates.astype(float).mean(axis=0).astype(np.float32)
        parameters, kept = server.step(parameters, mean, kept)
        # Adam divides small numbers by small ones: what rounding changes may become a step.
        apart = np.abs(after.parameters - parameters)
        assert np.quantile(apart, 0.99) < 2e-6
        assert cost.train_loss == pytest.approx(losses.mean(), rel=1e-5)
        assert cost.bytes_up == 5 * 4 * other.dimension
        assert after.round == number
        parameters, kept = after.parameters, after.optimizer
        state = after
    assert np.flatnonzero(state.participations).tolist() == sorted(cohort)
    assert state.participations.max() == state.participations[cohort].min() == 3


def test_a_round_without_clients_only_counts(pool):
    run = algorithm(make_learner("softmax"), ChannelMechanism(CHANNEL), pool)
    state = run.init()
    after, cost = run.apply(state, [], Key.from_seed(0))
    assert (after.round, cost.bytes_up, cost.train_loss) == (1, 0, None)
    assert np.array_equal(after.parameters, state.parameters)
    assert not after.participations.any()


@pytest.mark.parametrize("together", [True, False])
def test_every_clients_update_is_checked_whoever_it_is_with(pool, together, monkeypatch):
    """In the middle of a group and in the last one; a mechanism might send what it is given."""
    monkeypatch.setattr(learner_module, "KEPT_NUMBERS_LIMIT", 2**23 if together else 1)
    learner = make_learner("softmax")

    def encode(update, key):
        return np.nan_to_num(update).astype("<f4").tobytes()

    original = learner.updates

    def updates(clients, key=None):
        found, losses = original(clients, key)
        found = found.copy()
        found[[client == 5 for client in clients], 3] = np.inf
        return found, losses

    monkeypatch.setattr(learner, "updates", updates)
    run = algorithm(learner, exact(encode)[0], pool)
    for cohort in ([5, 3], [3, 5], [1, 5, 2]):
        with pytest.raises(ValueError, match="Client 5: Expected a finite update"):
            run.apply(run.init(), cohort, Key.from_seed(0))


@pytest.mark.parametrize("cohort", [[4, 4], [4, 1, 4], [1, 2, 3, 1]])
def test_a_client_cannot_be_in_a_cohort_twice(pool, cohort):
    run = algorithm(make_learner("softmax"), ChannelMechanism(CHANNEL), pool)
    with pytest.raises(ValueError, match="once in a cohort"):
        run.apply(run.init(), cohort, Key.from_seed(0))
