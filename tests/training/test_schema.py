"""The JSON Schema of the TOML file of a run: it says what the reader says."""

import tomllib
from pathlib import Path

import jsonschema
import pytest

from randquant.aggregation.registry import all_mechanisms
from randquant.training import settings
from randquant.training.schema import run_schema

EXAMPLES = Path(__file__).parents[2] / "examples"
RUN = jsonschema.Draft7Validator(run_schema())
GOOD = (
    'dataset = "digits"\nmechanism = "rqm"\nclip = 0.03\nmargin = 0.03\nlevels = 16\nkeep = 0.4\n'
)


def test_it_is_a_schema():
    jsonschema.Draft7Validator.check_schema(run_schema())


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
        'mechanism = "laplace"', "parts = 3", 'problem = "a"',
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
     "server_options = {momentum = 0.5}", GOOD],
)  # fmt: skip
def test_schema_and_reader_take_the_same(line, tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(line)
    RUN.validate(tomllib.loads(line))
    settings.read(path)
