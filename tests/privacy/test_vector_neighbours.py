"""Whole updates of neighbours, from their vectors to every outcome: in sums, and in hidden cohorts.

What is certified of pairs of inputs (`test_vector_pairs.py`) is compared here with exact laws of
what a server sees, at the neighbours that are farthest apart.
"""

import functools
import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

import randquant as rq
from randquant.aggregation import AuxiliaryNumbers, Number
from randquant.channels import Channel, Key, encoding
from randquant.privacy import Sampled

UNEVEN = Channel(
    np.array([-1.0, 2.0**-20, 1.0]), np.arange(2.0), np.array([[60, 4], [40, 24], [1, 63]]), 64
)
THREE = Channel(
    np.array([-1.0, 0.3, 1.0]), np.arange(3.0),
    np.array([[50, 13, 1], [20, 24, 20], [1, 13, 50]]), 64,
)  # fmt: skip
CHANNELS = {"bit": rq.stochastic_rounding(1.0, 2, 0.3), "uneven": UNEVEN, "three": THREE}


@pytest.mark.parametrize("coordinates", [None, 3])
@pytest.mark.parametrize(
    "zeros",
    [np.zeros(5, np.float32), -np.zeros(5), {"a": np.array([[0, -0.0]]), "b": np.zeros(1)}],
)
def test_zeros_are_encoded_as_zeros(monkeypatch, zeros, coordinates):
    """Clipped, rotated and restricted they are what Proposition 18 takes one of two updates for."""
    if isinstance(zeros, dict):
        zeros = {name: part.astype(np.float32) for name, part in zeros.items()}
    inputs, run = [], encoding._run

    def recording(encoder, x, *rest):
        inputs.append(np.array(x))
        return run(encoder, x, *rest)

    monkeypatch.setattr(encoding, "_run", recording)
    for rotation_seed, subset_seed in itertools.product(range(4), repeat=2):
        mechanism = rq.VectorMechanism(
            UNEVEN, 1e-30, rotation_seed=rotation_seed, coordinates=coordinates
        )
        mechanism.in_round(subset_seed).encode(zeros, Key.from_seed(0))
    assert len(inputs) == 16
    assert not np.any(inputs)


def place(channel, x: float) -> tuple[list[int], int]:
    return channel.mix(float(np.clip(x, -channel.clip, channel.clip)))


def laws_of_sums(channel, x: float, clients: int) -> list[np.ndarray]:
    """The law of a sum of codes for each way to have the others at vertices; exact until the end.

    A sum is linear in each row, so the others are farthest at vertices.
    """
    rows = [[int(w) for w in row] for row in channel.weights]
    own, total = place(channel, x)
    total *= channel.denominator ** (clients - 1)
    laws = []
    for others in itertools.combinations_with_replacement(rows, clients - 1):
        law = functools.reduce(np.convolve, [np.array(r, object) for r in (own, *others)])
        laws.append(np.array([float(Fraction(int(w), total)) for w in law]))
    return laws


def moment(p: np.ndarray, q: np.ndarray, order: float) -> float:
    return math.log((p**order * q ** (1 - order)).sum()) / (order - 1)


def farthest_neighbours(mechanism, relation: str):
    """What is sent of pairs of updates of two coordinates, rotated to lie along or across axes."""
    projection = mechanism.projection(2)
    axes = [projection.rotation.inverse(axis) for axis in np.eye(2)]
    axes += [(axes[0] + axes[1]) / math.sqrt(2)]
    norm, edge = mechanism.clip_norm, min(mechanism.clip_norm, mechanism.channel.clip)
    for axis, sign in itertools.product(axes, (1, -1)):
        for length in {norm, edge}:
            other = 0.0 if relation == "zero_out" else -sign * length
            pair = [projection.forward(np.float32(c * axis)) for c in (sign * length, other)]
            yield pair
            yield pair[::-1]


