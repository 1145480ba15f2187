"""The figure beside the stated one: never below what an attacker of that relation attains."""

import json
import math
import re
from dataclasses import dataclass, replace
from decimal import Decimal

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from made_runs import promise, record
from oracle import epsilon_of_laws
from pages import Page
from scipy import optimize, stats

import randquant as rq
from randquant import cli
from randquant.aggregation import AdditiveMechanism, update_mechanism
from randquant.mechanisms import DiscreteGaussian, Skellam
from randquant.privacy import GaussianRelease, Guarantee, account, run_release, under_other_relation
from randquant.reports import render_run
from randquant.statistics import survey
from randquant.statistics.query import Cells, Products, Tree

DELTA = 1e-5
OF_EXAMPLES = 4
ADD_OR_REMOVE = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE


def both(mechanism, dimension, rounds, delta=DELTA, examples=None):
    """The stated figure, for replace_one, and the one beside it."""

    def released(relation):
        return run_release(mechanism, dimension, rounds, relation, examples=examples)

    stated = account([released("replace_one")], delta)
    return stated, under_other_relation(stated, released)


# Gaussian noise, beside what another library states for adding or removing.


@pytest.mark.parametrize("name", ["gaussian", "local-gaussian"])
@pytest.mark.parametrize("rounds", [1, 20])
@pytest.mark.parametrize("examples", [None, OF_EXAMPLES])
def test_gaussian_noise_has_what_others_state_for_adding_or_removing(name, rounds, examples):
    """Noise of z times the clipping threshold, by their accountant of privacy loss."""
    mechanism = update_mechanism(name, {"clip_norm": 1.5, "noise_multiplier": 2.5})
    stated, beside = both(mechanism, 7, rounds, examples=examples)
    # Its own multiplier is relative to the distance of any two updates, 2 · clip_norm; a mean of
    # examples moves by that of one of them.
    theirs = mechanism.noise_multiplier * (examples or 1)
    accountant = PLDAccountant(ADD_OR_REMOVE, value_discretization_interval=1e-4)
    accountant.compose(dp_accounting.GaussianDpEvent(theirs), rounds)
    assert beside.epsilon == pytest.approx(accountant.get_epsilon(DELTA), rel=2e-3)
    assert beside.neighboring == "zero_out"
    assert (beside.delta, beside.trust, beside.unit) == (stated.delta, stated.trust, stated.unit)
    assert beside.epsilon < stated.epsilon


# Codes and integer noise, beside the pair of sums that is farthest apart.


def attained(p, q, delta):
    """The least epsilon that no event exceeds at this delta, in either order, from the laws."""
    return max(epsilon_of_laws(p, q, delta), epsilon_of_laws(q, p, delta))


def law_of_sum(channel, inputs):
    """The law of the sum of codes, from the rows of weights: each input by itself."""
    law = np.ones(1)
    for x in inputs:
        rows = np.array(channel.weights, np.float64) / float(channel.denominator)
        row = [np.interp(x, channel.inputs, column) for column in rows.T]
        law = np.convolve(law, row)
    return law


@pytest.mark.parametrize("examples", [None, OF_EXAMPLES])
@pytest.mark.parametrize("trust", ["local", "aggregate"])
def test_no_pair_of_sums_of_codes_attains_more(trust, examples):
    """One coordinate, one round: every input of the client and of the others on a grid."""
    clip, cohort = 1.0, 8 if trust == "aggregate" else 1
    parameters = {"clip": clip, "levels": 2, "margin": 3.0}
    mechanism = update_mechanism(
        "stochastic-rounding", parameters, trust=trust, clip_norm=clip,
        cohort=cohort if trust == "aggregate" else None,
    )  # fmt: skip
    delta = 1e-3
    stated, beside = both(mechanism, 1, 1, delta, examples)
    ends, part = (-clip, 0.0, clip), 1 / (examples or 1)
    most = {"zero_out": 0.0, "replace_one": 0.0}
    for own in ends:
        for other in ends:
            for rest in ends if examples else (0.0,):
                for others in ends if cohort > 1 else (0.0,):
                    pair = [part * each + (1 - part) * rest for each in (own, other)]
                    laws = [law_of_sum(mechanism.channel, [x, *[others] * (cohort - 1)])
                            for x in pair]  # fmt: skip
                    found = attained(*laws, delta)
                    most["replace_one"] = max(most["replace_one"], found)
                    if other == 0.0:
                        most["zero_out"] = max(most["zero_out"], found)
    assert 0 < most["zero_out"] <= beside.epsilon <= stated.epsilon
    assert most["zero_out"] < most["replace_one"] <= stated.epsilon
    assert beside.epsilon < 4 * most["zero_out"]  # and it is of this pair's size


