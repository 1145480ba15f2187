"""No two neighbours are farther apart, once encoded, than the distance that is charged.

A search for the farthest pair, through `encode` itself, over every combination of mechanism, unit,
relation and subset. What a mechanism's randomness hides is read where it is about to be hidden.
"""

import math

import numpy as np
import pytest
from mechanisms_built import built

from randquant.aggregation import (
    AdditiveMechanism,
    AuxiliaryNumbers,
    HelperNoise,
    Number,
    baselines,
    clip_to_norm,
    update_mechanism,
)
from randquant.channels import Key, encoding, wire
from randquant.mechanisms import NOISES
from randquant.planning import calibrate
from randquant.privacy import (
    GaussianRelease,
    HiddenCohorts,
    Ledger,
    NoiseRelease,
    VectorRelease,
    run_release,
)
from randquant.rounds import Offer

DIMENSION, NORM = 8, 1.0
RELATIONS = ("replace_one", "zero_out")
EXAMPLES = (None, 1, 3, 50)
BITS = {"clip": 0.25, "levels": 2, "margin": 0.75}


def whole_updates():
    """Every mechanism that clips a whole update; bits also of two subsets under local trust."""
    mechanisms = {n: m for n, m in built().items() if m.clip_norm is not None and m.trust}
    for count in (1, 2):
        for trust, cohort in (("local", None), ("aggregate", 3)):
            mechanisms[f"{trust} bits, {count} of 8"] = update_mechanism(
                "stochastic-rounding", BITS, trust=trust, cohort=cohort, clip_norm=NORM,
                coordinates=count,
            ).in_round(3)  # fmt: skip
    for kind in NOISES:
        for count in (None, 1, 2):
            mechanisms[f"fine {kind}, {count or 8} of 8"] = AdditiveMechanism(
                kind, NORM, 2.0, cohort=3, bits=19 if kind == "skellam" else 14, coordinates=count
            ).in_round(3)
    for count in (None, 1, 2):
        mechanisms[f"fine noise of a helper, {count or 8} of 8"] = HelperNoise(
            NORM, 2.0, 3, bits=14, coordinates=count
        ).in_round(3)
    return mechanisms


WHOLE = whole_updates()


@pytest.fixture
def hidden(monkeypatch):
    """Return what randomness is added to when an update is encoded, in the units of a distance."""
    inputs = []
    run = encoding._run

    def recording(encoder, x, *rest):
        inputs.append(np.array(x, np.float64))
        return run(encoder, x, *rest)

    monkeypatch.setattr(encoding, "_run", recording)
    monkeypatch.setattr(baselines, "_normals", lambda count, key: np.zeros(count))
    noisy = baselines.LocalGaussian.noisy

    def recording_noisy(self, update, key):
        inputs.append(noisy(self, update, key))
        return inputs[-1]

    monkeypatch.setattr(baselines.LocalGaussian, "noisy", recording_noisy)
    for law in {type(noise(50.0)) for noise in NOISES.values()}:
        monkeypatch.setattr(law, "draw", lambda self, size, key: np.zeros(size, np.int64))

    def encoded(mechanism, update, seed):
        inputs.clear()
        payload = mechanism.encode(update.astype(np.float32), Key.from_seed(seed))
        if inputs:
            return inputs[0]
        if isinstance(mechanism, AdditiveMechanism | HelperNoise):
            size = mechanism.size(DIMENSION)
            codes = wire.unpack(mechanism.coding, payload, size, size - DIMENSION)
            half = 1 << (mechanism.bits - 1)
            return ((codes.astype(np.int64) + half) & (2 * half - 1)) - half
        return np.frombuffer(payload, "<f4").astype(np.float64)

    return encoded


def charged(mechanism, release):
    """The distance, in the units of what is encoded, that a release's bound is computed for."""
    if isinstance(release, VectorRelease):
        return release.sensitivity
    if isinstance(release, NoiseRelease):
        return math.sqrt(release.squared_distance)
    return mechanism.noise_multiplier * NORM / release.gaussian_multiplier


def directions(mechanism, rng):
    """Gradients to begin with: some within what a subset sends, along axes, and random ones."""
    rows = [*np.eye(DIMENSION), rng.normal(size=DIMENSION), np.ones(DIMENSION)]
    if not isinstance(mechanism, baselines.CentralGaussian | baselines.LocalGaussian) and hasattr(
        mechanism, "projection"
    ):
        projection = mechanism.projection(DIMENSION)
        if projection.coordinates is not None:
            # The updates whose rotation has the most of its norm in the subset.
            matrix = np.stack([projection.rotation.forward(row) for row in np.eye(DIMENSION)])
            rows = [*np.linalg.svd(matrix[:, projection.indices])[0].T[:2], *rows]
    return [row / np.linalg.norm(row) for row in rows]


