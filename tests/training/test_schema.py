"""JSON Schemas of the TOML files: they say what the readers say."""

import tomllib
from pathlib import Path

import jsonschema
import pytest

from randquant.aggregation.registry import all_mechanisms
from randquant.training import settings
from randquant.training.schema import run_schema, sweep_schema
from randquant.training.sweep.spec import read

EXAMPLES = Path(__file__).parents[2] / "examples"
RUN = jsonschema.Draft7Validator(run_schema())
SWEEP = jsonschema.Draft7Validator(sweep_schema())
GOOD = (
    'dataset = "digits"\nmechanism = "rqm"\nclip = 0.03\nmargin = 0.03\nlevels = 16\nkeep = 0.4\n'
)


def test_they_are_schemas():
    for schema in (run_schema(), sweep_schema()):
        jsonschema.Draft7Validator.check_schema(schema)


def test_the_example_of_a_sweep_is_one():
    text = (EXAMPLES / "sweep.toml").read_text()
    SWEEP.validate(tomllib.loads(text))
    assert len(list(read(text).grid())) > 1


def test_the_example_of_a_run_is_one():
    RUN.validate(tomllib.loads((EXAMPLES / "run.toml").read_text()))
    assert settings.read(EXAMPLES / "run.toml")["mechanism"] in all_mechanisms()


def test_every_setting_and_parameter_has_a_meaning():
    properties = run_schema()["properties"]
    wanted = {name for record in all_mechanisms().values() for name in record.parameters}
    assert wanted <= properties.keys()
    assert all(schema.get("description") for schema in properties.values())


@pytest.mark.parametrize(
    "line",
    [
        "rounds = 0", 'rounds = "many"', "rounds = 5.5", "delta = 1", "colour = 1",
        'norm = "l3"', 'trust = "blind"', "learning_rate = 0", "threads = 257", "seed = -1",
        'mechanism = "laplace"', "server_momentum = 1", "parts = 3", 'problem = "a"',
    ],
)  # fmt: skip
def test_schema_and_reader_refuse_the_same(line, tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(line)
    assert not RUN.is_valid(tomllib.loads(line))
    with pytest.raises((ValueError, TypeError), match="Expected"):
        settings.read(path)


@pytest.mark.parametrize(
    "line",
    ["rounds = 5", "learning_rate = 1", 'parts = ["head.*"]', "server_options = {momentum = 0.9}",
     "server_momentum = 0.5", GOOD],
)  # fmt: skip
def test_schema_and_reader_take_the_same(line, tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(line)
    RUN.validate(tomllib.loads(line))
    settings.read(path)


@pytest.mark.parametrize(
    ("text", "fine"),
    [
        ("[train]\nrounds = 5\n[grid]\nseed = [1, 2]", True),
        ("[ranges]\nclip = {low = 0.1, high = 1, log = true}\n[search]\ntrials = 3", True),
        ("[ranges]\nclip = {choices = [0.1, 1]}", True),
        ("[train]\nrounds = 0", False),
        ("[trian]\nrounds = 5", False),
        ("[grid]\nseed = 1", False),
        ("[grid]\nseed = []", False),
        ("[case]\nseed = 1", False),
        ("[[case]]\n[case.grid]\nkeeep = [1]", False),
        ("[ranges]\nclip = {low = 0.1}", False),
        ("[search]\nseed = 3", False),
    ],
)
def test_the_schema_of_a_sweep_knows_its_tables(text, fine):
    assert SWEEP.is_valid(tomllib.loads(text)) == fine
