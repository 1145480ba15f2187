"""`randquant train`: settings from a file, and a model and data of one's own."""

import os
from pathlib import Path

import command_line
import pytest

from randquant import cli
from randquant.aggregation import all_mechanisms
from randquant.cli import parse
from randquant.cli.commands import train
from randquant.training import RunStore, TrainConfig, functions, read_finished, settings

RUN = """
dataset = "breast-cancer"
mechanism = "gaussian"
clip_norm = 0.5
noise_multiplier = 2
rounds = 2
learning_rate = 1
server_options = {momentum = 0.5}
"""
OWN = """
from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Shape:
    hidden: int = 8


def network():
    shape = Shape()
    return nn.Sequential(nn.Linear(4, shape.hidden), nn.GroupNorm(2, 8), nn.Linear(8, 2))


def clients():
    x = torch.randn(12, 6, 4, generator=torch.Generator().manual_seed(0))
    data = {f"phone {k}": (part, (part[:, 0] > 0).long()) for k, part in enumerate(x)}
    return data, (x[0], (x[0, :, 0] > 0).long())


def only_clients():
    return clients()[0]


def loss(output, targets):
    return nn.functional.cross_entropy(output, targets)


def number():
    return 3


def normed():
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))


def open_data():
    return torch.randn(20, 4, generator=torch.Generator().manual_seed(1))

"""
QUICK = "--rounds 2 --no-baseline"
NOISE = "--mechanism gaussian --clip-norm 1 --noise-multiplier 2"
OF_ONES_OWN = "--model own.py:network --data own.py:clients"


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text(RUN)
    (tmp_path / "own.py").write_text(OWN)
    return tmp_path


def trained(line: str) -> TrainConfig:
    assert cli.main(["train", "--run", "run", "--overwrite", "--quiet", *line.split()]) == 0
    return RunStore(train.Path("run")).config()


def refused(capsys, line: str) -> str:
    said = command_line.refused(capsys, f"train --quiet {line}")
    assert not list(train.Path().glob("run*/run.sqlite"))
    return said


def test_a_file_of_settings_gives_the_run_that_the_same_options_give(here, capsys):
    from_file = trained("--config run.toml --no-baseline")
    options = (
        "--dataset breast-cancer --mechanism gaussian --clip-norm 0.5 --noise-multiplier 2 "
        "--rounds 2 --learning-rate 1 --server-options momentum=0.5 --no-baseline"
    )
    assert trained(options) == from_file
    assert from_file.server.options == {"momentum": 0.5}
    assert type(from_file.server.learning_rate) is float


def test_the_example_of_a_file_is_one():
    example = Path(__file__).parents[2] / "examples" / "run.toml"
    assert settings.read(example)["mechanism"] in all_mechanisms()


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("rounds = ", "TOML"),
        ("roundss = 3", "did you mean rounds?"),
        ('mechanism = "pbm"\nthetaa = 0.2', "did you mean theta?"),
        ('mechanism = "pbmm"', "did you mean pbm?"),
        ("rounds = 0", "rounds >= 1"),
        ('rounds = "x"', "whole number"),
        ('problem = "abc"', "problem"),
        ("parameters = {clip = 1}", "parameters"),
    ],
)
def test_a_wrong_file_of_settings_is_one_sentence(here, capsys, text, word):
    (here / "wrong.toml").write_text(text)
    said = refused(capsys, "--config wrong.toml")
    assert word in said
    assert "wrong.toml" in said


def test_a_model_and_data_of_ones_own_are_trained_and_resumed(here, monkeypatch):
    config = trained(f"{OF_ONES_OWN} {NOISE} {QUICK}")
    assert config.task.dataset == f"{here / 'own.py'}:clients"
    assert (config.task.population, config.cohort, config.task.partition) == (12, 12, "own")
    elsewhere = here / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert cli.main(["train", "--resume", str(here / "run"), "--delta", "1e-6", "--quiet"]) == 0
    guarantee = read_finished(here / "run").summary.guarantee
    assert guarantee is not None
    assert guarantee.delta == 1e-6


SERVER = "--model own.py:normed --data own.py:clients --buffers server"


def test_running_statistics_are_of_public_examples_of_ones_own(here, capsys):
    config = trained(f"{SERVER} --public own.py:open_data {NOISE} {QUICK}")
    assert config.local.public == f"{here / 'own.py'}:open_data"
    problem = functions.problem_by_function(config)
    assert problem.statistics is not None
    assert len(problem.statistics) == 20
    own = here / "own.py"
    written = own.stat().st_mtime
    own.write_text(OWN.replace("manual_seed(1)", "manual_seed(2)"))
    os.utime(own, (written, written))  # same second, same size: what bytecode is recognised by
    capsys.readouterr()
    assert "began with" in command_line.refused(capsys, "train --resume run --quiet")


@pytest.mark.parametrize(
    ("line", "dimension"),
    [
        ("--model mlp-2 --data own.py:clients", 4 * 64 + 64 + 64 * 2 + 2),
        ("--model own:network --data own:clients --frozen 0.*", 34),
        ("--model softmax-2 --data own.py:clients --loss own.py:loss", 10),
        ("--dataset breast-cancer --parts 1.bias", 2),
    ],
)
def test_own_and_built_in_parts_go_together(here, line, dimension):
    call = parse(f"train {line} {NOISE} {QUICK}".split())
    given = dict(call.values[0])
    data = {"dataset": call.options["data"]} if "data" in call.options else {}
    config, objects = train._with_problem(train._config({**given, **data}), None)
    assert objects.problem.dimension == dimension
    again = functions.problem_by_function(config)
    assert again.digest == objects.problem.digest


@pytest.mark.seldom(2)
@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("--data own.py:nothing", "network, clients"),
        ("--data nofile.py:clients", "nofile.py"),
        ("--data no.module:clients", "no.module"),
        ("--model own.py:number", "torch nn.Module, got a int"),
        ("--data own.py:number --model own.py:network", "got a int"),
        (f"{OF_ONES_OWN} --frozen x", "frozen"),
        ("--data own.py:clients --model softmax-2 --population 5", "population=12"),
        ("--loss no_loss", "torch.nn.functional"),
        (SERVER, "public examples"),
        (f"{OF_ONES_OWN} --public own.py:open_data", "public examples"),
        (f"{SERVER} --public own.py:nothing", "public"),
        (f"{SERVER} --public own.py:number", "Public examples"),
        ("--data own.py:clients --model cnn-2", "for model cnn"),
        ("--data own.py:clients --model cnn", "write cnn-10 for ten"),
        ("--data own.py:clients --model net-2", "Expected model to be one of"),
        ("--data own.py:clients", "write softmax-10 for ten"),
    ],
)
def test_what_cannot_be_trained_is_one_sentence(here, capsys, line, word):
    assert word in refused(capsys, f"{line} {QUICK}")
