"""Audits: the bound against exact binomials, planted faults caught, sound mechanisms left alone."""

import json
import math
import re
from fractions import Fraction
from pathlib import Path

import mpmath
import numpy as np
import pytest
from around import Around
from scipy import stats

import randquant as rq
from randquant import cli
from randquant.aggregation import (
    AdditiveMechanism,
    ChannelMechanism,
    LocalGaussian,
    MechanismDefaults,
    VectorMechanism,
    all_mechanisms,
    gaussian,
    update_mechanism,
)
from randquant.aggregation.channel_mechanisms import _nearest_single
from randquant.audit import (
    MIN_TRIAL_COUNT,
    Outcomes,
    best_event,
    ceiling,
    cohort_inputs,
    in_words,
    least_epsilon,
    proportion,
    statistics,
    worst_inputs,
)
from randquant.channels import wire
from randquant.cli import guarantees as audit_command
from randquant.mechanisms import build

KEY = rq.Key.from_seed(2026)
RESPONSE = ChannelMechanism(rq.pbm(clip=1.0, theta=0.25, trials=1))  # epsilon = log 3
PAPER = ChannelMechanism(rq.rqm(clip=1.5, margin=1.5, levels=16, keep=0.42))


def audited(mechanism, dimension=1, trials=2000, inputs=None, **options):
    update, other = inputs or worst_inputs(mechanism, dimension)
    return rq.audit(mechanism, update, other, trials=trials, key=KEY, **options)


# The bound


def tail(trials: int, low: int, high: int, p: Fraction) -> Fraction:
    """Pr[low <= Bin(trials, p) <= high], exactly."""
    return sum(
        (math.comb(trials, k) * p**k * (1 - p) ** (trials - k) for k in range(low, high + 1)),
        Fraction(0),
    )


@pytest.mark.parametrize("trials", [1, 2, 7, 40])
@pytest.mark.parametrize("error", [0.25, 0.005, 1e-9])
def test_clopper_pearson_in_fractions(trials, error):
    for hits in range(trials + 1):
        lower, upper = (Fraction(float(end)) for end in proportion(hits, trials, error))
        if hits > 0:  # below `lower` so many hits or more are too unlikely, just above they are not
            assert tail(trials, hits, trials, lower) <= Fraction(error)
            assert tail(trials, hits, trials, lower * (1 + Fraction(2, 10**9))) > Fraction(error)
        else:
            assert lower == 0
        if hits < trials:
            assert tail(trials, 0, hits, upper) <= Fraction(error)
            assert upper == 1 or tail(trials, 0, hits, upper * (1 - Fraction(2, 10**9))) > error
        else:
            assert upper == 1


def far_tail(trials: int, hits: int, p: float, step: int) -> mpmath.mpf:
    """Pr[Bin(trials, p) >= hits] (step 1) or <= hits (step -1), beyond the mean, to 40 digits."""
    odds = mpmath.mpf(p) / (1 - mpmath.mpf(p))
    term = total = mpmath.binomial(trials, hits) * odds**hits * (1 - mpmath.mpf(p)) ** trials
    while 0 <= hits + step <= trials and term > total * mpmath.mpf(10) ** -40:
        up = mpmath.mpf(trials - hits) / (hits + 1) * odds
        term *= up if step == 1 else mpmath.mpf(hits) / (trials - hits + 1) / odds
        hits += step
        total += term
    return total