@pytest.mark.parametrize("examples", [None, OF_EXAMPLES])
@pytest.mark.parametrize("kind", ["skellam", "discrete-gaussian"])
def test_no_pair_of_sums_with_integer_noise_attains_more(kind, examples):
    """Sums of one coordinate whose client is at the threshold, or at zero."""
    cohort, clip = 2, 1.0
    deviation = 1.2 if examples is None else 0.6
    mechanism = AdditiveMechanism(kind, clip, deviation, cohort=cohort, bits=12)
    stated, beside = both(mechanism, 1, 1, DELTA, examples)
    noise, scale = mechanism.plan(1).noise, mechanism.plan(1).scale
    steps = round(scale * clip / (examples or 1))
    ks = np.arange(-40_000, 40_001) if steps > 2000 else np.arange(-8_000, 8_001)
    if isinstance(noise, Skellam):
        variance = cohort * noise.variance
        law = stats.norm.pdf(ks, 0, math.sqrt(variance)) if variance > 1e6 else stats.skellam.pmf(
            ks, variance / 2, variance / 2
        )  # fmt: skip
    else:
        assert isinstance(noise, DiscreteGaussian)
        one = np.exp(-(ks.astype(float) ** 2) / (2 * noise.variance))
        one /= one.sum()
        law = np.real(np.fft.ifft(np.fft.fft(one) ** cohort))
        law = np.roll(np.maximum(law, 0.0), len(ks) // 2 + 1)
    found = attained(law, np.roll(law, steps), DELTA)
    assert 0 < found <= beside.epsilon < stated.epsilon
    assert beside.epsilon < 2 * found


# Tables: a record's vector is no longer than two records are apart.


@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("block", [Cells(1), Cells(5), Tree(2), Tree(3), Tree(7), Tree(16),
                                   Products(1), Products(2), Products(4)], ids=repr)  # fmt: skip
def test_no_record_is_longer_than_two_records_are_apart(block, norm):
    amplitude, key = 50, rq.Key.from_seed(1)
    if isinstance(block, Products):
        ends = np.stack(np.meshgrid(*[[-1.0, 0.0, 1.0]] * block.columns), -1).reshape(
            -1, block.columns
        )
        rows = [*ends, np.full(block.columns, np.nan)]
    else:
        rows = list(range(block.count + 1))
    for row in rows:
        vector = block.total(np.array([row]), amplitude, norm, key)
        length = np.abs(vector).sum() if norm == "l1" else (vector**2).sum()
        assert length <= block.distance(amplitude, norm)


@pytest.mark.parametrize("unit", ["client", "example"])
@pytest.mark.parametrize("trust", ["central", "aggregate"])
def test_a_table_states_both_and_prints_both(trust, unit):
    records = [{"age": np.arange(20.0, 24.0)} for _ in range(50)]
    table = rq.statistics(records, 1.0, queries={"age": rq.Mean(0, 100)}, trust=trust, unit=unit)
    assert list(table.guarantees) == ["replace_one", "zero_out"]
    beside = table.guarantees["zero_out"]
    assert beside.epsilon <= table.guarantee.epsilon
    assert table.guarantees["replace_one"] == table.guarantee
    assert str(table).splitlines()[-1].endswith(str(beside))
    terms = survey({"age": rq.Mean(0, 100)}, 1.0, 1e-6, trust, 50, 50, unit=unit)
    assert terms.under("zero_out").epsilon <= terms.guarantee.epsilon


# What is not derived is not stated.


@dataclass(frozen=True)
class _OneRelation:
    """A mechanism of somebody's own that knows one relation."""

    answer: object

    def release(self, dimension, rounds, neighboring="replace_one"):
        if neighboring == "replace_one":
            return GaussianRelease(1.0, dimension, rounds)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    "answer",
    [
        None, ValueError("not derived"), NotImplementedError(), AssertionError(), TypeError(),
        GaussianRelease(1.0, 3, 1),  # whatever it is asked for
        GaussianRelease(1.0, 3, 1, neighboring="zero_out", one_example=True),
        GaussianRelease(1.0, 3, 1, "local", neighboring="zero_out"),
    ],
    ids=repr,
)  # fmt: skip
def test_where_the_other_relation_is_not_derived_nothing_is_stated(answer):
    assert both(_OneRelation(answer), 3, 1)[1] is None


