"""Every leaf of every record that travels or is stored: another value is refused, or read as such.

Records are JSON here, so that a field which a reader forgets is seen: whatever it holds, the
answer would be the same. Checksums are made anew, since whoever changes a record can.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import problems
import pytest
from helper_sums import PINNED, helper_in, messages_of, seeds_of
from settings import differences

import randquant as rq
from randquant._internal import files, from_json, to_json
from randquant.aggregation import (
    AdditiveMechanism,
    AuxiliaryNumbers,
    CentralGaussian,
    ClippedSGD,
    LocalGaussian,
    SignSGD,
    VectorMechanism,
    from_record,
)
from randquant.privacy import Guarantee, channel_record
from randquant.privacy.certificates.coordinate import channel_from_record
from randquant.rounds import Offer, RoundEvent, RoundRow, RunAccountant, protocol
from randquant.secure_sums import (
    HelperKey,
    HelperRequest,
    HelperTerms,
    ProtocolError,
    Terms,
    write_request,
)
from randquant.statistics import survey
from randquant.statistics.surveys import survey_from, survey_text
from randquant.training import RoundMetrics, RunSummary, SentRounds, TrainConfig
from randquant.training.execution import Binding

OTHER_WORDS = {
    "aggregate": "local", "local": "aggregate", "central": "local", "model": "local",
    "replace_one": "zero_out", "zero_out": "replace_one", "client": "example", "example": "client",
    "refuse": "frozen", "frozen": "refuse", "auto": "frozen", "mean": "quantiles",
    "skellam": "discrete-gaussian", "discrete-gaussian": "skellam", "fixed": "poisson",
    "discrete-laplace": "skellam", "gaussian": "local-gaussian", "loss": "accuracy",
    "accuracy": "loss", "num-examples": "loss", "inf": 7.0, "cpu": "cuda", "SGD": "Adam",
    "X25519": "MLKEM768_X25519",
}  # fmt: skip
"""Other words of the same place."""

REFUSED = (ValueError, TypeError, KeyError, OSError)


class Kind(NamedTuple):
    """A record as JSON data, and what it is read as; leaves that say nothing, and why."""

    record: Any
    read: Callable[[Any], Any]
    silent: dict[str, str] = {}  # noqa: RUF012 - nobody changes it


def leaves(record: Any, where: tuple = ()) -> Iterator[tuple[tuple, Any]]:
    """Places and values of all that is no list and no object; of long lists both ends."""
    if isinstance(record, dict):
        items = list(record.items())
    elif isinstance(record, list):
        items = list(enumerate(record))
        items = items if len(items) <= 3 else [items[0], items[-1]]
    else:
        yield where, record
        return
    for key, each in items:
        yield from leaves(each, (*where, key))


def others(value: Any) -> list[Any]:
    """Values of the same kind, of which one at least is valid in most places."""
    match value:
        case bool():
            return [not value]
        case int():
            return [value + 1, value - 1, value * 2, value + 2]
        case float():
            return [value + 0.5, value - 0.125, value * 1.25 or 1.0, value / 2 or 2.0]
        case None:
            return [1, 3.5, "loss", 7]
        case str() if value in OTHER_WORDS:
            return [OTHER_WORDS[value]]
        case str() if len(value) >= 16 and not value.strip("0123456789abcdef"):
            return [value[:-1] + ("0" if value[-1] != "0" else "1")]
        case str():
            return [value + "x", "y"]
    raise TypeError(value)


def changed(record: Any, where: tuple, value: Any) -> Any:
    record = copy.deepcopy(record)
    place = functools.reduce(lambda part, key: part[key], where[:-1], record)
    place[where[-1]] = value
    return record


def silently(kind: Kind) -> list[str]:
    """Leaves that may hold another value without anybody noticing."""
    usual, found = kind.read(copy.deepcopy(kind.record)), []
    for where, value in leaves(kind.record):
        for other in others(value):
            try:
                read = kind.read(changed(kind.record, where, other))
            except REFUSED:
                continue
            if not list(differences(usual, read)):
                found.append(".".join(str(key) for key in where if isinstance(key, str)))
            break
    return sorted(set(found))


# Records. Numbers of one kind differ within each, so that no two can be exchanged unnoticed.

BIT = rq.stochastic_rounding(clip=0.3, levels=2, margin=0.7)
MECHANISMS = {
    "vector": VectorMechanism(BIT, 1.5, "aggregate", 9, rotation_seed=7),
    "subset": VectorMechanism(BIT, 1.5, "aggregate", 9, 7, 3, 5),
    "coordinates": rq.ChannelMechanism(BIT, "aggregate", 4),
    "integer noise": AdditiveMechanism("skellam", 1.5, 2.25, 9, 14, 4.5, 7, 3, 5),
    "sign": SignSGD(1.5, 4.5),
    "local Gaussian": LocalGaussian(1.5, 4.5),
    "central Gaussian": CentralGaussian(None, 4.5, 1.5),
    "clipped": ClippedSGD(None, 1.5),
}
GUARANTEE = Guarantee(2.5, 1e-6, "zero_out", "aggregate", 6.5, 31, True, "example", True)
BESIDE = AuxiliaryNumbers(
    1.5, (rq.Number("loss", 0.25, 5.0, 0.125), rq.Number("num-examples", 0.0, 9.0)),
    "num-examples")  # fmt: skip
QUERIES = {
    "age": rq.Mean(18, 100),
    "dose": rq.Quantiles(1, 9, 5, at=[0.25, 0.75]),
    "sex": rq.Counts(["f", "m"]),
    "alive": rq.KaplanMeier("days", "event", until=70, bins=4),
    "alike": rq.LogRank("days", "event", "sex", ["f", "m"], until=80, bins=3),
    "both": rq.Covariance({"age": (17, 99), "dose": (2, 8)}),
    "line": rq.LinearRegression({"dose": (3, 7)}, {"age": (16, 98)}),
}
SURVEYS = {
    "sums": survey(QUERIES, 2.0, 1e-6, "aggregate", 40, 90, {"age": 2.0}, "example", 3),
    "pure": survey({"age": rq.Mean(18, 100)}, 4.0, 1e-30, "aggregate", 7, 7),
    "alone": survey({"age": rq.Mean(18, 100)}, 1.0, 1e-5, "local", 7, 7),
}
CONFIG = problems.config_of(
    "digits", "mlp", "rqm", {"clip": 0.5, "margin": 0.75, "levels": 4, "keep": 0.375},
    population=50, cohort=6, rounds=11, delta=1e-6,
    trust="local", stop_at_epsilon=9.5, seed=3, local_epochs=2, batch=5, local_learning_rate=0.125,
    parts=("a", "b"), buffers="frozen", threads=4, together=False,
    server_optimizer="SGD",
    server_options={"momentum": 0.875}, learning_rate=0.625, evaluate_every=7, checkpoint_every=8,
    clip_norm=2.5, neighboring="zero_out", max_participations=10, bits=3,
    noise="helper",
    numbers=("loss:0:5", "num-examples:0:9"), weighted_by="num-examples",
    spent=Guarantee(0.5, 1e-8, "zero_out", "local", math.inf, 12),
)  # fmt: skip
SENT = SentRounds("ab" * 16, "cd" * 16, 3, 5, 4, 2.5, 1e-6, "zero_out", "ef" * 8, True)
ROUND = RoundMetrics(
    train_loss=0.5, bytes_up=101, seconds_gradient=1.5, seconds_protect=2.5, mean="ab" * 16,
    mean_norm=3.5, noise_norm=4.5, numbers={"loss": 5.5, "loss_deviation": 6.5}, round=7,
    accuracy=0.25, loss=0.75, seconds_evaluate=8.5, participations=4, epsilon=9.5, delta=1e-6,
    neighboring="zero_out", balanced_accuracy=0.375, auc=0.625,
)  # fmt: skip
SUMMARY = RunSummary(
    0.25, 0.75, 101, 202, 4, GUARANTEE, 5, "why", 303,
    dataclasses.replace(GUARANTEE, epsilon=3.5, unit="client"), "advice",
    dataclasses.replace(GUARANTEE, epsilon=1.5, releases=6),
    dataclasses.replace(GUARANTEE, epsilon=5.5, neighboring="replace_one"),
    dataclasses.replace(GUARANTEE, epsilon=7.5, neighboring="replace_one", unit="client"),
    0.375, 0.625,
    17,
)  # fmt: skip
TERMS = Terms(
    bytes(16), (1, 2, 3, 4, 9, 12, 13), 7, 11, least=5, neighbours=4, threshold=4,
    offer=hashlib.sha256(b"an offer").digest(),
)  # fmt: skip
ROW = RoundRow(1, 2.5, 3, 4, 5, 6, 7, "why")
BINDING = Binding("ab" * 16, "bc" * 16, "cd" * 16, "de" * 16)


def of_text(read: Callable[[str], Any]) -> Callable[[Any], Any]:
    return lambda record: read(json.dumps(record))


def read_survey(text: str) -> Any:
    """What follows from a survey; two of them are never equal."""
    terms = survey_from(text)
    own = [getattr(terms, name) for name in (
        "amplitudes", "law", "cohort", "trust", "delta", "unit", "most", "bits")]  # fmt: skip
    return {"queries": dict(terms.queries), "own": own, "text": survey_text(terms)}


def accountant_state() -> dict[str, Any]:
    account = RunAccountant(1e-5, "zero_out")
    account.compose(RoundEvent(Offer(MECHANISMS["vector"], 5), frozenset({3, 4})), 2)
    account.compose(RoundEvent(Offer(MECHANISMS["vector"], 6), frozenset({4})), 5)
    return {name: each for name, each in account.state_dict().items() if name != "checksum"}


def read_accountant(state: dict[str, Any]) -> Any:
    account = RunAccountant(1e-5, "zero_out")
    text = json.dumps(state, sort_keys=True)
    account.load_state_dict({**state, "checksum": hashlib.sha256(text.encode()).hexdigest()})
    return account.state_dict(), account.num_releases


def sealed(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A record with a checksum that is made anew."""
    return lambda record: read(files.unseal(json.dumps(files.seal(record)).encode())[0])


