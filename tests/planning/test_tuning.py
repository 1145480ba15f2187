"""Guesses on disk: they save time, and nothing that is stated rests on them."""

from __future__ import annotations

import json

import pytest

import randquant as rq
from randquant._internal import cache, sealed
from randquant.mechanisms import from_design
from randquant.mechanisms.minimum_variance import mvu
from randquant.mechanisms.tuning import CoordinateTarget, UpdateSetting
from randquant.planning.tuning import families
from randquant.planning.tuning.families import tune_coordinate
from randquant.planning.tuning.update import tune_update, update_family
from randquant.privacy.certificates.file import channel_record

SETTING = UpdateSetting(dimension=100, cohort=20, bits=1, trust="aggregate")


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """A cache of one test; the files in it."""
    monkeypatch.setenv(cache.SWITCH, str(tmp_path / "cache"))
    from_design.designed.cache_clear()
    yield lambda: sorted((tmp_path / "cache").glob("*.json"))
    from_design.designed.cache_clear()


def tuned():
    return tune_update("stochastic-rounding", SETTING, 8.0, 1e-5, 5, deviation=1.0)


def plant(path, guess):
    """Forge a guess, with a right checksum."""
    record, _ = sealed.unseal(path.read_bytes())
    path.write_text(json.dumps(sealed.seal({**record, "guess": guess})))


def test_a_kept_noise_gives_the_same_result_in_fewer_steps(kept):
    first = tuned()
    (file,) = kept()
    again = tuned()
    assert again.calibration.calls < first.calibration.calls
    assert again.parameters == first.parameters
    assert again.calibration.guarantee == first.calibration.guarantee
    assert kept() == [file]


@pytest.mark.parametrize("guess", [1e-3, 1e3, 0.1, -1.0, 0, "noise", None, [1.0], 1e999])
def test_a_planted_noise_cannot_state_a_false_epsilon(kept, guess):
    honest = tuned()
    plant(kept()[0], guess)
    found = tuned()
    mechanism = found.calibration.mechanism
    assert found.calibration.guarantee == rq.account([mechanism.release(100, 5)], 1e-5)
    assert 8 * (1 - 2e-3) <= found.calibration.guarantee.epsilon <= 8
    assert found.calibration.noise == pytest.approx(honest.calibration.noise, rel=2e-3)


TARGET = CoordinateTarget(clip=1.0, levels=4, epsilon=1.0, objective="mae")


def test_kept_parameters_are_built_certified_and_measured_again(kept, monkeypatch):
    first = tune_coordinate("stochastic-rounding", TARGET)
    monkeypatch.setattr(families._Search, "run", lambda *_: pytest.fail("searched"))
    again = tune_coordinate("stochastic-rounding", TARGET)
    assert again.parameters == first.parameters
    assert again.channel == first.channel
    assert (again.error, again.certificate) == (first.error, first.certificate)


@pytest.mark.parametrize(
    "planted",
    [
        {"clip": 1.0, "levels": 4, "margin": 0.5},  # epsilon far above 1
        {"clip": 2.0, "levels": 4, "margin": 9.0},  # another clip
        {"clip": 1.0, "levels": 8, "margin": 9.0},  # other levels
        {"clip": 1.0, "levels": 4, "colour": 9.0},
        {"clip": "1", "levels": None, "margin": []},
        [],
        "rqm",
    ],
)
def test_planted_parameters_that_are_not_as_asked_are_not_used(kept, planted):
    first = tune_coordinate("stochastic-rounding", TARGET)
    plant(kept()[0], planted)
    again = tune_coordinate("stochastic-rounding", TARGET)
    assert again.parameters == first.parameters
    assert again.certificate.epsilon.upper <= 1


def test_a_kept_channel_is_certified_again(kept, monkeypatch):
    first = mvu(1.0, 2, 0.5)
    (file,) = kept()
    loud = rq.stochastic_rounding(1.0, 2, margin=0.5)
    biased = rq.imvu(1.0, 2, 0.4)
    wrong = json.loads(json.dumps(channel_record(loud)))
    wrong["certificate"]["epsilon"] = {"lower": 0.4, "upper": 0.5}  # a planted false epsilon
    for planted in (channel_record(loud), wrong, channel_record(biased), {}, None, "x"):
        plant(file, planted)
        from_design.designed.cache_clear()
        assert mvu(1.0, 2, 0.5) == first
        assert rq.certify(first).epsilon.upper <= 0.5
    from_design.designed.cache_clear()
    monkeypatch.setattr("randquant.mechanisms.design.optimal", lambda *_, **__: pytest.fail("hot"))
    assert mvu(1.0, 2, 0.5) == first


def test_what_is_no_record_is_no_guess(kept):
    tuned()
    (file,) = kept()
    text = file.read_text()
    asked = {"mechanism": "a"}
    assert cache.recall("noise", asked) is None
    for damaged in ("", "{", text[:-5], "null", "[" * 10**5, json.dumps({"guess": 1.0}), "\x00"):
        file.write_text(damaged)
        assert tuned().calibration.guarantee.epsilon <= 8
    moved, _ = sealed.unseal(text.encode())
    moved["inputs"]["epsilon"] = 80.0  # a file under another name's inputs
    file.write_text(json.dumps(sealed.seal(moved)))
    assert tuned().calibration.calls > 3


def test_the_cache_can_be_off_and_need_not_be_writable(tmp_path, monkeypatch):
    monkeypatch.setenv(cache.SWITCH, "off")
    cache.keep("noise", {"a": 1}, 2.0)
    assert cache.recall("noise", {"a": 1}) is None
    monkeypatch.setenv(cache.SWITCH, str(tmp_path / "file" / "below"))
    (tmp_path / "file").write_text("not a folder")
    cache.keep("noise", {"a": 1}, 2.0)
    assert cache.recall("noise", {"a": 1}) is None
    monkeypatch.setenv(cache.SWITCH, str(tmp_path / "cache"))
    cache.keep("noise", {"a": 1}, 2.0)
    assert cache.recall("noise", {"a": 1}) == 2.0
    assert cache.recall("noise", {"a": 2}) is None
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".json"]
    monkeypatch.setattr(cache, "_versions", lambda: ("other",))
    assert cache.recall("noise", {"a": 1}) is None


def test_the_users_cache_folder(monkeypatch):
    monkeypatch.delenv(cache.SWITCH)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache.folder().as_posix() == "/somewhere/randquant"


def test_a_generous_target_does_not_search_where_channels_cannot_be_made():
    """Near the least noise that 62 bits allow a programme takes seconds, and beyond it fails."""
    setting = UpdateSetting(dimension=22, cohort=20, bits=2, trust="local")
    found = tune_update("optimal", setting, 1000.0, 1e-5, 5, deviation=0.03).calibration
    assert found.noise == update_family("optimal", setting).reach[0]
    assert found.guarantee.epsilon <= 1000
    assert found.calls <= 4
