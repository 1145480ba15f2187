"""One table of mechanisms: found in their own files, complete, in a fixed order, no name twice."""

import sys
import zipfile

import pytest

import randquant as rq
from randquant import mechanisms
from randquant.aggregation.registry import all_mechanisms, update_mechanism
from randquant.cli.main import parse
from randquant.cli.options import NamedMechanism
from randquant.mechanisms.record import MechanismRecord
from randquant.mechanisms.registry import add, build, channel_mechanisms, records_in, unregister
from randquant.mechanisms.tuning import (
    CoordinateFamily,
    CoordinateTarget,
    UpdateFamily,
    UpdateSetting,
)
from randquant.planning.tuning.families import tune_coordinate
from randquant.planning.tuning.update import protecting_mechanisms, tune_update

CHANNELS = ["rqm", "pbm", "erm", "optm", "qmgeo", "mvu", "imvu", "optimal", "channel-file",
            "stochastic-rounding", "sparse-ternary"]  # fmt: skip
WHOLE = ["clipped-sgd", "gaussian", "local-gaussian", "sign-sgd", "discrete-gaussian", "skellam",
         "binomial", "graded-rank", "rank"]  # fmt: skip
MODULE = """
from randquant.mechanisms.record import CLIP, MechanismRecord
from randquant.mechanisms.randomized_quantization import stochastic_rounding


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


@pytest.mark.parametrize("name", [*CHANNELS, *WHOLE])
def test_every_parameter_has_a_help_text(name):
    record = all_mechanisms()[name]
    assert record.help.keys() == set(record.parameters)
    assert all(text and text == text.strip() for text in record.help.values())


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


def test_records_are_found_in_a_zip_file_in_order_of_their_modules(tmp_path, monkeypatch):
    text = "from types import SimpleNamespace as R\nRECORDS = (R(name={0!r}), R(name='last {0}'))\n"
    with zipfile.ZipFile(tmp_path / "toys.zip", "w") as archive:
        for module in ("b", "a", "inner/c"):
            archive.writestr(f"toys/{module}.py", text.format(module))
        archive.writestr("toys/nothing.py", "")
        for package in ("toys", "toys/inner"):
            archive.writestr(f"{package}/__init__.py", "")
    monkeypatch.syspath_prepend(str(tmp_path / "toys.zip"))
    assert [record.name for record in records_in("toys")] == ["a", "last a", "b", "last b"]
    for name in [name for name in sys.modules if name.split(".")[0] == "toys"]:
        del sys.modules[name]


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


def test_a_registered_mechanism_may_bring_its_help_and_its_tuning(registry):
    rq.register(
        "wide",
        wide,
        help={"share": "margin over clip"},
        coordinate=CoordinateFamily(
            lambda target: {"share": [0.1, 1.0, 10.0]},
            lambda target, at: target.sized(share=at["share"]),
        ),
        update=lambda setting: UpdateFamily(
            lambda t: {"clip": setting.clip, "levels": 2, "share": t},
            reach=(0.1, 1e6),
            start=lambda deviation: deviation / setting.clip,
        ),
    )
    record = all_mechanisms()["wide"]
    assert record.meaning("share") == "margin over clip"
    assert "documentation" in record.meaning("clip")
    coordinate = tune_coordinate("wide", CoordinateTarget(1.0, 2, 1.0, "mse"))
    assert 0.999 < coordinate.certificate.epsilon.upper <= 1.0
    setting = UpdateSetting(64, 10, 1)
    assert "wide" in protecting_mechanisms(setting)
    tuned = tune_update("wide", setting, 8.0, 1e-5, 1, deviation=1.0)
    assert tuned.calibration.guarantee.epsilon <= 8
    assert tuned.parameters["clip"] == setting.clip


def test_a_mechanism_is_forgotten_once():
    rq.register("wide", wide)
    unregister("wide")
    assert "wide" not in all_mechanisms()
    with pytest.raises(ValueError, match="one of rqm, pbm"):
        unregister("wide")


@pytest.mark.parametrize("trust", ["local", "aggregate"])
def test_what_is_planned_with_protects_under_that_trust(trust):
    for name in protecting_mechanisms(UpdateSetting(50, 20, 8, trust)):
        record = all_mechanisms()[name]
        assert trust in record.trusts
        assert record.tuning.update is not None or name == "optm"