CLAIMS = {
    f"{place}certificate.epsilon.{end}": "a claim that holds is replaced by what is computed again"
    for place in ("", "channel.")
    for end in ("lower", "upper")
}


OFFERS = {
    "plain": Offer(MECHANISMS["vector"], 12, ("a", "b"), "frozen", BESIDE, None, True),
    "of examples": Offer(MECHANISMS["integer noise"], 12, (), "server", None, 21),
}


def kinds() -> dict[str, Kind]:
    found = {
        f"mechanism: {name}": Kind(
            to_json(each.record()), from_record, CLAIMS,
        ) for name, each in MECHANISMS.items()
    }  # fmt: skip
    for name, offer in OFFERS.items():
        found[f"offer: {name}"] = Kind(
            json.loads(offer.to_text()), of_text(Offer.from_text),
            CLAIMS,
        )  # fmt: skip
    for name, terms in SURVEYS.items():
        found[f"survey: {name}"] = Kind(json.loads(survey_text(terms)), of_text(read_survey))
    found["channel"] = Kind(
        channel_record(BIT), lambda record: channel_from_record(record, "here"),
        CLAIMS,
    )  # fmt: skip
    found["terms"] = Kind(
        json.loads(protocol.terms_text(TERMS)),
        of_text(lambda text: protocol.read_terms(text, bytes(16), 7, "an offer")),
    )
    found["account of a server"] = Kind(
        accountant_state(), read_accountant, {"assumes": "it says what follows from the offers"}
    )
    for record, kind in ((GUARANTEE, Guarantee), (SENT, SentRounds), (ROUND, RoundMetrics),
                         (BINDING, Binding)):  # fmt: skip
        read = sealed(functools.partial(from_json, kind))
        found[kind.__name__] = Kind(to_json(record), read)
    found["RunSummary"] = Kind(to_json(SUMMARY), sealed(RunSummary.from_json))
    found["TrainConfig"] = Kind(to_json(CONFIG), sealed(TrainConfig.from_json))
    found["RoundRow"] = Kind(to_json(ROW), lambda record: RoundRow(**record))
    return found