@pytest.mark.parametrize("relation", ["replace_one", "zero_out"])
@pytest.mark.parametrize("clients", [1, 2, 3])
@pytest.mark.parametrize("name", CHANNELS)
def test_no_sum_of_the_farthest_updates_exceeds_the_bound(name, clients, relation):
    """Updates of two coordinates, within the clip, at it and beyond, in sums of a few clients."""
    channel, closest = CHANNELS[name], 0.0
    trust = "local" if clients == 1 else "aggregate"
    for norm in (0.05, 1.0, 3.0):
        mechanism = rq.VectorMechanism(channel, norm, trust, clients)
        release = mechanism.release(2, 1, relation)
        for order in (1.5, 4.0):
            bound = release.renyi(order)
            for pair in farthest_neighbours(mechanism, relation):
                exact = 0.0
                for x, other in zip(*pair, strict=True):
                    both = (laws_of_sums(channel, at, clients) for at in (x, other))
                    exact += max(moment(p, q, order) for p, q in zip(*both, strict=True))
                assert exact <= bound * (1 + 1e-9)
                closest = max(closest, exact / bound)
    assert closest > 0.9


@pytest.mark.parametrize("examples", [1, 2, 4])
def test_one_examples_gradient_moves_a_coordinate_from_clip_to_clip_under_both_relations(examples):
    """Beside others' gradients, that reach one end of the channel, also its absence does."""
    narrow = rq.stochastic_rounding(clip=0.1, levels=2, margin=0.3)
    for order in (2.0, 8.0):
        exact = rq.certify_pair(narrow, 0.1, -0.1, order).epsilon.lower
        for relation in ("replace_one", "zero_out"):
            release = rq.VectorRelease(narrow, 1.0, 1, 1, neighboring=relation, examples=examples)
            assert exact <= release.renyi(order) < 1.2 * exact


@pytest.mark.parametrize("relation", ["replace_one", "zero_out"])
@pytest.mark.parametrize("name", CHANNELS)
@pytest.mark.parametrize("rate", [0.05, 0.6])
def test_no_hidden_cohort_of_the_farthest_updates_exceeds_the_bound(name, relation, rate):
    """An absent client sends zeros, also where neither of two updates is zero."""
    channel, order, delta, rounds, closest = CHANNELS[name], 3.0, 1e-3, 2, 0.0

    def law(at) -> np.ndarray:
        rows = [np.array([float(Fraction(w, total)) for w in row])
                for row, total in (place(channel, x) for x in at)]  # fmt: skip
        return np.multiply.outer(*rows).ravel()

    for norm in (0.1, 1.0):
        mechanism = rq.VectorMechanism(channel, norm)
        release = Sampled(mechanism.release(2, 1, relation), rate, rounds, hidden=True)
        bound, epsilon = release.renyi(order), rq.account([release], delta).epsilon
        for pair in farthest_neighbours(mechanism, relation):
            absent = law(np.zeros(2))
            first, second = ((1 - rate) * absent + rate * law(at) for at in pair)
            exact = rounds * moment(first, second, order)
            assert exact <= bound * (1 + 1e-9)
            closest = max(closest, exact / bound)
            p, q = (np.multiply.outer(each, each).ravel() for each in (first, second))
            assert np.maximum(p - math.exp(epsilon) * q, 0).sum() <= delta * (1 + 1e-9)
    assert closest > 0.5


def test_numbers_beside_updates_are_left_out_with_them():
    """No farther from zeros than an update alone: Proposition 18 is for vectors of both."""
    scalars = AuxiliaryNumbers(1.0, (Number("accuracy"), Number("loss", 0, 9)), None)
    mechanism = rq.VectorMechanism(THREE, 1.0)
    bound = mechanism.release(4, 1, "zero_out").renyi(2.0)
    worst = 0.0
    for update, accuracy, loss in itertools.product(
        np.vstack([np.eye(2), -np.eye(2), np.zeros((1, 2))]), (0, 0.5, 1), (0, 9, math.inf)
    ):
        vector = scalars.join(9 * update, {"accuracy": accuracy, "loss": loss})
        sent = mechanism.projection(4).forward(vector)
        p, q = ([np.array(place(THREE, x)[0], float) for x in at] for at in (sent, np.zeros(4)))
        for one, other in ((p, q), (q, p)):
            exact = sum(
                moment(a / a.sum(), b / b.sum(), 2.0) for a, b in zip(one, other, strict=True)
            )
            assert exact <= bound
            worst = max(worst, exact)
    assert worst > 0.2 * bound
