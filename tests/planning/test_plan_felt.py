"""The verdict where it is known what the loss feels of noise: theory/plan.md, Proposition 2."""

import json
import math
import re

import numpy as np
import pytest

import randquant as rq
from randquant import cli
from randquant.aggregation.registry import update_mechanism
from randquant.planning.plan.planner import plan
from randquant.planning.plan.verdict import FELT_HOPELESS, FELT_USEFUL

ASKED = (3840, 1014, 1014, 4)
MEAN, RANK, CLIP = 0.0712, 220.0, 1.4


def planned(epsilon=8.0, **known):
    known = {"mean_norm": MEAN, "effective_rank": RANK, **known}
    names = ["stochastic-rounding"]
    return plan(*ASKED, epsilon, 1e-5, bits=1, clip_norm=CLIP, mechanisms=names, **known)


def gain_said(found):
    (said,) = [each for each in found.advice if each.startswith("Of means of norm")]
    return said


def decrease(sizes, slope, noise, step):
    """Of f(x) = Σ sizes·x²/2 + slope·x from 0, expected over noise of one variance a coordinate."""
    exact = step * slope @ slope - step**2 * (slope**2 @ sizes + noise**2 * sizes.sum()) / 2
    return exact, step * slope @ slope - step**2 * sizes.max() * slope @ slope / 2


@pytest.mark.parametrize("top", [True, False])
def test_the_proposition_on_a_quadratic(top):
    draw = np.random.default_rng(5)
    sizes = np.array([4.0, 4.0, 1.0, 0.1, 0.0, -0.3])
    slope = np.array([1.0, -2.0, 0, 0, 0, 0]) if top else draw.standard_normal(6)
    noise, largest = 0.7, 4.0
    felt = noise**2 * 6 / (slope @ slope) * (sizes.sum() / largest) / 6
    step = 1 / (largest * (1 + felt))
    found, _ = decrease(sizes, slope, noise, step)
    assured = slope @ slope / (2 * largest * (1 + felt))
    assert found == pytest.approx(assured) if top else found > assured
    steps = np.linspace(0, 1, 10_001)
    bound = steps * (slope @ slope) - largest * (1 + felt) * steps**2 * (slope @ slope) / 2
    assert bound.max() == pytest.approx(assured, rel=1e-6)
    without = max(decrease(sizes, np.array([1.0, -2.0, 0, 0, 0, 0]), 0.0, s)[1] for s in steps)
    assert without == pytest.approx(5 / (2 * largest), rel=1e-6)


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
    for _ in range(1500):
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
    assert f"effective rank of 220 feels it like noise {ratio:.3g} times as long" in said
    assert f"keeps {100 / (1 + ratio**2):.2g} %" in said
    assert found.kept == pytest.approx(1 / (1 + ratio**2))
    clients = int(re.search(r"about ([\d,]+) clients", said)[1].replace(",", ""))
    assert clients == math.ceil(3 * ratio * 1014)
    alike = gain_said(planned(effective_rank=ASKED[0]))
    worst = gain_said(planned(effective_rank=None))
    assert alike.partition(": with")[2] == worst.partition(": with")[2]
    assert planned(mean_norm=None, effective_rank=None).kept is None


@pytest.mark.parametrize(
    ("ratio", "verdict"),
    [(FELT_USEFUL * 0.99, "useful"), (FELT_USEFUL * 1.01, "doubtful"),
     (FELT_HOPELESS * 0.99, "doubtful"), (FELT_HOPELESS * 1.01, "hopeless")],
)  # fmt: skip
def test_the_verdict_is_on_noise_that_is_felt(ratio, verdict):
    length = planned().recommended.noise.length * CLIP / MEAN
    found = planned(effective_rank=ASKED[0] * (ratio / length) ** 2)
    assert found.verdict == verdict
    remedies = [each for each in found.advice if each.startswith("It would take")]
    assert bool(remedies) == (verdict != "useful")
    for said in remedies:  # what fewer parameters would leave of this Hessian, nobody knows
        assert re.match(r"It would take about [\d,]+ clients, all of them in each round, or", said)
        clients = int(re.search(r"[\d,]+", said)[0].replace(",", ""))
        assert clients == math.ceil(ratio / FELT_USEFUL * 1014)


def test_what_noise_in_all_coordinates_alike_called_hopeless_is_not_where_little_is_felt():
    blind = plan(103_424, *ASKED[1:], 2.0, 1e-5, bits=1, clip_norm=4.0,
                 mechanisms=["stochastic-rounding"])  # fmt: skip
    known = plan(103_424, *ASKED[1:], 2.0, 1e-5, bits=1, clip_norm=4.0, mean_norm=0.204,
                 effective_rank=280, mechanisms=["stochastic-rounding"])  # fmt: skip
    assert (blind.verdict, known.verdict) == ("hopeless", "doubtful")


def test_a_rank_alone_is_refused():
    for given in ({"mean_norm": None}, {"mean_norm": 0.0}):
        with pytest.raises(ValueError, match=r"^Expected mean_norm above 0 with effective_rank"):
            planned(**given)
    for rank in (0.5, 3841):
        with pytest.raises(ValueError, match=r"^Expected effective_rank >= 1 and <= 3840"):
            planned(effective_rank=rank)


def test_on_the_command_line(capsys):
    words = ["plan", "--dimension", "3840", "--population", "1014", "--cohort", "1014", "--rounds",
             "4", "--epsilon", "8", "--bits", "1", "--clip-norm", "1.4", "--mechanisms",
             "stochastic-rounding", "--mean-norm", "0.0712", "--effective-rank", "220",
             "--json"]  # fmt: skip
    assert cli.main(words) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["need"]["effective_rank"] == 220
    assert printed["verdict"] == "useful"
    assert 0.5 < printed["kept"] < 0.7
