"""The verifier, which shares no line with the package, proves random certificates."""

import pytest
import random_certificates
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

SEEDS = (2, 6, 10, 17, 26, 37, 39, 106, 169, 196, 200, 219, 225, 258, 260, 320, 434)
"""Each kind of release and account, checked within a second each: accounts of several offers,
tables, plans, numbers beside updates, noise of parties, hidden cohorts, what was spent."""

LONG_SEEDS = [pytest.param(seed, marks=pytest.mark.slow) for seed in (47, 65, 232)]
"""Hidden noise of integers, an account of several offers of bits, and hidden bits."""

exploring = pytest.mark.skipif(
    settings.get_current_profile_name() != "explore", reason="takes an hour: make explore"
)


@pytest.mark.parametrize("seed", [*SEEDS, *LONG_SEEDS])
def test_the_verifier_proves_what_is_certified(seed, tmp_path):
    found = random_certificates.outcome(seed, tmp_path)
    assert found.fine, found


@exploring
@settings(max_examples=1000, phases=[Phase.generate])
@given(seed=st.integers(0, 2**32 - 1))
def test_the_verifier_proves_whatever_is_certified(seed, tmp_path_factory):
    found = random_certificates.outcome(seed, tmp_path_factory.mktemp("certificate"))
    assert found.fine, found