@pytest.mark.parametrize("trials", [1000, 10**6])
def test_the_slack_covers_the_floating_point(trials):
    with mpmath.workdps(50):
        for hits in (1, 2, 37, trials // 3, trials // 2):
            for error in (0.1, 0.005, 1e-8):
                lower, upper = map(float, proportion(hits, trials, error))
                assert 0.999 * error < far_tail(trials, hits, lower, 1) <= error
                assert 0.999 * error < far_tail(trials, hits, upper, -1) <= error


@pytest.mark.parametrize("delta", [0.0, 0.3])
@pytest.mark.parametrize("error", [0.3, 0.05])
def test_coverage_by_enumeration(delta, error):
    """Summed over all pairs of counts, the bound errs with a probability of at most `error`."""
    trials = 25
    counts = np.arange(trials + 1)
    bounds = least_epsilon(counts[:, None], counts[None], trials, delta, error)
    often = 0.0
    for q in (0.02, 0.1, 0.4):
        for epsilon in (0.0, 0.5, 1.0):
            p = min(math.exp(epsilon) * q + delta, 1.0)
            truth = math.log((p - delta) / q)
            chances = np.outer(
                stats.binom.pmf(counts, trials, p), stats.binom.pmf(counts, trials, q)
            )
            wrong = chances[bounds > truth].sum()
            assert wrong <= error
            often = max(often, wrong)
    assert often > error / 50  # the bound is not so loose that it could never err


def test_the_ceiling_is_the_most_that_counts_can_show():
    counts = np.arange(51)
    bounds = least_epsilon(counts[:, None], counts[None], 50, 0.01, 0.05)
    assert bounds.max() == ceiling(50, 0.01, 0.05)
    assert ceiling(10_000, 0.0, 0.01) == pytest.approx(math.log(10_000 / math.log(200)), abs=1e-3)
    assert ceiling(1, 0.0, 0.05) == 0.0  # one trial shows nothing, and no epsilon is below 0
    assert least_epsilon(0, 50, 50, 0.0, 0.05) == -math.inf


# The attack


def worth(hits, others, trials):
    return least_epsilon(hits, others, trials, 0.0, 0.01)


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("upwards", [False, True])
def test_the_best_event_of_a_known_pair_is_found(swapped, upwards):
    """Only code 0 tells much, and only in the world where it can be sent."""
    codes = np.arange(4.0)[:, None]
    nothing = np.zeros(4), np.zeros((4, 0), dtype=np.uint8)
    outcomes = Outcomes(codes if upwards else -codes, *nothing)
    generator = np.random.default_rng(1)
    rows = [0.1, 0.3, 0.3, 0.3], [0.0, 0.3, 0.3, 0.4]
    worlds = [generator.choice(4, 4000, p=row) for row in (rows[::-1] if swapped else rows)]
    scores = statistics(outcomes, worlds[0][:2000], worlds[1][:2000])
    event = best_event(scores, worlds[0][2000:], worlds[1][2000:], worth)
    assert event.likelier == ("other" if swapped else "update")
    assert event.contains.tolist() == [True, False, False, False]
    assert in_words(event, outcomes) == "decoded value 0"


def test_the_linear_statistic_weighs_coordinates_by_their_noise():
    """One coordinate is as quiet as the worlds are far apart, the other drowns both."""
    noise = np.random.default_rng(1).normal(size=(4000, 2)) * [1, 100]
    decoded = noise + np.repeat([[1.0], [-1.0]], 2000, axis=0)
    outcomes = Outcomes(decoded, np.zeros(4000), np.zeros((4000, 0), dtype=np.uint8))
    worlds = np.arange(2000), np.arange(2000, 4000)
    score = statistics(outcomes, *worlds)["weighted sum of the decoded coordinates"]
    inside, outside = (score[world] for world in worlds)
    assert 1.9 < (inside.mean() - outside.mean()) / inside.std() < 2.1


@pytest.mark.slow
def test_an_event_is_not_counted_where_it_was_chosen():
    """Two equal inputs: a bound above 0 is an error, and as rare as for one event fixed before.

    Counting among the trials that the event was chosen by would make at least half of them err.
    """
    counts, x = np.arange(101), np.full(16, 0.3, dtype=np.float32)
    errs = least_epsilon(counts[:, None], counts[None], 100, 0.0, 0.5) > 0
    masses = (stats.binom.pmf(counts, 100, p) for p in np.linspace(0.01, 0.99, 99))
    chance = max(np.outer(mass, mass)[errs].sum() for mass in masses)
    wrong = sum(
        rq.audit(PAPER, x, x, trials=200, confidence=0.5, key=KEY.fold_in(seed)).epsilon_lower > 0
        for seed in range(40)
    )
    assert wrong <= stats.binom.isf(1e-6, 40, chance) < 20


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(
    ("mechanism", "truth", "share"),
    [(RESPONSE, math.log(3), 0.88), (PAPER, 5.469888, 0.85)],
    ids=["response", "rqm"],
)
def test_what_really_leaks_is_found(mechanism, truth, share):
    found = audited(mechanism, trials=8000)
    assert share * truth < found.epsilon_lower <= truth


def test_many_coordinates_leak_more_than_one():
    one, many = (audited(RESPONSE, dimension, trials=1500) for dimension in (1, 12))
    assert many.epsilon_lower > 2 * one.epsilon_lower
    assert many.epsilon_lower < many.ceiling < many.epsilon_stated


@pytest.mark.slow
def test_the_sum_of_a_cohort_leaks_less_than_its_terms():
    cohort = ChannelMechanism(RESPONSE.channel, "aggregate")
    others = -np.ones((4, 1), dtype=np.float32)
    alone, summed = audited(cohort, others=others[:0]), audited(cohort, others=others)
    assert 0 < summed.epsilon_lower < 0.85 * alone.epsilon_lower


# Planted faults


def shared_key(mechanism, clients: int):
    """Clients of one trial encode with the key of the first."""
    calls = []

    def encode(update, key):
        calls.append(calls[-1] if len(calls) % clients else key)
        return mechanism.encode(update, calls[-1])

    return Around(mechanism, encode)


def unclipped(mechanism):
    """Skellam noise on an update that nobody clipped."""

    def encode(update, key):
        plan = mechanism.plan(update.size)
        steps = np.rint(
            mechanism.projection(update.size).rotation.forward(update.astype(np.float64))
            * plan.scale
        )
        noisy = steps.astype(np.int64) + plan.noise.draw(plan.size, key.fold_in("noise"))
        return wire.pack(mechanism.coding, (noisy % 2**mechanism.bits).astype(np.uint32))

    return Around(mechanism, encode)


def test_a_biased_sampler_is_caught():
    """In a fifth of its draws it sends the sign of the update."""

    def encode(update, key):
        codes = rq.encode(RESPONSE.channel, update, key)
        honest = key.fold_in("bias").words(1)[0] >= 2**64 // 5
        return wire.pack(RESPONSE.channel, codes if honest else (update > 0).astype(np.uint8))

    assert audited(Around(RESPONSE, encode)).contradicted


@pytest.mark.parametrize(
    "mechanism",
    [
        RESPONSE,
        PAPER,
        ChannelMechanism(RESPONSE.channel, "aggregate"),
        LocalGaussian(clip_norm=1.0, noise_multiplier=2.0),
    ],
    ids=["response", "rqm", "summed", "gaussian"],
)
@pytest.mark.slow
def test_a_key_that_clients_share_is_caught(mechanism):
    assert audited(shared_key(mechanism, 2), trials=3000, delta=1e-5).contradicted
    assert not audited(mechanism, trials=3000, delta=1e-5).contradicted


def test_a_leak_in_the_lowest_bit_of_a_float_is_caught():
    gaussian = LocalGaussian(clip_norm=1.0, noise_multiplier=8.0)

    def encode(update, key):
        words = np.frombuffer(gaussian.encode(update, key), dtype="<u4")
        return (words & ~np.uint32(1) | (update > 0)).astype("<u4").tobytes()

    found = audited(Around(gaussian, encode), delta=1e-5)
    assert found.contradicted
    assert "bytes" in found.event


def test_outcomes_that_never_change_are_warned_of():
    fixed = Around(RESPONSE, lambda update, key: RESPONSE.encode(np.zeros_like(update), KEY))
    found = audited(fixed, trials=MIN_TRIAL_COUNT)
    assert found.constant
    assert not found.contradicted
    assert any(line.startswith("warning") for line in found.lines())
    assert not audited(RESPONSE, trials=MIN_TRIAL_COUNT).constant


def test_a_missing_clip_is_caught():
    local, central = LocalGaussian(1.0, 4.0), gaussian(4.0, clip_norm=1.0)
    summed = AdditiveMechanism("skellam", clip_norm=1.0, noise_multiplier=4.0, cohort=2)
    channel = rq.stochastic_rounding(clip=1.0, levels=2, margin=1.0)
    whole, zero = VectorMechanism(channel, clip_norm=0.1), np.zeros(2, dtype=np.float32)
    raw = {
        local: lambda update, key: (update + local.noisy(zero, key)).astype("<f4").tobytes(),
        central: lambda update, key: update.astype("<f4").tobytes(),
        whole: VectorMechanism(channel, clip_norm=100.0).encode,
    }
    inputs = np.full(2, 4.0, dtype=np.float32), np.full(2, -4.0, dtype=np.float32)
    faulty = [Around(mechanism, encode) for mechanism, encode in raw.items()]
    for mechanism in (*faulty, unclipped(summed)):
        assert audited(mechanism, inputs=inputs, trials=1000, delta=1e-5).contradicted
    for mechanism in (local, central, whole, summed):
        assert not audited(mechanism, inputs=inputs, trials=200, delta=1e-5).contradicted


# Sound mechanisms


SOUND = {
    **{name: each.example for name, each in all_mechanisms().items() if each.trusts},
    "channel-file": {"path": str(Path(__file__).parents[1] / "designed.json")},
}


@pytest.mark.parametrize("neighboring", ["replace_one", "zero_out"])
@pytest.mark.parametrize("cohort", [1, 3])
@pytest.mark.parametrize("dimension", [1, 5])
@pytest.mark.slow
def test_whole_updates_through_a_channel(neighboring, cohort, dimension):
    channel = rq.stochastic_rounding(clip=0.5, levels=2, margin=0.5)
    trust = "local" if cohort == 1 else "aggregate"
    mechanism = VectorMechanism(channel, 1.0, trust, cohort)
    update, other, others = cohort_inputs(mechanism, dimension, cohort, neighboring)
    inputs, options = (update, other), {"others": others, "neighboring": neighboring}
    found = audited(mechanism, inputs=inputs, trials=1500, delta=1e-3, **options)
    assert 0 < found.epsilon_lower <= found.epsilon_stated
    assert found.stated.neighboring == neighboring


@pytest.mark.parametrize("name", SOUND)
@pytest.mark.slow
def test_a_sound_mechanism_is_not_contradicted(name):
    record = all_mechanisms()[name]
    for trust in ("",) if record.whole_update else record.trusts:
        if trust == "aggregate" and build(name, SOUND[name]).lattice is None:
            continue  # refused: sums of uneven values mean nothing
        mechanism = update_mechanism(name, SOUND[name], trust=trust, cohort=2)
        found = audited(mechanism, trials=600, delta=1e-5)
        assert 0 < found.epsilon_lower <= found.epsilon_stated < math.inf


def test_nothing_is_stated_for_what_protects_nothing():
    found = audited(update_mechanism("clipped-sgd", {"clip": 1.0}), trials=400)
    assert found.epsilon_lower == found.ceiling
    assert found.epsilon_stated == math.inf
    assert not found.contradicted
    assert "stated   no guarantee" in found.lines()


# Inputs and the command


def test_default_inputs_are_those_of_the_certificate():
    inputs = worst_inputs(PAPER, 3)
    assert [list(update) for update in inputs] == [
        [np.float32(x)] * 3 for x in rq.certify(PAPER.channel).witness
    ]
    beyond = worst_inputs(LocalGaussian(0.5, 2.0), 1)
    assert beyond[0] == -beyond[1] >= 100
    jumping = rq.qmgeo(clip=1.0, levels=4, p=0.3, mixing=0.1)  # worst at one side of a jump
    for x in jumping.inputs[1:-1]:
        for side in (x, np.nextafter(x, -np.inf)):
            single = _nearest_single(jumping, float(side))
            assert jumping.locate(np.float64(single))[0] == jumping.locate(np.float64(side))[0]


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"delta": 1.0}, "delta"),
        ({"confidence": 1.0}, "confidence"),
        ({"trials": MIN_TRIAL_COUNT - 1}, "trials"),
        ({"trials": 2**26}, "memory"),
        ({"others": np.zeros((1, 2), dtype=np.float32)}, "one dimension"),
        ({"others": np.zeros(1, dtype=np.float32)}, "others to be"),
        ({"others": np.zeros((1, 1, 1), dtype=np.float32)}, "others to be"),
        ({"others": np.zeros((1, 1), dtype=int)}, "others to be"),
        ({"inputs": (np.zeros(1), np.zeros(2))}, "one dimension"),
        ({"neighboring": "zero_out"}, "zeros"),
        ({"neighboring": "add"}, "zero_out"),
        ({"inputs": (np.zeros((1, 1)), np.zeros(1))}, "update to be a vector"),
        ({"inputs": (np.zeros(1), np.zeros(1, dtype=int))}, "other to be a vector"),
    ],
)
def test_wrong_arguments_raise_one_sentence(wrong, word):
    with pytest.raises(ValueError, match=word):
        audited(RESPONSE, **wrong)


