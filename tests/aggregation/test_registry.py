"""One table of mechanisms: found in their own files, complete, in a fixed order, no name twice."""

import json
import sys

import pytest

import randquant as rq
from randquant import mechanisms
from randquant._internal import files
from randquant.aggregation import (
    MechanismDefaults,
    all_mechanisms,
    from_record,
    load,
    recorded_module,
    update_mechanism,
)
from randquant.aggregation import registry as records
from randquant.cli import NamedMechanism, parse
from randquant.mechanisms import (
    MechanismRecord,
    UpdateSetting,
    add,
    build,
    channel_mechanisms,
    records_in,
    unregister,
)
from randquant.planning import protecting_mechanisms
from randquant.rounds import Offer

RECORDED = {
    "AdditiveMechanism": "randquant.aggregation.additive",
    "CentralGaussian": "randquant.aggregation.baselines",
    "ChannelMechanism": "randquant.aggregation.coordinate",
    "ClippedSGD": "randquant.aggregation.baselines",
    "HelperNoise": "randquant.aggregation.helper_noise",
    "LocalGaussian": "randquant.aggregation.baselines",
    "SignSGD": "randquant.aggregation.sign_sgd",
    "SurveyMechanism": "randquant.statistics.survey_mechanism",
    "VectorMechanism": "randquant.aggregation.vector",
}
"""Where release 0.1.0 had its mechanisms for whole updates, as its runs recorded it."""

CHANNELS = ["rqm", "pbm", "erm", "optm", "qmgeo", "mvu", "imvu", "optimal", "channel-file",
            "stochastic-rounding", "sparse-ternary"]  # fmt: skip
MODULE = """
from randquant.mechanisms.registry import CLIP, MechanismRecord
from randquant.mechanisms.random_rounding import stochastic_rounding


def fair_coin(clip: float, reach: float):
    return stochastic_rounding(clip, 2, reach)


RECORDS = (MechanismRecord("fair-coin", fair_coin, {"clip": CLIP, "reach": "of the coin"}),)
"""


@pytest.fixture
def registry():
    before = all_mechanisms()
    yield
    for name in all_mechanisms().keys() - before:
        unregister(name)


def wide(clip: float, levels: int, share: float) -> rq.Channel:
    return rq.stochastic_rounding(clip, levels, clip * share)


def test_a_file_is_all_that_a_new_mechanism_takes(registry, tmp_path, monkeypatch):
    """Found beside the others, it is built, tuned, planned around and on the command line."""
    (tmp_path / "fair_coin.py").write_text(MODULE)
    monkeypatch.setattr(mechanisms, "__path__", [*mechanisms.__path__, str(tmp_path)])
    records = list(records_in("randquant.mechanisms"))
    del sys.modules["randquant.mechanisms.fair_coin"]
    assert sorted(record.name for record in records) == sorted([*CHANNELS, "fair-coin"])
    add(next(record for record in records if record.name == "fair-coin"))
    assert list(channel_mechanisms()) == [*CHANNELS, "fair-coin"]
    channel = build("fair-coin", {"clip": 1.0, "reach": 2.0})
    assert channel == rq.stochastic_rounding(1.0, 2, 2.0)
    line = ["certify", "fair-coin", "--clip", "1", "--reach", "2"]
    invocation = parse(line)
    assert invocation is not None
    assert invocation.values == (NamedMechanism("fair-coin", {"clip": 1.0, "reach": 2.0}),)
    assert update_mechanism("fair-coin", {"clip": 1.0, "reach": 2.0}, clip_norm=1.0).trust == (
        "local"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("Wide", wide), "lower-case"),
        (("wide", lambda *all: None), "by name"),
        (("wide", wide, {"colour": "red"}), "help about parameters"),
        (("wide", wide, {}, {"colour": "red"}), "example with parameters"),
    ],
)
def test_wrong_records_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        MechanismRecord(*arguments)


@pytest.mark.parametrize("trust", ["local", "aggregate"])
def test_what_is_planned_with_protects_under_that_trust(trust):
    for name in protecting_mechanisms(UpdateSetting(50, 20, 8, trust)):
        record = all_mechanisms()[name]
        assert trust in record.trusts
        assert record.tuning.update is not None or name == "optm"


@pytest.mark.parametrize("name", ["rank", "graded-rank"])
def test_a_mechanism_of_the_papers_package_is_refused_with_its_place(name, tmp_path):
    """Everywhere a name may come from: a call, a saved file, an offer, a plan."""
    where = f"got '{name}': it is in the package randquant-papers, as randquant_papers.rank"
    record = {"mechanism": name, "clip_norm": 1.0, "epsilon": 4.0}
    files.write(path := tmp_path / "rank.json", {"format": records.FORMAT, **record})
    offer = json.loads(
        Offer(rq.VectorMechanism(rq.stochastic_rounding(1.0, 2, 1.0), 1.0), 5).to_text()
    )
    own = {
        name: offer[name]
        for name in ("format", "dimension", "examples", "parts", "buffers", "scaled")
    }
    for read in (
        lambda: update_mechanism(name, {"clip_norm": 1.0, "epsilon": 4.0}),
        lambda: from_record(record),
        lambda: load(path),
        lambda: Offer.from_text(json.dumps({**own, **record})),
        lambda: rq.plan(5, 10, 10, 1, 8.0, trust="local", mechanisms=[name]),
    ):
        with pytest.raises(ValueError, match=where):
            read()


def test_stored_runs_know_each_of_our_classes_by_the_module_of_the_first_release():
    """Wherever it is today: a run that began with an older version goes on."""
    assert rq.SurveyMechanism in MechanismDefaults.__subclasses__()
    ours = {
        kind
        for kind in MechanismDefaults.__subclasses__()
        if kind.__module__.startswith("randquant.")
    }
    assert {kind.__qualname__: recorded_module(kind) for kind in ours} == RECORDED


def test_stored_runs_know_a_class_of_ones_own_by_its_module():
    own = type("VectorMechanism", (), {"__module__": "hospital.noise"})
    assert recorded_module(own) == "hospital.noise"
