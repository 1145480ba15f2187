"""The JSON Schema of a sweep's TOML file: it says what the reader says."""

import tomllib
from pathlib import Path

import jsonschema
import pytest

from randquant_papers.sweep.schema import sweep_schema
from randquant_papers.sweep.spec import read

EXAMPLE = Path(__file__).parents[1] / "docs" / "sweep.toml"
SWEEP = jsonschema.Draft7Validator(sweep_schema())


def test_the_example_is_one():
    jsonschema.Draft7Validator.check_schema(sweep_schema())
    SWEEP.validate(tomllib.loads(EXAMPLE.read_text()))
    assert len(list(read(EXAMPLE.read_text()).grid())) > 1


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
