"""Hypothesis profiles: `make test` draws the same examples each time, `make explore` new ones."""

import os

import pytest
from hypothesis import Phase, settings
from tolerances import watched

settings.register_profile("steady", derandomize=True, deadline=None)
settings.register_profile("explore", max_examples=500, deadline=None)
# A mutant is as dead without the smallest example.
quickly = (Phase.explicit, Phase.generate)
settings.register_profile("mutants", derandomize=True, deadline=None, phases=quickly)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))

pytest.approx = watched(pytest.approx)