KINDS = kinds()


@pytest.mark.parametrize("name", KINDS)
def test_another_value_of_a_leaf_is_refused_or_read(name):
    kind = KINDS[name]
    found = silently(kind)
    assert found == [each for each in sorted(kind.silent) if each in found], found


def test_a_leaf_that_nobody_reads_is_found():
    forgetful = Kind({"a": 1, "b": {"c": 2.5}}, lambda record: record["a"])
    assert silently(forgetful) == ["b.c"]


RECORDS = {
    **{f"mechanism: {name}": each for name, each in MECHANISMS.items()},
    "Guarantee": GUARANTEE, "SentRounds": SENT, "RoundMetrics": ROUND, "RunSummary": SUMMARY,
    "RoundRow": ROW, "Binding": BINDING, "Number": BESIDE.numbers[0], "AuxiliaryNumbers": BESIDE,
}  # fmt: skip


WRITTEN = {
    **{f"mechanism: {name}": each for name, each in MECHANISMS.items()},
    **{f"offer: {name}": each for name, each in OFFERS.items()},
    "Guarantee": GUARANTEE, "SentRounds": SENT, "RoundMetrics": ROUND, "RunSummary": SUMMARY,
    "RoundRow": ROW, "Binding": BINDING, "TrainConfig": CONFIG, "terms": TERMS,
}  # fmt: skip


