"""A survey on engines: the same sums, accounts and refusals as a round of training."""

import dataclasses
import datetime
import hashlib
import json
import math
import warnings

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flower_grid import InProcessGrid
from flower_surveys import answers, asked_once

import randquant as rq
from randquant.aggregation import from_record
from randquant.channels import Key
from randquant.flower import Offer, QuantizeMod, WithHelper
from randquant.privacy import run_release
from randquant.rounds import ClientLimits
from randquant.secure_sums import Helper, ProtocolError
from randquant.statistics import MAX_VECTOR_VALUE, SurveyMechanism, survey
from randquant.statistics.table import read_columns

ASKED = {
    "age": rq.Mean(0, 100),
    "sex": rq.Counts(["f", "m"]),
    "stay": rq.Quantiles(0, 30, steps=16),
}
WARDS = 4
SIZE = SurveyMechanism(survey(ASKED, 1.0, 1e-6, "local", 1, 3)).dimension


def ward(number, records=500):
    rng = np.random.default_rng(number)
    return {
        "age": rng.normal(55, 12, records),
        "sex": rng.choice(["f", "m"], records),
        "stay": rng.exponential(6, records),
    }


@pytest.fixture(params=["gaussian", "laplace"])
def mechanism(request):
    many = {f"age {k}": rq.Mean(0, 100, column="age") for k in range(12)}
    asked = {**ASKED, **many} if request.param == "gaussian" else ASKED
    terms = survey(asked, 1.0, 1e-6, "aggregate", WARDS, WARDS * 500, unit="example", most=500)
    assert (terms.norm == "l1") == (request.param == "laplace")
    return SurveyMechanism(terms)


def test_a_sum_of_shares_is_read_as_the_table(mechanism):
    key = Key.from_seed(0)
    payloads = [
        mechanism.encode(mechanism.update(ward(k), key.fold_in(k)), Key.generate())
        for k in range(WARDS)
    ]
    table = mechanism.table(mechanism.mean(payloads), WARDS, WARDS * 500)
    truth = sum(int((ward(k)["sex"] == "f").sum()) for k in range(WARDS))
    assert abs(table["sex"]["f"].estimate - truth) < 8 * table["sex"]["f"].noise_error
    assert table.guarantee.epsilon <= 1
    assert table.guarantee.unit == "example"
    with pytest.raises(ValueError, match="Expected at least 4 payloads"):
        mechanism.mean(payloads[:3])
    with pytest.raises(ValueError, match="Expected at least 4 payloads"):
        mechanism.decode(np.zeros(mechanism.terms.dimension, np.int64), 3, mechanism.dimension)
    modulus = 2**mechanism.terms.bits
    with pytest.raises(ValueError, match=rf"from 0 to {modulus - 1}, got {modulus}: give secure"):
        mechanism.decode(np.full(mechanism.terms.dimension, modulus), 4, mechanism.dimension)


def test_a_mean_of_fewer_than_the_noise_counts_on_is_no_table(mechanism):
    """Such as the zeros of a round that failed."""
    with pytest.raises(ValueError, match=f"clients >= {WARDS}.* is no table"):
        mechanism.table(np.zeros(mechanism.dimension), WARDS - 1, records=0)


def test_whoever_answers_beyond_the_cohort_adds_noise_that_the_table_states(mechanism):
    few, many = (
        mechanism.table(np.zeros(mechanism.dimension), clients, records=0)["sex"]["f"]
        for clients in (WARDS, 9 * WARDS)
    )
    assert many.noise_error == pytest.approx(3 * few.noise_error)


def test_one_record_costs_what_the_table_says_and_a_whole_client_more(mechanism):
    release = mechanism.release(mechanism.dimension, 1)
    example = run_release(mechanism, mechanism.dimension, 1, examples=500)
    one = rq.account([example], 1e-6)
    assert one.epsilon == pytest.approx(mechanism.terms.guarantee.epsilon)
    assert one.unit == "example"
    assert rq.account([release], 1e-6).epsilon > 100
    alone = rq.account([example.under("local")], 1e-6)
    assert alone.epsilon > 1.5 * one.epsilon
    assert mechanism.release(mechanism.dimension, 0).renyi(2.0) == 0


@pytest.mark.parametrize("delta", [1e-6, 1e-30])
def test_a_survey_of_clients_does_not_count_for_one_record(delta):
    """One of a site's records is drawn: with probability 1/n one patient is the whole vector."""
    asked = {f"x{k}": rq.Mean(0, 1) for k in range(20)}
    mechanism = SurveyMechanism(survey(asked, 8.0, delta, "aggregate", 50, 50))
    for ask in (
        lambda: run_release(mechanism, mechanism.dimension, 1, examples=100),
        lambda: Offer(mechanism, mechanism.dimension, examples=100),
        lambda: Offer(mechanism, mechanism.dimension).for_unit(100),
    ):
        with pytest.raises(ValueError, match=r"Expected a survey of unit='example'"):
            ask()