def test_wrong_inputs_raise_one_sentence():
    with pytest.raises(ValueError, match="clip_norm, clip or channel"):
        MechanismDefaults.audit_inputs(RESPONSE)  # what one without a threshold answers
    for wrong in ({"x": math.nan}, {"x": 1e39}, {"neighboring": "add"}):
        with pytest.raises(ValueError, match="Expected"):
            cohort_inputs(RESPONSE, 1, 2, **wrong)


def test_inputs_of_a_cohort():
    update, other, others = cohort_inputs(RESPONSE, 2, 3, "zero_out", x=0.5)
    assert update.tolist() == [0.5, 0.5]
    assert other.tolist() == [0, 0]
    assert others.tolist() == [[0, 0], [0, 0]]
    assert all(array.dtype == np.float32 for array in (update, other, others))


def run(capsys, line):
    code = cli.main(line.split())
    output = capsys.readouterr()
    return code, output.out, output.err


LINE = "audit pbm --clip 1 --theta 0.25 --trials 1 --audit-trials 2000"
SAME = "stochastic-rounding --clip 1 --levels 2 --margin 1"
"""The same law at two vertices: its sums are certified at once."""


def test_the_command_prints_what_was_stated_and_shown(capsys):
    code, out, _ = run(capsys, LINE.replace("2000", "200"))
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()[1:]] == [
        "stated", "audited", "event", "verdict",
    ]  # fmt: skip
    code, out, _ = run(capsys, LINE + " --json")
    found = json.loads(out)
    assert code == 0
    assert 0.8 < found["epsilon_lower"] < math.log(3) < found["epsilon"] + 1e-4
    assert not found["contradicted"]
    assert (found["counted"], len(found["hits"])) == (1000, 2)
    line = LINE.replace("pbm --clip 1 --theta 0.25 --trials 1", SAME).replace("2000", "200")
    code, out, _ = run(capsys, f"{line} --neighboring zero_out --trust aggregate --cohort 3 --json")
    assert code == 0
    assert 0 <= json.loads(out)["epsilon_lower"] < 0.7
    code, out, _ = run(capsys, LINE.replace("2000", "200") + " --dimension 40")
    assert "limit" in out