@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_written_is_read(name):
    kind = KINDS[name]
    assert not list(differences(WRITTEN[name], kind.read(copy.deepcopy(kind.record))))


def test_a_field_with_a_better_name_is_stored_by_the_one_of_earlier_versions():
    stored = to_json(SENT)
    assert stored["channel"] == SENT.fingerprint
    assert "fingerprint" not in stored
    assert from_json(SentRounds, stored) == SENT
    with pytest.raises(ValueError, match="known fields of SentRounds, got 'fingerprint'"):
        from_json(SentRounds, {**stored, "fingerprint": ""})


USUAL = {
    "device", "public", "columns", "standardize", "frozen", "loss",
    "coordinates", "sampling", "unit", "on_round", "baseline", "optimizer", "split_seed",
    "subset_seed", "channel", "tuned_to", "clip", "everybody_sends",
}  # fmt: skip
"""Fields that are as usual in a record here: objects and files, what excludes another field, and
what is another one in a record beside it."""


@pytest.mark.parametrize("name", [*WRITTEN, "AuxiliaryNumbers"])
def test_a_field_that_is_as_usual_is_declared(name):
    """A new field gets a value of its own here, or a reason why not."""
    record = {**WRITTEN, "AuxiliaryNumbers": BESIDE}[name]
    parts = [record]
    if name == "TrainConfig":
        parts += [record.task, record.local, record.server, record.privacy]
    usual = {
        field.name
        for part in parts
        for field in dataclasses.fields(part)
        if field.init
        and field.default is not dataclasses.MISSING
        and getattr(part, field.name) == field.default
    }
    if name.startswith(("mechanism", "offer")):  # one of several of a kind
        kind = name.split(":")[0]
        alike = [each for other, each in WRITTEN.items()
                 if other.startswith(kind) and type(each) is type(record)]  # fmt: skip
        usual = {f for f in usual if all(getattr(each, f) == getattr(record, f) for each in alike)}
    assert usual <= USUAL, usual - USUAL