def test_a_vector_of_other_terms_is_refused(mechanism):
    """A server could have a client compute by larger amplitudes than it offers to account for."""
    other = SurveyMechanism(
        survey(ASKED, 2.0, 1e-6, "aggregate", WARDS, WARDS * 500, unit="example", most=500)
    )
    update = other.update(ward(0), Key.from_seed(0))
    same_size = np.resize(update, mechanism.dimension)
    for vector in (update, same_size, np.zeros(mechanism.dimension)):
        with pytest.raises(ValueError, match="Expected a vector of this survey"):
            mechanism.encode(vector, Key.generate())
    with pytest.raises(ValueError, match="Expected at most 500 records of a client"):
        mechanism.update(ward(0, records=501), Key.from_seed(0))


def test_a_message_to_another_question_is_not_added_up():
    """It has the same integers, modulus and noise, and counts something else."""
    asked, other = (
        SurveyMechanism(survey({"sex": rq.Counts(of)}, 1.0, 1e-6, "aggregate", 2, 2))
        for of in (["f", "m"], ["m", "f"])
    )
    assert (asked.terms.bits, asked.dimension) == (other.terms.bits, other.dimension)
    sent = [
        each.encode(each.update({"sex": "f"}, Key.from_seed(0)), Key.generate())
        for each in (asked, asked, other)
    ]
    asked.mean(sent[:2])
    with pytest.raises(ValueError, match="Expected"):
        asked.mean(sent[1:])


