"""The verdict where it is known what the loss feels of noise: theory/plan.md, Proposition 2."""

import functools
import math
import re

import numpy as np
import pytest

import randquant as rq
from randquant.aggregation.registry import update_mechanism
from randquant.planning.plan.planner import plan
from randquant.planning.plan.record import DecodedError, Need, kept_of
from randquant.planning.plan.verdict import LONG, USEFUL
from randquant.planning.privacy import Privacy

ASKED = (3840, 1014, 1014, 4)
MEAN, RANK, CLIP = 0.0712, 220.0, 1.4


@functools.cache
def planned(epsilon=8.0, **known):
    known = {"mean_norm": MEAN, "effective_rank": RANK, **known}
    names = ["stochastic-rounding"]
    return plan(
        *ASKED, epsilon, 1e-5, privacy=Privacy(bits=1, clip_norm=CLIP), mechanisms=names, **known
    )


def gain_said(found):
    (said,) = [each for each in found.advice if each.startswith("Of means of norm")]
    return said


@pytest.mark.parametrize("top", [True, False])
def test_the_proposition_on_a_quadratic(top):
    """f(x) = Σ sizes·x²/2 + slope·x from 0: the best of many steps, noise averaged by formula."""
    sizes, dimension = np.array([4.0, 4.0, 1.0, 0.1, 0.0, -0.3]), 6
    slope = np.array([1.0, -2.0, 0, 0, 0, 0]) if top else np.array([1.0, 0, 2.0, 1.0, -1.0, 0.5])
    mean = slope if top else np.array([0.5, 0.1, 1.0, 0.7, 0.2, 0.5])  # not along the gradient
    steps = np.linspace(0, 3, 300_001)

    def best(deviation):
        squares = mean**2 @ sizes + deviation**2 * sizes.sum()
        return (steps * (slope @ mean) - steps**2 * squares / 2).max()

    deviation = 0.7
    need = Need(dimension, 10, 10, 1, 1.0, 1e-5, "aggregate", Privacy(bits=1, clip_norm=2.0), 1,
                mean_norm=float(np.linalg.norm(mean)), effective_rank=sizes.sum() / 4)  # fmt: skip
    length = deviation * math.sqrt(dimension) / need.clip_norm
    said = kept_of(need.felt(DecodedError(deviation, None, length, length)))
    found = best(deviation) / best(0.0)
    assert found == pytest.approx(said, rel=1e-6) if top else found < 0.9 * said


def test_a_decoded_mean_errs_alike_in_all_directions():
    """The covariance of the proposition, of codes that were drawn."""
    mechanism = update_mechanism(
        "stochastic-rounding", {"clip": 0.5, "levels": 2, "margin": 0.6},
        trust="aggregate", cohort=8, clip_norm=1.0,
    )  # fmt: skip
    draw = np.random.default_rng(1)
    updates = draw.standard_normal((8, 64)).astype(np.float32)
    updates /= np.linalg.norm(updates, axis=1, keepdims=True)
    squares = []
    for _ in range(800):
        payloads = [mechanism.encode(each, rq.Key.generate()) for each in updates]
        error = mechanism.mean(payloads, 64) - updates.mean(0)
        squares.append(error**2)
    by_coordinate = np.mean(squares, axis=0)
    spread = np.std(squares, axis=0) / math.sqrt(len(squares))
    assert np.all(abs(by_coordinate - by_coordinate.mean()) < 5 * spread)
    assert by_coordinate.mean() == pytest.approx(
        mechanism.expected_error(64).deviation(8) ** 2, rel=0.05
    )


def test_what_is_kept_is_said():
    found = planned()
    ratio = found.recommended.noise.length * CLIP / MEAN * math.sqrt(RANK / ASKED[0])
    said = gain_said(found)
    assert f"felt like noise {ratio:.3g} times as long" in said
    assert f"keeps at most {100 / (1 + ratio**2):.2g} %" in said
    assert found.kept == pytest.approx(1 / (1 + ratio**2))
    clients = int(re.search(r"about ([\d,]+) clients", said)[1].replace(",", ""))
    assert clients == math.ceil(3 * ratio * 1014)
    alike = gain_said(planned(effective_rank=ASKED[0]))
    worst = gain_said(planned(effective_rank=None))
    assert re.search(r"[\d.]+ %", alike)[0] == re.search(r"[\d.]+ %", worst)[0]
    assert planned(mean_norm=None, effective_rank=None).kept is None


@pytest.mark.parametrize(
    ("share", "verdict"),
    [(USEFUL * 0.99, "useful"), (USEFUL * 1.01, "doubtful"),
     (LONG * 0.99, "doubtful"), (LONG * 1.01, "hopeless")],
)  # fmt: skip
def test_the_verdict_is_on_noise_that_is_felt(share, verdict):
    length = planned().recommended.noise.length * CLIP / MEAN
    found = planned(effective_rank=ASKED[0] * (share * 2 / length) ** 2)
    assert found.verdict == verdict
    assert (
        f"the loss feels: over the whole run {share:.3g} times the norm of the sum"
        in found.advice[1]
    )
    remedies = [each for each in found.advice if "it would take" in each]
    assert bool(remedies) == (verdict != "useful")
    for said in remedies:  # what fewer parameters would leave of this Hessian, nobody knows
        assert re.search(r"it would take about [\d,]+ clients, all of them in each round\.$", said)
        clients = int(re.search(r"about ([\d,]+)", said)[1].replace(",", ""))
        assert clients == math.ceil(share / USEFUL * 1014)


def test_the_verdict_does_not_depend_on_the_number_of_rounds():
    """At a given guarantee noise grows with their root; what is kept of each round falls."""
    known = {"mean_norm": 0.4, "effective_rank": 8.0, "mechanisms": ["skellam"]}
    found = [
        plan(650, 1000, 1000, rounds, 2.0, 1e-5, privacy=Privacy(bits=16), **known)
        for rounds in (3, 48)
    ]
    few, many = (each.need.felt(each.recommended.noise) for each in found)
    assert many / math.sqrt(48) == pytest.approx(few / math.sqrt(3), rel=0.1)
    assert found[0].verdict == found[1].verdict
    assert found[1].kept < found[0].kept


def test_a_rank_alone_is_refused():
    for given in ({"mean_norm": None}, {"mean_norm": 0.0}):
        with pytest.raises(
            ValueError, match=r"^Expected mean_norm above 0 with effective_rank, got [N0]"
        ):
            planned(**given)
    for rank in (0.5, 3841):
        with pytest.raises(ValueError, match=r"^Expected effective_rank >= 1 and <= 3840"):
            planned(effective_rank=rank)