def test_what_was_spent_before_counts_under_both_or_there_is_no_second_figure():
    def released(relation):
        return GaussianRelease(4.0, 3, 1, neighboring=relation)

    def before(relation):
        return Guarantee(0.5, DELTA / 2, relation, "central", math.inf, 1)

    alone = account([released("replace_one")], DELTA / 2)
    stated = replace(alone + before("replace_one"), delta=DELTA, simulated=True)
    beside = under_other_relation(stated, released, before)
    assert beside.epsilon >= account([released("zero_out")], DELTA / 2).epsilon + 0.5
    assert (beside.delta, beside.simulated) == (DELTA, True)
    assert under_other_relation(stated, released, lambda relation: None) is None
    known = before("replace_one")  # a figure alone says nothing of the other relation
    assert under_other_relation(stated, released, lambda relation: known) is None


# Command line and pages print the figure itself, rounded up.


def test_the_command_line_prints_the_second_figure_no_smaller_than_it_is(capsys):
    words = (
        "account local-gaussian --clip-norm 1 --noise-multiplier 4 --dimension 3 --rounds 1 "
        f"--delta 1e-5 --examples {OF_EXAMPLES}"
    ).split()
    assert cli.main(words) == 0
    printed = capsys.readouterr().out.splitlines()
    assert cli.main([*words, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    exact = [
        result["other_relation"]["epsilon"],
        result["one_example"]["other_relation"]["epsilon"],
    ]
    lines = [line for line in printed if "is left out (counts as zeros)" in line]
    assert len(lines) == 2
    for line, epsilon, multiplier in zip(lines, exact, (4.0, 4.0 * OF_EXAMPLES), strict=True):
        value = Decimal(re.findall(r"epsilon <= ([0-9.e-]+) at", line)[0])
        # Of Gaussian noise the exact epsilon is known: N(0, 1) and N(1 / multiplier, 1).
        mu = 1 / multiplier

        def excess(x, mu=mu):
            upper, lower = stats.norm.cdf(mu / 2 - x / mu), stats.norm.cdf(-mu / 2 - x / mu)
            return upper - math.exp(x) * lower - 1e-5

        oracle = optimize.brentq(excess, 0.0, 20.0, xtol=1e-12)
        assert oracle - 1e-9 <= epsilon
        assert Decimal(epsilon) <= value <= Decimal(epsilon) * Decimal("1.00001")


@pytest.mark.parametrize("epsilon", [0.1, 9.9999995, 3.123456789, 152345.6, 5e-324])
@pytest.mark.parametrize("stated", ["replace_one", "zero_out"])
def test_a_page_prints_each_figure_for_its_relation_and_no_smaller_than_it_is(epsilon, stated):
    """The larger one is of replacing: under the other relation's name it would be too small."""
    figures = {"zero_out": epsilon, "replace_one": 2 * epsilon}
    claim, other = (replace(promise(figures[each]), neighboring=each) for each in
                    sorted(figures, key=lambda each: each != stated))  # fmt: skip
    run = record(claim, rounds=1)
    summary = replace(run.summary, other_relation=other)
    words = Page(render_run(replace(run, summary=summary))).words.replace("\u00a0", " ")
    number, one_client = "ε ≤ ([0-9][0-9,.e+-]*[0-9])", "(?: if one client is "
    for relation, ends in {
        "zero_out": f"{one_client}left out|: its contribution)",
        "replace_one": f"{one_client}replaced|\\. Both hold)",
    }.items():
        printed = re.findall(number + ends, words)
        assert len(printed) == 1 + (relation != stated)
        for text in printed:
            assert Decimal(figures[relation]) <= Decimal(text.replace(",", ""))
    assert "How to compare it with other figures." in words
    assert "Both hold" not in Page(render_run(run)).words