@pytest.mark.parametrize("name", RECORDS)
def test_no_two_fields_of_one_kind_have_one_value(name):
    """Else a field that is copied from its neighbour would pass."""
    record = RECORDS[name]
    seen = [getattr(record, field.name) for field in dataclasses.fields(record)]
    numbers = [each for each in seen if type(each) in (int, float, str) and each != ""]
    assert len(set(numbers)) == len(numbers)


# What the helper of one-message sums is asked for.

HELPED = {  # field of the terms: another valid value
    "session": b"another", "cohort": 8, "least": 3, "dimension": 6, "bits": 11,
    "offer": b"x" * 32, "key": None, "largest": 3, "commitment": b"c" * 32,
    "noise_variance": 2.5,
}  # fmt: skip


@pytest.fixture
def asked(tmp_path):
    helper = helper_in(tmp_path / "helper")
    terms = HelperTerms(b"session", helper.key, 9, 2, 5, 10, b"o" * 32)
    draw = np.random.default_rng(0)
    codes = {c: draw.integers(0, 4, 5, dtype=np.uint32) for c in (1, 2, 3)}
    return helper, terms, seeds_of(terms, messages_of(terms, codes))


def other_terms(terms, name, folder):
    value, more = HELPED[name], {}
    if name == "key":
        value = helper_in(folder).key
    if name in ("largest", "commitment"):
        more = {"largest": 3, "commitment": b"c" * 32}
    return dataclasses.replace(terms, **{name: value, **more})


def test_every_field_of_the_terms_of_a_helper_is_here():
    assert {field.name for field in dataclasses.fields(HelperTerms)} == HELPED.keys()


@pytest.mark.parametrize("name", HELPED)
def test_a_seed_opens_under_the_terms_it_was_sealed_for_and_no_others(name, asked, tmp_path):
    helper, terms, seeds = asked
    other = other_terms(terms, name, tmp_path / "other")
    assert HelperTerms.from_text(other.to_text()) == other != terms
    assert other.digest != terms.digest
    with pytest.raises(ProtocolError, match="Expected"):
        helper.answer(write_request(other, seeds))
    assert helper.sums == {}
    helper.answer(write_request(terms, seeds))
    assert helper.sums == dict.fromkeys((1, 2, 3), 1)


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(HelperKey)])
def test_a_key_is_of_its_signature(name, asked):
    key = asked[0].key
    key.check(PINNED)
    wrong = {"public": bytes(32), "signature": bytes(64), "suite": "MLKEM768_X25519"}
    assert wrong.keys() == {field.name for field in dataclasses.fields(HelperKey)}
    with pytest.raises((ProtocolError, ValueError)):
        dataclasses.replace(key, **{name: wrong[name]}).check(PINNED)


def test_every_field_of_a_request_is_in_its_bytes(asked):
    _, terms, seeds = asked
    written = HelperRequest.from_bytes(write_request(terms, seeds, "an offer"))
    assert {field.name for field in dataclasses.fields(HelperRequest)} == {
        "terms", "seeds", "offer", "digest", "verify_key",
    }  # fmt: skip
    assert (written.terms, written.offer) == (terms, "an offer")
    assert {c: s.sealed for c, s in written.seeds.items()} == {
        c: s.sealed for c, s in seeds.items()
    }
    fewer = {c: seeds[c] for c in (1, 2)}
    exchanged = {**seeds, 1: seeds[2], 2: seeds[1]}
    digests = {
        HelperRequest.from_bytes(write_request(*each)).digest
        for each in ((terms, seeds, "an offer"), (terms, seeds, "another"), (terms, fewer),
                     (terms, seeds), (terms, exchanged))
    }  # fmt: skip
    assert len(digests) == 5