def farthest(mechanism, encoded, relation, examples, tries, seed=0):
    """The largest distance of neighbours that hill-climbing finds."""
    rng = np.random.default_rng(seed)
    # A client may have more examples than the public number that it divides by.
    count = examples or 1
    others = 0 if examples is None else max(count - 1, 1)

    def distance(pair):
        own, other, rest = (NORM * row for row in pair)
        if relation == "zero_out":
            other = np.zeros(DIMENSION)
        if examples is None and relation == "zero_out":
            return np.linalg.norm(encoded(mechanism, own, 1) * 1.0)
        updates = [
            (clip_to_norm(row, NORM).astype(np.float64) + others * rest) / count
            for row in (own, other)
        ]
        one, two = (encoded(mechanism, row, seed) for seed, row in enumerate(updates))
        return np.linalg.norm(one - two)

    starts = directions(mechanism, rng)
    rests = [np.zeros(DIMENSION), -starts[0], -starts[0] / 2, rng.normal(size=DIMENSION) / 4]
    pairs = [(row, -row, rest) for row in starts for rest in rests]
    best = max(pairs, key=distance)
    most = distance(best)
    for _ in range(tries):
        step = rng.choice([0.01, 0.1, 1.0])
        tried = [row + step * rng.normal(size=DIMENSION) for row in best]
        pair = tuple(row / max(np.linalg.norm(row), 1.0) for row in tried)
        if (reached := distance(pair)) > most:
            best, most = pair, reached
    return most


@pytest.mark.parametrize("examples", EXAMPLES)
@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("mechanism", WHOLE.values(), ids=WHOLE)
def test_no_neighbours_are_farther_apart_than_is_charged(mechanism, relation, examples, hidden):
    """1,500 tries find none farther by a ten-thousandth than 20 do: the starts are nearly there."""
    release = run_release(mechanism, DIMENSION, 1, relation, examples=examples)
    most, limit = farthest(mechanism, hidden, relation, examples, 20), charged(mechanism, release)
    assert most <= limit * (1 + 1e-9)
    # On a fine grid, and without one, the charge is what can be reached, but for roundings.
    rounding = (
        2 * math.sqrt(mechanism.size(DIMENSION)) + 1 if isinstance(release, NoiseRelease) else 0
    )
    assert most >= 0.9 * (limit - 2 * rounding)


@pytest.mark.parametrize("kind", ["skellam", "bits"])
def test_the_search_notices_a_distance_that_is_taken_of_what_is_sent(kind, hidden, monkeypatch):
    """A planted error: an example's share of norm_sent; its gradient may lie in the subset."""
    mechanism = WHOLE[{"skellam": "fine skellam, 2 of 8", "bits": "local bits, 2 of 8"}[kind]]
    most = farthest(mechanism, hidden, "replace_one", 50, 20)
    sent = mechanism.projection(DIMENSION).norm_sent
    scale = mechanism.plan(DIMENSION).scale if kind == "skellam" else 1.0
    rounding = 2 * math.sqrt(2) if kind == "skellam" else 0.0
    assert most > scale * 2 * sent / 50 * 1.3 + rounding


UNDERIVED = {n: m for n, m in built().items() if n not in WHOLE and m.trust}


@pytest.mark.parametrize("mechanism", UNDERIVED.values(), ids=UNDERIVED)
def test_a_mechanism_without_a_derived_distance_is_refused_for_one_example(mechanism):
    """At every door: accounting, calibration, ledgers and offers."""
    doors = [
        lambda: run_release(mechanism, DIMENSION, 1, examples=20),
        lambda: Ledger(mechanism, DIMENSION, delta=1e-5, examples=20),
        lambda: calibrate(lambda noise: mechanism, 1.0, 1e-5, DIMENSION, 1, examples=20),
        lambda: Offer(mechanism, DIMENSION, examples=20),
    ]
    for door in doors:
        with pytest.raises((ValueError, TypeError), match=r"Expected a mechanism that"):
            door()


class Stubborn:
    """A mechanism of somebody's own, whose releases are what they are, whatever is asked."""

    def __init__(self, **of):
        self.answer = GaussianRelease(2.0, DIMENSION, 1, "local", **of)

    def release(self, dimension, rounds, neighboring="replace_one"):
        return self.answer

    def example_release(self, dimension, rounds, neighboring, examples):
        return self.answer


@pytest.mark.parametrize("examples", [None, 20])
@pytest.mark.parametrize("relation", RELATIONS)
def test_a_release_of_another_relation_or_unit_than_was_asked_for_is_refused(relation, examples):
    """Its figure would be printed, and compared with a limit, as that of what was asked for."""
    other = next(each for each in RELATIONS if each != relation)
    one = examples is not None
    asked = {"neighboring": relation, "examples": examples}
    found = run_release(Stubborn(neighboring=relation, one_example=one), DIMENSION, 1, **asked)
    assert (found.neighboring, found.unit) == (relation, "example" if one else "client")
    for wrong in (Stubborn(neighboring=other, one_example=one),
                  Stubborn(neighboring=relation, one_example=not one)):  # fmt: skip
        for door in (lambda m: run_release(m, DIMENSION, 1, **asked),
                     lambda m: Ledger(m, DIMENSION, delta=1e-5, **asked)):  # fmt: skip
            with pytest.raises(ValueError, match=f"Expected Stubborn to release one .*{relation}"):
                door(wrong)


def test_numbers_and_hidden_cohorts_are_refused_for_one_example():
    mechanism = update_mechanism("stochastic-rounding", BITS, clip_norm=NORM)
    numbers = AuxiliaryNumbers(NORM, (Number("age", 0, 100),))
    with pytest.raises(ValueError, match="Expected no numbers with an update"):
        Offer(mechanism, DIMENSION, scalars=numbers, examples=100)
    with pytest.raises(ValueError, match="Expected no numbers with an update"):
        Offer(mechanism, DIMENSION, scalars=numbers).for_unit(100)
    cohorts = HiddenCohorts("poisson", 10, 2, 5)
    with pytest.raises(ValueError, match="Expected participation that is seen"):
        Ledger(mechanism, DIMENSION, delta=1e-5, examples=20, cohorts=cohorts)