def test_the_command_states_what_holds_of_the_neighbours_that_it_attacks(capsys):
    stated = {}
    for neighboring in ("replace_one", "zero_out"):
        line = LINE.replace("pbm --clip 1 --theta 0.25 --trials 1", SAME).replace("2000", "200")
        code, out, _ = run(capsys, f"{line} --neighboring {neighboring} --delta 0 --json")
        found = json.loads(out)
        assert (code, found["stated"]["neighboring"]) == (0, neighboring)
        stated[neighboring] = found["epsilon"]
    # Of 1/4 and 3/4, and of one of them and 1/2.
    assert stated["replace_one"] == pytest.approx(math.log(3))
    assert stated["zero_out"] == pytest.approx(math.log(2))


@pytest.mark.parametrize("option", ["", " --json"])
def test_the_command_fails_where_a_fault_shows(option, capsys, monkeypatch):
    shared = shared_key(RESPONSE, 2)
    monkeypatch.setattr(audit_command, "update_mechanism", lambda *_, **__: shared)
    code, out, _ = run(capsys, LINE + option)
    assert code == 1
    assert json.loads(out)["contradicted"] if option else out.count("CONTRADICTED") == 1


def test_the_figures_of_the_docs_are_those_of_their_command(capsys):
    page = (Path(__file__).parents[2] / "docs" / "audit.md").read_text()
    line = re.search(r"^\$ randquant (audit .*)$", page, flags=re.MULTILINE).group(1)
    code, out, _ = run(capsys, line)
    lower, upper = (re.search(rf"epsilon {sign} ([\d.]+)", out).group(1) for sign in (">=", "<="))
    assert code == 0
    assert f"{lower} of the {upper} stated" in page