def test_a_vector_bears_the_whole_digest_of_its_terms(mechanism):
    """Of half the bits somebody found two surveys in 19 minutes: small steps, and large ones."""
    update = mechanism.update(ward(0), Key.from_seed(0))
    marks = update[mechanism.terms.dimension :]
    digest = hashlib.sha256(mechanism.survey.encode()).digest()
    assert marks.astype("<u2").tobytes() == digest
    for bit in range(256):
        other = np.frombuffer(digest, "<u2").copy()
        other[bit // 16] ^= 1 << bit % 16
        with pytest.raises(ValueError, match="Expected a vector of this survey"):
            mechanism.encode(np.append(update[: -len(marks)], other), Key.generate())
    sent = len(mechanism.encode(update, Key.generate()))
    assert sent == 40 + -(-mechanism.terms.dimension * mechanism.terms.bits // 8)


def test_terms_travel_as_text_and_others_are_refused(mechanism):
    assert from_record(json.loads(json.dumps(mechanism.record()))) == mechanism
    text = json.loads(mechanism.survey)
    law = text["law"]
    for change in (
        {"cohort": 1}, {"cohort": 3, "law": {**law, "clients": 4}}, {"bits": 64}, {"most": 0},
        {"amplitudes": {}}, {"amplitudes": dict.fromkeys(text["amplitudes"], -1)}, {"unit": "all"},
        {"queries": {"x": {"kind": "mean", "low": 2, "high": 1}}}, {"queries": {}}, {"more": 1},
        {"law": {"law": "none"}}, {"delta": 0}, {"trust": "central"}, {"queries": [1]},
    ):  # fmt: skip
        if change.get("law", {}).get("clients") and law["law"] != "discrete-laplace":
            continue
        with pytest.raises(ValueError, match="Expected"):
            SurveyMechanism(json.dumps({**text, **change}))
    with pytest.raises(ValueError, match="Expected the text of a survey"):
        SurveyMechanism("[" * 100_000)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("way", ["helper", "among clients", "local"])
def test_on_flower_a_round_is_a_table(tmp_path, way):
    identity = Ed25519PrivateKey.generate()
    known = identity.public_key().public_bytes_raw().hex()
    nodes = range(1, 21)
    trust = "local" if way == "local" else "aggregate"
    mechanism = SurveyMechanism(survey(ASKED, 1.0, 1e-6, trust, 16, len(nodes)))
    mod = QuantizeMod(
        epsilon=1.0, delta=1e-6, trust=trust, helper=known if way == "helper" else None
    )
    grid = InProcessGrid(answers(mod, lambda node: ward(node, records=1)), nodes)
    sums = {"sums": WithHelper(Helper(tmp_path, identity))} if way == "helper" else {}
    strategy, found = asked_once(mechanism, grid, **sums)
    [row] = strategy.history
    assert not row.failed
    assert row.dropped == 0
    table = mechanism.table(found, len(nodes), len(nodes))
    women = sum(int((ward(k, records=1)["sex"] == "f").sum()) for k in nodes)
    count = table["sex"]["f"]
    assert count.interval.lower <= women <= count.interval.upper or count.noise_error > 3
    spent = strategy.accountant.get_epsilon(1e-6)
    assert spent == pytest.approx(table.guarantee.epsilon)
    # The ledger counts it: nobody answers a second table.
    again, found = asked_once(mechanism, grid, **sums)
    assert not found.any()
    assert again.history[0].failed


def test_on_flower_a_table_may_protect_one_record_of_a_client():
    terms = survey(ASKED, 1.0, 1e-6, "aggregate", WARDS, WARDS * 500, unit="example", most=500)
    mod = QuantizeMod(epsilon=1.0, delta=1e-6, examples=500)
    grid = InProcessGrid(answers(mod, ward, "update"), range(WARDS))
    strategy, found = asked_once(SurveyMechanism(terms), grid, examples=500)
    assert not strategy.history[0].failed
    table = SurveyMechanism(terms).table(found, WARDS, WARDS * 500)
    truth = sum(int((ward(k)["sex"] == "f").sum()) for k in range(WARDS))
    assert abs(table["sex"]["f"].estimate - truth) < 8 * table["sex"]["f"].noise_error
    assert table.guarantee.unit == "example"
    assert strategy.history[0].epsilon == pytest.approx(table.guarantee.epsilon)
    # A client that protects all its data is not asked for less by the server's word alone.
    whole = InProcessGrid(answers(QuantizeMod(epsilon=1.0, delta=1e-6), ward), range(WARDS))
    again, found = asked_once(SurveyMechanism(terms), whole, examples=500)
    assert again.history[0].failed
    assert not found.any()


def test_a_server_cannot_move_what_a_vector_is_compared_with(tmp_path):
    """In float32 a difference from large numbers is rounded: two records could be far apart."""
    nodes = range(1, 4)
    mechanism = SurveyMechanism(survey(ASKED, 1.0, 1e-6, "local", 1, len(nodes)))
    grid = InProcessGrid(
        answers(QuantizeMod(epsilon=1.0, delta=1e-6, trust="local"), lambda node: ward(node, 1)),
        nodes,
    )
    strategy, _ = asked_once(mechanism, grid, first=2.0**30)
    assert strategy.history[0].failed
    replies = [reply.error.reason for step, _, _, reply in grid.seen if step == "upload"]
    assert len(replies) == len(nodes)
    assert all("arrays of zeros to answer a survey" in each for each in replies)
    half = np.append(np.full(mechanism.terms.dimension, 0.5), mechanism._digest)
    with pytest.raises(ValueError, match="Expected whole numbers"):
        mechanism.encode(half, Key.generate())


@pytest.mark.parametrize("place", [0, 1, -1])
def test_a_server_cannot_hide_such_numbers_in_one_array_of_several(place):
    offer = Offer(SurveyMechanism(survey(ASKED, 1.0, 1e-6, "local", 1, 3)), SIZE)
    limits, parts = ClientLimits(1.0), np.array_split(np.zeros(SIZE, np.float32), 3)
    model = {f"part {k}": part for k, part in enumerate(parts)}
    assert limits.layout(offer, model).dimension == SIZE
    parts[place][-1] = 2.0**30
    with pytest.raises(ProtocolError, match="arrays of zeros to answer a survey"):
        limits.layout(offer, model)


def test_a_survey_whose_vectors_float32_would_round_apart_is_refused() -> None:
    """Of some 40000 records at this amplitude, float32 moved neighbours by up to 1004, not 1001."""
    counts = {"a": rq.Counts(bins=[0, 1, 2])}
    terms = survey(counts, 1.0, 1e-6, "local", clients=9, records=9, unit="example", most=100)
    assert SurveyMechanism(terms).terms.largest <= MAX_VECTOR_VALUE * 1.01
    for changed in ({"most": 2**20}, {"amplitudes": {"a": 2**20}}):
        with pytest.raises(ValueError, match="exact in float32"):
            SurveyMechanism(dataclasses.replace(terms, **changed))


UNREADABLE = {  # a query that a hostile server may ask of any column: a value that it cannot read
    "a mean of texts": (rq.Mean(0, 10, "code"), "A12"),
    "a quantile of texts": (rq.Quantiles(0, 10, column="code"), "A12"),
    "a mean of dates": (rq.Mean(0, 10, "code"), np.datetime64("2020-01-01")),
    "counts of dates": (rq.Counts(["A12"], column="code"), np.datetime64("2020-01-01")),
    "counts of Python's dates": (rq.Counts(["A12"], column="code"), datetime.date(2020, 1, 1)),
    "an event that is no event": (rq.KaplanMeier("age", "code", 100), 2),
    "a group's event": (rq.LogRank("age", "code", "sex", ["f", "m"], 100), 2),
    "a regression on texts": (rq.LinearRegression({"age": (0, 100)}, {"code": (0, 1)}), "A12"),
}


@pytest.mark.parametrize("unit", ["client", "example"])
@pytest.mark.parametrize("name", UNREADABLE)
def test_whether_a_client_answers_does_not_tell_which_values_it_has(name, unit):
    """The server writes the terms: its choice of a query must not make a client fail by its data.
    A value that the query cannot read is a missing one, and no other record is moved by it."""
    query, value = UNREADABLE[name]
    most = 1 if unit == "client" else 4
    terms = survey({"asked": query}, 1.0, 1e-6, "aggregate", 5, 20, unit=unit, most=most)
    mechanism = SurveyMechanism(terms)
    count = 1 if unit == "client" else 3

    def update(last):
        codes = [*[0] * (count - 1), last]
        records = {"age": [40] * count, "sex": ["f"] * count, "code": codes}
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            vector = mechanism.update(records, Key.from_seed(0))
        assert not any("A12" in str(each.message) for each in said)
        mechanism.encode(vector, Key.generate())
        return vector, len(said)

    (one, readable), (other, unreadable), (none, _) = update(0), update(value), update(None)
    assert (readable, unreadable) == (0, 1)
    np.testing.assert_array_equal(other, none)
    apart = (one - other)[:-16].astype(np.float64)
    release = terms.released(1, "replace_one", unit)
    if hasattr(release, "squared_distance"):
        assert apart @ apart <= release.squared_distance
    else:
        assert np.abs(apart).sum() <= release.l1_distance
    with pytest.raises((TypeError, ValueError)):  # whoever runs a table on the records sees it
        rq.statistics([{"age": 40, "sex": "f", "code": value}] * 5, 1.0, queries={"asked": query})


ODD = (1, 0, True, 2.5, math.nan, None, "a", "1", "", 2**53 + 1, 2**63, -1, 10**400, b"a", 1 + 2j,
       np.uint64(2**63 + 5), np.bool_(True), np.datetime64("2020-01-01"))  # fmt: skip


@pytest.mark.filterwarnings("ignore:Expected records that the query")
def test_a_record_that_cannot_be_read_changes_how_no_other_is_read():
    """The vector of several records is the sum of each one's alone: these queries round nothing."""
    queries = {
        "count": rq.Counts([1, 2**53 + 1, "a"], column="x"),
        "bins": rq.Counts(bins=[0, 1, 9], column="x"),
        "quantile": rq.Quantiles(0, 9, steps=8, column="x"),
        "curve": rq.KaplanMeier("x", "y", until=9, bins=3),
        "test": rq.LogRank("x", "y", "x", ["a", "1"], until=9),
    }  # fmt: skip
    terms = survey(queries, 1.0, 1e-6, "aggregate", 9, 99, unit="example", most=9)
    draw, key = np.random.default_rng(0), Key.from_seed(0)
    for _ in range(150):
        places = draw.integers(0, len(ODD), (2, 4))
        x, y = ([ODD[place] for place in row] for row in places)
        vectors = [
            terms.vector(read_columns({"x": x[part], "y": y[part]}, "a client"), key, lenient=True)
            for part in (slice(0, 4), *(slice(k, k + 1) for k in range(4)))
        ]
        assert np.array_equal(vectors[0], sum(vectors[1:]))


@pytest.mark.parametrize(
    ("trust", "noise", "clients", "epsilon"),
    [("local", "clients", 30_000, 0.01), ("aggregate", "clients", 300, 0.02),
     ("aggregate", "parties", 300, 0.02)],
)  # fmt: skip
def test_no_sum_of_all_that_is_added_leaves_the_modulus(trust, noise, clients, epsilon):
    """Under local trust each of many clients adds all of the noise."""
    asked = {"sex": rq.Counts(["f", "m"])}
    # So small a target that most of the sum is noise.
    asked = survey(asked, epsilon, 1e-6, trust, clients, clients, noise=noise)
    largest = clients * max(asked.amplitudes.values())
    deviation = math.sqrt(asked.law.variance * asked.shares(clients))
    assert largest + 8 * deviation < 2 ** (asked.bits - 1)
    assert 8 * deviation > largest
