"""A run that sends a public random subset of the coordinates, another one in each round."""

import json

import problems
import pytest
import stores
import torch
from by_name import train
from torch import nn

from randquant import cli
from randquant.aggregation import VectorMechanism, update_mechanism
from randquant.training import settings_of as flat
from randquant.training.config import digest

pytestmark = [
    pytest.mark.filterwarnings("ignore:It depends on the task"),
    pytest.mark.filterwarnings("ignore:Codes of so few bits"),
]

FEATURES, CLASSES, CLIENTS = 6, 3, 20
BITS = {"clip": 0.3, "levels": 2, "margin": 1.0}
CONFIG = problems.config_of(
    dataset="breast-cancer", model="softmax", mechanism="stochastic-rounding", parameters=BITS,
    trust="aggregate", clip_norm=0.5, coordinates=20, population=8, cohort=4, rounds=5,
    checkpoint_every=2, evaluate_every=5, threads=1, seed=3,
)  # fmt: skip


def examples(seed):
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(8, FEATURES, generator=generator)
    return features, features[:, :CLASSES].argmax(1)


def trained(**options):
    torch.manual_seed(1)
    own = {"rounds": 4, "cohort": 10, "progress": False, "checkpoint_every": 2, "seed": 5}
    clients = {f"phone {k}": examples(k) for k in range(CLIENTS)}
    return train(nn.Linear(FEATURES, CLASSES), clients, **{**own, **options})


@pytest.fixture
def seeds(monkeypatch):
    """Every seed that a round was given."""
    found, real = [], VectorMechanism.in_round

    def in_round(self, seed):
        found.append(seed)
        return real(self, seed)

    monkeypatch.setattr(VectorMechanism, "in_round", in_round)
    return found


def some(k=8):
    return update_mechanism(
        "stochastic-rounding", BITS, trust="aggregate", cohort=10, clip_norm=1.0, coordinates=k
    )


def test_each_round_of_each_run_has_a_subset_of_its_own(seeds):
    first = trained(mechanism=some())
    seen = set(seeds) - {0}  # 0 is for compiling before the first round
    assert len(seen) == 4
    seeds.clear()
    trained(mechanism=some(), learning_rate=0.5)
    assert not seen & (set(seeds) - {0})
    assert len(set(seeds)) == 5
    assert first.upload_bytes == 40 + 4  # 8 coordinates of up to 10 clients, 4 bits each


def test_the_subsets_do_not_come_from_the_runs_key(seeds):
    """Two runs with secret keys of their own send the same public subsets."""
    trained(mechanism=some(), seed=None)
    once = list(seeds)
    trained(mechanism=some(), seed=None)
    assert seeds == [*once, *once]
    assert len(set(once)) >= 4


def test_settings_of_files_and_commands_carry_the_number(tmp_path):
    config = CONFIG.changed(baseline=True)
    problems.create_run(tmp_path / "run", config)
    assert stores.read_config(tmp_path / "run") == config
    beside = stores.read_config(tmp_path / "run" / "baseline")
    assert (beside.mechanism, beside.privacy.coordinates) == ("clipped-sgd", None)
    assert flat(CONFIG)["coordinates"] == 20
    plain = CONFIG.changed(coordinates=None)
    assert digest(plain) != digest(CONFIG)
    run = problems.train_run(tmp_path / "run")
    assert run.summary.bytes_per_upload == 40 + 20 * 3 // 8 + 1


def test_a_run_whose_number_cannot_be_sent_is_refused(tmp_path, capsys):
    with pytest.raises(ValueError, match=r"^Expected coordinates <= 64, as many as a rotated"):
        problems.create_run(
            tmp_path / "run", CONFIG.changed(coordinates=65),
            overwrite=False,
        )  # fmt: skip
    assert not (tmp_path / "run").exists()
    with pytest.raises(ValueError, match=r"^Expected no coordinates with a mechanism of your own"):
        trained(mechanism=some(), coordinates=8)
    with pytest.raises(ValueError, match=r"^Expected coordinates >= 1 and <= 32, got"):
        trained(epsilon=8, coordinates=40)
    words = ["account", "stochastic-rounding", "--clip", "0.3", "--levels", "2", "--margin", "1",
             "--dimension", "50", "--rounds", "2", "--clip-norm", "1", "--coordinates"]  # fmt: skip
    assert cli.main([*words, "65"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert cli.main([*words, "16", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["coordinates"] == 16
