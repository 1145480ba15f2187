"""`--coordinates auto`: on the command line and in a run's file."""

import json
import re

import pytest
from seldom import seldom

from randquant import cli
from randquant.aggregation.adaptive import AdaptiveMechanism
from randquant.aggregation.saved import from_record
from randquant.cli.commands import train
from randquant.planning import choice as target
from randquant.privacy.accounting.accountant import account
from randquant.training.config import TrainConfig
from randquant.training.configured import mechanism_of
from randquant.training.runs import execution as runs
from randquant.training.runs import folder as run_folder
from randquant.training.settings import read

ASKED = {
    "dataset": "breast-cancer", "model": "softmax", "mechanism": "stochastic-rounding",
    "coordinates": "auto", "trust": "aggregate", "clip_norm": 0.5, "cohort": 50, "rounds": 8,
    "stop_at_epsilon": 1,
}  # fmt: skip


def words(settings) -> list[str]:
    return [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]


def toml(settings) -> str:
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items())


class Stopped(Exception):
    """Raised in place of training."""


@pytest.mark.parametrize("by_file", [True, *seldom(False)])
def test_the_run_has_a_calibrated_mechanism_on_record(tmp_path, monkeypatch, by_file):
    def stop(folder, *given, **options):
        raise Stopped

    monkeypatch.setattr(runs, "execute", stop)
    monkeypatch.setattr(target, "PARTS", (1, 4))
    (tmp_path / "run.toml").write_text(toml(ASKED))
    assert read(tmp_path / "run.toml") == ASKED
    given = ["--config", str(tmp_path / "run.toml")] if by_file else words(ASKED)
    with pytest.raises(Stopped):
        cli.main(["train", "--quiet", "--run", str(tmp_path / "run"), *given])
    config = run_folder.read_config(tmp_path / "run")
    mechanism = from_record(config.parameters)
    assert isinstance(mechanism, AdaptiveMechanism)
    assert [choice.size(62) for choice in mechanism.choices] == [64, 16]
    # 8 rounds of 50 clients of 200 are two for each, and no more: that is accounted.
    assert config.privacy.max_participations == 2
    release = mechanism.release(62, 2, config.privacy.neighboring)
    assert 0.9 < account([release], config.delta).epsilon <= 1 == config.stop_at_epsilon


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"margin": 0.3}, r"no parameters of its own with coordinates auto .*, got margin: its "),
        ({"stop_at_epsilon": "none"}, r"stop_at_epsilon with coordinates auto .*, got none: "),
        ({"unit": "example"}, r"trust='aggregate' or 'local' and unit='client' with coordinates="),
        ({"coordinates": 0}, r"--coordinates >= 1, got --coordinates=0"),
        ({"coordinates": "most"}, r"--coordinates to be one of auto; got 'most'"),
    ],
)
def test_what_is_refused_is_said_in_one_sentence(tmp_path, capsys, change, message):
    given = ["train", "--quiet", "--run", str(tmp_path / "run"), *words({**ASKED, **change})]
    assert cli.main(given) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.match(r"randquant train: Expected " + message, line), line
    assert not (tmp_path / "run").exists()


def test_noise_of_the_demo_is_not_taken_for_given():
    assert train._config({"coordinates": "auto"}).parameters == {}


def test_a_run_that_has_begun_asks_no_more():
    with pytest.raises(ValueError, match=r"^Expected a number of coordinates in a configuration"):
        mechanism_of(TrainConfig.of(**ASKED))
